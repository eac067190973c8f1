"""Which fusions stay: by --fuse, by the table of measured ratios, and by trials, whose clock is set by hand here."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.conftest import SAMPLES, Run, assert_clean_error
from trtconvert import BuildOptions, BuildResult, ConvertError, Op, build, gpu, registry, verify
from trtconvert import model as onnx_model
from trtconvert.choice import measured
from trtconvert.choice.choose import Choice, choice, choose, pays, policy
from trtconvert.choice.neighbourhood import Surroundings
from trtconvert.choice.trials import NATIVE, PLUGINS
from trtconvert.fuse import FuseResult, fuse_model
from trtconvert.gpu import Gpu
from trtconvert.matching.rewrite import Fusion
from trtconvert.network import Maker
from trtconvert.precision.options import PrecisionOptions
from trtconvert.reference import run as run_reference
from trtconvert.shapes import Range
from trtconvert.timing import Timing

pytestmark = pytest.mark.skipif(gpu.current() is not None, reason="asserts what is decided without a GPU")
CORPUS = Path(__file__).parent / "corpus"
SPEECH = SAMPLES / "wav2vec2_features.onnx"  # three fusions, of 1.6, 0.8 and 0.4 MB
AHEAD = BuildOptions(targets=("sm_86",))


# --- what is asked for ---------------------------------------------------------------------------------------------


def names(fuse: str, *patterns: str) -> tuple[list[str], bool]:
    wanted = policy(fuse, patterns)
    return [op.pattern for op in wanted.ops], wanted.forced


def test_policy() -> None:
    defaults = [op.pattern for op in registry.by_pattern(())]
    assert "fused-relu" not in defaults
    assert names("auto") == (defaults, False)
    assert names("all") == (defaults, True)
    assert names("none") == ([], True)
    assert names("none", "layernorm-gelu") == ([], True)
    assert names("layernorm-gelu, fused-relu") == (["layernorm-gelu", "fused-relu"], True)
    assert names("auto", "fused-relu") == (["fused-relu"], False)
    assert names("all", "fused-relu") == (["fused-relu"], True)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--fuse", "layernorm"), ("--fuse names 'layernorm'", "auto, all, none", "layernorm-gelu")),
        (("--fuse", ""), ("--fuse names ''",)),
        (("--fuse", "auto,layernorm-gelu"), ("contradicts itself",)),
        (("--fuse", "layernorm-gelu", "--pattern", "fused-relu"), ("both name patterns",)),
        (("--pattern", "layernorm"), ("unknown pattern 'layernorm'",)),
    ],
)
def test_what_cannot_be_meant(run: Run, tmp_path: Path, args: Sequence[str], words: Sequence[str]) -> None:
    assert_clean_error(run("build", SPEECH, "-o", tmp_path / "e.plan", *args), *words)
    assert list(tmp_path.iterdir()) == []


def test_no_fuse(run: Run, tmp_path: Path) -> None:
    """A synonym of --fuse none, and nothing beside another --fuse."""
    for args in (("--no-fuse",), ("--fuse", "none"), ("--no-fuse", "--fuse", "none")):
        result = run("build", SPEECH, "-o", tmp_path / "e.plan", "--target", "sm_86", *args)
        assert "(0 fused)" in result.stdout, result.stderr
    refused = run("build", SPEECH, "-o", tmp_path / "e.plan", "--no-fuse", "--fuse", "all")
    assert refused.returncode == 2
    assert "contradict" in refused.stderr


def test_opt_in_ops_are_fused_only_when_named(tmp_path: Path) -> None:
    x = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 8]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="relu")], "g", x[:1], x[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    for fuse, count in (("auto", 0), ("all", 0), ("fused-relu", 1)):
        result = build(tmp_path / "m.onnx", None, dataclasses.replace(AHEAD, fuse=fuse))
        assert len(result.fusions) == count
        assert result.manifest.fuse == fuse
    (forced,) = result.choices
    assert (forced.kept, forced.how) == (True, "forced")
    assert verify(result.plan).passed


# --- the table -----------------------------------------------------------------------------------------------------


def row(ratio: float, size: int, arch: str = "sm_86", **fields: Any) -> measured.Row:
    values = {
        "op": "LayerNormGelu",
        "kind": "channels last",
        "dtype": "float32",
        "shape": (1, size // 8),
        "machine": f"card {arch}",
        "date": "2026-01-01",
        "versions": "test",
        "command": "test",
    }
    times = {"native_us": 10.0 * ratio, "plugin_us": 10.0, "ratio": ratio}
    return measured.Row(**{**values, **times, "arch": arch, "bytes": size, **fields})


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put rows in the shipped table's place."""

    def write(*rows: measured.Row) -> None:
        path = tmp_path / f"table{len(list(tmp_path.iterdir()))}.json"
        measured.save(rows, path)
        monkeypatch.setattr(measured, "TABLE", path)

    return write


