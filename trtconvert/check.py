"""`plugins check`: any op, from its pattern to its kernel, and which file is at fault when something is wrong."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, helper

from trtconvert import compare, gpu, kernel, launch, reference, registers, registry
from trtconvert import model as onnx_model
from trtconvert.alone import run_kernel
from trtconvert.backend import RTX_TARGETS
from trtconvert.bodies import DOMAIN, add_bodies
from trtconvert.build import build
from trtconvert.engine import load_engine
from trtconvert.errors import ConvertError
from trtconvert.fuse import fuse_model
from trtconvert.launch import Dim, Tensor
from trtconvert.model import numpy_dtype
from trtconvert.op import Case, Op
from trtconvert.options import BuildOptions
from trtconvert.runtime.contents import plugins_in
from trtconvert.shapes import Range

OPSETS = (17, 20)


@dataclass(frozen=True)
class Check:
    """One line. verdict: pass, FAIL, or "not run" with the reason in detail."""

    op: str
    check: str
    verdict: str
    detail: str


def check(name_or_file: str) -> list[Check]:
    """Check a registered op by name, or every op that a Python file defines."""
    if name_or_file.endswith(".py"):
        ops = registry.load_file(Path(name_or_file))
    else:
        op = registry.find(name_or_file)
        if op is None:
            known = ", ".join(op.name for op in registry.ops())
            raise ConvertError(f"no op named {name_or_file!r}", fix=f"registered: {known}; or give a .py file")
        ops = [op]
    return [result for op in ops for result in check_op(op)]


def check_op(op: type[Op]) -> Iterator[Check]:
    """The checks in the order in which a fault is best found; each reports on all of the op's cases."""
    file = Path(registry.origin(op)).name
    if not op.cases:
        yield Check(op.name, "cases", "FAIL", f"{file}: the op has no cases")
        return
    steps: list[tuple[str, Callable[[type[Op]], str]]] = [
        ("pattern and body", _bodies),
        ("fields round trip", _fields),
        ("kernel compiles", _compiles),
        ("engine builds", _builds),
    ]
    for title, step in steps:
        yield _step(op, title, file, lambda step=step: step(op))  # type: ignore[misc]
    here = gpu.current()
    for title, run in (("kernel", _kernels), ("engine", _engines)):
        if here is None:
            yield Check(op.name, title, "not run", str(gpu.find()))
        else:
            yield _step(op, title, file, lambda run=run: run(op))  # type: ignore[misc]


def _step(op: type[Op], title: str, file: str, step: Callable[[], str]) -> Check:
    try:
        return Check(op.name, title, "pass", step())
    except ConvertError as error:
        return Check(op.name, title, "FAIL", f"{file}: {error.what}{f' ({error.where})' if error.where else ''}")
    except Exception as error:  # noqa: BLE001  # the op's own code may raise anything
        return Check(op.name, title, "FAIL", f"{file}: {type(error).__name__}: {error}")


# --- models of one node --------------------------------------------------------------------------------------------


def instance(op: type[Op], tested: Case) -> Op:
    """The op with a case's attributes."""
    return op(**dict(tested.attributes))


def node_model(op: type[Op], tested: Case, dtype: str, opset: int = 20) -> ModelProto:
    """A model of one node of the op, in a custom domain, without a body; the first input dynamic in its first axis."""
    kind = numpy_dtype(dtype)
    inputs = [
        gs.Variable(name, kind, ("N", *shape[1:]) if i == 0 and len(shape) > 1 else shape)
        for i, (name, shape) in enumerate(zip(op.inputs(), tested.shapes, strict=True))
    ]
    symbols, batch = _symbols(tested, dtype), Dim.of_input(0, 0)
    if len(tested.shapes[0]) > 1:
        symbols[0] = Tensor(dtype, (batch, *tested.shapes[0][1:]), "in 0")
    described = instance(op, tested).results(*symbols)
    outputs = [gs.Variable(f"y{i}", numpy_dtype(t.dtype), None) for i, t in enumerate(described)]
    node = gs.Node(op.name, "node", dict(instance(op, tested).values()), inputs, outputs, domain=DOMAIN)
    domains = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    graph = gs.Graph([node], inputs, outputs, opset=opset, import_domains=domains)
    for output, tensor in zip(outputs, described, strict=True):
        output.shape = [
            d if isinstance(d, int) else "N" if d == batch else f"{output.name}_{i}" for i, d in enumerate(tensor.shape)
        ]
    model: ModelProto = gs.export_onnx(graph, do_type_check=False)
    model.ir_version = 10
    return model


