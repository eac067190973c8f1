"""The report itself: what a result says, put into `page.html`, whole or not at all."""

from __future__ import annotations

import base64
import dataclasses
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trtconvert import manifest
from trtconvert.accuracy.lines import lines, severity
from trtconvert.accuracy.results import VerifyResult
from trtconvert.errors import ConvertError
from trtconvert.files import check_outputs, write_file
from trtconvert.manifest import Manifest
from trtconvert.report import plots
from trtconvert.report.environment import facts
from trtconvert.report.pictures import Picture, of_engine, pictures

OUTPUTS_DRAWN, WORST_SHOWN, ROWS_SHOWN, FAULTS_SHOWN = 6, 10, 200, 20
_TEXT, _ITEMS, _MANIFEST = 200, 200, 150_000  # characters of a text, items of a list, characters of the manifest
_NEEDS = ("jinja2", "matplotlib")


def check(path: Path, plan: Path) -> None:
    """ConvertError, before long work, unless a report can be made there."""
    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise ConvertError(
            f"a report needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            fix="pip install 'trtconvert[report]'",
        )
    described = manifest.read(plan)
    check_outputs([path], [plan, manifest.path_for(plan), plan.parent / described.model])


def write(path: Path, plan: Path, result: VerifyResult) -> int:
    """Write the report of a result on a plan; returns its size in bytes. ConvertError if it cannot be written."""
    data = render(result, manifest.read(plan), plan).encode("utf-8", "backslashreplace")
    write_file(path, data)
    return len(data)


def render(result: VerifyResult, described: Manifest, plan: Path) -> str:
    """The page as text: one file that needs nothing else, no script, under 1 MB."""
    import jinja2  # an optional dependency

    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, finalize=_cut, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": number, "exact_number": exact_number, "fixed": fixed, "picture": _data_uri}
    found = lines(result.rows)
    wrong = sorted((line for line in found if not line.passed), key=lambda line: severity(line.worst), reverse=True)
    drawn = [
        (p, plots.histogram(p.evidence), plots.scatter(p.evidence, [element for _, element in p.worst]))
        for p in pictures(result.rows, OUTPUTS_DRAWN, WORST_SHOWN)
    ]
    fusions = _fusions(described)
    text: str = environment.from_string(template).render(
        result=result,
        roles=list(result.roles.items())[:ROWS_SHOWN],
        notices=[n for n in result.notices if not n.startswith("input ")][:ROWS_SHOWN],
        described=described,
        plan=plan,
        verdict=verdict(result),
        sentence=sentence(result, described),
        tiles=_tiles(result),
        faults=wrong[:FAULTS_SHOWN],
        more_faults=len(wrong[FAULTS_SHOWN:]),
        lines=found[:ROWS_SHOWN],
        more=len(found[ROWS_SHOWN:]),
        twins=any(line.worst.twin for line in found),
        drawn=drawn,
        exact=_exact,
        facts=facts(described, plan),
        fusions=fusions,
        timed=any(each["plugin_us"] or each["native_us"] or each["ratio"] for each in fusions),
        kept=described.precision.kept[:ROWS_SHOWN],
        first_wrong=list(result.first_wrong.lines()) if result.first_wrong is not None else [],
        manifest=_manifest(described),
    )
    return text


def verdict(result: VerifyResult) -> str:
    """PASS, FAIL, or that the engine itself was not run."""
    if not result.passed:
        return "FAIL"
    return "ENGINE NOT RUN" if result.engine_skipped else "PASS"


