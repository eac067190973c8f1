"""The one exception that crosses the API, worded so that the reader knows what to change."""

from __future__ import annotations

from collections.abc import Sequence


class ConvertError(Exception):
    """What went wrong, where, and how to put it right, in one to four lines.

    what: the fault, with what was expected and what was got.
    where: node, tensor or file it concerns.
    fix: what the user can do about it.
    """

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.what, self.where, self.fix = what, where, fix
        lines = [what]
        if where:
            lines.append(f"  at: {where}")
        if fix:
            lines.append(f"  fix: {fix}")
        super().__init__("\n".join(lines))


def together(errors: Sequence[ConvertError]) -> ConvertError:
    """Several faults as one error, in as few lines: all of them are told, not the first."""
    if len(errors) == 1:
        return errors[0]
    places: dict[str, list[str]] = {}
    for error in errors:
        places.setdefault(error.what, []).append(error.where or "")
    told = [f"{what} ({', '.join(filter(None, where))})" if any(where) else what for what, where in places.items()]
    fixes = dict.fromkeys(error.fix for error in errors if error.fix)
    return ConvertError(f"{len(errors)} faults: {'; '.join(told)}", fix="; ".join(fixes) or None)


class NoUsableGpuError(ConvertError):
    """The engine is fine as far as is known, but this machine has no GPU that can run it (exit code 3)."""
