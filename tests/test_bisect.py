"""The first wrong node is found, in few engines. onnxruntime stands in for them: it runs a model with a fault planted."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, numpy_helper

from tests.faulty import FAULTS, ROWS, WIDE, WIDTH, Chain, planted, relative
from tests.graphs import graph, named
from trtconvert import reference
from trtconvert.accuracy import references, rules, suspects
from trtconvert.accuracy.bisect import bisect
from trtconvert.accuracy.parts import Arrays, Parts
from trtconvert.accuracy.trace import distance
from trtconvert.accuracy.wrong import NothingWrongError, Suspect, Wrong
from trtconvert.errors import ConvertError

HERE = Path()
close = functools.partial(relative, floor=1e-6)  # onnxruntime's fp32 on both sides
Wreck = Callable[[ModelProto], ModelProto]


def search(model: ModelProto, wreck: Wreck, feeds: Arrays, distance: Callable[..., float] = close) -> Wrong:
    """What is found in a model that every engine runs as `wreck` leaves it."""

    def run(marked: ModelProto, given: Arrays) -> Arrays:
        known = {**feeds, **given}
        return reference.run(wreck(marked), HERE, {i.name: known[i.name] for i in marked.graph.input})

    right = Parts(model, HERE)
    wrong = bisect(Suspect(model, run, run(model, {}), right.dtypes), right, (), feeds, distance)
    assert wrong.builds <= math.log2(len(model.graph.node)) + 3
    return wrong


def names(model: ModelProto, wrong: Wrong) -> list[str]:
    return [model.graph.node[index].name for index in wrong.nodes]


def data(width: int = WIDTH, seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((ROWS, width), dtype=np.float32)}


# GELU's error and epsilon's may be lost behind what is larger.
ALWAYS_SEEN = sorted(set(FAULTS) - {"tanh for erf", "epsilon off"})
KINDS = ("norm", "matmul", "gelu", "gather", "quantize", "scale")


@pytest.mark.parametrize("name", FAULTS)
@settings(max_examples=5, deadline=None, derandomize=True)
@given(st.data())
def test_every_fault_is_found(name: str, draw: st.DataObject) -> None:
    """In models of 10 to 300 nodes, at any place."""
    fault, seed, length = FAULTS[name], draw.draw(st.integers(0, 99)), draw.draw(st.integers(10, 300))
    wide = fault.kind == "scale"
    chain = Chain(seed, WIDE if wide else WIDTH)
    while len(chain.nodes) < length or fault.kind not in chain.kinds:
        chain.block("norm" if len(chain.nodes) % 7 == 0 else chain.random.choice(("gelu", "scale") if wide else KINDS))
    model = chain.model()
    node = draw.draw(st.sampled_from(chain.kinds[fault.kind]))
    try:
        wrong = search(model, functools.partial(planted, node=node, change=fault.change), data(chain.width, seed))
    except NothingWrongError:
        if name in ALWAYS_SEEN:
            raise
        assume(False)
    assert node in names(model, wrong)
    assert len(wrong.nodes) == 1 + (fault.kind == "quantize")  # uint8 is no output
    assert wrong.single
    assert wrong.confirmed


@pytest.mark.parametrize("length", [100, 250])
@pytest.mark.parametrize("place", [0, 0.3, 0.6, 1])
def test_stretch_by_stretch(place: float, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine has more nodes than a stretch, but where the error hides in one."""
    monkeypatch.setattr("trtconvert.accuracy.bisect.STRETCH", 30)
    made = chain(length, "matmul", "norm")
    model, sites = made.model(), made.kinds["matmul"]
    node = sites[round(place * (len(sites) - 1))]
    sizes = []

    def wreck(marked: ModelProto) -> ModelProto:
        sizes.append(len(marked.graph.node))
        return planted(marked, node, FAULTS["transposed weights"].change)

    wrong = search(model, wreck, data())
    assert (names(model, wrong), wrong.single, wrong.confirmed) == ([node], True, True)
    assert sizes[0] == len(model.graph.node)  # the engine in question
    assert max(sizes[1:]) <= max(30, math.ceil(len(model.graph.node) / 4))


