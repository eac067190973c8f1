"""Triton's model configuration, config.pbtxt, as the engine's manifest tells it.

The fields are those of model_config.proto in triton-inference-server/common; what they may hold, and what the TensorRT backend
takes, is checked in core's model_config_utils.cc and in tensorrt_backend's instance_state.cc (all read in 2026).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trtconvert.errors import ConvertError
from trtconvert.manifest import IO, Manifest

DATA_TYPES = {
    "bool": "TYPE_BOOL",
    "uint8": "TYPE_UINT8",
    "int8": "TYPE_INT8",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "float16": "TYPE_FP16",
    "bfloat16": "TYPE_BF16",
    "float32": "TYPE_FP32",
}
# A first dimension of such a name is dynamic, but requests must not be joined along it.
_NO_BATCH = re.compile(r"seq|time|len|tok|frame|step|height|width|channel|num|count|point|box", re.IGNORECASE)


@dataclass(frozen=True)
class Tensor:
    """An input or output. dims: without the batch dimension, where there is one. scalar: each request of a batch has one element
    of a vector, which Triton calls a reshape of [1] to []."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    shape_tensor: bool = False
    scalar: bool = False


@dataclass(frozen=True)
class ModelConfig:
    """config.pbtxt. max_batch_size: 0 where requests are not batched, and dims are whole shapes. why_not: then the reason.
    profiles: number of the engine's optimization profiles."""

    name: str
    max_batch_size: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    profiles: int = 1
    why_not: str = ""

    def text(self) -> str:
        """The file's text, in protobuf's text format."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield f"name: {quoted(self.name)}"
        yield 'platform: "tensorrt_plan"'
        yield 'backend: "tensorrt"'
        yield 'default_model_filename: "model.plan"'
        yield f"max_batch_size: {self.max_batch_size}"
        for side, tensors in (("input", self.inputs), ("output", self.outputs)):
            for tensor in tensors:
                yield f"{side} {{"
                yield f"  name: {quoted(tensor.name)}"
                yield f"  data_type: {tensor.data_type}"
                yield f"  dims: [ {', '.join(map(str, tensor.dims))} ]"
                if tensor.scalar:
                    yield "  reshape { shape: [ ] }"
                if tensor.shape_tensor:
                    yield "  is_shape_tensor: true"
                yield "}"
        yield "instance_group {"
        yield "  kind: KIND_GPU"
        yield "  count: 1"
        if self.profiles > 1:  # without the field Triton takes the first profile only
            yield f"  profile: [ {', '.join(quoted(str(i)) for i in range(self.profiles))} ]"
        yield "}"
        if self.max_batch_size > 1:
            yield "dynamic_batching { }"


def config(described: Manifest, name: str, max_batch: int | None = None) -> ModelConfig:
    """The configuration of the plan of this manifest.

    max_batch: the largest batch that Triton may make, 0 for none; without it, what the profiles allow, if the model says that the
    first dimension is the batch. ConvertError for tensors that Triton does not have, and for batches that the engine lacks.
    """
    tensors = [*described.engine_inputs, *described.engine_outputs]
    for tensor in tensors:
        _check(tensor)
    size, why_not = _batch(described, max_batch)
    batched, shape_tensors = size > 0, shape_tensor_names(described)
    inputs = tuple(_tensor(io, batched, io.name in shape_tensors) for io in described.engine_inputs)
    outputs = tuple(_tensor(io, batched, False) for io in described.engine_outputs)
    return ModelConfig(name, size, inputs, outputs, max(1, len(described.profiles)), why_not)


def shape_tensor_names(described: Manifest) -> list[str]:
    """The inputs whose values decide shapes, as TensorRT sees it; of a plan whose manifest lacks that, all that have values."""
    return list(described.values) if described.shape_tensors is None else described.shape_tensors


def quoted(text: str) -> str:
    """A string literal of protobuf's text format."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\{ord(found[0]):03o}", escaped) + '"'


