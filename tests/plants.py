"""Random models with LayerNorm -> GELU planted in them, for the property test: each plant in one of the spellings that
exporters write, and some of them broken so that they must not be fused.

A plant is first built legal; a break then changes one thing of it. Every choice is drawn, the first option being the plainest,
so that a failing example shrinks to a plain one.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper, printer

Shape = tuple[int | str, ...]
SYMBOLS = {"N": 2, "S": 3}  # the symbolic dimensions and their size when a model is run
FOREIGN = "my.domain"
_indices = lru_cache(lambda count: st.integers(0, count - 1))


@dataclass
class Plant:
    """A LayerNorm -> GELU that makes `y`, its own nodes (constants are none of them), and how it was broken, if it was."""

    x: str
    y: str = ""
    nodes: list[NodeProto] = field(default_factory=list)
    z: str = ""  # what the GELU takes
    norm_nodes: int = 0
    numbers: list[tuple[NodeProto, int, float, str]] = field(default_factory=list)  # where it reads a number, and which
    vectors: list[tuple[NodeProto, int, str]] = field(default_factory=list)  # where it reads gamma and beta
    roles: dict[str, NodeProto] = field(default_factory=dict)
    axis: int = -1
    broken: str = ""
    known: bool = True  # whether y's shape can still be inferred to be x's

    def interior(self) -> list[str]:
        """The tensors made inside."""
        return [t for n in self.nodes for t in n.output if t and t != self.y]


@dataclass
class Case:
    """A model, what is planted in it, and whether to run it too."""

    model: ModelProto
    plants: list[Plant]
    run: bool

    def __repr__(self) -> str:
        planted = ", ".join(f"{p.y!r} ({p.broken or 'legal'})" for p in self.plants)
        return f"planted: {planted}\n{printer.to_text(self.model)}"

    def _repr_pretty_(self, pretty: Any, cycle: bool) -> None:
        pretty.text(repr(self))  # what hypothesis prints of a dataclass is its fields


class Sketch:
    """A model in the making."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self._draw = draw
        self.opset = self.pick(17, 20, 13, 11, 18, 23, 12, 14, 15, 16, 19, 21, 22)
        self.dtype = np.dtype(self.pick("float32", "float32", "float16"))
        self.elem_type = helper.np_dtype_to_tensor_dtype(self.dtype)
        self.ir = self.pick(8, 10, 7, 4)
        self.style = self.pick("t{}", "/blocks.0/{}_output", "層 {}·é", "{}")
        self.named = self.pick("all", "none", "some")
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.inputs: dict[str, Shape] = {}
        self.outputs: dict[str, Shape] = {}
        self.shapes: dict[str, Shape] = {}
        self.pool: list[str] = []  # tensors that fillers and plants may read
        self.taken: set[str] = set()
        self.wanted: list[str] = []  # names that a rewriter would like to give: a few of them are taken already
        self.stored: dict[float, str] = {}
        self.weights = np.random.default_rng(0)

    # --- choices

    def pick(self, *options: Any) -> Any:
        """One of the options."""
        return options[self._draw(_indices(len(options)))] if len(options) > 1 else options[0]

    def chance(self, one_in: int) -> bool:
        """Rarely true."""
        return bool(self._draw(_indices(one_in)) == one_in - 1)

    def name(self) -> str:
        """A tensor's name that is not taken yet."""
        if self.wanted and self.chance(6):
            name = self.wanted.pop(self.pick(*range(len(self.wanted))))
        else:
            name = self.style.format(len(self.taken))
        while name in self.taken:
            name += "'"
        self.taken.add(name)
        return name

    # --- parts

    def node(self, kind: str, inputs: Sequence[str], shape: Shape, outputs: int = 1, **attributes: Any) -> NodeProto:
        """A node whose first output has that shape."""
        made = [self.name() for _ in range(outputs)]
        node = helper.make_node(kind, inputs, made, **attributes)
        if self.named == "all" or (self.named == "some" and len(self.nodes) % 2):
            node.name = f"{kind}_{len(self.nodes)}"
        self.shapes[made[0]] = shape
        self.nodes.append(node)
        return node

    def input(self, shape: Shape) -> str:
        """A graph input."""
        name = self.name()
        self.inputs[name] = self.shapes[name] = shape
        return name

    def array(self, array: np.ndarray[Any, Any], overridable: bool = False) -> str:
        """A constant tensor: an initializer, with a graph input of that name if overridable, or a Constant node."""
        if not overridable and self.chance(4):
            tensor = numpy_helper.from_array(array, "value")
            return str(self.node("Constant", [], array.shape, value=tensor).output[0])
        name = self.name()
        self.initializers.append(numpy_helper.from_array(array, name))
        self.shapes[name] = array.shape
        if overridable:
            self.inputs[name] = array.shape
        return name

    def number(self, value: float) -> str:
        """A constant scalar, of shape [] or [1], in one of the ways to store it; or one that is stored already."""
        if value in self.stored and not self.chance(3):
            return self.stored[value]
        plain, floats = ["array", "array 1"], []
        if self.dtype == np.float32 and self.opset >= 12:
            floats = ["value_float", "value_floats"]
        how = self.pick(*plain, *floats)
        if how in plain:
            name = self.array(np.full([1] if how == "array 1" else [], value, self.dtype))
        else:
            stored: Any = value if how == "value_float" else [value]
            name = self.node("Constant", [], (), **{how: stored}).output[0]
        self.stored[value] = name
        return name

    def vector(self, shape: Sequence[int | str], low: float = 0.5) -> np.ndarray[Any, Any]:
        """Random values that are far from each other and from 0."""
        return self.weights.uniform(low, low + 1, shape).astype(self.dtype)

    def axes(self, node_input: str, axis: int, **attributes: Any) -> tuple[list[str], dict[str, Any]]:
        """Inputs and attributes of a ReduceMean over that axis (from the end), counted from either side."""
        rank = len(self.shapes[node_input])
        counted = self.pick(axis, axis + rank)
        if self.opset < 18:
            return [node_input], {"axes": [counted], **attributes}
        return [node_input, self.array(np.array([counted], np.int64))], attributes

    def _source(self, tensor: str) -> str:
        """The tensor of which this one is an Identity."""
        maker = next((n for n in self.nodes if tensor in n.output), None)
        return self._source(maker.input[0]) if maker is not None and maker.op_type == "Identity" else tensor

    def other(self, plant: Plant) -> str:
        """A tensor like the plant's x that is not it and does not depend on the plant."""
        shape, x = self.shapes[plant.x], self._source(plant.x)
        known = [t for t in self.pool if self.shapes[t] == shape and self._source(t) != x]
        return self.pick(*known) if known else self.input(shape)


