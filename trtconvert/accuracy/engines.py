"""Engines of a lowered model with further outputs, made as the build made its own, for `bisect`."""

from __future__ import annotations

import dataclasses

from onnx import ModelProto

from trtconvert import model as onnx_model
from trtconvert.accuracy.parts import Arrays
from trtconvert.accuracy.wrong import Run
from trtconvert.engine import Engine
from trtconvert.lower import Lowered
from trtconvert.model import numpy_dtype
from trtconvert.network import Maker
from trtconvert.shapes import Profile


def part(lowered: Lowered, model: ModelProto) -> Lowered:
    """A part of the lowered model, with those plugin nodes that are in it."""
    names = {node.name for node in onnx_model.all_nodes(model)}
    return dataclasses.replace(lowered, model=model, plugin_nodes=[n for n in lowered.plugin_nodes if n.node in names])


def runs(maker: Maker, lowered: Lowered, profile: Profile, feeds: Arrays) -> Run:
    """Makes an engine of a part of the lowered model and runs it on what it takes of these inputs and of given tensors. Needs
    a GPU."""

    def run(model: ModelProto, given: Arrays) -> Arrays:
        engine = Engine(maker.backend, maker.serialized(part(lowered, model), profile), maker.source)
        known = {**feeds, **given}
        fed = {io.name: known[io.name].astype(numpy_dtype(io.dtype), copy=False) for io in engine.inputs}
        return engine.run(fed)

    return run
