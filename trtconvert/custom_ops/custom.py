"""Plugin nodes: which creator serves each, by name, version and namespace, and whether the node fits it."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import onnx
from onnx import AttributeProto, ModelProto, NodeProto, helper

from trtconvert import model as onnx_model
from trtconvert.backend import Backend
from trtconvert.custom_ops import attributes
from trtconvert.custom_ops.attributes import MAPPED, NAMESPACE, VERSION, op_title
from trtconvert.custom_ops.creators import Creator, of_op, registered
from trtconvert.custom_ops.wishes import Wishes, is_meant
from trtconvert.diagnosis.faults import Fault
from trtconvert.op import Op
from trtconvert.registry import ops

NOBODY = "none"  # a plugin version that no creator has


@dataclass(frozen=True)
class PluginNode:
    """A node that the parser must import as a plugin: its name after lowering, and the creator that makes it."""

    node: str
    creator: Creator

    @property
    def op(self) -> type[Op] | None:
        """The Python op; None for a library's plugin."""
        return self.creator.op

    def is_layer(self, name: str) -> bool:
        """Whether the layer of that name is this node's."""
        return name == self.node or name.endswith("/" + self.node)


@dataclass(frozen=True)
class Custom:
    """What there is for custom nodes. backend: TensorRT's title, for messages. creators: of libraries and TensorRT itself;
    Python ops are in the registry. full: not TensorRT-RTX, which takes neither plugins of version 2 nor left-out inputs."""

    backend: str = "TensorRT"
    creators: Sequence[Creator] = ()
    wishes: Wishes = field(default_factory=Wishes)
    full: bool = False

    @classmethod
    def of(cls, backend: Backend, wishes: Wishes | None = None) -> Custom:
        """What there is in this process for that TensorRT."""
        return cls(backend.title, registered(backend), wishes or Wishes(), not backend.is_rtx)

    @cached_property
    def known(self) -> list[Creator]:
        """Every creator that a node may name."""
        return [*map(of_op, ops()), *self.creators]

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(creator.name for creator in self.known)

    def has(self, op_type: str) -> bool:
        """Whether any creator has that name."""
        return op_type in self._names

    def resolve(self, node: NodeProto) -> Creator | list[Fault]:
        """The creator that serves the node, or why none does. The node's plugin_version and plugin_namespace decide; where it
        has none, a creator in the namespace of its domain or in none, or the only other one."""
        found = [creator for creator in self.known if creator.name == node.op_type]
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

    def _nobody(self, node: NodeProto) -> Fault:
        near = difflib.get_close_matches(node.op_type, self._names, 3)
        titles = [creator.title for creator in self.known if creator.name in near]
        hint = ""
        if node.domain.startswith(onnx_model.ORT_DOMAIN):
            hint = "onnxruntime's optimizer wrote it: give the model from before, or optimized at level BASIC; "
        if onnx.defs.has(node.op_type):
            hint += f"{node.op_type} is also a standard ONNX op: use domain '' if that is meant; "
        if node.domain == MAPPED:
            hint += f"registered: {', '.join(sorted(self._names))}; "
        elif titles:
            hint += f"nearest registered: {', '.join(titles)} (--map {op_title(node)}={near[0]} takes it); "
        else:
            hint += f"registered: {', '.join(sorted(self._names))}; "
        return Fault(
            node.name,
            op_title(node),
            "no plugin has the name that --map gives"
            if node.domain == MAPPED
            else "no plugin and no function body for this custom op",
            f"{hint}give a plugin with --plugin FILE.py or LIB.so (see docs/ops.md, 'Add an op')",
        )

    def prepare(self, nodes: Sequence[NodeProto], faults: list[Fault]) -> tuple[list[PluginNode], list[str]]:
        """Make those nodes ready for the parser, in place: attributes as declared, version and namespace written out, all
        outputs named; also notes on what is not obvious. Every fault of every node goes to `faults`."""
        found: list[PluginNode] = []
        notes = []
        for node in nodes:
            while node.input and not node.input[-1]:
                del node.input[-1]  # the same to ONNX, and nothing that TensorRT could mind
            missing = [] if any(node.input) else [_without_input(node)]
            creator = self.resolve(node)
            if isinstance(creator, list):
                faults += [*creator, *missing]
                continue
            self._set_values(node, creator)
            problems = [
                *missing,
                *attributes.check(node, creator, self.wishes.left_out(node)),
                *self._inputs(node, creator),
            ]
            problems += attributes.shape_inputs(node, creator)
            faults += problems
            if creator.namespace not in (node.domain, "") and not _has(node, NAMESPACE) and node.domain != MAPPED:
                notes.append(f"{node.name} ({op_title(node)}) is made by {creator.title}")
            if problems:
                _pin(node, NOBODY, "")  # what does not fit a plugin must not reach it
            else:
                found.append(_ready(node, creator))
        return found, notes

    def _set_values(self, node: NodeProto, creator: Creator) -> None:
        fields = {one.name: one for one in creator.fields}
        for value in self.wishes.values:
            if is_meant(value.node, node):
                attributes.set_value(node, value.name, value.text, fields.get(value.name))

    def settle_natives(self, model: ModelProto, plugin_nodes: Sequence[PluginNode]) -> list[str]:
        """Standard nodes whose op type is also the name of a plugin stay TensorRT's own; notes on those whose plugin
        somebody gave.

        A plugin named like a standard op makes the parser give all its nodes to plugins, if there is one; a version that
        nobody has keeps it from finding one for these (seen in TensorRT-RTX 1.7.1).
        """
        plugins = {one.node for one in plugin_nodes}
        used = {one.creator.name for one in plugin_nodes}
        given = {c.name for c in self.known if c.library and not (c.op and c.op.__module__.startswith("trtconvert."))}
        overlooked: Counter[str] = Counter()
        for node in onnx_model.all_nodes(model):
            standard = node.domain in onnx_model.STANDARD_DOMAINS and onnx.defs.has(node.op_type)
            if standard and node.op_type in used | given and node.name not in plugins:
                overlooked[node.op_type] += node.op_type in given
                if node.op_type in used:
                    _pin(node, NOBODY, "")
        return [
            f"{op_type} x{count}: TensorRT's own layer is used, not the plugin of that name; --map {op_type}={op_type} takes it"
            for op_type, count in (+overlooked).items()
        ]

    def _inputs(self, node: NodeProto, creator: Creator) -> Iterator[Fault]:
        if creator.op is not None and len(node.input) != len(creator.op.inputs()):
            names = creator.op.inputs()
            yield Fault(
                node.name,
                op_title(node),
                f"it has {len(node.input)} inputs, the op takes {len(names)}: {', '.join(names)}",
                "",
            )
        elif creator.interface != "V3ONE" and not self.full:
            yield Fault(
                node.name,
                op_title(node),
                f"{creator.title} has a creator of interface {creator.interface}, and {self.backend} imports V3ONE only",
                "port the plugin to IPluginV3 and IPluginCreatorV3One, or use --backend tensorrt",
            )
        elif "" in node.input and (creator.op is not None or not self.full):
            who = "a Python op" if creator.op is not None else self.backend
            yield Fault(
                node.name,
                op_title(node),
                f"input {list(node.input).index('')} is left out, and {who} needs every input of a plugin",
                "give it a constant that means the same, or a plugin without that input",
            )


