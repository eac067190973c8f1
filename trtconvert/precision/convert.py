"""A model in another precision: what is measured of it once, and the conversion of it and of all models made from it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray
from onnx import ModelProto, NodeProto

from trtconvert import model as onnx_model
from trtconvert import registry
from trtconvert.calibration import calibration
from trtconvert.custom_ops import wishes
from trtconvert.custom_ops.custom import Custom
from trtconvert.errors import ConvertError
from trtconvert.feeds.contract import of_model
from trtconvert.feeds.feed import FeedOptions
from trtconvert.feeds.feed import feeds as random_feeds
from trtconvert.graph import GraphView
from trtconvert.precision import casters
from trtconvert.precision.casting import Casting, Stays, Told
from trtconvert.precision.islands import IN_INT8, Islands
from trtconvert.precision.kinds import KINDS
from trtconvert.precision.measure import Extent, measure
from trtconvert.precision.options import CASTERS, KEEP, PrecisionOptions
from trtconvert.precision.prepare import prepare, raise_opset, views
from trtconvert.shapes import Profile

Feeds: TypeAlias = "Iterable[Mapping[str, NDArray[Any]]]"


@dataclass(frozen=True)
class Kept:
    """A node that stays in float32, after the path of the nodes that hold its graph, and why."""

    node: str
    op: str
    reason: str


@dataclass(frozen=True)
class Converted:
    """The model in its new precision, which onnxruntime runs too; the nodes that stayed in float32.

    calibration: method, samples and digest of what measured the values.
    """

    model: ModelProto
    kept: list[Kept] = field(default_factory=list)
    calibration: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class Conversion:
    """Converts a model and what is made from it, such as the model fused, or cuts of it.

    source: the model before fusing, whose values are measured. folder: of its external data. custom: the creators that there
    are. feeds: inputs to measure its values with; those of --calib, or random ones by role, unless given.
    """

    def __init__(
        self,
        options: PrecisionOptions,
        source: ModelProto,
        folder: Path,
        profile: Profile,
        custom: Custom | None = None,
        feeds: Feeds | None = None,
    ) -> None:
        self.options, self.source, self.folder, self.profile = options, source, folder, profile
        self.custom, self.kind = custom or Custom(), KINDS[options.name]
        self.feeds, self._counted = feeds, _Counted(str(options.calib or "random"))
        self.notes: list[str] = []

    @cached_property
    def prepared(self) -> ModelProto:
        """The source in float32."""
        return prepare(self.source, self.folder, self.profile.fixed, self.custom)

    @cached_property
    def extents(self) -> dict[str, Extent] | None:
        """Of the source's tensors; None where nothing can be measured."""
        feeds = self.feeds if self.feeds is not None else self._data()
        try:
            return measure(self.prepared, self.folder, self._counted(feeds))
        except ConvertError as error:
            self.notes.append(f"which nodes must stay in float32 was not measured, but taken by op: {error.what}")
            return None

    def _data(self) -> Feeds:
        """The samples of --calib, or random ones by role at min, opt and max."""
        model = self.prepared
        contract = of_model(model, self.profile)
        if self.options.calib is not None:
            return calibration(self.options.calib, model, self.folder, contract)
        return (batch.arrays for batch in random_feeds(FeedOptions(), model, self.folder, contract).batches)

    def apply(self, model: ModelProto, profile: Profile, interior: bool = False) -> Converted:
        """The model, or one made from it, converted; it is not changed itself. interior: its inputs and outputs are tensors
        inside the source, and have the new type."""
        ready = prepare(model, self.folder, profile.fixed, self.custom)
        io = self.kind.dtype if interior else "" if self.options.io == KEEP else KINDS[self.options.io].dtype
        if self.kind.dtype == "float32":
            made = onnx_model.copy(ready)
            _cast(made, self.folder, "float32", lambda *_: None, io)
            return Converted(made) if interior else _checked(Converted(made), ready, CASTERS[0])
        if not interior:
            self._note_fused(ready)
        ready = raise_opset(ready, self.kind.dtype)
        islands = Islands(self.kind, self.extents, self.options.keep_fp32)
        kept: list[Kept] = []

        def told(view: GraphView, node: NodeProto, reason: str) -> None:
            if reason != IN_INT8:
                kept.append(Kept(view.path + wishes.default_name(node), node.op_type, reason))

        made = onnx_model.copy(ready)
        if self.options.caster == CASTERS[0]:
            _cast(made, self.folder, self.kind.dtype, islands.reason, io, told, islands)
        else:
            made = casters.by_name(self.options.caster)(made, self.folder, self.kind, islands, io, told)
        converted = Converted(made, kept, self._counted.told, list(dict.fromkeys(self.notes)))
        return converted if interior else _checked(converted, ready, self.options.caster)

    def check(self) -> None:
        """ConvertError, before anything is fused, for what --keep-fp32 names and no node can have as its name or op."""
        nodes = list(onnx_model.all_nodes(self.prepared)) if self.options.keep_fp32 else []
        for name in self.options.keep_fp32:
            fused = any(name.endswith(op.name) for op in registry.ops() if op.pattern)
            if not fused and not any(wishes.is_meant(name, node) for node in nodes):
                known = [*map(wishes.default_name, nodes), *{node.op_type for node in nodes}]
                raise wishes.nobody("--keep-fp32", name, known, "node or op")

    def _note_fused(self, ready: ModelProto) -> None:
        for name in self.options.keep_fp32:
            if not any(wishes.is_meant(name, node) for node in onnx_model.all_nodes(ready)):
                self.notes.append(f"--keep-fp32 {name}: it was fused; plugins compute in float32 inside")


def _cast(
    model: ModelProto,
    folder: Path,
    target: str,
    stays: Stays,
    io: str,
    told: Told = lambda *_: None,
    islands: Islands | None = None,
) -> None:
    rounded = islands.rounded if islands is not None else None
    Casting(model, folder, views(model, folder), ("float32",), target, stays, told, io, rounded).run()


def _checked(converted: Converted, before: ModelProto, caster: str) -> Converted:
    """The same, if it is valid. What ONNX's checker did not take before either is no fault of the conversion."""
    fault = _fault(converted.model)
    if fault is not None and _fault(before) is None:
        raise ConvertError(
            f"the converter ({caster}) made a model that is not valid ONNX: {fault.what}",
            where=fault.where,
            fix="report this model, and keep the node as it is meanwhile: --keep-fp32 NODE",
        )
    return converted


def _fault(model: ModelProto) -> ConvertError | None:
    try:
        onnx_model.check(model)
    except ConvertError as error:
        return error
    return None


class _Counted:
    """Feeds as they pass by: how many, and their digest."""

    def __init__(self, source: str) -> None:
        self.source, self.told = source, dict[str, Any]()

    def __call__(self, feeds: Feeds) -> Iterator[Mapping[str, NDArray[Any]]]:
        digest = hashlib.sha256()
        for samples, feed in enumerate(feeds, 1):
            for name in sorted(feed):
                digest.update(name.encode() + feed[name].tobytes())
            self.told = {
                "method": "largest and least values",
                "data": self.source,
                "samples": samples,
                "digest": digest.hexdigest(),
            }
            yield feed