def kept(result: BuildResult) -> list[bool]:
    return [made.kept for made in result.choices]


def test_shipped_table_is_valid() -> None:
    assert isinstance(measured.load(), tuple)


def test_nearest_row() -> None:
    rows = [row(1.0, 1000), row(2.0, 100_000), row(3.0, 1000, "sm_90"), row(4.0, 1000, dtype="float16")]

    def ratio(size: int, arch: str = "sm_86", **fields: str) -> float | None:
        asked = {"op": "LayerNormGelu", "dtype": "float32", "kind": "channels last"} | fields
        found = measured.nearest(rows, **asked, size=size, arch=arch)
        return found and found.ratio

    assert ratio(9_000) == 1.0, "in log scale 10,000 is the middle"
    assert ratio(11_000) == 2.0
    assert ratio(100_000, "sm_100") == 3.0, "the architecture comes before the size"
    assert ratio(100_000, "sm_80") == 2.0
    assert ratio(5, dtype="float16") == 4.0
    assert ratio(0) == 1.0
    assert ratio(1000, kind="axis -1") is None
    assert ratio(1000, op="Other") is None


def test_kinds() -> None:
    assert measured.kind({"axis": 1, "epsilon": 1.0}) == "axis 1"
    assert measured.kind({"axis": -3}) == measured.kind({"axis": -1}) == "axis -1"
    assert measured.kind({"alpha": 1.0}) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ratio": 3.0}, "native_us over plugin_us is 2.000"),
        ({"plugin_us": 0.0}, "plugin_us is 0.0"),
        ({"native_us": float("nan")}, "native_us is nan"),
        ({"bytes": -1}, "bytes is -1"),
        ({"machine": ""}, "machine is ''"),
        ({"arch": "h200"}, "arch is 'h200'"),
        ({"shape": ["N"]}, "shape is"),
        ({"op": 3}, "op is 3"),
        ({"note": "x"}, "wanted are"),
    ],
)
def test_what_no_measurement_gives_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    good = dataclasses.asdict(row(2.0, 8000))
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schema": 1, "rows": [good, good | change]}))
    with pytest.raises(ConvertError, match="row 2 of the table") as error:
        measured.load(path)
    assert words in str(error.value)


def test_damaged_tables(tmp_path: Path) -> None:
    good = dataclasses.asdict(row(2.0, 8000))
    for number, (text, words) in enumerate(
        (
            ("{", "cannot be read"),
            ('{"schema": 99, "rows": []}', "schema 1"),
            ("[]", "schema 1"),
            ('{"schema": 1, "rows": [3]}', "not an object"),
            (json.dumps({"schema": 1, "rows": [good, good]}), "was there before"),
        )
    ):
        path = tmp_path / f"{number}.json"
        path.write_text(text)
        with pytest.raises(ConvertError, match=words):
            measured.load(path)


def test_table_survives_a_round_trip(tmp_path: Path) -> None:
    rows = (row(2.0, 8000), row(1.5, 16000), row(0.5, 8000, kind=""))
    measured.save(rows, tmp_path / "t.json")
    assert set(measured.load(tmp_path / "t.json")) == set(rows)


def test_no_row_at_all(table: Any, run: Run, tmp_path: Path) -> None:
    """Fused, and said so."""
    table(row(0.1, 1000, op="Another"))
    result = build(SPEECH, tmp_path / "e.plan", AHEAD)
    assert kept(result) == [True] * 3
    assert {c.how for c in result.choices} == {"unmeasured"}
    assert "has no row for it" in result.choices[0].reason
    table(row(0.1, 1000, kind="axis -1"))
    assert "has no row for it in float32 channels last" in build(SPEECH, tmp_path / "e.plan", AHEAD).choices[0].reason


