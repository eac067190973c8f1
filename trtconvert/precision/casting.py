"""Changes the float type of a model's tensors: types of nodes, initializers and bodies, and Casts where types meet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from trtconvert import model as onnx_model
from trtconvert import registry
from trtconvert.bodies import Writing, is_ours, retain
from trtconvert.custom_ops.wishes import replace_nodes
from trtconvert.graph import GraphView
from trtconvert.model import elem_type, numpy_dtype
from trtconvert.precision import kinds, schemas

Stays: TypeAlias = Callable[[GraphView, NodeProto], "str | None"]
"""Why a node keeps its types; None if it does not."""
Told: TypeAlias = Callable[[GraphView, NodeProto, str], None]
"""Called for a node that keeps its types, with the reason."""
Rounded: TypeAlias = Callable[[str, "NDArray[Any]"], "NDArray[Any]"]
"""A constant of that name in the target's dtype."""


@dataclass
class _Scope:
    """A graph while it is rewritten. now: dtypes of its tensors as they are by now. same: tensors that are another's equal.
    casts: tensor and dtype to the tensor that has it in that type."""

    view: GraphView
    parent: _Scope | None
    now: dict[str, str] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)
    casts: dict[tuple[str, str], str] = field(default_factory=dict)
    nodes: list[NodeProto] = field(default_factory=list)
    local: set[str] = field(default_factory=set)

    def owner(self, name: str) -> _Scope:
        """The scope in which the tensor is made."""
        scope = self
        while name not in scope.local and scope.parent is not None:
            scope = scope.parent
        return scope

    def dtype(self, name: str) -> str:
        """Of the tensor by now."""
        owner = self.owner(name)
        return owner.now.get(name) or owner.view.info(name).dtype