@pytest.mark.parametrize("name", ALWAYS_SEEN)
def test_in_the_noise_of_an_engine(name: str) -> None:
    """Products rounded as TensorRT does, by verify's own rules."""
    fault = FAULTS[name]
    made = chain(80, "norm", "matmul", fault.kind, "gelu")
    model, node = made.model(), made.kinds[fault.kind][len(made.kinds[fault.kind]) // 2]
    wrong = noisy(model, lambda marked: planted(marked, node, fault.change))
    assert node in names(model, wrong)
    assert (wrong.single, wrong.confirmed) == (True, True)


@pytest.mark.parametrize(("name", "site"), [("tanh for erf", "gelu"), ("epsilon off", "norm")])
def test_known_errors_below_the_noise(name: str, site: str) -> None:
    """In all nodes alike: the first of them is found, also where the outputs pass all rules but that of known errors."""
    made = chain(50, "matmul", "norm", "gelu", width=512)
    change = slightly if site == "norm" else FAULTS[name].change

    def wreck(marked: ModelProto) -> ModelProto:
        return functools.reduce(lambda m, node: planted(m, node, change), made.kinds[site], marked)

    wrong = noisy(made.model(), wreck, known=True)
    assert names(made.model(), wrong) == [made.kinds[site][0]]
    assert (wrong.errors[-1][1] <= 1) == (site == "norm")
    assert (wrong.single, wrong.confirmed) == (True, True)


def slightly(_: ModelProto, node: NodeProto) -> None:
    """Another epsilon, of less than a thousandth of the variance."""
    next(a for a in node.attribute if a.name == "epsilon").f = 8e-4


def noisy(model: ModelProto, wreck: Wreck, known: bool = False) -> Wrong:
    """What is found where engines round products. known: the error shows in no distance."""
    feeds = data(model.graph.input[0].type.tensor_type.shape.dim[1].dim_value)
    compute = "int8" if references.precision_of(model) == "int8" else "tf32"

    def run(marked: ModelProto, given: Arrays) -> Arrays:
        rounded = Parts(references.twin_of(wreck(marked)), HERE)
        jittered = {
            n: v * (1 + jitter.standard_normal(v.shape, np.float32) / 1e5) for n, v in {**feeds, **given}.items()
        }
        return rounded.run([o.name for o in marked.graph.output], jittered)

    jitter = np.random.default_rng(0)  # so that rounding is not that of the twin, element by element
    widened = references.reference_of(model)
    right, twin = Parts(widened, HERE), Parts(references.twin_of(model), HERE)
    suspect = Suspect(model, run, run(model, {}), right.dtypes)
    rules_of = distance(rules.RULES[compute])
    if known:
        alike = tuple(Parts(other.model, HERE) for other in suspects.suspects(widened))
        suspect = dataclasses.replace(suspect, wrong=(model.graph.output[0].name,), alike=alike)
    return bisect(suspect, right, [twin], feeds, rules_of)


def chain(length: int, *kinds: str, seed: int = 0, width: int = WIDTH) -> Chain:
    made = Chain(seed, width)
    while len(made.nodes) < length:
        made.block(kinds[len(made.nodes) % len(kinds)])
    return made


def test_of_several_the_first() -> None:
    made = chain(90, "matmul", "norm")
    model, sites = made.model(), made.kinds["matmul"]
    change = FAULTS["transposed weights"].change
    for picked in ((3, 20), (0, 1), (7, 8, 21)):

        def wreck(marked: ModelProto, picked: tuple[int, ...] = picked) -> ModelProto:
            return functools.reduce(lambda m, site: planted(m, sites[site], change), picked, marked)

        wrong = search(model, wreck, data())
        assert names(model, wrong) == [sites[picked[0]]]


def test_an_error_that_only_a_later_node_amplifies() -> None:
    """A factor 1.0005 on numbers around 100 passes, until 100 is taken away: the factor is to blame, not the difference."""
    model = graph(
        "a = Add (x, hundred) b = Mul (a, one) c = Identity (b) d = Relu (c) e = Sub (d, hundred) f = Tanh (e) y = Neg (f)",
        weights="float hundred = {100.0}, float one = {1.0}",
    )
    named(model, *"abcdefy")

    def wreck(marked: ModelProto) -> ModelProto:
        return planted(marked, "b", lambda m, _: set_weight(m, "one", 1.0005))

    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4), dtype=np.float32)}
    wrong = search(model, wreck, feeds, relative)
    assert names(model, wrong) == ["b"]
    assert (wrong.single, wrong.confirmed) == (True, True)


def set_weight(model: ModelProto, name: str, value: float) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.array(value, np.float32), name))


def test_rounding_everywhere_has_no_single_node() -> None:
    model = chain(120, "matmul", "norm").model()
    noise = np.random.default_rng(1)

    def wreck(marked: ModelProto) -> ModelProto:
        copy = ModelProto()
        copy.CopyFrom(marked)
        for tensor in copy.graph.initializer:
            exact = numpy_helper.to_array(tensor)
            if exact.ndim == 2:
                rough = exact * (1 + 5e-3 * noise.standard_normal(exact.shape).astype(np.float32))
                tensor.CopyFrom(numpy_helper.from_array(rough, tensor.name))
        return copy

    wrong = search(model, wreck, data(), functools.partial(relative, floor=1e-2))
    assert not wrong.single
    assert not wrong.confirmed
    first, last = wrong.errors[0][1], wrong.errors[-1][1]
    assert first < 1 < last


