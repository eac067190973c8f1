"""Plugin nodes: which creator serves each, by name, version and namespace, and whether the node fits it."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import onnx
from onnx import AttributeProto, ModelProto, NodeProto, helper

from trtconvert import attributes
from trtconvert import model as onnx_model
from trtconvert.attributes import NAMESPACE, VERSION
from trtconvert.creators import Creator, of_op
from trtconvert.errors import ConvertError, together
from trtconvert.op import Op
from trtconvert.registry import ops
from trtconvert.wishes import MAPPED, Wishes, is_meant, op_title


@dataclass(frozen=True)
class PluginNode:
    """A node that the parser must import as a plugin: its name after lowering, and the creator that makes it."""

    node: str
    creator: Creator

    @property
    def op(self) -> type[Op] | None:
        """The Python op; None for a library's plugin."""
        return self.creator.op


@dataclass(frozen=True)
class Custom:
    """What there is for custom nodes. backend: TensorRT's title, for messages. creators: of libraries and TensorRT itself;
    Python ops are in the registry. full: not TensorRT-RTX, which takes neither plugins of version 2 nor left-out inputs."""

    backend: str = "TensorRT"
    creators: Sequence[Creator] = ()
    wishes: Wishes = field(default_factory=Wishes)
    full: bool = False

    def named(self, op_type: str) -> list[Creator]:
        """The creators of that name."""
        return [creator for creator in (*map(of_op, ops()), *self.creators) if creator.name == op_type]

    def has(self, op_type: str) -> bool:
        """Whether any creator has that name."""
        return bool(self.named(op_type))

    def resolve(self, node: NodeProto) -> Creator | list[ConvertError]:
        """The creator that serves the node, or why none does. The node's plugin_version and plugin_namespace decide; where it
        has none, a creator in the namespace of its domain or in none, or the only other one."""
        found = self.named(node.op_type)
        if not found:
            return [self._nobody(node)]
        version, namespace, faults = _pins(node)
        if faults:
            return faults
        fitting = [c for c in found if version in (None, c.version) and namespace in (None, c.namespace)]
        near = [c for c in fitting if c.namespace in (node.domain, "")] or fitting
        if len({c.namespace for c in near if c.namespace not in (node.domain, "")}) > 1 or not near:
            return [_elsewhere(node, found, version, namespace)]
        return max(near, key=lambda c: (c.namespace == node.domain, _preference(c)))

    def _nobody(self, node: NodeProto) -> ConvertError:
        if node.domain in onnx_model.STANDARD_DOMAINS and onnx.defs.has(node.op_type):
            return ConvertError(
                f"{self.backend} has no importer for the ONNX op {node.op_type}",
                where=f"node {node.name}",
                fix=f"write it with other ops in the exporter, or give a plugin named {node.op_type} with --plugin",
            )
        known = [*map(of_op, ops()), *self.creators]
        near = difflib.get_close_matches(node.op_type, {creator.name for creator in known}, 3)
        titles = [creator.title for creator in known if creator.name in near]
        hint = ""
        if node.domain.startswith(onnx_model.ORT_DOMAIN):
            hint = "onnxruntime's optimizer wrote it: give the model from before, or optimized at level BASIC; "
        if onnx.defs.has(node.op_type):
            hint += f"{node.op_type} is also a standard ONNX op: use domain '' if that is meant; "
        if titles:
            hint += f"nearest registered: {', '.join(titles)} (--map {op_title(node)}={near[0]} takes it); "
        else:
            hint += f"registered: {', '.join(sorted({c.name for c in known}))}; "
        return ConvertError(
            f"no plugin and no function body for custom op {op_title(node)}",
            where=f"node {node.name}",
            fix=f"{hint}give a plugin with --plugin FILE.py or LIB.so (see README, 'Add an op')",
        )

    def prepare(self, model: ModelProto, nodes: Sequence[NodeProto]) -> tuple[list[PluginNode], list[str]]:
        """Make those nodes ready for the parser, in place: attributes as declared, version and namespace written out, all
        outputs named; also notes on what is not obvious. Raises ConvertError with every fault of every node."""
        faults: list[ConvertError] = []
        found: list[PluginNode] = []
        notes = []
        for node in nodes:
            creator = self.resolve(node)
            if isinstance(creator, list):
                faults += creator
                continue
            for value in self.wishes.values:
                if is_meant(value.node, node):
                    declared = next((f for f in creator.fields if f.name == value.name), None)
                    attributes.set_value(node, value.name, value.text, declared)
            problems = [*attributes.check(node, creator, self.wishes.left_out(node)), *self._inputs(node, creator)]
            problems += attributes.shape_inputs(node, creator)
            faults += problems
            if creator.namespace not in (node.domain, "") and not _has(node, NAMESPACE) and node.domain != MAPPED:
                notes.append(f"{node.name}: made by {creator.title}, the model says {op_title(node)}")
            if not problems:
                found.append(_ready(node, creator))
        if faults:
            raise together(faults)
        _hide_natives(model, found)
        return found, notes

    def overlooked(self, natives: Sequence[NodeProto]) -> list[str]:
        """Notes on standard nodes whose op type is also the name of a plugin that somebody gave."""
        kinds = Counter(node.op_type for node in natives)
        return [
            f"{op_type} x{count}: TensorRT's own layer is used, not the plugin of that name; --map {op_type}={op_type} takes it"
            for op_type, count in kinds.items()
            if any(creator.library for creator in self.named(op_type))
        ]

    def _inputs(self, node: NodeProto, creator: Creator) -> Iterator[ConvertError]:
        while node.input and not node.input[-1]:
            del node.input[-1]  # the same to ONNX, and nothing that TensorRT could mind
        if not any(node.input):
            yield ConvertError(
                f"{op_title(node)} has no input, and TensorRT takes no plugin without one",
                where=f"node {node.name}",
                fix="give the op an input that it ignores, or make its output an initializer",
            )
        elif creator.op is not None and len(node.input) != len(creator.op.inputs()):
            names = creator.op.inputs()
            yield ConvertError(
                f"{node.op_type} has {len(node.input)} inputs, the op takes {len(names)}: {', '.join(names)}",
                where=f"node {node.name}",
            )
        elif creator.interface != "V3ONE" and not self.full:
            yield ConvertError(
                f"{creator.title} has a creator of interface {creator.interface}, and {self.backend} imports V3ONE only",
                where=f"node {node.name}",
                fix="port the plugin to IPluginV3 and IPluginCreatorV3One, or use --backend tensorrt",
            )
        elif "" in node.input and (creator.op is not None or not self.full):
            who = "a Python op" if creator.op is not None else self.backend
            yield ConvertError(
                f"input {list(node.input).index('')} of {op_title(node)} is left out, and {who} needs every input of a plugin",
                where=f"node {node.name}",
                fix="give it a constant that means the same, or a plugin without that input",
            )


