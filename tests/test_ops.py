"""Ops end to end without a GPU: the built-in ones, one from a file, and what a check says of a faulty one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.bench.registers import built_in
from tests.conftest import ROOT, Run
from trtconvert import ConvertError, check, registry
from trtconvert.doctor import examine

MINE = '''
"""Scale: a third party's op in one file."""
import numpy as np
from trtconvert import Op, case
from trtconvert.launch import Launch, ceil_div


class Scale(Op):
    """y = x * factor. x, y [...] float32."""

    factor: float = 2.0
    pattern = "scale"
    opt_in = True
    dtypes = ("float32",)
    source = """
    extern "C" __global__ void scale(const IO* x, IO* y, long long n, float factor) {
        long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = x[i] * factor;
    }
    """
    cases = (case((3, 5)), case((7, 11), factor=0.5))

    def patterns(self, op, x):
        yield op.Max(x, self.factor) if False else op.Min(x, self.factor)

    def output(self, x):
        return x

    def reference(self, x):
        return np.minimum(x, self.factor)

    def launch(self, x, y):
        return Launch("scale", (ceil_div(x.size, 128), 1, 1), (128, 1, 1), (x, y, x.size, self.factor))
'''


def test_op_from_a_file(run: Run, tmp_path: Path) -> None:
    """One file is enough: checked end to end, and listed patterns include it."""
    file = tmp_path / "scale.py"
    file.write_text(MINE)
    result = run("plugins", "check", file, "--json")
    assert result.returncode in (0, 3), result.stdout + result.stderr
    assert [r["verdict"] for r in json.loads(result.stdout)][:4] == ["pass"] * 4
    assert "scale" in run("fuse", "--plugin", file, "--pattern", "list").stdout


@pytest.mark.parametrize(
    ("good", "bad", "step", "words"),
    [
        ("np.minimum(x, self.factor)", "np.minimum(x, self.factor) + 1", "pattern and body", "from the reference"),
        ("y[i] = x[i] * factor", "y[i] = x[i] * faktor", "kernel compiles", "faktor"),
        ("x.size, self.factor))", "x.size, float('nan')))", "fields round trip", "finite"),
        ("return x\n", "raise ValueError('no idea')\n", "engine builds", "no idea"),
    ],
)
def test_faulty_op_is_told_apart(
    good: str, bad: str, step: str, words: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Each planted fault fails its own step, and the detail names file and cause."""
    name = f"Scale{abs(hash(request.node.name)) % 10**8}"
    file = tmp_path / f"{name.lower()}.py"
    file.write_text(MINE.replace(good, bad, 1).replace("class Scale(", f"class {name}("))
    failed = {r.check: r.detail for r in check.check(str(file)) if r.verdict == "FAIL"}
    assert step in failed
    assert words in failed[step]
    assert file.name in failed[step]


def test_reference_against_float64_maths() -> None:
    """The specification itself, on numbers worked out by hand."""
    op = registry.find("LayerNormGelu")
    assert op is not None
    x = np.array([[1.0, 3.0]])  # mean 2, deviation 1: normalised to -1 and 1
    got = op(epsilon=0.0).reference(x, np.ones(2), np.zeros(2))
    assert np.allclose(got, [[-0.15865525393145707, 0.8413447460685429]], rtol=0, atol=1e-15)
    relu = registry.find("FusedRelu")
    assert relu is not None
    assert relu(alpha=0.5).reference(np.array([-1.0, 2.0])).tolist() == [0.5, 2.0]


def test_unknown_op() -> None:
    with pytest.raises(ConvertError, match="no op named 'Nope'"):
        check.check("Nope")


def test_plugins_list(run: Run) -> None:
    listed = json.loads(run("plugins", "list", "--json").stdout)
    assert {op["name"] for op in listed} >= {op.name for op in built_in()}
    assert "epsilon: float32 = 1e-05" in run("plugins", "list").stdout


def test_doctor(run: Run) -> None:
    findings = {f.what: f for f in examine()}
    assert findings["TensorRT-RTX"].verdict == "ok"
    assert findings["NVRTC"].verdict == "ok"
    assert findings["build"].verdict == "ok"
    assert all(f.fix for f in findings.values() if f.verdict == "missing")
    result = run("doctor")
    assert result.returncode == 0
    assert "TensorRT-RTX" in result.stdout


@pytest.mark.parametrize(
    "command",
    [
        *("build", "fuse", "verify", "bench", "inspect", "doctor", "plugins"),
        *(f"plugins {command}" for command in ("list", "check", "lib", "build-native", "carry")),
    ],
)
def test_help_shows_an_example(command: str, run: Run) -> None:
    shown = run(*command.split(), "--help").stdout
    assert f"trtconvert {command}" in shown.split("Usage:")[1].split("\n", 1)[1]


def test_every_kernel_has_its_op() -> None:
    stems = {p.stem for p in (ROOT / "kernels").glob("*.cu")}
    assert stems == {
        Path(registry.origin(op)).stem
        for op in registry.ops()
        if "site-packages" not in registry.origin(op) and op.__module__.startswith("trtconvert.")
    }
