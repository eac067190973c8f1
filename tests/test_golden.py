"""Plugin fields of every released format are read for ever, by the Python reader and by the C++ one, and mean the same.

tests/golden/format_N/NAME.fields holds the fields of a plan's plugin as trtconvert wrote them in that format, with placeholders
for machine code; NAME.txt how they are executed and, worked out when they were written, the launches. Neither is ever changed: a
new format gets a new folder.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.native_drive import drive, launches, read_fields, write_fields
from tests.native_libraries import needs_compiler
from trtconvert import ConvertError, gpu, launch

GOLDEN = Path(__file__).parent / "golden"
FILES = sorted(GOLDEN.glob("format_*/*.fields"))
every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name} {file.stem}")


def kept(file: Path) -> tuple[str, list[str], list[str]]:
    """The plugin's name, its tensors as drive.cpp takes them, and the launches."""
    plugin, tensors, *lines = file.with_suffix(".txt").read_text().splitlines()
    return plugin.removeprefix("plugin "), tensors.removeprefix("tensors ").split(), lines


@every_file
def test_the_python_reader(file: Path) -> None:
    _, tensors, lines = kept(file)
    shapes = [[int(d) for d in one.split(":")[1].split("x")] for one in tensors if one.startswith("in")]
    outputs = sum(one.startswith("out") for one in tensors)
    fields = read_fields(file)
    assert launches(launch.decode(fields.pop("launch").decode()), shapes, outputs) == lines
    for arch, first in (("sm_86", max(a for a in fields if a.startswith("sm_"))), ("sm_90", "compute_")):
        image = fields[gpu.choose_image(fields, arch)]
        assert image in [data for name, data in fields.items() if name.startswith(first)]


@needs_compiler
@every_file
@pytest.mark.parametrize("arch", [86, 90])
def test_the_library(file: Path, arch: int) -> None:
    plugin, tensors, lines = kept(file)
    result = drive(plugin, file, tensors, arch)
    assert result.returncode == 0, result.stdout
    first, again = result.stdout.split("again\n")
    fields = read_fields(file)
    fields.pop("launch")
    chosen = fields[gpu.choose_image(fields, f"sm_{arch}")].decode().splitlines()[0]
    assert [line for line in first.splitlines() if not line.startswith("attribute")] == [
        "fields same",
        f"load {chosen}",
        *lines,
    ]
    assert again == ""


@every_file
def test_the_folder_says_the_format(file: Path) -> None:
    header = read_fields(file)["launch"].decode().splitlines()[0]
    assert header == f"{launch.MAGIC} {file.parent.name.removeprefix('format_')}"


def test_the_newest_format_has_its_folder() -> None:
    assert FILES[-1].parent.name == f"format_{launch.FORMAT}"


@needs_compiler
def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """By both readers, with a sentence that says what to do."""
    newest, newer = launch.FORMAT, launch.FORMAT + 1
    fields = read_fields(FILES[-1])
    fields["launch"] = fields["launch"].replace(f"{launch.MAGIC} {newest}".encode(), f"{launch.MAGIC} {newer}".encode())
    with pytest.raises(ConvertError, match=f"(?s)launch format {newer}, .*reads up to {newest}\n.*upgrade trtconvert"):
        launch.decode(fields["launch"].decode())
    plugin, tensors, _ = kept(FILES[-1])
    result = drive(plugin, write_fields(tmp_path / "newer", fields), tensors)
    assert result.returncode == 1
    assert result.stdout.startswith(f"log trtconvert: plugin {plugin}: it uses {launch.MAGIC} format {newer}, ")
    assert f"reads up to {newest}; bring the library of a newer trtconvert, or build the plan again" in result.stdout