def random_inputs(tested: Case, dtype: str, seed: int = 0) -> list[NDArray[Any]]:
    """Normal numbers, shifted off zero so that a mean matters; of the first input, a tenth is zero. Of int8 all values, in
    a random order."""
    random = np.random.default_rng(seed)
    if dtype == "int8":
        all_values = [np.resize(np.arange(-128, 128, dtype=np.int8), math.prod(s)) for s in tested.shapes]
        return [random.permutation(a).reshape(s) for a, s in zip(all_values, tested.shapes, strict=True)]
    arrays = [np.asarray(random.standard_normal(s) + 0.5) for s in tested.shapes]
    arrays[0][random.random(tested.shapes[0]) < 0.1] = 0
    return [a.astype(numpy_dtype(dtype)) for a in arrays]


def expected(op: Op, arrays: list[NDArray[Any]]) -> tuple[NDArray[np.float64], ...]:
    """The reference's outputs for these inputs."""
    with np.errstate(all="ignore"):
        result = op.reference(*(a.astype(np.float64) for a in arrays))
    return result if isinstance(result, tuple) else (result,)


def _compare(got: NDArray[Any], want: NDArray[Any], dtype: str, where: str, tolerance: float | None = None) -> float:
    if got.shape != want.shape:
        raise ConvertError(f"shape {got.shape}, the reference has {want.shape}", where=where)
    difference, limit = compare.difference(got, want), compare.allowed(got, dtype, tolerance)
    if not difference <= limit:
        what = "relative L2" if got.dtype.kind not in "iub" else "share of elements that differ"
        raise ConvertError(f"{what} {difference:.2g} from the reference, allowed {limit:g}", where=where)
    return difference


# --- without a GPU -------------------------------------------------------------------------------------------------


def _bodies(op: type[Op]) -> str:
    """The body computes the reference in onnxruntime, and the pattern finds its own body again."""
    if not op.pattern:
        return "the op has no pattern: used by name only"
    worst, count, dtype = 0.0, 0, op.dtypes[0]
    for opset in OPSETS:
        for tested in op.cases:
            if any(0 in shape for shape in tested.shapes):
                continue  # onnxruntime's own kernels do not all take empty tensors
            where = f"case {tested}, opset {opset}"
            model = node_model(op, tested, dtype, opset)
            add_bodies(model)
            onnx_model.check(model)
            arrays = random_inputs(tested, dtype)
            outputs = _run_body(model, dict(zip(op.inputs(), arrays, strict=True)))
            for got, want in zip(outputs, expected(instance(op, tested), arrays), strict=True):
                worst = max(worst, _compare(got, want, dtype, f"function body, {where}", compare.BODY_TOLERANCE))
            _found_again(op, tested, model, where)
            count += 1
    return f"{count} bodies run, worst difference {worst:.1e}; each found again by the pattern"


