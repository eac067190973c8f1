"""Random arrays by role."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtconvert.feeds.roles import MASK, PADDING, Role
from trtconvert.inputs import random_array
from trtconvert.model import numpy_dtype


def draw(random: np.random.Generator, role: Role, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Uniform numbers between the role's bounds, integers both included; left-aligned ones for masks; standard normal numbers
    where there are no bounds."""
    if role.kind in (MASK, PADDING) and shape:
        return mask(random, shape, role.kind == PADDING).astype(numpy_dtype(dtype))
    if role.low is None or role.high is None:
        return random_array(random, dtype, shape)
    if dtype == "bool" or dtype.startswith(("int", "uint")):
        kind = np.uint64 if dtype == "uint64" else np.int64
        return random.integers(int(role.low), int(role.high), shape, kind, endpoint=True).astype(dtype)
    return random.uniform(role.low, role.high, shape).astype(numpy_dtype(dtype))


def mask(random: np.random.Generator, shape: tuple[int, ...], padding: bool) -> NDArray[np.bool_]:
    """Ones for the first elements of the last axis, as many for each sample of the batch as chance says, one at least; with
    padding their inverse: ones for what is not there."""
    batch = shape[0] if len(shape) > 1 else 1
    lengths = random.integers(1, max(1, shape[-1]), batch, endpoint=True)
    ones = np.arange(shape[-1]) < lengths.reshape(-1, *[1] * (len(shape) - 1))
    return np.broadcast_to(ones ^ padding, shape)
