"""`verify --bisect` with real engines: a plugin whose kernel is wrong is found, also among 3,000 nodes."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.conftest import Run
from tests.faulty import FAULTS, Chain, planted
from trtconvert import BuildOptions, build, manifest, verify
from trtconvert.accuracy import trace
from trtconvert.precision.options import PrecisionOptions
from trtconvert.remake import remake

SECONDS = 120
# uint8 is refused by build; what one node of many does below the noise shows nowhere.
REFUSED = ("uint8 zero point", "tanh for erf", "epsilon off")
WRONG = '''
"""WrongSoftsign: a third party's op whose kernel is off in every seventh element."""
import numpy as np
from trtconvert import Op, case
from trtconvert.launch import Launch, ceil_div


class WrongSoftsign(Op):
    """y = x / (1 + |x|). x, y [...] float32."""

    pattern = "wrong-softsign"
    opt_in = True
    dtypes = ("float32",)
    source = """
    extern "C" __global__ void wrong_softsign(const IO* x, IO* y, long long n) {
        long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = x[i] / (1.0f + fabsf(x[i])) + (i % 7 == 3 ? 0.05f : 0.0f);
    }
    """
    cases = (case((3, 5)),)

    def patterns(self, op, x):
        yield op.Div(x, op.Add(op.Abs(x), 1.0))

    def output(self, x):
        return x

    def reference(self, x):
        return x / (1 + np.abs(x))

    def launch(self, x, y):
        return Launch("wrong_softsign", (ceil_div(x.size, 256), 1, 1), (256, 1, 1), (x, y, x.size))
'''


def softsign(chain: Chain) -> str:
    """x / (1 + |x|) behind what is there; the name of its last node."""
    x = chain.last
    one = chain.weight(np.array(1, np.float32))
    chain.last = chain.node("softsign", "Div", x, chain.node("", "Add", chain.node("", "Abs", x), one))
    return chain.nodes[-1].name


def layer(chain: Chain) -> None:
    """x + W2 GELU(W1 LayerNorm(x) + b)."""
    x = chain.last
    for kind in ("norm", "dense", "gelu", "dense"):
        chain.plain(kind)
    chain.last = chain.node("", "Add", x, chain.last)


@pytest.fixture(scope="module")
def op_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file for the whole process: an op has one."""
    path = tmp_path_factory.mktemp("op") / "wrong.py"
    path.write_text(WRONG)
    return path


def wrong_plan(length: int, before: int, op_file: Path, folder: Path) -> tuple[Path, str]:
    """The plan of a model of that many nodes, and the node that the wrong plugin makes behind `before` of them."""
    chain, node = Chain(0, 64), ""
    while len(chain.nodes) < length:
        layer(chain)
        if not node and len(chain.nodes) >= before:
            node = softsign(chain)
    onnx.save(chain.model(), folder / "m.onnx")
    options = BuildOptions(plugins=(op_file,), fuse="wrong-softsign")
    return build(folder / "m.onnx", folder / "m.plan", options).plan, node


@pytest.mark.parametrize(("length", "before"), [(12, 3), (60, 50), (300, 150)])
def test_a_wrong_kernel_is_found(length: int, before: int, op_file: Path, run: Run, tmp_path: Path) -> None:
    plan, node = wrong_plan(length, before, op_file, tmp_path)
    result = verify(plan, bisect=True)
    found = result.first_wrong
    assert found is not None, result.notices
    assert (found.plugin, found.node) == ("WrongSoftsign", f"{node}_WrongSoftsign")
    assert node in found.sources
    assert found.single
    assert found.confirmed
    assert found.builds <= math.log2(length) + 3
    told = run("verify", plan, "--bisect")
    assert told.returncode == 1
    assert f"--no-fuse {found.node}" in told.stderr
    options = BuildOptions(plugins=(op_file,), fuse="wrong-softsign", no_fuse=(found.node,))
    assert verify(build(tmp_path / "m.onnx", tmp_path / "n.plan", options).plan, bisect=True).passed


@pytest.mark.parametrize("precision", ["", "fp16"])
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in REFUSED])
def test_faults_of_engines(name: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every engine is made of a model with a fault, the reference is not: found in the noise of real engines. A factor right
    behind x + x W, block after block, would take TensorRT-RTX 1.6 and 1.7 ten times as long with every eight nodes."""
    fault, folder = FAULTS[name], tmp_path
    chain, kinds = Chain(3, 64), ("norm", "matmul", "gelu", fault.kind)
    while len(chain.nodes) < 100:
        chain.block(kinds[len(chain.nodes) % 4])
    node = chain.kinds[fault.kind][len(chain.kinds[fault.kind]) // 2]
    options = BuildOptions(fuse="none", precision=PrecisionOptions(precision))
    onnx.save(chain.model(), folder / "m.onnx")
    onnx.save(planted(chain.model(), node, fault.change), folder / "bad.onnx")
    plan = build(folder / "m.onnx", folder / "m.plan", options).plan
    bad = build(folder / "bad.onnx", folder / "bad.plan", options).plan.read_bytes()
    described = manifest.read(plan)
    plan.write_bytes(bad)
    digest = hashlib.sha256(bad).hexdigest()
    manifest.write(dataclasses.replace(described, plan_sha256=digest, plan_bytes=len(bad)), plan)
    wrong = manifest.read(folder / "bad.plan")
    monkeypatch.setattr(trace, "remake", lambda *_: remake(wrong, folder / "bad.plan"))
    found = verify(plan, bisect=True).first_wrong
    assert found is not None
    print(f"{name}: {found.builds} engines; " + "; ".join(found.lines()))
    assert node in (found.node, *found.sources)
    assert found.single
    assert found.builds <= math.log2(100) + 3
    if precision:
        assert found.flag.startswith("--keep-fp32 ")


@pytest.mark.timeout(600)
def test_three_thousand_nodes(op_file: Path, tmp_path: Path) -> None:
    """In less than two minutes, verifying included."""
    plan, node = wrong_plan(3000, 2000, op_file, tmp_path)
    started = time.monotonic()
    result = verify(plan, bisect=True)
    seconds = time.monotonic() - started
    found = result.first_wrong
    assert found is not None, result.notices
    print(f"3,000 nodes: {seconds:.1f} s, {found.builds} engines")
    assert found.node == f"{node}_WrongSoftsign"
    assert found.builds <= math.log2(3000) + 3
    assert seconds < SECONDS
