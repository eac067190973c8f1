"""The HTML report: what it says, that it needs nothing but itself, that no name breaks it, that it stays small."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Run
from tests.graphs import FAST, graph, save
from trtconvert import ConvertError, build, manifest
from trtconvert.accuracy import metrics
from trtconvert.accuracy.finding import Finding
from trtconvert.accuracy.results import Element, OutputResult, VerifyResult
from trtconvert.feeds.roles import IDS, Role
from trtconvert.manifest import Manifest, Precision
from trtconvert.report import page

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "</pre></details></main>",
    "$\\frac{$ & <b>",
    "\udcff\x00\u202e",
    "x" * 5000,
]
VOID = ("meta", "img", "br")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(save(graph("y = Tanh(x)"), tmp_path_factory.mktemp("report")), options=FAST).plan


@pytest.fixture(scope="module")
def described(plan: Path) -> Manifest:
    return manifest.read(plan)


def row(output: str = "y", shapes: str = "2x4", scale: float = 1e-3, **more: Any) -> OutputResult:
    """A result on random numbers that are off by `scale`."""
    random = np.random.default_rng(0)
    want = random.standard_normal((16, 64))
    got = want + scale * random.standard_normal(want.shape)
    return OutputResult(
        **{
            "comparison": "engine / source model",
            "shapes": shapes,
            "output": output,
            "errors": metrics.measure(got, want),
            "tolerance": 2e-3,
            "rule": "2 x twin 0.0007 + 0.0005, float16",
            "evidence": metrics.evidence(got, want),
        }
        | more
    )


class Page(HTMLParser):
    """The page taken apart: texts, tags with attributes, and whether they are nested well."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data

    @property
    def words(self) -> str:
        return re.sub(r"\s+", " ", self.text)


def parsed(result: VerifyResult, described: Manifest, plan: Path = Path("m.plan")) -> Page:
    """The rendered page, which must be small, well formed and need nothing else."""
    text = page.render(result, described, plan)
    assert len(text.encode("utf-8", "backslashreplace")) < 1_000_000
    found = Page(text)
    assert {tag for tag, _ in found.tags}.isdisjoint({"script", "link", "iframe", "object", "embed", "base", "form"})
    for _, attributes in found.tags:
        assert not any(name.startswith("on") or name in ("href", "srcset", "style") for name in attributes)
        assert attributes.get("src", "data:").startswith("data:image/svg+xml;base64,") or "src" not in attributes
    assert "url(" not in text
    assert "@import" not in text
    for image in re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', text):
        drawing = base64.b64decode(image).decode()
        targets = re.findall(r'(?:href|src)="([^"]*)"', drawing)
        assert all(target.startswith(("#", "data:")) for target in targets)
    return found


def test_says_what_passed(described: Manifest) -> None:
    result = VerifyResult(
        rows=[row(), row(shapes="2x4 #2"), row(shapes="4x4", scale=1e-4, twin=metrics.measure(np.ones(3), np.ones(3)))],
        notices=["input i: ids", "a remark"],
        reference="the source model",
        twin="the same in fp16",
        rules=["relative L2 <= 2 x twin"],
        roles={"i": Role(IDS, 0, 9, "as emb (Gather) takes them")},
    )
    found = parsed(result, described)
    for words in (
        "PASS m.plan against model.onnx The engine agrees with model.onnx",
        "1 output on 3 sets of inputs",
        "3,072elements compared",
        "2 sets",
        "2 x twin 0.0007 + 0.0005, float16",
        "the same in fp16",
        "relative L2 <= 2 x twin",
        "i: ids from 0 to 9, as emb (Gather) takes them",
        "a remark",
        described.plan_sha256,
        described.backend_title,
        "GPU",
        '"schema": ',
    ):
        assert words in found.words, words
    assert "input i: ids" not in found.words
    assert "What fails" not in found.words
    assert len([tag for tag, _ in found.tags if tag == "img"]) == 2
    worst = metrics.evidence(np.float64([1.5, 2]), np.float64([1, 2])).worst[0]
    assert worst == Element((0,), 1.5, 1.0)