def test_table_decides_by_size(table: Any, tmp_path: Path) -> None:
    """The small fusion stays native, the others are made; verify makes the same ones again."""
    table(row(0.6, 400_000), row(1.9, 1_600_000))
    result = build(SPEECH, tmp_path / "e.plan", AHEAD)
    assert kept(result) == [True, True, False]
    assert [f.output for f in result.fusions] == [c.output for c in result.choices[:2]]
    last = result.choices[-1]
    assert (last.how, last.ratio, last.shape, last.dtype) == ("table", 0.6, (1, 64, 799), "float32")
    assert "not measured here" in last.reason
    assert "0.60 times as fast as native on card sm_86" in last.reason
    assert len(result.plugin_nodes) == 2
    recorded = json.loads(Path(f"{result.plan}.json").read_text())["choices"]
    assert [c["kept"] for c in recorded] == [True, True, False]
    assert recorded[2]["shape"] == [1, 64, 799]
    checked = verify(result.plan)
    assert checked.passed
    assert not any("differently" in notice for notice in checked.notices)


def test_old_manifest_means_all_fusions(table: Any, tmp_path: Path) -> None:
    table()
    plan = build(SPEECH, tmp_path / "e.plan", AHEAD).plan
    path = Path(f"{plan}.json")
    old = json.loads(path.read_text()) | {"schema": 1}
    for name in ("choices", "whole_engine", "fuse"):
        del old[name]
    path.write_text(json.dumps(old))
    checked = verify(plan)
    assert checked.passed
    assert not any("differently" in notice for notice in checked.notices)


def test_other_architecture_is_named(table: Any, tmp_path: Path) -> None:
    """All targets share one plan: the mean of what is known for each decides."""
    table(row(0.4, 1_600_000, "sm_90"), row(4.0, 1_600_000, "sm_80"))
    result = build(SPEECH, tmp_path / "e.plan", BuildOptions(targets=("sm_80", "sm_120")))
    assert result.choices[0].ratio == pytest.approx(1.6**0.5)
    assert "card sm_80 with" in result.choices[0].reason
    assert "card sm_90 with" in result.choices[0].reason


def test_within_the_margin_is_no_gain(table: Any, tmp_path: Path) -> None:
    for ratio, count in ((1.015, 0), (1.03, 3)):
        table(row(ratio, 1_600_000))
        assert len(build(SPEECH, tmp_path / "e.plan", AHEAD).fusions) == count


def test_unknown_dimensions_are_the_profile_s_opt(table: Any, tmp_path: Path) -> None:
    table(row(0.6, 40_000), row(1.9, 1_600_000))
    model = SAMPLES / "wav2vec2_features_dynamic.onnx"
    for length, count in ((16000, 3), (500, 0)):
        shapes = {"waveform": Range((1, 1, 400), (1, 1, length), (4, 1, 16000))}
        result = build(model, tmp_path / "e.plan", dataclasses.replace(AHEAD, shapes=shapes))
        assert len(result.fusions) == count, result.choices


def test_output_of_the_command(run: Run, tmp_path: Path) -> None:
    """The shipped table decides on norms between convolutions, and is named."""
    shown = run("build", SPEECH, "-o", tmp_path / "e.plan", "--target", "sm_86").stdout
    ratios = [
        float(text) for text in re.findall(r"not measured here; ([\d.]+) times as fast as native on NVIDIA H200", shown)
    ]
    assert ratios
    assert f"({sum(map(pays, ratios))} fused)" in shown
    assert "not measured here" not in run("build", SPEECH, "-o", tmp_path / "e.plan", "--fuse", "all").stdout


# --- what is not kept makes room -----------------------------------------------------------------------------------


class First(Op):
    """y = relu(x)."""

    pattern = "first"
    source = ""

    def patterns(self, op: Any, x: Any) -> Any:
        yield op.Relu(x)

    def output(self, x: Any) -> Any:
        return x


class Second(First):
    pattern = "second"


class Only:
    """Keeps the fusions of one op."""

    def __init__(self, op: str) -> None:
        self.op, self.asked = op, list[str]()

    def judge(self, _fused: FuseResult, new: Sequence[Fusion]) -> list[Choice]:
        self.asked += [f.op for f in new]
        return [choice(f, None, f.op == self.op, "table", "") for f in new]

    def whole(self, _fused: FuseResult) -> None:
        return None


