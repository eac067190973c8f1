"""How much of a suspected deviation is in an engine's error, below the noise.

The error is written as a sum of what each suspect would add, of the twin's error (an engine that rounds at the same places has it
too), and of noise: least squares gives each suspect's share. It is 0 for an engine that computes what the model says and 1 for
one that computes what the suspect does. Over n elements noise strays it by about rms(noise) / rms(suspect) / sqrt(n) only, so an
error of 2e-4 is seen in noise of 6e-4, behind further layers too, and more inputs see more.

Noise is no stranger to its neighbours: one rounding inside moves a whole row of what is behind. So the stray is what the rows, or
any other slices, do to the share (a cluster-robust variance, Liang and Zeger, Biometrika 73, 1986), and all outputs are heard
together, each by how exactly it knows.

It is a finding if it is above ENOUGH (float16 engines on an H200, 40 inputs of 8 rows each: at most 0.40 where they were right,
at least 0.62 where not), SIGMAS times its stray, and MORE times the share that the twin's own roundings have beyond doubt: where
these look like the suspect, nothing can be told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trtconvert.accuracy.metrics import norm

Array: TypeAlias = NDArray[Any]

ENOUGH, MORE = 0.5, 2.0
MOST = 2.0  # beyond it the error may have nothing to do with the suspect
SIGMAS = 3.0
_MOSTLY = 0.75  # of the error's square is explained
_MEANT = 1e-5  # a suspect whose output differs less, as relative L2, is no suspect
_EXACT = 1e-4  # how exactly a share can be known


@dataclass
class Share:
    """A share over several outputs, each weighed by how exactly it is known."""

    weight: float = 0.0
    total: float = 0.0

    def hear(self, share: float, variance: float) -> None:
        """Take in one more."""
        exactness = 1 / (variance + _EXACT**2)
        self.weight += exactness
        self.total += share * exactness

    @property
    def value(self) -> float:
        return self.total / self.weight if self.weight else 0.0

    @property
    def stray(self) -> float:
        return float(self.weight**-0.5) if self.weight else np.inf

    @property
    def certain(self) -> float:
        """Its size beyond doubt."""
        return max(0.0, abs(self.value) - SIGMAS * self.stray)


@dataclass
class Trial:
    """The shares of suspects in the errors of an engine, over all outputs and inputs seen so far."""

    count: int
    _engine: list[Share] = field(init=False)
    _twin: list[Share] = field(init=False)
    _explained: float = 0.0

    def __post_init__(self) -> None:
        self._engine, self._twin = ([Share() for _ in range(self.count)] for _ in range(2))

    def hear(self, got: Array, expected: Array, twin: Array | None, suspected: Sequence[Array]) -> list[int]:
        """Take in an output, that of the reference, of its twin and of each suspect. Returns the suspects that show in it."""
        arrays = [expected, got, expected if twin is None else twin, *suspected]
        if any(array.shape != expected.shape for array in arrays):
            return []
        wide = np.stack([np.atleast_1d(array.astype(np.float64)) for array in arrays])
        wide[:, ~np.isfinite(wide).all(axis=0)] = 0.0
        reference = wide[0]
        error, of_twin, *shifts = (array - reference for array in wide[1:])
        least = _MEANT * norm(reference)
        shown = [i for i in range(self.count) if norm(shifts[i]) > least]
        if not shown:
            return []
        causes = [shifts[i] for i in shown]
        if norm(of_twin) > 0:
            self._take(self._twin, shown, of_twin, causes)
            causes.append(of_twin)
        self._explained = max(self._explained, self._take(self._engine, shown, error, causes))
        return shown

    def _take(self, shares: list[Share], shown: Sequence[int], error: Array, causes: Sequence[Array]) -> float:
        found, variances, explained = _least_squares(error, causes)
        for i, share, variance in zip(shown, found, variances, strict=False):
            shares[i].hear(float(share), float(variance))
        return explained

    def shares(self) -> dict[int, float]:
        """The share of each suspect that shows, by number."""
        return {i: share.value for i, share in enumerate(self._engine) if share.weight}

    def found(self) -> Iterator[tuple[int, float]]:
        """Suspects whose share is beyond doubt, by number, with it. Of a share above MOST, if it explains most of the error."""
        for i, share in self.shares().items():
            least = max(ENOUGH, SIGMAS * self._engine[i].stray, MORE * self._twin[i].certain)
            if share > least and (share <= MOST or self._explained > _MOSTLY):
                yield i, share


def _least_squares(error: Array, causes: Sequence[Array]) -> tuple[Array, Array, float]:
    """Factors with which the causes add up to the error, their variances, and the share of the error's square that they
    explain."""
    sizes = np.array([norm(cause) for cause in causes])
    matrix = np.stack(causes, axis=-1) / sizes
    inverse = np.linalg.pinv(_gram(matrix))
    factors = inverse @ np.einsum("ni,n->i", matrix.reshape(-1, len(causes)), error.ravel())
    left = error - np.einsum("...i,i->...", matrix, factors)
    variances = np.max([np.diag(inverse @ spread @ inverse) for spread in _spreads(matrix * left[..., None])], axis=0)
    total = norm(error) ** 2
    return factors / sizes, variances / sizes**2, 1 - norm(left) ** 2 / total if total else 0.0


def _spreads(loose: Array) -> Iterator[Array]:
    """Of the factors' doubts [..., factors]: if every element is on its own, and if all of a slice go together, by each axis."""
    yield _gram(loose)
    for axis, count in enumerate(loose.shape[:-1]):
        if count > 1:
            slices = np.moveaxis(loose, axis, 0).reshape(count, -1, loose.shape[-1]).sum(axis=1)
            yield _gram(slices) * count / (count - 1)


def _gram(columns: Array) -> Array:
    """Products of the columns with each other; BLAS' own would wake threads for each."""
    flat = columns.reshape(-1, columns.shape[-1])
    products: Array = np.einsum("ni,nj->ij", flat, flat)
    return products
