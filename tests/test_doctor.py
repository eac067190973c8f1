"""What doctor sees around the tool, each with a fix."""

from __future__ import annotations

import locale
import os
from pathlib import Path

import pytest

from trtconvert import doctor, gpu, kernel, native, surroundings
from trtconvert.errors import ConvertError


def library(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"\x7fELF")
    return folder / name


def test_copies_of_a_library(tmp_path: Path) -> None:
    """A link to the same file is no copy; the order is the loader's."""
    first = library(tmp_path / "a", "libnvinfer.so.10.9.0")
    (tmp_path / "a" / "libnvinfer.so.10").symlink_to(first)
    second = library(tmp_path / "b", "libnvinfer.so.11")
    library(tmp_path / "b", "libnvinfer_plugin.so.11")
    environment = {"LD_LIBRARY_PATH": f"{tmp_path / 'b'}:{tmp_path / 'a'}:{tmp_path / 'none'}"}
    folders = surroundings.library_folders(environment)
    assert folders[:2] == [tmp_path / "b", tmp_path / "a"]
    found = surroundings.copies(folders)["libnvinfer"]
    assert [file.resolve() for file in found] == [second, first]


def test_two_copies_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [library(tmp_path / name, "libnvinfer.so.10").parent for name in "ab"]
    monkeypatch.setenv("LD_LIBRARY_PATH", os.pathsep.join(map(str, places)))
    (finding,) = (f for f in doctor.examine() if f.what == "libnvinfer")
    assert finding.verdict == "note"
    assert all(str(place) in finding.found for place in places)
    assert "keep one" in finding.fix


def test_the_plugin_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> doctor.Finding:
        (finding,) = (f for f in doctor.examine() if f.what == "C++ plugins")
        return finding

    monkeypatch.setattr(native, "place", lambda: tmp_path / "lib.so")
    monkeypatch.setattr(doctor.shutil, "which", lambda _name: None)
    assert (found().verdict, "apt install g++" in found().fix) == ("note", True)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert (found().verdict, "when first asked for" in found().found) == ("ok", True)
    library(tmp_path, "lib.so")
    assert (found().verdict, found().found) == ("ok", str(tmp_path / "lib.so"))


def test_the_library_in_use(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 00000000 08:01 12 /x/y/libtensorrt_rtx.so.1\n7f02-7f03 r--p 0 0 0 [stack]\n")
    assert surroundings.loaded(maps) == {"libtensorrt_rtx": Path("/x/y/libtensorrt_rtx.so.1")}
    assert surroundings.loaded(tmp_path / "none") == {}


@pytest.mark.parametrize(("driver", "fault"), [((12, 8), True), ((13, 0), False), ((14, 1), False)])
def test_driver_older_than_the_toolkit(driver: tuple[int, int], fault: bool) -> None:
    assert bool(surroundings.too_old(driver, "13.0")) == fault


def test_an_old_driver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find", lambda: gpu.Gpu("GPU", "sm_86", (11, 4)))
    (finding,) = (f for f in doctor.examine() if f.what == "driver")
    assert (finding.verdict, finding.fix) == ("missing", "upgrade the NVIDIA driver")


def test_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise ConvertError("NVRTC is not there", fix="pip install it")

    monkeypatch.setattr(kernel, "version", missing)
    monkeypatch.setattr(gpu, "find", lambda: gpu.Gpu("GPU", "sm_86", (11, 4)))
    findings = {f.what: f for f in doctor.examine()}
    assert (findings["NVRTC"].verdict, findings["NVRTC"].fix) == ("missing", "pip install it")
    assert findings["build"].verdict == "missing"


def test_a_gpu_that_rtx_does_not_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find", lambda: gpu.Gpu("NVIDIA H200", "sm_90", (13, 0)))
    (finding,) = (f for f in doctor.examine() if f.what == "run")
    assert "sm_90" in finding.found
    assert "--backend tensorrt" in finding.fix


def test_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(surroundings.locale_faults({"LC_ALL": "C"})) == []
    ((fault, fix),) = surroundings.locale_faults({"LANG": "xx_YY.UTF-8"})
    assert "not installed" in fault
    assert "C.UTF-8" in fix
    monkeypatch.setattr(locale, "localeconv", lambda: {"decimal_point": ","})
    ((fault, fix),) = surroundings.locale_faults({"LC_ALL": "C"})
    assert "','" in fault
    assert fix == "export LC_NUMERIC=C"


def test_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(surroundings.temporary_faults(tmp_path)) == []
    ((fault, fix),) = surroundings.temporary_faults(tmp_path / "none")
    assert "cannot be written" in fault
    assert "TMPDIR" in fix
    monkeypatch.setattr(surroundings, "SPACE", 1 << 80)
    ((fault, _),) = surroundings.temporary_faults(tmp_path)
    assert "MB left" in fault