def test_inside_a_branch_it_is_the_node_around() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (float[2,4] x) => (float[2,4] y)
        <bool yes = {1}> { a = Tanh (x)
        b = If (yes) <then_branch = t () => (float[2,4] p) { q = Exp (a) p = Neg (q) },
                      else_branch = e () => (float[2,4] r) { r = Exp (a) }> c = Tanh (b) y = Neg (c) }""")
    named(model, *"abcy")

    def wreck(marked: ModelProto) -> ModelProto:
        copy = ModelProto()
        copy.CopyFrom(marked)
        for node in copy.graph.node:
            for attribute in node.attribute:
                for inner in attribute.g.node:
                    inner.op_type = {"Exp": "Sqrt"}.get(inner.op_type, inner.op_type)
        return copy

    wrong = search(model, wreck, {"x": np.ones((2, 4), np.float32)})
    assert names(model, wrong) == ["b"]
    assert wrong.wrong == ("b",)


def test_integers_and_truths_count_too() -> None:
    """A comparison that is wrong shows in its own bools; uint8 can be no output and is left to the node behind."""
    model = graph(
        "a = Tanh (x) i = ArgMax <axis = 1> (a) j = Cast <to = 1> (i) g = Greater (a, j) "
        "h = Cast <to = 2> (g) k = Cast <to = 1> (h) m = Add (a, k) y = Exp (m)"
    )
    named(model, *"aijghkmy")
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4), dtype=np.float32)}
    for node, other, found in (("g", "Less", ["g"]), ("i", "ArgMin", ["i"]), ("y", "Abs", ["y"])):

        def wreck(marked: ModelProto, node: str = node, other: str = other) -> ModelProto:
            return planted(marked, node, lambda _, changed: setattr(changed, "op_type", other))

        assert names(model, search(model, wreck, feeds)) == found
    for node in "hk":
        wrong = search(model, lambda m, node=node: planted(m, node, _zeroed), feeds)
        assert names(model, wrong) == ["h", "k"]


def _zeroed(model: ModelProto, node: NodeProto) -> None:
    """The node on what is zero everywhere."""
    name = f"{node.name}_zero"
    dtype = np.bool_ if node.name == "h" else np.uint8
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((2, 4), dtype), name))
    node.input[0] = name


@pytest.mark.parametrize("stretch", [800, 30])
def test_an_error_that_hides_when_it_is_looked_at(stretch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fusing makes: it is gone as soon as the tensor between the fused nodes is an output."""
    monkeypatch.setattr("trtconvert.accuracy.bisect.STRETCH", stretch)
    made = chain(60, "matmul", "norm")
    model = made.model()
    node = made.kinds["matmul"][9]
    hidden = next(n.output[0] for n in model.graph.node if n.name == node)

    def wreck(marked: ModelProto) -> ModelProto:
        if hidden in [value.name for value in marked.graph.output]:
            return marked
        return planted(marked, node, FAULTS["transposed weights"].change)

    wrong = search(model, wreck, data())
    assert node in names(model, wrong)
    assert len(wrong.nodes) == 2
    assert hidden in wrong.fused_across


def test_tensors_that_cannot_be_outputs_after_all() -> None:
    made = chain(60, "matmul", "norm")
    model = made.model()
    node, stubborn = made.kinds["matmul"][9], made.kinds["matmul"][4]

    def run(marked: ModelProto, given: Arrays) -> Arrays:
        if any(value.name == f"t{stubborn[1:]}" for value in marked.graph.output):
            raise ConvertError("this tensor can be no output")
        wrecked = planted(marked, node, FAULTS["transposed weights"].change)
        return Parts(wrecked, HERE).run([o.name for o in marked.graph.output], {**data(), **given})

    right = Parts(model, HERE)
    wrong = bisect(Suspect(model, run, run(model, {}), right.dtypes), right, (), data(), close)
    assert names(model, wrong) == [node]


def test_outputs_that_are_wrong_below_every_distance() -> None:
    """verify knows some errors by their shape; the node shows in what it makes itself, where the error is not yet diluted."""
    model = graph("a = Tanh (x) b = Exp (a) c = Mul (b, tiny) y = Add (x, c)", weights="float tiny = {1e-5}")
    named(model, *"abcy")
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4), dtype=np.float32)}

    def run(marked: ModelProto, given: Arrays) -> Arrays:
        wrecked = planted(marked, "b", lambda _, changed: setattr(changed, "op_type", "Abs"))
        return Parts(wrecked, HERE).run([o.name for o in marked.graph.output], {**feeds, **given})

    right = Parts(model, HERE)
    suspect = Suspect(model, run, run(model, {}), right.dtypes)
    with pytest.raises(NothingWrongError):
        bisect(suspect, right, (), feeds, relative)
    wrong = bisect(dataclasses.replace(suspect, wrong=("y",)), right, (), feeds, relative)
    assert (names(model, wrong), wrong.single, wrong.confirmed) == (["b"], True, True)


def test_an_output_that_is_made_early() -> None:
    """What goes wrong behind it is found, and so is what goes wrong in its own branch."""
    model = graph(
        "a = Tanh (x) b = Exp (a) early = Neg (b) c = Exp (a) d = Tanh (c) y = Neg (d)",
        outputs="float[2,4] early, float[2,4] y",
    )
    named(model, *"abecdy")
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4), dtype=np.float32)}
    for node in "abced":

        def wreck(marked: ModelProto, node: str = node) -> ModelProto:
            return planted(marked, node, lambda _, changed: setattr(changed, "op_type", "Abs"))

        assert names(model, search(model, wreck, feeds)) == [node]


def test_good_outputs_are_not_searched() -> None:
    with pytest.raises(NothingWrongError):
        search(chain(20, "matmul").model(), lambda marked: marked, data())
