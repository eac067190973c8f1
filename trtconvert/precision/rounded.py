"""A 16-bit model as a float32 one that rounds to 16 bits where it does: what it computes, on a machine without such arithmetic.

onnxruntime's CPU kernels of most ops know no 16-bit floats. It then puts Casts around them, and takes away those that meet, so
that chains of nodes run in float32: a value beyond float16 passes unseen. And bfloat16 it does not run at all.
"""

from __future__ import annotations

from pathlib import Path

from onnx import ModelProto

from trtconvert import model as onnx_model
from trtconvert.precision import kinds
from trtconvert.precision.casting import Casting, hoist_constants
from trtconvert.precision.prepare import views


def rounded(model: ModelProto, folder: Path) -> ModelProto:
    """A copy that computes each node in float32 and rounds its results to the type that they have in the model; inputs and
    outputs keep their types. Plugin nodes with a body of ours round what they make, as their kernels do. folder: of external
    data."""
    copy = onnx_model.copy(model)
    hoist_constants(copy)
    Casting(copy, folder, views(copy, folder), kinds.NARROW, "float32", lambda _view, _node: None, rounds=True).run()
    return copy