def _without_input(node: NodeProto) -> Fault:
    return Fault(
        node.name,
        op_title(node),
        "it has no input, and TensorRT takes no plugin without one",
        "give the op an input that it ignores, or make its output an initializer",
    )


def _preference(creator: Creator) -> tuple[bool, int, str]:
    """Of a Python op the newest version; of a library what the parser takes when the node says nothing, "1"."""
    return creator.op is None and creator.version == "1", len(creator.version), creator.version


def _has(node: NodeProto, name: str) -> bool:
    return any(attribute.name == name for attribute in node.attribute)


def _pins(node: NodeProto) -> tuple[str | None, str | None, list[Fault]]:
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
            Fault(
                node.name,
                op_title(node),
                f"{attribute.name} must be a string attribute, it is {value!r}",
                f'export it as the text "{value}", or --map {op_title(node)}={node.op_type}@{value}',
            )
        )
    return found.get(VERSION), found.get(NAMESPACE), faults


def _elsewhere(node: NodeProto, found: list[Creator], version: str | None, namespace: str | None) -> Fault:
    """The name is there, but not as the node asks for it."""
    asked = [
        *([f"version {version}"] if version else []),
        *([f"namespace {namespace!r}"] if namespace is not None else []),
    ]
    there = ", ".join(f"version {c.version} in namespace {c.namespace!r}" for c in found)
    one = found[0]
    target = f"{one.name}@{one.version}:{one.namespace}"
    return Fault(
        node.name,
        op_title(node),
        f"the plugin is registered as {there}; the node asks for {' and '.join(asked) or 'none of them clearly'}",
        f"--map {op_title(node)}={target}, or give the node that plugin_version and plugin_namespace",
    )


def _pin(node: NodeProto, version: str, namespace: str) -> None:
    """Make the node name exactly that version and namespace."""
    pinned = {VERSION: version, NAMESPACE: namespace}
    kept = [a for a in node.attribute if a.name not in pinned]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.extend(helper.make_attribute(name, value) for name, value in pinned.items())


def _ready(node: NodeProto, creator: Creator) -> PluginNode:
    _pin(node, creator.version, creator.namespace)
    if creator.op is not None:
        # The parser wants as many outputs as the plugin has, which has one more for each size that depends on the data.
        node.output.extend(f"{node.name}_counted_{i}" for i in range(creator.op.counts()))
    return PluginNode(node.name, creator)