# --- plants --------------------------------------------------------------------------------------------------------


class Planter:
    """Builds one plant."""

    def __init__(self, sketch: Sketch, x: str, axis: int) -> None:
        self.sketch, self.plant = sketch, Plant(x, axis=axis)

    def add(self, kind: str, *inputs: str | float | tuple[str, float], role: str = "", **attributes: Any) -> str:
        """A node of the plant; a number stands for a constant, a pair for one with a role."""
        names, numbers = [], []
        for index, value in enumerate(inputs):
            if isinstance(value, str):
                names.append(value)
            else:
                label, number = value if isinstance(value, tuple) else ("", value)
                names.append(self.sketch.number(number))
                numbers.append((index, number, label))
        shape = attributes.pop("shape", None) or _broadcast([self.sketch.shapes[n] for n in names])
        node = self.sketch.node(kind, names, shape, **attributes)
        self.plant.nodes.append(node)
        self.plant.numbers += [(node, *number) for number in numbers]
        if role:
            self.plant.roles[role] = node
        return str(node.output[0])

    def either(self, kind: str, a: Any, b: Any, role: str = "") -> str:
        """A commutative node with its operands in either order."""
        return self.add(kind, *self.sketch.pick((a, b), (b, a)), role=role)

    def product(self, factors: list[Any]) -> str:
        """Three factors multiplied in any association and order."""
        first = factors.pop(self.sketch.pick(2, 0, 1))
        return self.either("Mul", self.either("Mul", *factors), first)

    # LayerNorm

    def norm_op(self, x: str) -> str:
        """LayerNormalization."""
        sketch = self.sketch
        channels, rank = sketch.shapes[x][-1], len(sketch.shapes[x])
        inputs = [x, self._gamma_or_beta(channels, rank, column=False)]
        inputs += sketch.pick([True], [], [""])
        if inputs[-1] is True:
            inputs[-1] = self._gamma_or_beta(channels, rank, column=False)
        attributes = sketch.pick({"axis": -1}, {"axis": rank - 1}, {})
        attributes |= sketch.pick({"epsilon": 1e-5}, {"epsilon": 1e-6}, {})
        attributes |= sketch.pick({}, {"stash_type": 1})
        z = self.add(
            "LayerNormalization",
            *inputs,
            role="norm",
            shape=sketch.shapes[x],
            outputs=sketch.pick(1, 1, 2, 3),
            **attributes,
        )
        node = self.plant.roles["norm"]
        self.plant.vectors += [(node, i, name) for i, name in enumerate(node.input) if i and name]
        return z

    def decomposed(self, x: str) -> str:
        """The same in primitive ops, over the plant's axis."""
        sketch, axis = self.sketch, self.plant.axis
        shape = sketch.shapes[x]
        counted = axis if axis < 0 else axis - len(shape)
        mean = self._mean(x, counted, "mean")
        batch_norm = sketch.chance(6)
        d = self.add("Sub", x, mean, role="sub", shape=shape)
        if sketch.chance(4):  # a second Sub of the same, for the variance; a second mean too
            again = mean if sketch.pick(True, False) else self._mean(x, counted, "mean")
            square = self._square(self.add("Sub", x, again, shape=shape))
        else:
            square = self._square(d)
        variance = self._mean(square, counted, "variance")
        total = self.either("Add", variance, ("epsilon", sketch.pick(1e-5, 1e-6, 1e-3, *[1e-12] * (not batch_norm))))
        self.plant.roles["epsilon"] = self.plant.nodes[-1]
        root = ("Sqrt", total) if sketch.pick(True, True, False) else ("Pow", total, 0.5)
        std = self.add(*root, role="sqrt")
        if batch_norm:
            return self._batch_norm(x, mean, std, d)
        n = self._normalise(d, std)
        for kind, present in (("Mul", sketch.pick(True, True, False)), ("Add", sketch.pick(True, True, False))):
            if present:
                vector = self._gamma_or_beta(shape[counted], len(shape), column=True)
                n = self.either(kind, n, vector)
                self._note(vector)
        return n

    def _mean(self, x: str, axis: int, role: str) -> str:
        sketch = self.sketch
        shape = sketch.shapes[x]
        reduced = (*shape[:axis], 1, *shape[axis + 1 :]) if axis != -1 else (*shape[:-1], 1)
        if axis == -1 and len(shape) == 3 and sketch.chance(8):
            return self.add("GlobalAveragePool", x, role=f"{role} pool", shape=reduced)
        inputs, attributes = sketch.axes(x, axis, **sketch.pick({"keepdims": 1}, {}))
        return self.add("ReduceMean", *inputs, role=role, shape=reduced, **attributes)

    def _square(self, d: str) -> str:
        return (
            self.add("Pow", d, ("exponent", 2.0), role="square")
            if self.sketch.pick(True, False)
            else self.add("Mul", d, d)
        )

    def _normalise(self, d: str, std: str) -> str:
        how = self.sketch.pick("div", "reciprocal", "one over")
        if how == "div":
            return self.add("Div", d, std, role="div")
        r = self.add("Reciprocal", std) if how == "reciprocal" else self.add("Div", ("one", 1.0), std, role="div")
        return self.either("Mul", d, r)

    def _batch_norm(self, x: str, mean: str, std: str, d: str) -> str:
        """x * s + (beta - mean * s) with s = gamma / std."""
        sketch, shape = self.sketch, self.sketch.shapes[x]
        gamma, beta = (self._gamma_or_beta(shape[self.plant.axis], len(shape), column=True) for _ in range(2))
        r = self.add("Reciprocal", std) if sketch.pick(True, False) else self.add("Div", ("one", 1.0), std, role="div")
        s = self.either("Mul", r, gamma)
        self._note(gamma)
        scaled = self.either("Mul", x, s)
        shift = self.add("Sub", beta, self.either("Mul", mean, s), role="shift")
        self._note(beta)
        sub = self.plant.roles.pop("sub")  # read by the square alone, if at all: a swap changes nothing
        if not any(d in n.input for n in self.plant.nodes):  # the variance has a Sub of its own
            self.plant.nodes.remove(sub)
            sketch.nodes.remove(sub)
        return self.either("Add", scaled, shift)

    def _gamma_or_beta(self, channels: int | str, rank: int, column: bool) -> str:
        """[C], with ones around it, or one number; or a tensor that is no constant, [C] where the channels are last."""
        sketch, axis = self.sketch, self.plant.axis
        after = 0 if axis == -1 or not column else rank - 1 - axis
        before = rank - 1 - after
        shape = (channels, *[1] * after)
        if sketch.chance(5):
            return sketch.array(sketch.vector([1]))
        if after == 0 and sketch.chance(8):
            how = sketch.pick("default", "input", "computed")
            if how == "default":
                return sketch.array(sketch.vector(shape), overridable=True)
            given = sketch.input(shape)
            return given if how == "input" else str(sketch.node("Neg", [given], shape).output[0])
        ones = [1] * (before if sketch.chance(4) else 0)
        return sketch.array(sketch.vector([*ones, *shape], -0.5 if sketch.chance(2) else 0.5))

    def _note(self, vector: str) -> None:
        node = self.plant.nodes[-1]
        self.plant.vectors.append((node, list(node.input).index(vector), vector))

    # GELU

    def gelu(self, z: str) -> str:
        """GELU in one of its spellings."""
        sketch = self.sketch
        if sketch.opset >= 20 and sketch.pick(True, False):
            return self.add("Gelu", z, **sketch.pick({}, {"approximate": "none"}, {"approximate": "tanh"}))
        if sketch.pick(True, False):
            u = self.add("Div", z, 2**0.5) if sketch.pick(True, False) else self.either("Mul", z, 0.5**0.5)
            return self._outer(z, self.add("Erf", u), "product", "halved", "terms", "inner half")
        return self._outer(z, self.add("Tanh", self._inner(z)), "product", "halved")

    def _outer(self, z: str, e: str, *forms: str) -> str:
        form = self.sketch.pick(*forms)
        if form == "terms":
            halves = [self.either("Mul", z, 0.5) for _ in range(self.sketch.pick(2, 1))]
            return self.either("Add", halves[0], self.either("Mul", halves[-1], e))
        if form == "inner half":
            return self.either("Mul", z, self.either("Add", 0.5, self.either("Mul", e, 0.5)))
        p = self.either("Add", e, 1.0)
        if form == "halved":
            return self.add("Div", self.either("Mul", z, p), 2.0)
        return self.product([z, p, 0.5])

    def _inner(self, z: str) -> str:
        k, q = 0.044715, (2 / np.pi) ** 0.5
        form = self.sketch.pick("Pow", "z*z*z", "1 + kzz")
        if form == "1 + kzz":
            return self.product([z, q, self.either("Add", 1.0, self.product([z, z, k]))])
        cube = self.add("Pow", z, 3.0) if form == "Pow" else self.either("Mul", self.add("Mul", z, z), z)
        return self.either("Mul", self.either("Add", z, self.either("Mul", cube, k)), q)