@pytest.mark.parametrize(
    ("keeps", "asked"), [("First", ["First"]), ("Second", ["First", "Second"]), ("", ["First", "Second"])]
)
def test_what_is_left_native_makes_room(keeps: str, asked: list[str]) -> None:
    x = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 8]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", x[:1], x[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    before, judge = model.SerializeToString(), Only(keeps)
    chosen = choose(model, Path(), [First, Second], judge)
    assert judge.asked == asked
    assert [f.op for f in chosen.fusions] == ([keeps] if keeps else [])
    assert (model.SerializeToString() == before) == (not keeps)


class Both(First):
    """y = relu(relu(x))."""

    pattern = "both"

    def patterns(self, op: Any, x: Any) -> Any:
        yield op.Relu(op.Relu(x))


class NotTheLast(Only):
    """Keeps all but First at b."""

    def judge(self, _fused: FuseResult, new: Sequence[Fusion]) -> list[Choice]:
        return [choice(f, None, f.key != ("First", "b"), "table", "") for f in new]


def test_choices_say_what_was_made() -> None:
    """First at b goes; where Both takes its place, it takes the node of First at a, too, which had been kept."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 8]) for n in "xb"]
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    source = onnx_model.copy(model)
    chosen = choose(model, Path(), [First, Both], NotTheLast(""))
    kept_keys = {c.key for c in chosen.choices if c.kept}
    assert kept_keys == {f.key for f in chosen.fusions}
    assert len(kept_keys) == 1
    fuse_model(source, Path(), [First, Both], lambda key: key in kept_keys)
    assert source == model, "verify makes the same fusions from what the manifest says"


# --- trials, with real engines and a clock that is set by hand -----------------------------------------------------

CARD = Gpu("card", "sm_86", (13, 0))


class Clock:
    """Stands in for the GPU: engines are built but not run; times and outputs are what the test says.

    us: plan and name of an engine to its time. outputs: name of an engine and feeds to what it gives.
    """

    def __init__(self, us: Callable[[str, bytes], float], outputs: Callable[[str, Any], Any]) -> None:
        self.us, self.outputs, self.measured = us, outputs, list[dict[str, tuple[int, ...]]]()
        self.dtypes = list[set[str]]()

    def measure(self, engines: Any, feeds: Any, graph: bool, runs: int, rounds: int) -> dict[str, Timing]:
        self.measured.append({name: feed.shape for name, feed in feeds.items()})
        self.dtypes.append({feed.dtype.name for feed in feeds.values()})
        assert list(engines) == [PLUGINS, NATIVE]
        times = {name: self.us(name, engine.plan) for name, engine in engines.items()}
        return {name: Timing(us, us, us, 1e6 / us, runs, graph, 1.0) for name, us in times.items()}

    def engine(self, backend: Any, plan: bytes, path: Path) -> Any:
        clock = self

        class Engine:
            def __init__(self) -> None:
                self.plan = plan

            def run(self, feeds: Any) -> Any:
                return clock.outputs(PLUGINS if b"LayerNormGelu" in plan else NATIVE, feeds)

        return Engine()


def exact(_engine: str, feeds: Any) -> dict[str, Any]:
    return run_reference(onnx.load(SPEECH), Path(), feeds)


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[BuildResult, Clock]]:
    """Build as on a machine with that GPU."""

    def made(
        us: Callable[[str, bytes], float], outputs: Any = exact, model: Path = SPEECH, **options: Any
    ) -> tuple[BuildResult, Clock]:
        clock = Clock(us, outputs)
        present = type("gpu", (), {"current": staticmethod(lambda: CARD), "require": staticmethod(lambda: CARD)})
        for module in ("build", "choice.trials"):
            monkeypatch.setattr(sys.modules[f"trtconvert.{module}"], "gpu", present)
        monkeypatch.setattr(sys.modules["trtconvert.choice.trials"], "measure", clock.measure)
        monkeypatch.setattr(sys.modules["trtconvert.choice.trials"], "Engine", clock.engine)
        return build(model, tmp_path / "e.plan", dataclasses.replace(AHEAD, **options)), clock

    return made


def test_faster_fusions_stay(clocked: Any, tmp_path: Path) -> None:
    """Each in its neighbourhood, then the whole engine; the numbers are in the manifest, and nothing else is left behind."""
    result, clock = clocked(lambda name, plan: 10.0 if name == PLUGINS else 20.0)
    assert kept(result) == [True] * 3
    assert [list(feeds.values()) for feeds in clock.measured] == [
        [(1, 1, 16000)],
        [(1, 64, 3199)],
        [(1, 64, 1599)],
        [(1, 1, 16000)],
    ]
    first, whole = result.manifest.choices[0], result.manifest.whole_engine
    assert (first["native_us"], first["plugin_us"], first["ratio"], first["how"]) == (20.0, 10.0, 2.0, "neighbourhood")
    assert first["machine"].startswith("card (sm_86), TensorRT")
    assert first["reason"] == "10.0 us with its neighbours, native 20.0 us"
    assert (whole["native_us"], whole["plugins_us"], whole["kept"], whole["graph"]) == (20.0, 10.0, True, True)
    assert whole["errors"] == {"features": {"native": 0.0, "plugins": 0.0}}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["e.plan", "e.plan.json"]
    assert verify(result.plan).passed


def test_trials_are_in_the_precision_of_the_engine(clocked: Any) -> None:
    """What is cut out has the types that it has inside the converted model; the whole engine keeps its inputs'."""
    result, clock = clocked(lambda name, plan: 10.0 if name == PLUGINS else 20.0, precision=PrecisionOptions("fp16"))
    assert kept(result) == [True] * 3
    assert clock.dtypes == [*[{"float16"}] * 3, {"float32"}]
    assert {(plugin.name, len(plugin.nodes)) for plugin in result.manifest.plugins} == {("LayerNormGelu", 3)}


