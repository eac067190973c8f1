"""Triton's own ModelConfig message, from tritonclient, without its gRPC client."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import Any

from google.protobuf import text_format


def _message() -> Any:
    files = importlib.metadata.files("tritonclient") or []  # pip install --no-deps tritonclient
    path = next(file.locate() for file in files if file.as_posix() == "tritonclient/grpc/model_config_pb2.py")
    spec = importlib.util.spec_from_file_location("model_config_pb2", str(path))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ModelConfig


ModelConfig = _message()


def parse(text: str) -> Any:
    """config.pbtxt as Triton reads it: unknown fields and wrong types are errors."""
    return text_format.Parse(text, ModelConfig())


def tensor(message: Any) -> dict[str, Any]:
    """An input or output as a dict; what is not set is left out, but an empty reshape is kept."""
    told = {
        "name": message.name,
        "type": message.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[message.data_type].name,
        "dims": list(message.dims),
    }
    told |= {"reshape": list(message.reshape.shape)} if message.HasField("reshape") else {}
    return told | ({"is_shape_tensor": True} if message.is_shape_tensor else {})
