"""A plan as a C++ example: main.cpp with its inputs, CMakeLists.txt, the plan, its plugin libraries, README.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from trtconvert.backend import TITLES
from trtconvert.deploy import whole
from trtconvert.deploy.folder import write_folder
from trtconvert.deploy.libraries import Library, needed
from trtconvert.deploy.points import Point, points
from trtconvert.deploy.triton_config import quoted
from trtconvert.manifest import Manifest

_HERE = Path(__file__).parent
_LIBRARIES = {"rtx": "tensorrt_rtx", "tensorrt": "nvinfer"}


def export_cpp(plan: str | Path, folder: str | Path, force: bool = False) -> bool:
    """Write the example into `folder`, which then needs nothing else of trtconvert; False if it is there already, just so.

    force: write over what lies there. ConvertError, before anything is written, if the manifest or a library is missing.
    """
    path = Path(plan)
    described, data = whole.read(path)
    libraries = needed(described, path)
    files = {"model.plan": data} | {f"plugins/{library.path.name}": library.data for library in libraries}
    files["main.cpp"] = main_cpp(points(described)).encode()
    title = TITLES[described.backend]
    files["CMakeLists.txt"] = _filled("CMakeLists.txt.in", TITLE=title, LIBRARY=_LIBRARIES[described.backend]).encode()
    files["README.md"] = ("\n".join(_readme(described, title, libraries)) + "\n").encode()
    return write_folder(Path(folder), files, force)


def main_cpp(at: Sequence[Point]) -> str:
    """The program for a plan with these inputs."""
    values = [f"{p.dtype}_t const values_{i}[]{{{_numbers(p.values)}}};\n" for i, p in enumerate(at) if p.values]
    inputs = [_input(i, point) for i, point in enumerate(at)]
    return _filled("main.cpp.in", VALUES="".join(values), INPUTS="\n".join(inputs))


def _input(index: int, point: Point) -> str:
    host = f"values_{index}" if point.values else "nullptr"
    dims = f"{{{len(point.shape)}, {{{_numbers(point.shape)}}}}}"
    return f"    {{{quoted(point.name)}, {dims}, {point.bytes}, {host}}},"


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _filled(template: str, **texts: str) -> str:
    text = (_HERE / template).read_text(encoding="utf-8")
    for name, value in texts.items():
        text = text.replace(f"@{name}@", value)
    return text


def _readme(described: Manifest, title: str, libraries: Sequence[Library]) -> Iterator[str]:
    yield "# The plan in a C++ program\n"
    yield f"`main.cpp` loads the plugin libraries and the plan, which {described.tool} built with {described.backend_title} for"
    yield f"{', '.join(described.targets)}, and runs it once on zeros. It needs CMake, a C++17 compiler, the CUDA toolkit and"
    yield f"{title}, the version named, with its headers.\n"
    yield f"    cmake -B build -DTENSORRT_ROOT=/path/of/{title}"
    yield "    cmake --build build"
    yield "    build/infer .\n"
    yield "It prints the shape of each output:\n"
    yield from (f"- {io.name}: {io.dtype} {io.shape}" for io in described.engine_outputs)
    if libraries:
        yield "\n`plugins/` has what the plan's layers come from:\n"
        yield from (f"- {library.path.name}" for library in libraries)
