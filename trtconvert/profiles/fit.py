"""Whether the inputs' sizes go together: shapes evaluated at min, opt and max before the build.

ONNX's shape inference, which is quick, finds the suspect; onnxruntime, run as far as that node, has the last word. What
neither can tell is left to TensorRT: no model is refused by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from trtconvert import graph as onnx_graph
from trtconvert import model as onnx_model
from trtconvert import reference
from trtconvert.errors import ConvertError
from trtconvert.graph import GraphView
from trtconvert.manifest import IO, model_io
from trtconvert.profiles import inference, misfit, sizes
from trtconvert.profiles.misfit import Dims
from trtconvert.shapes import Profile, Range

_MANY = 30_000  # nodes, above which only opt is evaluated
_LARGEST = 1 << 27  # elements of all tensors up to the suspect, above which onnxruntime is not run
_SUSPECTS = 4  # that onnxruntime is asked about at a point
_SUSPECT = "trtconvert.suspect"


@dataclass(frozen=True)
class Point:
    """Shapes and values of the inputs at "min", "opt" or "max"."""

    name: str
    shapes: Mapping[str, Dims]
    values: Mapping[str, Dims]


@dataclass(frozen=True)
class Misfit:
    """A node that cannot take what it gets at a point of the profile. sure: no other sizes of the other inputs would help."""

    point: str
    where: str
    reason: str
    sure: bool

    def __str__(self) -> str:
        return f"the {self.point} sizes of the inputs do not go together, {self.reason}: {self.where}"


def settle(model: ModelProto, folder: Path, profile: Profile) -> tuple[Profile, list[Misfit]]:
    """The profile, and misfits at min or max that may be no fault: sizes of several inputs, whose smallest need not occur
    together. Inputs whose range was only assumed get their opt shape alone where others do not fit.

    ConvertError for a misfit at opt, and for one at min or max that these sizes cause in any company.
    """
    found = _misfits(model, folder, profile)
    sure = [fault for fault in found if fault.sure]
    if sure and profile.assumed and sure[0].point != "opt":
        opt = {name: replace(r, min=r.opt, max=r.opt) for name, r in profile.ranges.items() if name in profile.assumed}
        narrow = replace(profile, ranges={**profile.ranges, **opt})
        rest = _misfits(model, folder, narrow)
        if not any(fault.sure for fault in rest):
            notes = [
                f"input {name!r} was built for {r} alone: {sure[0].reason} at {sure[0].where}"
                for name, r in opt.items()
            ]
            kept = [note for note in profile.notices if not any(note.startswith(f"input {name!r} ") for name in opt)]
            return replace(narrow, notices=(*kept, *notes)), rest
    if sure:
        raise ConvertError(
            f"the {sure[0].point} sizes of the inputs do not fit the model: {sure[0].reason}",
            where=sure[0].where,
            fix=_fix(model, folder, profile, [fault.point for fault in sure]),
        )
    return profile, found


def _misfits(model: ModelProto, folder: Path, profile: Profile) -> list[Misfit]:
    """One for each point that has any; only opt's, if it has one."""
    if not profile.ranges and not profile.values:
        return []
    points = [Point(name, _at(profile.ranges, name), _at(profile.values, name)) for name in ("opt", "min", "max")]
    vary = any(given.min != given.max for given in profile.values.values())
    found: list[Misfit] = []
    seen: list[tuple[Any, Any]] = []
    evaluated = _Model(model, folder)
    for point in points if len(model.graph.node) < _MANY else points[:1]:
        if (point.shapes, point.values) in seen:
            continue
        seen.append((point.shapes, point.values))
        fault = evaluated.first(point, points[0])
        if fault is not None:
            found.append(replace(fault, sure=point.name == "opt" or (fault.sure and not vary)))
            if point.name == "opt":
                break
    return found


def _at(ranges: Mapping[str, Range], point: str) -> dict[str, Dims]:
    return {name: getattr(given, point) for name, given in ranges.items()}


def _fix(model: ModelProto, folder: Path, profile: Profile, points: Sequence[str]) -> str:
    """Flags with sizes that fit: for min and max those of opt, which do; for opt what onnxruntime runs, if anything."""
    if "opt" not in points:
        flags = [f"--shape {name}={_opt_at(given, points)}" for name, given in profile.ranges.items()]
        flags += [f"--value {name}={_opt_at(given, points)}" for name, given in profile.values.items()]
        return f"give sizes that fit, such as those of opt: {' '.join(flags)}"
    proposed = sizes.propose(model, folder, {}, profile.values)
    if proposed:
        flags = [f"--shape {name}={given}" for name, given in proposed.items()]
        return f"give sizes that fit; onnxruntime runs the model at these: {' '.join(flags)}"
    given = [f"{name} {one}" for name, one in (*profile.ranges.items(), *profile.values.items())]
    return f"give sizes that fit; they were {', '.join(given)}"


