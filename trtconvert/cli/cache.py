"""trtconvert cache"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import click

from trtconvert.cli import show
from trtconvert.errors import ConvertError

if TYPE_CHECKING:
    from trtconvert.caching.store import Entry

KEY_SHOWN = 12
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}


@click.group()
def command() -> None:
    """List the engines that `build --cache` keeps, or clear them.

    \b
    trtconvert cache list
    trtconvert cache clear
    trtconvert cache clear --older-than 30d
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def list_(as_json: bool) -> None:
    """The entries, the one used last first.

    \b
    trtconvert cache list
    """
    from trtconvert.caching import store  # --help must not load it

    found = store.entries()
    if as_json:
        show.as_json(
            {"folder": str(store.folder()), "bytes": sum(e.bytes for e in found), "entries": [*map(_told, found)]}
        )
        return
    header = ["key", "size", "made", "last used", "for", "model"]
    rows = [
        [
            e.key[:KEY_SHOWN],
            show.megabytes(e.bytes),
            e.made,
            _utc(e.used),
            f"{e.backend}, {' '.join(e.targets)}",
            e.model,
        ]
        for e in found
    ]
    if found:
        show.table(header, rows)
    count = f"{len(found)} engine{'s' * (len(found) != 1)}"
    show.note(f"note: {count}, {show.megabytes(sum(e.bytes for e in found))} in {store.folder()}")


@command.command("clear")
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--older-than", metavar="AGE", help="Only what was last used so long ago: 30d, 12h.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def clear(keys: tuple[str, ...], older_than: str | None, as_json: bool) -> None:
    """Remove all entries, those of these keys (as `list` shows them), or old ones. What a process uses at the moment stays.

    \b
    trtconvert cache clear
    trtconvert cache clear 3f1c20a9b7e4
    trtconvert cache clear --older-than 30d
    """
    from trtconvert.caching import store  # --help must not load it

    found = store.entries()
    for key in keys:
        count = sum(entry.key.startswith(key) for entry in found)
        if not key or count != 1:
            what = f"{key!r} is the beginning of {count} keys" if key and count else f"the cache has no entry {key!r}"
            raise ConvertError(what, where=str(store.folder()), fix="give keys as trtconvert cache list shows them")
    before = time.time() - _age(older_than)
    meant = [e for e in found if e.used <= before and (not keys or e.key.startswith(keys))]
    removed = [entry for entry in meant if store.remove(entry.key)]
    if not keys and older_than is None:
        store.sweep()
    kept = [entry for entry in meant if entry not in removed]
    if as_json:
        show.as_json({"removed": [*map(_told, removed)], "in_use": [*map(_told, kept)]})
    else:
        size = show.megabytes(sum(e.bytes for e in removed))
        click.echo(f"removed {len(removed)} engine{'s' * (len(removed) != 1)}, {size}")
    for entry in kept:
        show.note(f"note: {entry.key[:KEY_SHOWN]} stays: a process uses it, or it cannot be removed")


def _told(entry: Entry) -> dict[str, Any]:
    names = ("key", "bytes", "model", "made", "seconds", "backend", "targets")
    return {name: getattr(entry, name) for name in names} | {"used": _utc(entry.used)}


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(seconds))


def _age(text: str | None) -> float:
    """Seconds; 0 for none given."""
    if text is None:
        return 0
    match = re.fullmatch(r"(\d+)([mhdw])", text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not an age; write 30d, 12h or 2w", param_hint="--older-than")
    return int(match[1]) * _SECONDS[match[2]]