def test_slower_fusions_stay_native(clocked: Any) -> None:
    """The native engine is timed against none then; a gain within the margin is none."""
    for factor in (2.0, 0.99):
        result, clock = clocked(lambda name, plan, f=factor: 10.0 * f if name == PLUGINS else 10.0)
        assert kept(result) == [False] * 3
        assert len(clock.measured) == 3
        assert result.manifest.plugins == []
        assert result.manifest.whole_engine["plugins_us"] is None
        assert result.manifest.whole_engine["errors"] == {"features": {"native": 0.0}}
        assert "us with its neighbours, native 10.0 us" in result.choices[0].reason
        assert ("a gain within 2% is none" in result.choices[0].reason) == (factor < 1)
        checked = verify(result.plan)
        assert checked.passed
        assert checked.notices == []


@pytest.mark.parametrize("slow", [2.0, 0.5], ids=["slower alone", "faster alone"])
def test_layers_that_tensorrt_gets_wrong(slow: float, clocked: Any) -> None:
    """Plugins take their place although they are slower, where that mends it."""

    def outputs(engine: str, feeds: Any) -> dict[str, Any]:
        factor = 1.0 if engine == PLUGINS else 1.2
        return {name: factor * value for name, value in exact(engine, feeds).items()}

    result, _ = clocked(lambda name, plan: 10.0 * slow if name == PLUGINS else 10.0, outputs)
    assert kept(result) == [True] * 3
    assert len(result.plugin_nodes) == 3
    whole = result.manifest.whole_engine
    assert whole["errors"]["features"]["plugins"] == 0.0
    assert "own layers output features is off by 2.0e-01 (relative L2) against onnxruntime" in whole["reason"]
    if slow > 1:
        assert "us with its neighbours, native 10.0 us; TensorRT's own layers compute" in result.choices[0].reason
    assert not [note for note in result.notices if "computes something else" in note]
    assert verify(result.plan).passed


@pytest.mark.parametrize("slow", [2.0, 0.5], ids=["slower alone", "faster alone"])
def test_an_engine_that_no_plugin_mends(slow: float, clocked: Any) -> None:
    """The choice is as ever, and the user is told."""

    def outputs(engine: str, feeds: Any) -> dict[str, Any]:
        return {name: 1.2 * value for name, value in exact(engine, feeds).items()}

    result, _ = clocked(lambda name, plan: 10.0 * slow if name == PLUGINS else 10.0, outputs)
    assert kept(result) == [slow < 1] * 3
    (told,) = [note for note in result.notices if "computes something else" in note]
    assert "output features is off by 2.0e-01 (relative L2) against onnxruntime" in told