def sentence(result: VerifyResult, described: Manifest) -> str:
    """The summary in words."""
    outputs = len({row.output for row in result.rows})
    inputs = len({row.shapes for row in result.rows})
    on = f"{_count(outputs, 'output')} on {_count(inputs, 'set')} of inputs"
    failed = sum(not row.passed for row in result.rows)
    model = result.rows[0].comparison.split(" / ")[0] if result.rows else ""
    who = f"The {model}, without the engine," if result.engine_skipped else "The engine"
    if failed:
        return f"{failed} of {len(result.rows)} comparisons with {described.model} fail, over {on}."
    return f"{who} agrees with {described.model} within the rules below: {on}."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _tiles(result: VerifyResult) -> list[tuple[str, str, str]]:
    """Number, what it is, and where: of the engine's rows if it was run."""
    rows = of_engine(result.rows)
    measured = [row for row in rows if row.rel_l2 == row.rel_l2]
    if not measured:
        return []
    worst = max(measured, key=severity)
    largest = max(measured, key=lambda row: row.max_abs)
    cosines = [row for row in measured if row.errors.cosine == row.errors.cosine]
    tiles = [
        (number(worst.rel_l2), f"relative L2, {number(worst.tolerance)} allowed", worst.output),
        (number(largest.max_abs), "largest absolute error", largest.output),
    ]
    if cosines:
        lowest = min(cosines, key=lambda row: row.errors.cosine)
        tiles.append((fixed(lowest.errors.cosine), "lowest cosine", lowest.output))
    tiles.append(
        (f"{sum(row.errors.elements for row in rows):,}", "elements compared", _count(len(rows), "comparison"))
    )
    return tiles


def _exact(picture: Picture) -> float:
    """The share of elements without any error."""
    exact = sum(each.exact for each in picture.evidence)
    total = exact + sum(sum(each.counts) for each in picture.evidence)
    return exact / total if total else 1.0


# --- the manifest --------------------------------------------------------------------------------------------------


def _fusions(described: Manifest) -> list[dict[str, Any]]:
    """Each fusion with what was decided on it, or each choice; times where they were measured."""
    replaced = {(f["op"], f.get("path", "") + f["output"]): len(f["replaced"]) for f in described.fusions}
    chosen = described.choices or [
        {"op": f["op"], "node": f["node"], "output": f.get("path", "") + f["output"], "kept": True, "reason": ""}
        for f in described.fusions
    ]
    empty = {"shape": None, "dtype": "", "native_us": None, "plugin_us": None, "ratio": None, "machine": "", "how": ""}
    return [empty | c | {"replaced": replaced.get((c["op"], c["output"]))} for c in chosen[:ROWS_SHOWN]]


def _manifest(described: Manifest) -> str:
    """As JSON; earlier outcomes are counted, and what is long is shortened."""
    data = dataclasses.asdict(described)
    data["verifications"] = f"{_count(len(described.verifications), 'outcome')}, see the file"
    text = json.dumps(_short(data), indent=2, sort_keys=True, ensure_ascii=False, default=str)
    return _Whole(text if len(text) <= _MANIFEST else f"{text[:_MANIFEST]}\n... cut here, see the file")


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _TEXT else f"{value[:_TEXT]}... ({len(value)} characters)"
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        rest = [f"... and {len(value) - _ITEMS} more"] if len(value) > _ITEMS else []
        return [_short(each) for each in value[:_ITEMS]] + rest
    return value


# --- filters of the template ---------------------------------------------------------------------------------------


def number(value: float | None, digits: int = 3) -> str:
    """For people: three digits, a dash for what is not known."""
    if value is None or value != value:
        return "–"
    return f"{value:.{digits}g}"


def exact_number(value: float) -> str:
    """Seven digits, zeros at the end too, so that neighbours can be compared."""
    return f"{value:#.7g}".rstrip(".")


def fixed(value: float) -> str:
    """Six places behind the point."""
    return "–" if value != value else f"{value:.6f}"


class _Whole(str):
    """A text that is not cut."""


def _cut(value: Any) -> Any:
    """What the template prints; names and messages may be of any length."""
    long = isinstance(value, str) and not isinstance(value, _Whole) and len(value) > _TEXT
    return f"{value[:_TEXT]}..." if long else value


def _data_uri(svg: bytes) -> str:
    return _Whole(f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}")