def _run_body(model: ModelProto, feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """The model's outputs in onnxruntime; in ONNX's reference evaluator where onnxruntime's kernels refuse the input (a
    row of one element, in older versions)."""
    try:
        return list(reference.session(model).run(None, feeds))
    except onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument:
        return list(reference.evaluator(model).run(None, feeds))


def _found_again(op: type[Op], tested: Case, model: ModelProto, where: str) -> None:
    """Inlined, with the per-channel inputs as constants, the body is a graph of standard ops: fuse must see the op in it."""
    inlined = onnx.inliner.inline_local_functions(model)
    arrays = random_inputs(tested, op.dtypes[0])
    for name, array in list(zip(op.inputs(), arrays, strict=True))[1:]:
        inlined.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        kept = [i for i in inlined.graph.input if i.name != name]
        del inlined.graph.input[:]
        inlined.graph.input.extend(kept)
    result = fuse_model(inlined, Path(), [op])
    if [f.op for f in result.fusions] != [op.name]:
        reason = result.near_misses[0].reason if result.near_misses else "nothing alike was seen"
        raise ConvertError(f"the pattern does not find its own body: {reason}", where=where)
    got, want = result.fusions[0].attributes, instance(op, tested).values()
    equal = all(np.isclose(got[k], v, rtol=1e-6) if isinstance(v, float) else got[k] == v for k, v in want.items())
    if not equal and not _same_axis(got, want, tested):
        raise ConvertError(f"the pattern finds attributes {got} in the body of {want}", where=where)


def _same_axis(got: dict[str, Any], want: dict[str, Any], tested: Case) -> bool:
    """axis 1 and -1 are one thing for a matrix."""
    return len(tested.shapes[0]) == 2 and {got.get("axis"), want.get("axis")} == {1, -1}


def _symbols(tested: Case, dtype: str) -> list[Tensor]:
    return [Tensor(dtype, shape, f"in {i}") for i, shape in enumerate(tested.shapes)]


def uses(op: type[Op]) -> Iterator[tuple[Op, list[Tensor]]]:
    """The op with its inputs, as each of its cases has them, in each dtype."""
    return ((instance(op, tested), _symbols(tested, dtype)) for tested in op.cases for dtype in op.dtypes)


def _variants(op: type[Op], tested: Case, dtype: str) -> int:
    made, inputs = instance(op, tested), _symbols(tested, dtype)
    return len(made.variants(*inputs, *made.outputs(*inputs)))


def _fields(op: type[Op]) -> str:
    for tested in op.cases:
        made = instance(op, tested)
        inputs = _symbols(tested, op.dtypes[0])
        reason = made.accepts(*inputs)
        if reason is not None:
            raise ConvertError(f"the op refuses its own case: {reason}", where=str(tested))
        for way in made.variants(*inputs, *made.outputs(*inputs)):
            text = launch.encode(way)
            if launch.encode(launch.decode(text)) != text:
                raise ConvertError("the launch description does not survive a round trip", where=str(tested))
    return f"{len(op.cases)} cases, format {launch.FORMAT}"


def _compiles(op: type[Op]) -> str:
    rows = list(registers.rows(uses(op)))
    most = max(row.usage.registers for row in rows)
    spills = sorted({f"{row.kernel} for {row.target} in {row.dtype}" for row in rows if row.usage.spills})
    kernels = ", ".join(dict.fromkeys(row.kernel for row in rows))
    return f"{kernels} for {', '.join(kernel.ARCHITECTURES)}: up to {most} registers; " + (
        f"spills in {', '.join(spills)}" if spills else "no spills"
    )


def _builds(op: type[Op]) -> str:
    plans = list(_plans(op))
    for tested, dtype, plan in plans:
        found = plugins_in(plan)
        if not found or any(p.name != op.name for p in found):
            raise ConvertError("the plan does not hold the plugin", where=f"case {tested}, {dtype}")
        got, want = found[0].attributes, {k: str(v) for k, v in instance(op, tested).values().items()}
        if any(
            abs(float(got[k]) - float(v)) > 1e-6 * abs(float(v)) if _number(v) else got[k] != v for k, v in want.items()
        ):
            raise ConvertError(f"the plan holds attributes {got}, the node had {want}", where=str(tested))
    return f"{len(plans)} plans with the plugin in them"


def _number(text: str) -> bool:
    with suppress(ValueError):
        float(text)
        return True
    return False


def _plans(op: type[Op]) -> Iterator[tuple[Case, str, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        for tested in op.cases:
            for dtype in op.dtypes:
                yield tested, dtype, node_plan(op, tested, dtype, Path(folder)).read_bytes()


def node_plan(op: type[Op], tested: Case, dtype: str, folder: Path) -> Path:
    """Build `node_model` in the folder; dynamic from 1 (0 for an empty case) to the case's size."""
    path = folder / "node.onnx"
    path.write_bytes(onnx_model.serialize(node_model(op, tested, dtype)))
    first, *rest = tested.shapes[0] or (1,)
    low, high = (min(1, first), *rest), (max(1, first), *rest)
    shapes = {op.inputs()[0]: Range(low, high, high)} if rest else {}
    targets = () if gpu.current() is not None else RTX_TARGETS[-1:]  # one will do: nothing is run
    return build(path, folder / "node.plan", BuildOptions(fuse="none", shapes=shapes, targets=targets)).plan


# --- with a GPU ----------------------------------------------------------------------------------------------------


def _kernels(op: type[Op]) -> str:
    def run(tested: Case, dtype: str, arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
        ways = range(_variants(op, tested, dtype))
        return [result for way in ways for result in run_kernel(instance(op, tested), arrays, way)]

    return _worst(op, "kernel", run)


def _engines(op: type[Op]) -> str:
    with tempfile.TemporaryDirectory() as folder:

        def run(tested: Case, dtype: str, arrays: list[NDArray[Any]]) -> list[NDArray[Any]]:
            engine = load_engine(node_plan(op, tested, dtype, Path(folder)))
            return list(engine.run(dict(zip(op.inputs(), arrays, strict=True))).values())

        return _worst(op, "engine", run)


def _worst(op: type[Op], what: str, run: Callable[[Case, str, list[NDArray[Any]]], list[NDArray[Any]]]) -> str:
    """Run every case in every dtype against the reference; the largest differences, by dtype."""
    worst: dict[str, float] = {}
    for dtype in op.dtypes:
        for tested in op.cases:
            arrays = random_inputs(tested, dtype)
            wanted = expected(instance(op, tested), arrays)
            results = run(tested, dtype, arrays)
            for got, want in zip(results, wanted * (len(results) // len(wanted)), strict=True):
                difference = _compare(got, want, dtype, f"{what}, case {tested}, {dtype}")
                worst[dtype] = max(worst.get(dtype, 0.0), difference)
    return "worst difference: " + ", ".join(f"{d} {v:.1e}" for d, v in worst.items())