def _preference(creator: Creator) -> tuple[bool, int, str]:
    """Of a Python op the newest version; of a library what the parser takes when the node says nothing, "1"."""
    return creator.op is None and creator.version == "1", len(creator.version), creator.version


def _has(node: NodeProto, name: str) -> bool:
    return any(attribute.name == name for attribute in node.attribute)


def _pins(node: NodeProto) -> tuple[str | None, str | None, list[ConvertError]]:
    """The version and namespace that the node asks for, None where it does not say."""
    found: dict[str, str] = {}
    faults = []
    for attribute in node.attribute:
        if attribute.name not in (VERSION, NAMESPACE):
            continue
        if attribute.type == AttributeProto.STRING:
            found[attribute.name] = attribute.s.decode(errors="replace")
            continue
        value = helper.get_attribute_value(attribute)
        faults.append(
            ConvertError(
                f"{attribute.name} of {op_title(node)} must be a string attribute, it is {value!r}",
                where=f"node {node.name}",
                fix=f'export it as the text "{value}", or --map {op_title(node)}={node.op_type}@{value}',
            )
        )
    return found.get(VERSION), found.get(NAMESPACE), faults


def _elsewhere(node: NodeProto, found: list[Creator], version: str | None, namespace: str | None) -> ConvertError:
    """The name is there, but not as the node asks for it."""
    asked = [
        *([f"version {version}"] if version else []),
        *([f"namespace {namespace!r}"] if namespace is not None else []),
    ]
    there = ", ".join(f"version {c.version} in namespace {c.namespace!r}" for c in found)
    one = found[0]
    target = f"{one.name}@{one.version}:{one.namespace}"
    return ConvertError(
        f"{node.op_type} is registered as {there}; the node asks for {' and '.join(asked) or 'none of them clearly'}",
        where=f"node {node.name}",
        fix=f"--map {op_title(node)}={target}, or give the node that plugin_version and plugin_namespace",
    )


def _ready(node: NodeProto, creator: Creator) -> PluginNode:
    pinned = {VERSION: creator.version, NAMESPACE: creator.namespace}
    kept = [a for a in node.attribute if a.name not in pinned]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.extend(helper.make_attribute(name, value) for name, value in pinned.items())
    if creator.op is not None:
        # The parser wants as many outputs as the plugin has, which has one more for each size that depends on the data.
        node.output.extend(f"{node.name}_counted_{i}" for i in range(creator.op.counts()))
    return PluginNode(node.name, creator)


def _hide_natives(model: ModelProto, found: Sequence[PluginNode]) -> None:
    """Standard nodes whose op type is also the name of a plugin used here stay TensorRT's own: with plugins allowed to
    override, the parser would give them to the plugin; a version that nobody has keeps it from finding it."""
    plugins = {one.node for one in found}
    names = {one.creator.name for one in found if onnx.defs.has(one.creator.name)}
    for node in onnx_model.all_nodes(model) if names else ():
        if node.op_type in names and node.name not in plugins:
            node.attribute.append(helper.make_attribute(VERSION, "none: TensorRT's own"))
