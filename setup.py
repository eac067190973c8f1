"""Builds the C++ plugin library into the wheel, where there is a C++ compiler; everything else is in pyproject.toml."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
COMPILES = sys.platform == "linux" and shutil.which("g++") is not None


class BuildWithLibrary(build_py):
    """Copies the modules, and compiles the library beside its sources; not for an editable install, which uses the cache."""

    def run(self) -> None:
        super().run()
        sys.path.insert(0, str(ROOT))
        from trtconvert import ConvertError, native

        folder = Path(self.build_lib) / "trtconvert" / "plugins" / "native"
        for made in (folder / native.NAME, folder / native.LOADER):
            made.unlink(missing_ok=True)  # of an earlier build
        if COMPILES and not self.editable_mode:
            try:
                native.compile_library(folder / native.NAME, folder=ROOT / "plugins" / "native")
                native.compile_loader(folder / native.LOADER, folder=ROOT / "plugins" / "native")
            except ConvertError as error:  # the rest works without
                print(f"without the C++ plugin library: {error}", file=sys.stderr)


class WithLibrary(Distribution):
    """Belongs to one platform when the library is in it."""

    def has_ext_modules(self) -> bool:
        return COMPILES


class TaggedWheel(bdist_wheel):
    """Good for any Python: the library is none of its extension modules."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": TaggedWheel}, distclass=WithLibrary)