class Casting:
    """One change of a model, in place: tensors of the dtypes `changing` become `target`, but around nodes that stay.

    views: of all graphs, in the order of `all_graphs`. io: dtype of the float inputs and outputs, "" to keep. rounded: an
    array of the target's dtype for a constant. folder: of external data.
    """

    def __init__(
        self,
        model: ModelProto,
        folder: Path,
        views: Sequence[GraphView],
        changing: Collection[str],
        target: str,
        stays: Stays,
        told: Told = lambda *_: None,
        io: str = "",
        rounded: Rounded | None = None,
    ) -> None:
        self.model, self.folder, self.changing, self.target, self.io = model, folder, changing, target, io
        self.told, self.writing = told, Writing(model)
        self.opset = onnx_model.opset(model)
        self.rounded = rounded or (lambda _name, array: array.astype(numpy_dtype(target)))
        self._views: Iterator[GraphView] = iter(views)
        # Asked of all nodes before the first is changed.
        self._reasons = {id(node): stays(view, node) for view in views for node in view.nodes}
        self._replaced: set[str] = set()

    def run(self) -> None:
        """Change the model."""
        retain(self.model.functions, lambda f: not is_ours(f.domain))  # written anew, for their types and opset
        self._graph(None, "")
        _drop_unused(self.model, self._replaced)

    # --- graphs

    def _graph(self, parent: _Scope | None, border: str) -> None:
        """border: of a subgraph, the dtype that its inputs and outputs get, "" if they keep theirs."""
        view = next(self._views)
        graph = view.graph
        scope = _Scope(view, parent)
        scope.local = {i.name for i in graph.input} | {t.name for t in graph.initializer} | set(view.producers)
        for declared in graph.input:
            self._declare(scope, declared, self.io if parent is None else border)
        for node in view.nodes:
            self._node(scope, node)
        if parent is None:
            self._outputs(scope)
        else:
            self._inner_outputs(scope, border)
        for value in graph.value_info:
            dtype = scope.now.get(value.name)
            if dtype and value.type.HasField("tensor_type"):
                value.type.tensor_type.elem_type = elem_type(dtype)
        replace_nodes(graph, scope.nodes)

    def _declare(self, scope: _Scope, declared: Any, wanted: str) -> None:
        dtype = scope.view.info(declared.name).dtype
        changes = kinds.FLOATS if scope.parent is None else self.changing
        if not wanted or dtype not in changes or not declared.type.HasField("tensor_type"):
            return
        scope.now[declared.name] = wanted
        declared.type.tensor_type.elem_type = elem_type(wanted)
        for tensor in scope.view.graph.initializer:  # a default
            if tensor.name == declared.name:
                tensor.CopyFrom(self._converted(tensor, tensor.name, wanted))

    def _outputs(self, scope: _Scope) -> None:
        """The model's outputs keep their names: what has another type is renamed, and cast to it."""
        for declared in scope.view.graph.output:
            dtype = scope.view.info(declared.name).dtype
            if dtype not in kinds.FLOATS:
                continue
            wanted, now = self.io or dtype, scope.dtype(declared.name)
            declared.type.tensor_type.elem_type = elem_type(wanted)
            if now == wanted:
                continue
            inner = self._unique(f"{declared.name}_{now}")
            for graph in _graphs_of(scope.nodes):
                _rename(graph, declared.name, inner)
            for node in scope.nodes:
                _rename_in(node, declared.name, inner)
            for tensor in scope.view.graph.initializer:
                if tensor.name == declared.name:
                    tensor.name = inner
            scope.nodes.append(self._cast(inner, declared.name, wanted))

    def _inner_outputs(self, scope: _Scope, border: str) -> None:
        for declared in scope.view.graph.output:
            dtype = scope.view.info(declared.name).dtype
            if dtype not in self.changing:
                continue
            wanted = border or dtype
            name = self._as(scope, declared.name, wanted, here=True)
            declared.name = name
            if declared.type.tensor_type.elem_type:
                declared.type.tensor_type.elem_type = elem_type(wanted)

    # --- nodes

    def _node(self, scope: _Scope, node: NodeProto) -> None:
        view = scope.view
        inputs = [view.info(name).dtype if name else "" for name in node.input]
        outputs = [view.info(name).dtype if name else "" for name in node.output]
        held = list(onnx_model.subgraphs(node))
        if not held and not {*inputs, *outputs} & {*self.changing}:
            node.input[:] = [scope.owner(n).same.get(n, n) for n in node.input]
            self._rebody(scope, node, view.rank(node.input[0]) if node.input else None)
            scope.nodes.append(node)
            return
        rank = view.rank(node.input[0]) if node.input else None
        found = schemas.flexible(node, inputs, outputs, self.opset, self.changing, self.target)
        reason = self._reasons[id(node)] or (found if isinstance(found, str) else None)
        if reason and {*inputs, *outputs} & {*self.changing}:
            self.told(view, node, reason)
        flex = found if reason is None and not isinstance(found, str) else None
        for index, (name, dtype) in enumerate(zip(node.input, inputs, strict=True)):
            if dtype in self.changing:
                node.input[index] = self._as(scope, name, self.target if flex and flex.inputs[index] else dtype)
            elif name:
                node.input[index] = scope.owner(name).same.get(name, name)
        for _ in held:
            self._graph(scope, self.target if reason is None else "")
        for index, (name, dtype) in enumerate(zip(node.output, outputs, strict=True)):
            if dtype in self.changing:
                scope.now[name] = self.target if flex and flex.outputs[index] else dtype
        if self._is_void(scope, node, flex is not None):
            scope.same[node.output[0]] = node.input[0]
            return
        if flex:
            self._retype(node, outputs)
        self._rebody(scope, node, rank)
        scope.nodes.append(node)

    def _is_void(self, scope: _Scope, node: NodeProto, changed: bool) -> bool:
        """Whether it is a Cast between equal types now, which then goes."""
        if node.op_type != "Cast" or node.domain not in onnx_model.STANDARD_DOMAINS:
            return False
        to = onnx_model.dtype_name(onnx_model.attribute_values(node).get("to", 1))
        made = self.target if changed and to in self.changing else to
        return made in kinds.FLOATS and scope.dtype(node.input[0]) == made and node.output[0] not in scope.view.outputs

    def _retype(self, node: NodeProto, outputs: Sequence[str]) -> None:
        """Attributes that say the type of the output."""
        if node.op_type not in schemas.RETYPED or outputs[0] not in self.changing:
            return
        if node.op_type == "Cast":
            retain(node.attribute, lambda a: a.name != "to")
            node.attribute.append(helper.make_attribute("to", elem_type(self.target)))
            return
        tensor = constant(node)
        array = numpy_helper.to_array(tensor) if tensor is not None else np.zeros(1, np.float32)
        value = numpy_helper.from_array(self.rounded(node.output[0], array), "value")
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("value", value))

    def _rebody(self, scope: _Scope, node: NodeProto, rank: int | None) -> None:
        """The body of a plugin node, written for its types."""
        op = registry.find(node.op_type) if is_ours(node.domain) else None
        if op is None:
            return
        values = {k: v for k, v in onnx_model.attribute_values(node).items() if k in op.attributes()}
        dtype = scope.dtype(node.input[0])
        node.domain = self.writing.body(op, op().values() | values, dtype, rank)

    # --- tensors

    def _as(self, scope: _Scope, name: str, dtype: str, here: bool = False) -> str:
        """The tensor's name in that dtype; here: made in this very graph, as an output of it has to be."""
        owner = scope.owner(name)
        if name in owner.same:
            return self._as(scope, owner.same[name], dtype, here)
        if scope.dtype(name) == dtype and (owner is scope or not here):
            return name
        place = scope if here else owner
        key = (name, dtype)
        if key not in place.casts:
            tensor = owner.view.initializers.get(name)
            if tensor is not None and place is owner and scope.dtype(name) in self.changing:
                place.casts[key] = self._unique(f"{name}_{dtype}")
                place.view.graph.initializer.append(self._converted(tensor, place.casts[key], dtype))
                self._replaced.add(name)
            else:
                place.casts[key] = self._unique(f"{name}_{dtype}")
                place.nodes.append(self._cast(name, place.casts[key], dtype))
            place.local.add(place.casts[key])
            place.now[place.casts[key]] = dtype
        return place.casts[key]

    def _converted(self, tensor: TensorProto, name: str, dtype: str) -> TensorProto:
        base = str(self.folder) if tensor.data_location == TensorProto.EXTERNAL else ""
        array = numpy_helper.to_array(tensor, base)
        made = self.rounded(tensor.name, array) if dtype == self.target else array.astype(numpy_dtype(dtype))
        return numpy_helper.from_array(made, name)

    def _cast(self, source: str, target: str, dtype: str) -> NodeProto:
        name = f"{target}_Cast"
        while name in self.writing.nodes:
            name += "_"
        self.writing.nodes.add(name)
        return helper.make_node("Cast", [source], [target], name=name, to=elem_type(dtype))

    def _unique(self, name: str) -> str:
        while name in self.writing.tensors:
            name += "_"
        self.writing.tensors.add(name)
        return name