def _opt_at(given: Range, points: Sequence[str]) -> Range:
    return replace(given, **dict.fromkeys(points, given.opt))


class _Model:
    """A model to be evaluated at points. folder: of external data."""

    def __init__(self, model: ModelProto, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.inputs = {io.name: io for io in model_io(model, "input")}
        self.bare = _without_subgraphs(model)

    def first(self, point: Point, opt: Point) -> Misfit | None:
        """The first misfit at the point."""
        fixed = self._fixed(point)
        shapes, broken = _infer(fixed)
        suspects = sorted([*([broken] if broken else []), *((index, "") for index in _odd(fixed.graph, shapes))])
        for index, reason in suspects[:_SUSPECTS]:
            inputs = self.model.graph.node[index].input
            if all(name in shapes for name in inputs if name) and self._refused(index, point, shapes):
                return self._told(self.model.graph.node[index], reason, shapes, (point, opt))
        return None

    def _told(self, node: NodeProto, reason: str, shapes: Mapping[str, Dims], points: tuple[Point, Point]) -> Misfit:
        """What is wrong with the node; points: the one that it is wrong at, and opt."""
        operands = [name for name in node.input if name]
        known = [shapes[name] for name in operands]
        attributes = GraphView(self.model.graph, {}, onnx_model.opset(self.model)).attributes(node)
        made = shapes.get(node.output[0])
        blame = misfit.explain(node.op_type, attributes, known, made) or misfit.anything(known, reason)
        got = ", ".join(f"{name} {list(shapes[name])}" for name in operands)
        title = node.name or node.output[0]
        sure = self._sure(operands, blame.groups, *points)
        return Misfit(points[0].name, f"node {title} ({node.op_type}), which gets {got}", blame.reason, sure)

    def _fixed(self, point: Point) -> ModelProto:
        """A copy to infer with: inputs of these shapes and values."""
        bare = onnx_model.copy(self.bare)
        kept = [value for value in bare.graph.input if value.name not in point.values]
        for value in kept:
            if value.name in point.shapes:
                elem_type = value.type.tensor_type.elem_type
                value.CopyFrom(helper.make_tensor_value_info(value.name, elem_type, point.shapes[value.name]))
        del bare.graph.input[:]
        bare.graph.input.extend(kept)
        for name, array in self._values(point).items():
            bare.graph.initializer.append(numpy_helper.from_array(array, name))
        return bare

    def _values(self, point: Point) -> dict[str, NDArray[Any]]:
        return {
            name: np.array(values, self.inputs[name].dtype).reshape(_shape(self.inputs[name], point))
            for name, values in point.values.items()
        }

    def _refused(self, index: int, point: Point, shapes: Mapping[str, Dims]) -> bool:
        """Whether onnxruntime, too, says that this node does not take these shapes."""
        upstream = _upstream(self.model.graph, index)
        made = [name for i in upstream for name in self.model.graph.node[i].output]
        if sum(prod(shapes.get(name, ())) for name in made) > _LARGEST:
            return False
        try:
            part = _part(self.model, index, upstream)
            feeds = {
                name: np.ones(_shape(self.inputs[name], point), onnx_model.numpy_dtype(self.inputs[name].dtype))
                for name in (value.name for value in part.graph.input)
            }
            feeds |= {name: array for name, array in self._values(point).items() if name in feeds}
            session = reference.session(part, self.folder)
        except Exception:  # noqa: BLE001  # of many types; a model that cannot be run is not judged
            return False
        try:
            session.run(None, feeds)
        except Exception as error:  # noqa: BLE001  # onnxruntime's have no common base of their own
            return f"Name:'{_SUSPECT}'" in str(error)
        return False

    def _sure(self, operands: Sequence[str], groups: misfit.Groups, point: Point, opt: Point) -> bool:
        """Whether each group of sizes hangs on a single size of the inputs, so that no other ones could make it fit."""
        free = self._free(point, opt)
        base, _ = _infer(self._fixed(opt))
        moved = [_infer(self._fixed(Point(point.name, shapes, opt.values)))[0] for shapes in free]
        for group in groups:
            sizes = [_sizes(shapes, operands, group) for shapes in (base, *moved)]
            if None in sizes or sum(found != sizes[0] for found in sizes[1:]) > 1:
                return False
        return True

    def _free(self, point: Point, opt: Point) -> list[dict[str, Dims]]:
        """The opt shapes with one free size each moved to the point; dimensions of one name are one size."""
        axes: dict[object, list[tuple[str, int]]] = {}
        for name, shape in point.shapes.items():
            declared = self.inputs[name].shape or [None] * len(shape)
            for axis, size in enumerate(shape):
                if size != opt.shapes[name][axis]:
                    axes.setdefault(declared[axis] or (name, axis), []).append((name, axis))
        found = []
        for places in axes.values():
            shapes = {name: list(shape) for name, shape in opt.shapes.items()}
            for name, axis in places:
                shapes[name][axis] = point.shapes[name][axis]
            found.append({name: tuple(shape) for name, shape in shapes.items()})
        return found


# --- inference -----------------------------------------------------------------------------------------------------


def _without_subgraphs(model: ModelProto) -> ModelProto:
    """A copy to infer with: nodes bear their index as name; declared shapes of outputs are gone, which may be wrong; so are
    nodes with subgraphs, since a branch not taken need not fit, and custom ones: their outputs are inputs of unknown shape."""
    bare = onnx_model.skeleton(model)
    functions = {(f.domain, f.name) for f in bare.functions}
    types = {v.name: v for v in _leniently(bare).value_info}
    nodes = []
    for index, node in enumerate(bare.graph.node):
        node.name = f"#{index}#"
        known = node.domain in onnx_model.STANDARD_DOMAINS or (node.domain, node.op_type) in functions
        if known and not any(True for _ in onnx_model.subgraphs(node)):
            nodes.append(node)
            continue
        for name in filter(None, node.output):
            opaque = types.get(name, helper.make_empty_tensor_value_info(name))
            opaque.type.tensor_type.ClearField("shape")
            bare.graph.input.append(opaque)
    del bare.graph.node[:]
    bare.graph.node.extend(nodes)
    for output in bare.graph.output:
        output.type.tensor_type.ClearField("shape")
    return bare


def _infer(fixed: ModelProto) -> tuple[dict[str, Dims], tuple[int, str] | None]:
    """Shapes of the tensors whose shape is known entirely; index in the model of the first node that breaks ONNX's rules, and
    the reason."""
    broken = None
    try:
        graph = inference.infer(fixed, strict_mode=True, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
        named = re.search(r"node name: #(\d+)#\)(.*)", str(error))
        broken = named and (int(named[1]), named[2].split("]")[-1].strip(" :"))
        graph = _leniently(fixed)
    found: dict[str, Dims] = {t.name: tuple(t.dims) for t in graph.initializer}
    for value in (*graph.value_info, *graph.input, *graph.output):
        shape = onnx_graph.describe(value).shape
        sizes = tuple(d for d in shape or () if isinstance(d, int))
        if shape is not None and len(sizes) == len(shape):
            found[value.name] = sizes
    return found, broken


def _leniently(model: ModelProto) -> GraphProto:
    try:
        return inference.infer(model, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return model.graph


def _odd(graph: GraphProto, shapes: Mapping[str, Dims]) -> Iterator[int]:
    """Indices in the model of nodes that ONNX's inference lets pass although they may not run: a kernel larger than what it runs
    over, a Reshape to another number of elements."""
    for node in graph.node:
        if node.op_type not in (*misfit.WINDOWS, "Reshape") or any(name and name not in shapes for name in node.input):
            continue
        operands = [shapes[name] for name in node.input if name]
        if misfit.explain(node.op_type, onnx_model.attribute_values(node), operands, shapes.get(node.output[0])):
            yield int(node.name.strip("#"))


# --- the part of the model up to a node ----------------------------------------------------------------------------


def _upstream(graph: GraphProto, index: int) -> list[int]:
    """The node and those that it needs, in their order."""
    producers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    pending, found = [index], set[int]()
    while pending:
        current = pending.pop()
        if current in found:
            continue
        found.add(current)
        node = graph.node[current]
        pending += [producers[name] for name in {*node.input, *onnx_model.captured(node)} if name in producers]
    return sorted(found)


def _part(model: ModelProto, index: int, upstream: Sequence[int]) -> ModelProto:
    """These nodes as a model that ends in the one at `index`, whose name is _SUSPECT in it."""
    graph, source = GraphProto(name="part"), model.graph
    graph.node.extend(source.node[i] for i in upstream)
    graph.node[upstream.index(index)].name = _SUSPECT
    used = {name for node in graph.node for name in {*node.input, *onnx_model.captured(node)}}
    graph.input.extend(value for value in source.input if value.name in used)
    graph.initializer.extend(tensor for tensor in source.initializer if tensor.name in used)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in source.node[index].output if name)
    part = ModelProto(ir_version=model.ir_version, graph=graph)
    part.opset_import.extend(model.opset_import)
    part.functions.extend(model.functions)
    return part


def _shape(io: IO, point: Point) -> Dims:
    """The input's shape at the point."""
    return point.shapes.get(io.name, tuple(d for d in io.shape or () if isinstance(d, int)))


def _sizes(shapes: Mapping[str, Dims], operands: Sequence[str], group: Sequence[tuple[int, int]]) -> list[int] | None:
    """The sizes of a group; None if one is unknown."""
    if any(operands[index] not in shapes for index, _ in group):
        return None
    return [shapes[operands[index]][axis] for index, axis in group]