def test_says_what_failed(described: Manifest) -> None:
    bad = row(
        "z",
        scale=0.1,
        fault="relative L2 0.1 > 0.002",
        first_bad=Element((3, 7), float("nan"), 0.25),
        node="made by head/Gelu (Gelu)",
    )
    found = parsed(VerifyResult([row(), bad, row("z", "2x4 #2")]), described)
    assert "FAIL m.plan" in found.words
    assert "1 of 3 comparisons with model.onnx fail, over 2 outputs on 2 sets of inputs" in found.words
    assert "First at [3, 7]: got nan, expected 0.2500000. Node: made by head/Gelu (Gelu)" in found.words
    assert "1 of 2 FAIL" in found.words
    assert found.words.index("z: engine against") < found.words.index("y: engine against")  # the worst first


def test_draws_the_engine_and_what_fails(described: Manifest) -> None:
    rows = [
        row(comparison="converted model / source model"),
        row(),
        row(comparison="engine / converted model", fault="off"),
        row(comparison="engine / expected outputs"),
    ]
    words = parsed(VerifyResult(rows), described).words
    assert "y: engine against converted model" in words
    assert "y: engine against the reference" in words
    assert "y: engine against expected outputs" not in words
    assert "y: converted model" not in words


def test_says_where_it_begins(described: Manifest) -> None:
    finding = Finding(
        "engine / source model",
        "2x4",
        "head/Gelu_fused",
        "LayerNormGelu",
        "LayerNormGelu",
        ("head/LayerNormalization", "head/Gelu"),
        "t",
        None,
        "t[0, 1] is 2, expected 1",
        True,
        True,
        (),
        (),
        "--no-fuse head/Gelu_fused",
        4,
    )
    words = parsed(VerifyResult([row(fault="off")], first_wrong=finding), described).words
    assert "first wrong: head/Gelu_fused (plugin LayerNormGelu)" in words
    assert "build MODEL --no-fuse head/Gelu_fused" in words


def test_says_what_stayed_in_float32(described: Manifest) -> None:
    kept = [{"node": "norm/Pow", "op": "Pow", "reason": "reaches 2.1e+06, beyond float16"}]
    fp16 = Precision("fp16", "keep", "onnxruntime", kept, {"method": "minmax", "samples": 32})
    words = parsed(VerifyResult([row()]), dataclasses.replace(described, precision=fp16)).words
    assert "fp16; converted by onnxruntime; 1 nodes kept in float32; calibration: method minmax" in words
    assert "norm/Pow Pow reaches 2.1e+06, beyond float16" in words


def test_says_that_the_engine_was_not_run(described: Manifest) -> None:
    result = VerifyResult([row(comparison="fused model / source model")], engine_skipped="no NVIDIA driver")
    found = parsed(result, described)
    assert "ENGINE NOT RUN" in found.words
    assert "The engine itself was not run: no NVIDIA driver" in found.words
    assert "The fused model, without the engine, agrees with model.onnx" in found.words


def test_hostile_names(described: Manifest) -> None:
    """Names, messages and notes are text, whatever they hold: what stands in the page is what was given, and no tag more."""

    def rendered(names: list[str]) -> Page:
        wild = dataclasses.replace(
            described,
            model=names[0],
            precision=Precision(names[1], names[2], names[3], [{"node": n, "op": n, "reason": n} for n in names]),
            fusions=[{"op": n, "node": n, "output": n, "replaced": [n]} for n in names],
            options={n: n for n in names},
        )
        one = row()
        rows = [
            dataclasses.replace(one, output=n, shapes=n, fault=n, node=n, rule=n, comparison=n, evidence=e)
            for n, e in zip(names, [one.evidence, *[None] * (len(names) - 1)], strict=True)
        ]
        roles = {n: Role(n, 0, 1, n) for n in names}
        return parsed(VerifyResult(rows, names[2], names, names[3], names[4], names[5], names, roles), wild)

    found, tame = rendered(HOSTILE), rendered([f"name{k}" for k in range(len(HOSTILE))])
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in tame.tags]
    for name in HOSTILE:
        shown = {"x" * 5000: "x" * 200 + "...", "\udcff\x00\u202e": "\udcff"}.get(name, name)
        assert found.text.count(shown) >= 12, shown