def _broadcast(shapes: list[Shape]) -> Shape:
    rank = max(map(len, shapes))
    aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(next((d for d in dims if d != 1), 1) for dims in zip(*aligned, strict=True))


def plant(sketch: Sketch) -> Plant:
    """One LayerNorm -> GELU on a tensor of the pool; broken in most cases with an odd draw."""
    x = sketch.pick(*[t for t in sketch.pool if isinstance(sketch.shapes[t][-1], int)])
    shape = sketch.shapes[x]
    rank = len(shape)
    first = rank >= 3 and isinstance(shape[1], int) and sketch.chance(4)
    planter = Planter(sketch, x, 1 if first else -1)
    built, layout = planter.plant, "plain"
    if not first:
        layout = sketch.pick("plain", "plain", "permuted")
        if rank >= 3 and isinstance(shape[1], int) and sketch.chance(6):
            layout = "moved"
    z = x
    if layout == "moved":  # channels to the end, LayerNorm, and back
        perm = [0, *range(2, rank), 1]
        z = sketch.node("Transpose", [x], tuple(shape[i] for i in perm), perm=perm).output[0]
        built.x = z
    z = planter.norm_op(z) if not first and sketch.opset >= 17 and sketch.pick(True, False) else planter.decomposed(z)
    perm = {"plain": None, "permuted": _permutation(sketch, rank), "moved": [0, rank - 1, *range(1, rank - 1)]}[layout]
    if perm is not None:
        attributes = {} if perm == [*range(rank)][::-1] and sketch.pick(False, True) else {"perm": perm}
        z = planter.add("Transpose", z, shape=tuple(sketch.shapes[z][i] for i in perm), **attributes)
    built.z, built.norm_nodes = z, len(built.nodes)
    built.y = planter.gelu(z)
    last = built.nodes[-1].name or built.y
    sketch.wanted += [f"{built.y}_fused", *(f"{last}_{end}" for end in ("scale", "bias", "LayerNormGelu"))]
    if sketch.pick(False, True):
        break_it(sketch, built)
    elif sketch.chance(6):
        two_axes(sketch, built, sketch.shapes[built.x])
    return built