def _tensor(io: IO, batched: bool, shape_tensor: bool) -> Tensor:
    dims = tuple(d if isinstance(d, int) else -1 for d in io.shape or ())[batched:]
    scalar = not dims
    return Tensor(io.name, DATA_TYPES[io.dtype], (1,) if scalar else dims, shape_tensor, scalar)


def _check(io: IO) -> None:
    if io.dtype not in DATA_TYPES:
        raise ConvertError(
            f"Triton has no data type for {io.dtype}",
            where=f"tensor {io.name!r}",
            fix="let the model's inputs and outputs be of another type, with a Cast inside",
        )
    if not io.shape:
        raise ConvertError(
            "Triton has no tensors of rank 0",
            where=f"tensor {io.name!r}",
            fix="give it the shape [1] in the model, with a Reshape inside, and build again",
        )
    if 0 in io.shape:
        raise ConvertError(
            f"Triton has no tensors without elements, and the shape is {list(io.shape)}",
            where=f"tensor {io.name!r}",
            fix="leave the tensor out of the model",
        )


# --- the batch ------------------------------------------------------------------------------------------------------


def _batch(described: Manifest, asked: int | None) -> tuple[int, str]:
    """The largest batch; where it is 0, why."""
    if asked == 0:
        return 0, "it was not asked for (--max-batch 0)"
    why_not = _not_possible(described)
    largest = 0 if why_not else _covered(described)
    if not why_not and largest == 0:
        why_not = "Triton may send one request alone, and no profile takes a batch of 1"
    if asked is None:
        why_not = why_not or _not_said(described)
        return (0, why_not) if why_not else (largest, "")
    if why_not:
        raise ConvertError(
            f"no batch of {asked}: {why_not}", fix="leave --max-batch out, or build with a dynamic first dimension"
        )
    if asked > largest:
        raise ConvertError(
            f"the engine takes batches of 1 to {largest}, not of {asked}",
            fix=f"--max-batch {largest}, or build it for larger ones with --shape",
        )
    return asked, ""


def _not_possible(described: Manifest) -> str:
    """Why requests cannot be joined; "" if every first dimension is dynamic."""
    names = shape_tensor_names(described)
    if names:
        return f"the values of input {names[0]!r} decide shapes, for all requests of a batch alike"
    for side, tensors in (("input", described.engine_inputs), ("output", described.engine_outputs)):
        for io in tensors:
            if (io.shape or [0])[0] != -1:
                return f"the first dimension of {side} {io.name!r} is not dynamic: {list(io.shape or [])}"
    return "" if described.engine_inputs else "the engine has no inputs"


def _covered(described: Manifest) -> int:
    """The largest B for which each of 1 to B fits a profile."""
    spans = sorted(_span(profile) for profile in described.profiles)
    largest = 0
    for low, high in spans:
        if low <= largest + 1:
            largest = max(largest, high)
    return largest


def _span(profile: Mapping[str, Mapping[str, Sequence[int]]]) -> tuple[int, int]:
    """The batches that all inputs take in this profile."""
    return max(x["min"][0] for x in profile.values()), min(x["max"][0] for x in profile.values())


def _not_said(described: Manifest) -> str:
    """Why the first dimension may be another than the batch; "" if the model names it alike everywhere, and not as a length."""
    firsts = [(io.name, (io.shape or [None])[0]) for io in (*described.onnx_inputs, *described.onnx_outputs)]
    unlike = [(name, dim) for name, dim in firsts if not isinstance(dim, str) or dim != firsts[0][1]]
    hint = "if requests can be joined along it, --max-batch N says so"
    if unlike:
        name, dim = unlike[0]
        called = f"calls it {dim!r}" if isinstance(dim, str) else "does not name it"
        other = f", that of {firsts[0][0]!r} {firsts[0][1]!r}" if name != firsts[0][0] else ""
        return f"the first dimension of {name!r} may not be the batch: the model {called}{other}; {hint}"
    if _NO_BATCH.search(str(firsts[0][1])):
        return f"the first dimension is called {firsts[0][1]!r} in the model; {hint}"
    return ""
