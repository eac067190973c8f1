"""Runs models and engines on the same inputs: onnxruntime, ONNX's reference evaluator or an engine as Polygraphy's runners."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from trtconvert import manifest, reference
from trtconvert.errors import ConvertError
from trtconvert.inputs import Arrays
from trtconvert.manifest import IO
from trtconvert.model import numpy_dtype


class Runnable(Protocol):
    """What verify asks of an engine: `engine.Engine`, or whatever stands in for it."""

    inputs: list[IO]

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> Arrays: ...


class ModelRun:
    """A model that runs in onnxruntime, or in ONNX's reference evaluator where onnxruntime has no kernel; `notice` says so.

    Inputs are cast to the dtypes that the model has, which may be wider than those that an engine takes.
    """

    def __init__(self, model: ModelProto, folder: Path) -> None:
        self.inputs = manifest.model_io(model, "input")
        self.outputs = [value.name for value in model.graph.output]
        self.notice = ""
        try:
            self._session: Any = reference.session(model, folder)
        except Exception as error:  # onnxruntime's exceptions have no common base of their own
            if "NOT_IMPLEMENTED" not in str(error):
                raise ConvertError(f"onnxruntime cannot load the model: {str(error).splitlines()[0]}") from error
            reason = str(error).split("Could not find")[-1].splitlines()[0]
            self.notice = f"onnxruntime could not find{reason}: ONNX's reference evaluator stands in for it"
            self._session = reference.evaluator(model)

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
        """Outputs by name. ConvertError if it fails."""
        given = {io.name: feeds[io.name].astype(numpy_dtype(io.dtype), copy=False) for io in self.inputs}
        try:
            with np.errstate(all="ignore"):
                return dict(zip(self.outputs, map(np.asarray, self._session.run(None, given)), strict=True))
        except Exception as error:  # onnxruntime's exceptions have no common base of their own
            raise ConvertError(f"a model failed to run: {str(error).splitlines()[0]}") from error


class FirstThatRuns:
    """A model that runs, or else another that computes the same."""

    def __init__(self, first: ModelRun, second: Callable[[], ModelRun]) -> None:
        self.inputs, self._now, self._second = first.inputs, first, second
        self.fell_back = False

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> Arrays:
        """Outputs by name, of the first as long as it does not fail."""
        try:
            return self._now.run(feeds)
        except ConvertError:
            if self.fell_back:
                raise
        self._now, self.fell_back = self._second(), True
        return self._now.run(feeds)


def run_all(runs: Mapping[str, Runnable], feeds: Arrays) -> dict[str, Arrays]:
    """Outputs of each run for the same inputs, through Polygraphy's Comparator. ConvertError if one fails."""
    from polygraphy.comparator import Comparator  # after backend has set its switch
    from polygraphy.logger import G_LOGGER

    try:
        with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
            results = Comparator.run([_runner(run, feeds) for run in runs.values()], data_loader=[feeds])
    except ConvertError:
        raise
    except Exception as error:  # Polygraphy's have no common base of their own
        raise ConvertError(f"a model failed to run: {str(error).splitlines()[0]}") from error
    return {
        name: {output: np.asarray(value) for output, value in iterations[0].items()}
        for name, (_, iterations) in zip(runs, results, strict=True)
    }


def _runner(run: Runnable, feeds: Arrays) -> Any:
    """As a Polygraphy runner. Not Polygraphy's own for engines: that one knows no bfloat16, and no output whose shape the
    data decides. Its check of shapes and dtypes would refuse inputs that are still to be widened."""
    from polygraphy.backend.base import BaseRunner
    from polygraphy.common import TensorMetadata

    class Runner(BaseRunner):  # type: ignore[misc]
        def get_input_metadata_impl(self) -> Any:
            metadata = TensorMetadata()
            for name, array in feeds.items():
                metadata.add(name, array.dtype, array.shape)
            return metadata

        def infer_impl(self, feed_dict: Mapping[str, Any]) -> Arrays:
            taken = {io.name: numpy_dtype(io.dtype) for io in run.inputs}  # fp64 as fp32, say, or inputs made fp16
            outputs = run.run({name: feed_dict[name].astype(dtype, copy=False) for name, dtype in taken.items()})
            self.inference_time = 0.0
            return outputs

    return Runner()