def _permutation(sketch: Sketch, rank: int) -> list[int]:
    left = [*range(rank)]
    return [left.pop(sketch.pick(*range(len(left)))) for _ in range(rank)][::-1]


# --- breaks: each changes the plant so that it must not be fused, or returns False where it does not apply -----------------


def _read(sketch: Sketch, plant: Plant) -> None:
    """An interior tensor is read by another node."""
    inside = sketch.pick(*plant.interior())
    shape = sketch.shapes.get(inside, ())
    sketch.node(sketch.pick("Relu", "Identity", "Neg"), [inside], shape)
    if inside in sketch.shapes and sketch.pick(False, True):
        made = sketch.nodes[-1].output[0]
        sketch.outputs[made] = shape


def _output(sketch: Sketch, plant: Plant) -> None:
    """An interior tensor is an output of the graph."""
    inside = sketch.pick(*(t for t in plant.interior() if t in sketch.shapes))
    sketch.outputs[inside] = sketch.shapes[inside]


def _captured(sketch: Sketch, plant: Plant) -> None:
    """An interior tensor is read in a branch of an If, or of an If in it."""
    choose(sketch, sketch.pick(*(t for t in plant.interior() if t in sketch.shapes)), plant.x)


def _foreign(sketch: Sketch, plant: Plant) -> None:
    """A node is of another domain, and so of another meaning."""
    sketch.pick(*plant.nodes).domain = FOREIGN
    plant.known = False


