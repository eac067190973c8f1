"""The corpus's totals, printed at the end of a test run."""

from __future__ import annotations

from collections import Counter

_counts: Counter[tuple[str, str]] = Counter()


def add(tier: str, fusions: int, most: int, compared: bool) -> None:
    """Count one file that is right."""
    found = {"files right": 1, "fusions": fusions, "full count": fusions == most, "compared": compared}
    for what, count in found.items():
        _counts[tier, what] += count


def lines() -> list[str]:
    """A line a tier."""
    return [
        f"{tier:9} {', '.join(f'{what} {count}' for (t, what), count in sorted(_counts.items()) if t == tier)}"
        for tier in sorted({tier for tier, _ in _counts})
    ]
