"""Broken models: what the plain TensorRT API says of each, what trtconvert says, and whether that message alone mends it.

    python -m tests.suites.messages [--output FILE.md]

Each model has one of the field's faults. "Mended" follows the message: the flags that it names, word for word, or with the user's
own values where it asks for some, or the change in the model that it asks for, made here by hand.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper

from tests.bench.child import Child
from tests.suites.wheels import FLAG, plainly
from trtconvert.backend import select


@dataclass(frozen=True)
class Broken:
    """A model with a fault, as ONNX text. change: what in the text the message asks to be changed, and to what. own: the user's
    own values, where the message asks for some."""

    name: str
    text: str
    change: tuple[str, str] = ("", "")
    own: tuple[str, ...] = ()


BROKEN = (
    Broken(
        "an op without importer",
        "(float[2, 3, 3] x) => (float[2] y) { y = Det (x) }",
        ("y = Det (x)", "y = ReduceSum <keepdims = 0> (x, a)"),
    ),
    Broken(
        "a custom op nobody knows",
        "(float[2, 4] x) => (float[2, 4] y) { y = acme.FusedRelo (x) }",
        ("FusedRelo", "FusedRelu"),
    ),
    Broken(
        "a custom op named like a standard one",
        "(float[2, 4] x) => (float[2, 4] y) { y = acme.Relu (x) }",
        ("acme.Relu", "Relu"),
    ),
    Broken(
        "a limit that the builder alone knows",
        "(float[2, 6000] x) => (float[2, 5000] y, int64[2, 5000] i) { y, i = TopK (x, k) }",
        ("5000", "3000"),
    ),
    Broken(
        "axes that only the run knows",
        "(float[2, 4] x, int64[1] axes) => (float[?, ?] y) { y = ReduceSum (x, axes) }",
        own=("--bake", "axes=1"),
    ),
    Broken("dynamic shapes, no profile", "(float[n, 3, h, w] x) => (float[n, 3, h, w] y) { y = Relu (x) }"),
    Broken(
        "values that decide shapes",
        "(float[2, 4] x, int64[2] s) => (float[?, ?] y) { y = Reshape (x, s) }",
        own=("--value", "s=2x4"),
    ),
    Broken(
        "arithmetic on bytes",
        "(uint8[2, 4] x) => (uint8[2, 4] y) { y = Add (x, x) }",
        ("y = Add (x, x)", "f = Cast <to = 1> (x) s = Add (f, f) y = Cast <to = 2> (s)"),
    ),
    Broken("rank by the data: Squeeze", "(float[n, 4] x) => (float y) { y = Squeeze (x) }"),
    Broken("double precision", "(double[2, 4] x) => (double[2, 4] y) { y = Relu (x) }"),
    Broken(
        "an input that a branch hangs on",
        "(float[1, 4] x, int64 rate) => (float y) { c = Equal (rate, k16) y = If (c) <then_branch = t () => (float[4] a) "
        "{ a = Squeeze (x) }, else_branch = e () => (float[1, 4] b) { b = Identity (x) }> }",
    ),
    Broken("sizes that do not go together", "(float[n, 3, h] x) => (float[?, ?, ?] y) { y = Conv (x, w) }"),
)


def model(text: str) -> ModelProto:
    """The model of this text, with the constants that it reads."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "acme": 1]> g {text}')
    constants = {
        "a": np.array([1, 2]),
        "k": np.array([5000 if "5000" in text else 3000]),
        "k16": np.array(16000),
        "w": np.ones((4, 3, 7), np.float32),
    }
    read = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in constants.items() if n in read)
    for value in proto.graph.output:
        if not value.type.tensor_type.shape.dim:  # unknown, in this text
            value.CopyFrom(helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, None))
    return proto


def attempt(path: Path, flags: list[str]) -> tuple[bool, str]:
    """Whether `trtconvert build` builds it, and its message."""
    command = [
        sys.executable,
        "-m",
        "trtconvert",
        "build",
        str(path),
        "-o",
        str(path.with_suffix(".plan")),
        "--target",
        "sm_89",
    ]
    result = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
    return result.returncode == 0, result.stderr.replace(f"{path.parent}/", "")


def row(broken: Broken, folder: Path) -> list[str]:
    """Name, both messages, and whether following ours builds it."""
    path = folder / "model.onnx"
    onnx.save(model(broken.text), path)
    child = Child(plainly, 60)
    status, before = child(str(path))
    child.close()
    before = before if status == "ok" else f"CRASHED: {before}"
    built, first = attempt(path, [])
    message, flags = first, dict[str, str]()
    for _ in range(3):
        found = {(flag, name): value for flag, name, value in FLAG.findall(message.partition("fix:")[2])}
        if built or broken.own or not found:
            break
        flags |= {name: f"{flag} {name}={value}" for (flag, name), value in found.items()}
        built, message = attempt(path, " ".join(flags.values()).split())
    if not built:
        onnx.save(model(broken.text.replace(*broken.change)), path)
        built, message = attempt(path, list(broken.own))
        flags |= {"": " ".join(broken.own)} if broken.own else {}
    how = "yes, as it is" if not first.startswith("error") and built else "yes" if built else f"NO: {message}"
    return [broken.name, before, first, f"{how} {' '.join(flags.values())}".strip()]


def cell(text: str) -> str:
    """Text that a cell of a table holds."""
    return re.sub(r"\s+", " ", text).replace("|", "/").strip()[:420]


def main() -> None:
    """Print the messages, and write them as a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.suites.messages", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    rows = []
    for broken in BROKEN:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(row(broken, Path(folder)))
        print(f"== {rows[-1][0]}\nplain API: {rows[-1][1]}\n{rows[-1][2].strip()}\nmended: {rows[-1][3]}", flush=True)
    if arguments.output is not None:
        head = f"{select().title} on CPU, {datetime.date.today().isoformat()}: `python -m tests.suites.messages`"
        table = ["| fault | plain TensorRT API | trtconvert build | mended by that message |", "|---|---|---|---|"]
        table += [f"| {' | '.join(map(cell, cells))} |" for cells in rows]
        arguments.output.write_text("\n".join(["# Messages, before and after", "", head, "", *table, ""]))
    sys.exit(any(cells[3].startswith("NO") for cells in rows))


if __name__ == "__main__":
    main()