def _number(sketch: Sketch, plant: Plant) -> bool | None:
    """A number of the formula is another one."""
    numbers = [n for n in plant.numbers if n[3] == ""]  # another "one" over std would be another gamma
    if not numbers:
        return False
    node, index, value, _ = sketch.pick(*numbers)
    node.input[index] = sketch.number(sketch.pick(value * 1.2, value * 1.06, value * 0.9, 1.702, -value))
    return None


def _overridable(sketch: Sketch, plant: Plant) -> bool | None:
    """A number is only the default of a graph input, or is a graph input."""
    if not plant.numbers:
        return False
    node, index, value, _ = sketch.pick(*plant.numbers)
    array = np.full(sketch.pick([], [1]), value, sketch.dtype)
    node.input[index] = sketch.array(array, overridable=True) if sketch.pick(True, False) else sketch.input(array.shape)
    return None


def _exponent(sketch: Sketch, plant: Plant) -> bool | None:
    """Another power than the second."""
    if "square" not in plant.roles:
        return False
    plant.roles["square"].input[1] = sketch.number(sketch.pick(3.0, 4.0, 1.0, 2.5))
    return None


def _epsilon(sketch: Sketch, plant: Plant) -> bool | None:
    """A negative epsilon."""
    if "norm" in plant.roles:
        node = plant.roles["norm"]
        kept = [a for a in node.attribute if a.name != "epsilon"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("epsilon", -1e-3)])
        return None
    node, index, *_ = next(n for n in plant.numbers if n[3] == "epsilon")
    node.input[index] = sketch.number(-1e-3)
    return None


def _epsilon_outside(sketch: Sketch, plant: Plant) -> bool | None:
    """Added to the standard deviation, not to the variance."""
    if "sqrt" not in plant.roles:
        return False
    add, root = plant.roles["epsilon"], plant.roles["sqrt"]
    variance = next(i for i, name in enumerate(add.input) if name in plant.interior())
    for node in plant.nodes:
        for index, name in enumerate(node.input):
            if name == root.output[0]:
                node.input[index] = add.output[0]
    root.input[0], add.input[variance] = add.input[variance], root.output[0]
    return None


def _swapped(sketch: Sketch, plant: Plant) -> bool | None:
    """The operands of a Sub or Div change places."""
    roles = [plant.roles[r] for r in ("sub", "div", "shift") if r in plant.roles]
    if not roles:
        return False
    node = sketch.pick(*roles)
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return None


def _axis(sketch: Sketch, plant: Plant) -> bool | None:
    """Mean or variance over another axis."""
    rank = len(sketch.shapes[plant.x])
    if rank < 2:
        return False
    reduces = [n for n in plant.nodes if n.op_type == "ReduceMean"]
    if not reduces:
        return False
    axis = sketch.pick(*(a for a in range(rank) if a != plant.axis % rank))
    for node in sketch.pick(reduces[:1], reduces[-1:]):
        _set_axes(sketch, node, sketch.pick([axis], [axis - rank], sorted([axis, plant.axis % rank])))
    plant.known = False
    return None