def test_stays_small(described: Manifest) -> None:
    """Hundreds of outputs with long names, a hundred samples, a manifest of megabytes."""
    one = row(fault="f" * 3000)
    many = [dataclasses.replace(one, output=f"{k}{'/long/name' * 90}", shapes=f"1x3 #{k % 100}") for k in range(300)]
    large = dataclasses.replace(
        described,
        fusions=[
            {"op": "LayerNormGelu", "node": "n" * 900, "output": f"o{k}", "replaced": ["r"] * 9} for k in range(600)
        ],
        baked={"x": {"data": "A" * 3_000_000}},
        verifications=[{"rows": ["r" * 1000] * 10}] * 50,
    )
    found = parsed(VerifyResult(many, notices=["n" * 900] * 500), large)
    assert "and 100 more" in found.words
    assert "and 400 more" in found.text
    assert "50 outcomes, see the file" in found.text


def test_fusions_with_their_times(described: Manifest) -> None:
    choice = {
        "op": "LayerNormGelu",
        "node": "block/Mul_1",
        "output": "o",
        "kept": True,
        "how": "neighbourhood",
        "reason": "1.42 times as fast",
        "dtype": "float16",
        "shape": [8, 197, 768],
        "ratio": 1.42,
        "native_us": 22.43,
        "plugin_us": 15.8,
        "machine": "NVIDIA H200 (sm_90)",
    }
    timed = dataclasses.replace(
        described,
        choices=[choice],
        fusions=[{"op": "LayerNormGelu", "node": "block/Mul_1", "output": "o", "replaced": ["a", "b", "c"]}],
        whole_engine={"plugins_us": 301.2, "native_us": 322.9, "machine": "NVIDIA H200 (sm_90)"},
    )
    words = parsed(VerifyResult([row()]), timed).words
    assert "LayerNormGelu block/Mul_1 8x197x768 float16 3 15.8 us 22.4 us 1.42 yes 1.42 times as fast" in words
    assert "301.2 us with plugins, 322.9 us native, on NVIDIA H200" in words


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (np.zeros((2, 3)), np.zeros((2, 3))),
        (np.array([np.nan, np.inf, 1.0]), np.array([np.nan, 0.0, 1.0])),
        (np.full(3, np.nan), np.zeros(3)),
        (np.array([1e308, -1e308]), np.array([-1e308, 1e308])),
        (np.array([5]), np.array([4])),
        (np.zeros((0, 3)), np.zeros((0, 3))),
        (np.array(1.5), np.array(1.0)),
    ],
)
def test_strange_numbers(got: Any, want: Any, described: Manifest) -> None:
    with np.errstate(all="ignore"):
        result = row(errors=metrics.measure(got, want), evidence=metrics.evidence(got, want))
    assert "PASS" in parsed(VerifyResult([result, row("none", evidence=None)]), described).words


def test_the_same_result_is_the_same_page(described: Manifest) -> None:
    first, second = (page.render(VerifyResult([row()]), described, Path("m.plan")) for _ in range(2))
    clean = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC")
    assert clean.sub("", first) == clean.sub("", second)


def test_command(run: Run, plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    result = run("verify", plan, "--report", out, "--json")
    assert result.returncode in (0, 3), result.stderr
    assert f"report    {out}" in result.stderr
    assert json.loads(result.stdout)["passed"]
    assert "Traceback" not in result.stderr
    assert "against model.onnx" in Page(out.read_text(encoding="utf-8")).words


def test_where_no_report_can_be_written(plan: Path, tmp_path: Path) -> None:
    """Said before anything is run."""
    for place, words in (
        (tmp_path / "no" / "o.html", "does not exist"),
        (plan.with_name("model.onnx"), "overwrite an input"),
    ):
        with pytest.raises(ConvertError, match=words):
            page.check(place, plan)


def test_without_the_optional_packages(plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    with pytest.raises(ConvertError, match=r"needs jinja2 and matplotlib(.|\n)*pip install 'trtconvert\[report\]'"):
        page.check(tmp_path / "out.html", plan)
