"""The one exception that crosses the API, worded so that the reader knows what to change."""

from __future__ import annotations


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


class NoUsableGpuError(ConvertError):
    """The engine is fine as far as is known, but this machine has no GPU that can run it (exit code 3)."""
