"""The shipped table of measured ratios, native time over plugin time: what decides where nothing can be measured."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from trtconvert.errors import ConvertError
from trtconvert.files import write_file
from trtconvert.gpu import arch_number

SCHEMA = 1
TABLE = Path(__file__).with_name("measured.json")


@dataclass(frozen=True)
class Row:
    """One measurement: the op as a plugin against its function body in TensorRT's own layers, one node an engine.

    kind: see `kind`. shape, dtype: of its data. bytes: data in and out. native_us, plugin_us: medians in CUDA graphs, in
    turns. machine, date, versions, command: where, when, with what and how.
    """

    op: str
    kind: str
    dtype: str
    arch: str
    shape: tuple[int, ...]
    bytes: int
    native_us: float
    plugin_us: float
    ratio: float
    machine: str
    date: str
    versions: str
    command: str

    @property
    def place(self) -> tuple[Any, ...]:
        """Rows of one place measure the same thing."""
        return self.op, self.kind, self.dtype, self.arch, self.shape


def kind(attributes: Mapping[str, Any], channels_last: bool = False) -> str:
    """Uses of an op that run differently: along axis 1, along the last axes, or along the last one for being near a
    convolution. Empty for ops without an axis."""
    axis = attributes.get("axis")
    if channels_last:
        return "channels last"
    return f"axis {max(axis, -1)}" if isinstance(axis, int) else ""


def nearest(rows: Iterable[Row], op: str, dtype: str, kind: str, size: int, arch: str) -> Row | None:
    """The row that tells most about this op at `size` bytes on `arch`: of that architecture, or else of the nearest one
    measured, the row of the nearest size by its logarithm. None where the op was measured nowhere in that way."""
    found = [row for row in rows if (row.op, row.dtype, row.kind) == (op, dtype, kind)]

    def distance(row: Row) -> tuple[int, float]:
        return abs(arch_number(row.arch) - arch_number(arch)), abs(math.log(max(size, 1) / row.bytes))

    return min(found, key=distance, default=None)


def load(path: Path | None = None) -> tuple[Row, ...]:
    """The table's rows, checked. ConvertError says which row is wrong, and how."""
    return _load(path or TABLE)


@lru_cache(maxsize=8)
def _load(path: Path) -> tuple[Row, ...]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConvertError(f"the table of measured ratios cannot be read: {error}", where=str(path)) from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("rows"), list):
        raise ConvertError(f"the table of measured ratios is not of schema {SCHEMA}", where=str(path))
    rows: dict[tuple[Any, ...], Row] = {}
    for number, entry in enumerate(data["rows"], start=1):
        try:
            row = _row(entry)
            if row.place in rows:
                raise ValueError(f"{row.place} was there before")
        except (TypeError, ValueError) as error:
            raise ConvertError(f"row {number} of the table of measured ratios: {error}", where=str(path)) from error
        rows[row.place] = row
    return tuple(rows.values())


def _row(entry: Any) -> Row:
    """TypeError or ValueError for what no measurement can have given."""
    if not isinstance(entry, dict):
        raise TypeError("not an object")
    wanted = {field.name: field.type for field in dataclasses.fields(Row)}
    if set(entry) != set(wanted):
        raise ValueError(f"it has {sorted(entry)}, wanted are {sorted(wanted)}")
    row = Row(**{**entry, "shape": tuple(entry["shape"])})
    for name, type_name in wanted.items():
        value = getattr(row, name)
        if type_name == "str" and not (isinstance(value, str) and (value or name == "kind")):
            raise ValueError(f"{name} is {value!r}, not a text")
        if type_name in ("int", "float") and not (_is_number(value) and math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value!r}, not a number above 0")
    if not all(_is_number(size) and size == int(size) and size > 0 for size in row.shape):
        raise ValueError(f"shape is {list(row.shape)}")
    if row.arch[:3] != "sm_" or not row.arch[3:].isdigit():
        raise ValueError(f'arch is {row.arch!r}, not one like "sm_90"')
    if not math.isclose(row.ratio, row.native_us / row.plugin_us, rel_tol=0.01):
        raise ValueError(f"ratio is {row.ratio}, native_us over plugin_us is {row.native_us / row.plugin_us:.3f}")
    return row


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def save(rows: Sequence[Row], path: Path) -> None:
    """Write a table, sorted, one row a line."""
    ordered = sorted(rows, key=lambda row: (*map(str, row.place[:4]), row.bytes))
    lines = [json.dumps(dataclasses.asdict(row), sort_keys=True, ensure_ascii=False) for row in ordered]
    body = "\n" + ",\n".join(lines) + "\n" if lines else ""
    write_file(path, f'{{"schema": {SCHEMA}, "rows": [{body}]}}\n'.encode())