def _graphs_of(nodes: Sequence[NodeProto]) -> Iterator[GraphProto]:
    for node in nodes:
        for held in onnx_model.subgraphs(node):
            yield from onnx_model.all_graphs(held)


def _rename_in(node: NodeProto, old: str, new: str) -> None:
    node.input[:] = [new if name == old else name for name in node.input]
    node.output[:] = [new if name == old else name for name in node.output]


def _rename(graph: GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        _rename_in(node, old, new)
    for output in graph.output:
        if output.name == old:
            output.name = new


def _drop_unused(model: ModelProto, replaced: Collection[str]) -> None:
    """Initializers go that have been replaced and that nothing reads any more."""
    graphs = list(onnx_model.all_graphs(model.graph))
    read = {name for graph in graphs for node in graph.node for name in node.input}
    read |= {value.name for graph in graphs for value in graph.output} | {i.name for i in model.graph.input}
    for graph in graphs:
        retain(graph.initializer, lambda t: t.name in read or t.name not in replaced)


def hoist_constants(model: ModelProto) -> None:
    """Floats of Constant nodes become initializers, in place."""
    for graph in onnx_model.all_graphs(model.graph):
        kept: list[NodeProto] = []
        for node in graph.node:
            tensor = constant(node) if node.op_type == "Constant" else None
            if tensor is None or node.output[0] in {o.name for o in graph.output}:
                kept.append(node)
            else:
                tensor.name = node.output[0]
                graph.initializer.append(tensor)
        if len(kept) < len(graph.node):
            replace_nodes(graph, kept)


def constant(node: NodeProto) -> TensorProto | None:
    """What a Constant node holds, or a ConstantOfShape repeats, where that is floats and said."""
    if node.domain not in onnx_model.STANDARD_DOMAINS or not node.attribute:
        return None
    attribute: AttributeProto = node.attribute[0]
    if attribute.name == "value":
        tensor = TensorProto()
        tensor.CopyFrom(attribute.t)
        return tensor if onnx_model.dtype_name(tensor.data_type) in kinds.FLOATS else None
    if attribute.name in ("value_float", "value_floats"):
        return numpy_helper.from_array(np.asarray(helper.get_attribute_value(attribute), np.float32))
    return None