def test_some_stay_native(clocked: Any) -> None:
    """The first of three is slow; verify fuses the other two."""
    times = iter([(30.0, 20.0), (10.0, 20.0), (10.0, 20.0), (10.0, 20.0)])
    pair: dict[str, float] = {}

    def us(name: str, plan: bytes) -> float:
        if name == PLUGINS:
            pair[PLUGINS], pair[NATIVE] = next(times)
        return pair[name]

    result, _ = clocked(us)
    assert kept(result) == [False, True, True]
    assert len(result.plugin_nodes) == 2
    checked = verify(result.plan)
    assert checked.passed
    assert checked.notices == []


def test_slower_whole_engine(clocked: Any) -> None:
    """Every fusion won alone, all together lose: the native engine is shipped."""
    clock: list[int] = []

    def us(name: str, plan: bytes) -> float:
        clock.append(1)
        return 20.0 if name == NATIVE else 10.0 if len(clock) <= 6 else 20.5

    result, _ = clocked(us)
    assert kept(result) == [False] * 3
    assert "the whole engine is no faster: 20.5 us, native 20.0 us" in result.choices[0].reason
    assert result.choices[0].native_us == 20.0
    assert (result.plugin_nodes, result.fusions) == ([], [])
    assert not result.manifest.whole_engine["kept"]
    assert verify(result.plan).notices == []


@pytest.mark.parametrize(("noise", "stays"), [(0.0, True), (1.9e-4, True), (2.2e-4, False), (np.nan, False)])
def test_accuracy_bar(clocked: Any, noise: float, stays: bool) -> None:
    """At most twice native's error, 1e-4 here, and 1e-6."""

    def outputs(engine: str, feeds: Any) -> dict[str, Any]:
        factor = 1 + np.float64(noise if engine == PLUGINS else 1e-4)
        return {name: array.astype(np.float64) * factor for name, array in exact(engine, feeds).items()}

    result, _ = clocked(lambda name, plan: 10.0 if name == PLUGINS else 20.0, outputs)
    assert kept(result) == [stays] * 3
    error = result.manifest.whole_engine["errors"]["features"]
    assert error["native"] == pytest.approx(1e-4, rel=1e-3)
    assert error["plugins"] == (None if np.isnan(noise) else pytest.approx(noise, rel=1e-3, abs=1e-12))
    if not stays:
        assert "with plugins output features is off by" in result.choices[0].reason


def test_what_cannot_be_measured_stays_native(clocked: Any) -> None:
    """And the build goes on."""

    def us(name: str, plan: bytes) -> float:
        raise ConvertError("the engine failed: out of memory")

    result, _ = clocked(us)
    assert kept(result) == [False] * 3
    assert "could not be measured: the engine failed: out of memory; in the whole engine: " in result.choices[0].reason
    assert result.manifest.plugins == []


def test_what_cannot_be_cut_is_toggled_in_the_whole_engine(clocked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise ConvertError("the shape of x is unknown")

    monkeypatch.setattr(Surroundings, "cut", refuse)
    result, clock = clocked(lambda name, plan: 10.0 if name == PLUGINS else 20.0)
    assert {c.how for c in result.choices} == {"whole engine"}
    assert kept(result) == [True] * 3
    assert len(clock.measured) == 4


def test_without_a_graph_where_none_can_be_captured(clocked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Clock.measure

    def measure(self: Clock, engines: Any, feeds: Any, graph: bool, *rest: int) -> Any:
        if graph:
            raise ConvertError("no CUDA graph of this engine")
        return original(self, engines, feeds, graph, *rest)

    monkeypatch.setattr(Clock, "measure", measure)
    result, _ = clocked(lambda name, plan: 10.0 if name == PLUGINS else 20.0)
    assert result.choices[0].reason.endswith("without a CUDA graph")
    assert result.manifest.whole_engine["graph"] is False


def test_equal_neighbourhoods_are_measured_once(clocked: Any, tmp_path: Path) -> None:
    """Four blocks; the first two stand between equal MatMuls and differ in names and weights alone."""
    random = np.random.default_rng(0)
    nodes, weights, tensor, width = [], [], "x", 32
    for block, wide in enumerate((32, 32, 32, 48)):
        for name, shape in (("w", (width, wide)), ("scale", (wide,)), ("bias", (wide,))):
            weights.append(numpy_helper.from_array(random.standard_normal(shape, np.float32), f"{name}{block}"))
        nodes.append(helper.make_node("MatMul", [tensor, f"w{block}"], [f"m{block}"], name=f"matmul{block}"))
        nodes.append(
            helper.make_node("LayerNormalization", [f"m{block}", f"scale{block}", f"bias{block}"], [f"n{block}"])
        )
        nodes.append(helper.make_node("Gelu", [f"n{block}"], [f"g{block}"], name=f"gelu{block}"))
        tensor, width = f"g{block}", wide
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, w]) for n, w in (("x", 32), (tensor, 48))]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    path = tmp_path / "blocks.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)

    def outputs(_engine: str, feeds: Any) -> Any:
        return run_reference(onnx.load(path), Path(), feeds)

    def us(name: str, plan: bytes) -> float:
        return 10.0 if name == PLUGINS else 20.0

    result, clock = clocked(us, outputs, path)
    assert kept(result) == [True] * 4
    assert len(clock.measured) == 3 + 1