def two_axes(sketch: Sketch, plant: Plant, shape: Shape) -> None:
    """Not a break: LayerNormalization over the last two axes."""
    if "norm" not in plant.roles or len(shape) < 2 or not all(isinstance(d, int) for d in shape[-2:]):
        return
    node = plant.roles["norm"]
    kept = [a for a in node.attribute if a.name != "axis"]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("axis", -2)])
    for _, index, _ in plant.vectors:
        node.input[index] = sketch.array(sketch.vector(shape[-2:]))


def _set_axes(sketch: Sketch, node: NodeProto, axes: list[int]) -> None:
    if sketch.opset >= 18:
        node.input[1] = sketch.array(np.array(axes, np.int64))
        return
    attribute = next(a for a in node.attribute if a.name == "axes")
    del attribute.ints[:]
    attribute.ints.extend(axes)


def _keepdims(sketch: Sketch, plant: Plant) -> bool | None:
    """keepdims 0 where the sizes still broadcast."""
    shape = sketch.shapes[plant.x]
    reduces = [n for n in plant.nodes if n.op_type == "ReduceMean"]
    if len(shape) < 2 or len(set(shape)) > 1 or not reduces:
        return False
    for node in sketch.pick(reduces, reduces[:1], reduces[-1:]):
        kept = [a for a in node.attribute if a.name != "keepdims"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("keepdims", 0)])
    plant.known = False
    return None


def _mean_of_other(sketch: Sketch, plant: Plant) -> bool | None:
    """The mean is another tensor's, or what is subtracted from is."""
    nodes = [plant.roles[r] for r in ("mean", "sub", "mean pool") if r in plant.roles]
    if not nodes:
        return False
    sketch.pick(*nodes).input[0] = sketch.other(plant)
    return None


def _gelu_of_other(sketch: Sketch, plant: Plant) -> bool | None:
    """The GELU multiplies by another tensor than it takes the Erf of."""
    uses = [(n, i) for n in plant.nodes[plant.norm_nodes :] for i, name in enumerate(n.input) if name == plant.z]
    if len(uses) < 2 or sketch.shapes[plant.z] != sketch.shapes[plant.x]:
        return False
    node, index = sketch.pick(*uses)
    node.input[index] = sketch.pick(plant.x, sketch.other(plant))
    return None


def _factor(sketch: Sketch, plant: Plant) -> bool | None:
    """A constant factor or shift in one of the places where the GELU reads the LayerNorm."""
    uses = [(n, i) for n in plant.nodes[plant.norm_nodes :] for i, name in enumerate(n.input) if name == plant.z]
    if len(uses) < 2:
        return False
    node, index = sketch.pick(*uses)
    kind = sketch.pick("Mul", "Add")
    changed = sketch.node(kind, [plant.z, sketch.number(1.5)], sketch.shapes[plant.z]).output[0]
    sketch.nodes.insert(sketch.nodes.index(node), sketch.nodes.pop())
    node.input[index] = changed
    return None


def _vector(sketch: Sketch, plant: Plant) -> bool | None:
    """gamma or beta has one value a row, one an element, or one dimension more than x."""
    shape = sketch.shapes[plant.x]
    if not plant.vectors or "norm" in plant.roles:
        return False
    axis = plant.axis % len(shape)
    sizes = [SYMBOLS.get(d, d) if isinstance(d, str) else d for d in shape]
    shapes = []
    for other in (a for a in range(len(shape)) if a != axis):
        row = [size if i == other else 1 for i, size in enumerate(sizes)]
        both = [size if i in (other, axis) else 1 for i, size in enumerate(sizes)]
        shapes += [row[other:], both[min(other, axis) :]]
    if plant.z in (n.output[0] for n in plant.nodes if n.op_type != "Transpose"):
        shapes.append([1, *(size if i == axis else 1 for i, size in enumerate(sizes))])
    if not shapes:
        return False
    chosen = sketch.pick(*shapes)
    if len(chosen) > len(shape):
        sketch.shapes[plant.y] = (1, *shape)
    node, index, _ = sketch.pick(*plant.vectors)
    node.input[index] = sketch.array(sketch.vector(chosen))
    plant.known = False
    return None


