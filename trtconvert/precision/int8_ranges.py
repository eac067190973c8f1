"""How large tensors become on calibration data: onnxruntime runs the model, its collectors choose the range for int8."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto, helper
from onnxruntime.quantization.calibrate import HistogramCollector

from trtconvert import reference
from trtconvert.bodies import add_bodies
from trtconvert.errors import ConvertError
from trtconvert.model import copy, elem_type
from trtconvert.precision.options import CALIBRATORS

LEVELS = 255  # of int8 around 0
_BINS = {"entropy": 1021, "percentile": 2048}  # of entropy on both sides of 0
_PERCENTILE = 99.99  # of the absolute values
_MOST_CUT = 0.01

Feed: TypeAlias = "Mapping[str, NDArray[Any]]"
Samples: TypeAlias = Callable[[], Iterable[Feed]]
"""The calibration data, which is gone through once or twice."""


@dataclass
class Ranges:
    """By tensor the largest absolute value that int8 is to hold, 0 for a tensor that is always 0; for tensors that have none,
    why. samples: how many there were."""

    largest: dict[str, float] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)
    samples: int = 0


def measure(model: ModelProto, folder: Path, dtypes: Mapping[str, str], samples: Samples, method: str) -> Ranges:
    """Run the model on the samples, one at a time, and keep of each tensor its extremes, then a histogram between them.

    dtypes: of the tensors, by name. method: "minmax" takes the largest absolute value, "percentile" that below which 99.99 %
    of the values lie, "entropy" the one at which the histogram loses least by 255 levels (Kullback-Leibler; Migacz, 8-bit
    inference with TensorRT, 2017). ConvertError where onnxruntime does not run the model, for NaN and Inf in the data, and if
    there is none.
    """
    if method not in CALIBRATORS:
        raise ConvertError(f"unknown calibration method {method!r}", fix=f"use one of {', '.join(CALIBRATORS)}")
    run = _Runner(model, folder, dtypes)
    found = Ranges()
    for found.samples, feed in enumerate(samples(), 1):
        _require_finite(feed, found.samples)
        for name, value in run(feed):
            if not value.size:
                continue
            largest = float(np.abs(value).max())
            if np.isfinite(largest):
                found.largest[name] = max(largest, found.largest.get(name, 0.0))
            else:
                found.unusable.setdefault(name, f"{name} has NaN or Inf on calibration sample {found.samples}")
    if not found.samples:
        raise ConvertError("there is no calibration data", fix="give at least one sample with --calib")
    for name in dtypes:
        if name not in found.largest:
            found.unusable.setdefault(name, f"{name} has no elements on the calibration data")
    for name in found.unusable:
        found.largest.pop(name, None)
    if method != "minmax":
        found.largest |= _narrowed(run, samples, found.largest, method)
    return found


def _require_finite(feed: Feed, number: int) -> None:
    for name, array in feed.items():
        if array.dtype.kind in "fV" and not np.isfinite(array.astype(np.float32)).all():
            raise ConvertError(
                f"the calibration data has NaN or Inf in {name!r}",
                where=f"sample {number}",
                fix="leave that sample out",
            )


class _Runner:
    """The model in onnxruntime, which gives the tensors that are asked for, as float32."""

    def __init__(self, model: ModelProto, folder: Path, dtypes: Mapping[str, str]) -> None:
        inputs = {i.name for i in model.graph.input}
        self.fed = [name for name in dtypes if name in inputs]
        self.made = [name for name in dtypes if name not in inputs]
        asking = copy(model)
        add_bodies(asking)
        del asking.graph.output[:]
        asking.graph.output.extend(helper.make_tensor_value_info(n, elem_type(dtypes[n]), None) for n in self.made)
        if not self.made:
            asking.graph.output.append(model.graph.output[0])
        try:
            self.session = reference.session(asking, folder)
        except Exception as error:  # onnxruntime's exceptions have no common base of their own
            raise _cannot(error) from error

    def __call__(self, feed: Feed) -> Iterable[tuple[str, NDArray[np.float32]]]:
        try:
            values = self.session.run(self.made or None, dict(feed))
        except Exception as error:
            raise _cannot(error) from error
        found = dict(zip(self.made, values, strict=False)) | {name: feed[name] for name in self.fed}
        return ((name, np.asarray(value, np.float32)) for name, value in found.items())


def _cannot(error: Exception) -> ConvertError:
    return ConvertError(
        f"onnxruntime {onnxruntime.__version__} cannot run the model to calibrate it: {str(error).splitlines()[0]}",
        fix="give calibration data that the model takes; ops that onnxruntime lacks need a function in the model",
    )


def _narrowed(run: _Runner, samples: Samples, largest: Mapping[str, float], method: str) -> dict[str, float]:
    """The ranges that onnxruntime's collector chooses from histograms within the extremes, which do not grow and so do not
    depend on the order of the samples."""
    bins = _BINS[method]
    collector = HistogramCollector(method, method == "percentile", bins, LEVELS, _PERCENTILE, "same")
    for name, top in largest.items():
        if top > 0:
            low = 0.0 if method == "percentile" else -top
            edges = np.linspace(low, top, bins + 1, dtype=np.float32)
            start = (np.zeros(bins, np.int64), edges, np.float32(top), np.float32(-top), np.float32(top))
            collector.histogram_dict[name] = start[: 4 if method == "percentile" else 5]
    if not collector.histogram_dict:
        return {}
    with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):  # it tells its progress
        for feed in samples():
            collector.collect({n: [v.ravel()] for n, v in run(feed) if n in collector.histogram_dict and v.size})
        chosen = collector.compute_collection_result()
    kept = {}
    for name, found in chosen.items():
        counts, edges = collector.histogram_dict[name][:2]
        kept[name] = _largest(found[:2], counts, edges, largest[name])
    return kept


def _largest(limits: Sequence[Any], counts: NDArray[Any], edges: NDArray[Any], top: float) -> float:
    """The end of the range that is farther from 0; all of it where the collector found nothing above 0, or would cut off more
    than 1 % of the values, as entropy does where there are few different ones."""
    found = max(abs(float(limit)) for limit in limits)
    cut = counts[np.abs(edges[:-1] + edges[1:]) / 2 > found].sum() / max(counts.sum(), 1)
    return found if 0 < found <= top and cut <= _MOST_CUT else top