def test_what_tensorrt_cannot_build_alone_is_kept(clocked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a TensorRT whose builder refuses the LayerNormalization that the plugin takes in."""
    make = Maker.make

    def refusing(self: Maker, model: Any, *rest: Any) -> Any:
        if any(node.op_type == "LayerNormalization" for node in model.graph.node):
            raise ConvertError("no such layer")
        return make(self, model, *rest)

    monkeypatch.setattr(Maker, "make", refusing)
    model = CORPUS / "a35_op_mean_invstd_unused.onnx"
    result, clock = clocked(lambda name, plan: 10.0, model=model)
    assert clock.measured == []
    assert [(c.kept, c.how) for c in result.choices] == [(True, "needed")]
    assert "TensorRT alone cannot build it: " in result.choices[0].reason
    assert "TensorRT alone cannot build the model: " in result.manifest.whole_engine["reason"]
    assert len(result.plugin_nodes) == 1


def test_a_gpu_that_runs_no_engine(clocked: Any, table: Any) -> None:
    """The table decides, and the reason is a note."""
    from trtconvert import NoUsableGpuError

    def us(name: str, plan: bytes) -> float:
        raise NoUsableGpuError("the engine cannot run on this GPU")

    table(row(0.5, 1_600_000))
    result, _ = clocked(us)
    assert kept(result) == [False] * 3
    assert {c.how for c in result.choices} == {"table"}
    assert "fusions were not measured here: the engine cannot run on this GPU" in result.notices


def test_other_targets_are_not_measured(clocked: Any) -> None:
    result, clock = clocked(lambda name, plan: 1.0, targets=("sm_86", "sm_89"))
    assert clock.measured == []
    assert {c.how for c in result.choices} == {"table"}


# --- neighbourhoods ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", sorted(SAMPLES.glob("*.onnx")), ids=lambda path: path.stem)
def test_neighbourhoods_of_samples(sample: Path) -> None:
    """Cut out, both spellings compute the same, and there is more in them than the fusion alone."""
    from trtconvert import shapes
    from trtconvert.choice.trials import relative_l2
    from trtconvert.inputs import random_feeds
    from trtconvert.manifest import model_io

    source = onnx_model.load(sample)
    ops = registry.by_pattern(())
    fused = fuse_model(onnx_model.copy(source), sample.parent, ops)
    around = Surroundings(source, sample.parent, shapes.profile(source, {}).ranges)
    for fusion in fused.fusions:
        cut = around.cut(fusion, fused, ops)
        onnx.checker.check_model(cut.native, full_check=True)
        onnx.checker.check_model(cut.fused, full_check=True)
        assert len([n for n in cut.fused.graph.node if n.op_type == fusion.op]) == 1
        assert len(cut.fused.graph.node) >= 2
        inputs = model_io(cut.native, "input")
        assert all(isinstance(d, int) for io in inputs for d in io.shape or ())
        _, feeds = next(random_feeds(inputs, {}, 0))
        want, got = (run_reference(model, sample.parent, feeds) for model in (cut.native, cut.fused))
        for name, array in want.items():
            assert relative_l2(got[name], array) <= (3e-2 if sample.stem.startswith("bf16") else 3e-3)