def _quick(sketch: Sketch, plant: Plant) -> None:
    """QuickGELU, which is another function."""
    for node in plant.nodes[plant.norm_nodes :]:
        sketch.nodes.remove(node)
    del plant.nodes[plant.norm_nodes :]
    planter = Planter(sketch, plant.x, plant.axis)
    planter.plant = plant
    plant.y = planter.either("Mul", plant.z, planter.add("Sigmoid", planter.either("Mul", plant.z, 1.702)))


BREAKS = (  # those that apply to few plants first
    _keepdims, _exponent, _vector, _swapped, _epsilon_outside, _overridable, _gelu_of_other, _factor, _axis, _number,
    _mean_of_other, _foreign, _epsilon, _captured, _quick, _output, _read,
)  # fmt: skip


def break_it(sketch: Sketch, plant: Plant) -> None:
    """Break the plant in the drawn way, or in the next one that applies to it."""
    start = sketch.pick(*range(len(BREAKS)))
    for way in (*BREAKS[start:], *BREAKS[:start]):
        if way(sketch, plant) is not False:
            plant.broken = way.__name__.strip("_")
            return


# --- the rest of the model -----------------------------------------------------------------------------------------


def choose(sketch: Sketch, captured: str, other: str) -> None:
    """An If whose branches read tensors of the graph around it."""
    kind = helper.make_tensor_value_info
    names = [sketch.name() for _ in range(5)]
    inner = helper.make_node("Identity", [captured], [names[0]])
    then = helper.make_graph([inner], "then", [], [kind(names[0], sketch.elem_type, None)])
    off = helper.make_node("Identity", [other], [names[1]])
    otherwise = helper.make_graph([off], "otherwise", [], [kind(names[1], sketch.elem_type, None)])
    true = numpy_helper.from_array(np.array(True), "value")
    condition = sketch.node("Constant", [], (), value=true).output[0]
    if sketch.pick(False, True):
        nested = helper.make_node("If", [condition], [names[2]], then_branch=then, else_branch=otherwise)
        then = helper.make_graph([nested], "then", [], [kind(names[2], sketch.elem_type, None)])
        last = helper.make_node("Identity", [other], [names[3]])
        otherwise = helper.make_graph([last], "otherwise", [], [kind(names[3], sketch.elem_type, None)])
    sketch.node("If", [condition], (), then_branch=then, else_branch=otherwise)


def fill(sketch: Sketch) -> None:
    """One harmless node on tensors of the pool."""
    x = sketch.pick(*sketch.pool)
    shape = sketch.shapes[x]
    kind = sketch.pick(
        "Relu", "Sigmoid", "Identity", "Neg", "Erf", "Add", "Mul", "Sub", "Add number", "Mul number", "Add vector",
        "Transpose", "MatMul", "Concat", "ReduceMean", "LayerNormalization", "If",
    )  # fmt: skip
    base, _, what = kind.partition(" ")
    static = [i for i, d in enumerate(shape) if isinstance(d, int)]
    if kind == "If":
        choose(sketch, x, sketch.pool[0])
        return
    if kind == "ReduceMean":  # not of the pool: nothing is normalised over one element
        inputs, attributes = sketch.axes(x, -1)
        sketch.node(kind, inputs, (*shape[:-1], 1), **attributes)
        return
    inputs, attributes = [x], {}
    if what == "number":
        number = sketch.number(sketch.pick(0.5, 1.0))
        inputs = sketch.pick([x, number], [number, x])
    elif what == "vector" and len(shape) - 1 in static:
        inputs.append(sketch.array(sketch.vector(shape[-1:])))
    elif base in ("Add", "Mul", "Sub"):
        inputs.append(sketch.pick(*(t for t in sketch.pool if sketch.shapes[t] == shape)))
    elif kind == "Transpose":
        attributes["perm"] = _permutation(sketch, len(shape))
        shape = tuple(shape[i] for i in attributes["perm"])
    elif kind == "MatMul" and len(shape) - 1 in static:
        width = sketch.pick(4, 8, 3)
        inputs.append(sketch.array(sketch.vector([shape[-1], width], -0.5)))
        shape = (*shape[:-1], width)
    elif kind == "Concat" and static and shape[static[-1]] <= 8:
        axis = static[-1]
        inputs.append(sketch.pick(*(t for t in sketch.pool if sketch.shapes[t] == shape)))
        attributes["axis"] = axis
        shape = (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :])
    elif kind == "LayerNormalization" and len(shape) - 1 in static and sketch.opset >= 17:
        inputs.append(sketch.array(sketch.vector(shape[-1:])))
    elif kind in ("MatMul", "Concat", "LayerNormalization"):
        base = "Relu"
    sketch.pool.append(sketch.node(base, inputs, shape, **attributes).output[0])


SHAPES: tuple[Shape, ...] = (
    (4, 4), (2, 3, 4), (2, 4), ("N", 3, 8), (8,), (3, 3, 3), (2, 3, 2, 4), ("N", "S", 8), ("N", 4), (2, 4, "S", 3),
    (3, 3, 3, 3), ("N", 8, 2, 3), (2, 2),
)  # fmt: skip


@st.composite
def cases(draw: Callable[[Any], Any]) -> Case:
    """Models of a few to about 60 nodes with one to three plants."""
    sketch = Sketch(draw)
    for _ in range(sketch.pick(1, 2, 3)):
        sketch.pool.append(sketch.input(sketch.pick(*SHAPES)))
    plants = []
    most = sketch.pick(1, 4, 12)
    for _ in range(sketch.pick(1, 2, 3)):
        for _ in range(sketch.pick(*range(most))):
            fill(sketch)
        plants.append(plant(sketch))
        if plants[-1].known:
            sketch.pool.append(plants[-1].y)
        else:
            sketch.outputs[plants[-1].y] = sketch.shapes[plants[-1].y]
    for _ in range(sketch.pick(*range(most))):
        fill(sketch)
    return Case(_finish(sketch, plants), plants, sketch.chance(6))


def _finish(sketch: Sketch, plants: list[Plant]) -> ModelProto:
    read = {name for n in sketch.nodes for name in (*n.input, *captured(n))}
    for planted in plants:
        if planted.y not in read or sketch.pick(False, True):
            sketch.outputs[planted.y] = sketch.shapes[planted.y]
    if not sketch.outputs:
        sketch.outputs[plants[0].y] = sketch.shapes[plants[0].y]
    made = [t for t in sketch.pool if t not in sketch.inputs]
    for _ in range(sketch.pick(0, 1, 2)):
        if made:
            name = sketch.pick(*made)
            sketch.outputs[name] = sketch.shapes[name]
    values = [
        [helper.make_tensor_value_info(n, sketch.elem_type, s) for n, s in names.items()]
        for names in (sketch.inputs, sketch.outputs)
    ]
    seed = sketch.pick(*range(16))
    described = []
    if sketch.pick(False, True):
        inside = [t for p in plants if not p.broken for t in p.interior() if t in sketch.shapes]
        described = [
            helper.make_tensor_value_info(t, sketch.elem_type, sketch.shapes[t])
            for t in dict.fromkeys([*sketch.pool, *inside])
            if t not in sketch.inputs and t not in sketch.outputs
        ]
    nodes = _ordered(sketch.nodes, seed)
    graph = helper.make_graph(nodes, "planted", *values, sketch.initializers, value_info=described)
    imports = [helper.make_opsetid("", sketch.opset)]
    if any(n.domain == FOREIGN for n in sketch.nodes):
        imports.append(helper.make_opsetid(FOREIGN, 1))
    return helper.make_model(graph, opset_imports=imports, ir_version=sketch.ir)


def captured(node: NodeProto) -> set[str]:
    """Names that the node's subgraphs read, their own among them."""
    graphs = [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]
    return {name for g in graphs for n in g.node for name in (*n.input, *captured(n))}


def _ordered(nodes: list[NodeProto], seed: int) -> list[NodeProto]:
    """In topological order: that of creation where it can be (seed 0), or a random one."""
    rank = [*range(len(nodes))]
    if seed:
        random.Random(seed).shuffle(rank)
    maker = {name: i for i, n in enumerate(nodes) for name in n.output}
    needs = [{maker[t] for t in (*n.input, *captured(n)) if t in maker} for n in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for i, makers in enumerate(needs):
        for j in makers:
            readers[j].append(i)
    left = [len(makers) for makers in needs]
    ready = [(rank[i], i) for i, count in enumerate(left) if not count]
    heapq.heapify(ready)
    ordered = []
    while ready:
        _, i = heapq.heappop(ready)
        ordered.append(nodes[i])
        for j in readers[i]:
            left[j] -= 1
            if not left[j]:
                heapq.heappush(ready, (rank[j], j))
    assert len(ordered) == len(nodes), "a cycle"
    return ordered
