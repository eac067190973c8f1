"""What verify feeds: the role that each input plays, random data for it, the user's files and script, and their errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from tests.conftest import Run, assert_clean_error
from tests.graphs import FAST, graph, save
from trtconvert import ConvertError, build, verify
from trtconvert.feeds import feed, files, roles
from trtconvert.feeds.contract import Batch, Contract
from trtconvert.feeds.feed import FeedOptions
from trtconvert.feeds.script import batches as script_batches
from trtconvert.manifest import model_io
from trtconvert.reference import session

TABLE = "float[5,4] t = {" + ",".join(["0.5"] * 20) + "}"


def contract(model: ModelProto, **more: Any) -> Contract:
    return Contract(model_io(model, "input"), [o.name for o in model.graph.output], **more)


def sampled(
    model: ModelProto, samples: int = 30, profile: Mapping[str, Any] | None = None, **options: Any
) -> list[Batch]:
    """Random batches of a model, each of which it runs in onnxruntime: an id out of range is an error there."""
    made = feed.feeds(
        FeedOptions(samples=samples, **options),
        model,
        Path(),
        contract(model, **({"profile": profile} if profile else {})),
    )
    found, runs = list(made.batches), session(model)
    assert len(found) == made.count
    for batch in found:
        runs.run(None, batch.arrays)
    return found


def role(model: ModelProto, name: str = "i", shapes: Mapping[str, Any] | None = None) -> roles.Role:
    inputs = model_io(model, "input")
    known = {io.name: [d if isinstance(d, int) else 6 for d in io.shape or []] for io in inputs}
    return roles.of_inputs(model, Path(), inputs, known | dict(shapes or {}))[name]


def values(batches: list[Batch], name: str = "i") -> set[Any]:
    return set(np.concatenate([b.arrays[name].ravel() for b in batches]).tolist())


# --- roles ---------------------------------------------------------------------------------------------------------

IDS = {  # nodes that look x up, and the ids that may come in
    "gather": ("y = Gather(t, i)", range(5)),
    "moved and cast": (
        "a = Constant<value = int64[1] {6}>() u = Reshape(i, a) c = Cast<to = 7>(u) y = Gather(t, c)",
        range(5),
    ),
    "another axis": ("y = Gather<axis = 1>(t, i)", range(4)),
    "axis from the back": ("y = Gather<axis = -1>(t, i)", range(4)),
    "both": ("a = Gather(t, i) b = Gather<axis = 1>(t, i) s = ReduceSum<keepdims = 0>(b) y = Add(a, s)", range(4)),
    "a position that starts at 2": ("k = Constant<value = int64 {2}>() p = Add(i, k) y = Gather(t, p)", range(-2, 3)),
    "one before": ("k = Constant<value = int64 {1}>() p = Sub(i, k) y = Gather(t, p)", range(1, 6)),
    "negative ones counted from the end": (
        "z = Constant<value = int64 {0}>() n = Constant<value = int64 {5}>() l = Less(i, z) p = Add(i, n) "
        "w = Where(l, p, i) y = Gather(t, w)",
        range(5),
    ),
    "one-hot": (
        "d = Constant<value = int64 {7}>() v = Constant<value = float[2] {0.0, 1.0}>() y = OneHot(i, d, v)",
        range(7),
    ),
    "rows of GatherND": ("a = Constant<value = int64[1] {1}>() u = Unsqueeze(i, a) y = GatherND(t, u)", range(5)),
}


@pytest.mark.parametrize("case", IDS)
def test_ids_lie_in_the_table(case: str) -> None:
    nodes, allowed = IDS[case]
    model = graph(nodes, "int64[6] i", "float[M,N] y", TABLE)
    found = role(model)
    assert (found.kind, found.low, found.high) == (roles.IDS, allowed[0], allowed[-1])
    assert values(sampled(model)) == set(allowed)


def test_ids_into_a_dimension_that_is_dynamic() -> None:
    """Each point of the profile has its own bound."""
    model = graph("y = Gather(x, i)", "float[N,4] x, int64[6] i", "float[6,4] y")
    profile = {"x": {"min": [2, 4], "opt": [3, 4], "max": [9, 4]}}
    low, *middle, high = sampled(model, profile=profile)
    assert low.label == "2x4 6"
    assert values([low]) <= {0, 1}
    assert values(middle) == {0, 1, 2}
    assert max(values([high])) > 2


def test_ids_in_a_branch() -> None:
    """A subgraph reads the input of the graph around it."""
    model = graph(
        "y = If (c) <then_branch = a () => (float[6,4] p) { p = Gather(t, i) }, "
        "else_branch = b () => (float[6,4] q) { n = Gather(t, i) q = Neg(n) }>",
        "bool c, int64[6] i",
        "float[6,4] y",
        TABLE,
    )
    assert role(model).high == 4
    assert values(sampled(model)) == set(range(5))


def test_ids_in_a_function() -> None:
    model = graph(
        "y = acme.look(t, i)",
        "int64[6] i",
        "float[6,4] y",
        TABLE,
        functions='<domain: "acme", opset_import: ["" : 17]> look (a, b) => (c) { c = Gather(a, b) }',
    )
    assert role(model).high == 4


MASK = "int64[3,6] i"


@pytest.mark.parametrize(
    ("nodes", "inputs"),
    [
        ("f = Cast<to = 1>(i) o = Constant<value = float {1.0}>() s = Sub(o, f) y = Identity(s)", MASK),
        ("b = Cast<to = 9>(i) y = Cast<to = 1>(b)", MASK),
        ("y = Cast<to = 1>(i_mask)", "int64[3,6] i_mask"),
        ("y = Cast<to = 1>(mask)", "bool[3,6] mask"),
        ("y = Identity(attention_mask)", "float[3,6] attention_mask"),
    ],
)
def test_masks_are_left_aligned_ones(nodes: str, inputs: str) -> None:
    model = graph(nodes, inputs, "float[3,6] y")
    name = model.graph.input[0].name
    assert role(model, name).kind == roles.MASK
    masks = np.concatenate([b.arrays[name] for b in sampled(model)]).astype(int)
    lengths = masks.sum(1)
    assert ((np.arange(6) < lengths[:, None]) == masks).all()
    assert set(lengths) == set(range(1, 7))


def test_a_padding_mask_is_true_behind_the_length() -> None:
    model = graph("y = Cast<to = 1>(padding_mask)", "bool[3,1,6] padding_mask", "float[3,1,6] y")
    for batch in sampled(model):
        mask = batch.arrays["padding_mask"]
        assert not mask[..., 0].any()
        assert (np.diff(mask.astype(int)) >= 0).all()


LENGTHS = {
    "by its name": ("c = Cast<to = 1>(x_lengths) y = Mul(x, c)", "float[2,N] x, int64[2,1] x_lengths", "x_lengths"),
    "compared with a range": (
        "z = Constant<value = int64 {0}>() e = Constant<value = int64 {1}>() s = Shape(x) "
        "n = Gather(s, e) r = Range(z, n, e) l = Less(r, i) c = Cast<to = 1>(l) y = Mul(x, c)",
        "float[2,N] x, int64[2,1] i",
        "i",
    ),
    "compared with 0, 1, 2": (
        "r = Constant<value = int64[6] {0,1,2,3,4,5}>() l = Less(r, i) c = Cast<to = 1>(l) y = Mul(x, c)",
        "float[2,6] x, int64[2,1] i",
        "i",
    ),
    "of a reversal": (
        "y = ReverseSequence<batch_axis = 0, time_axis = 1>(x, i)",
        "float[2,N] x, int64[2] i",
        "i",
    ),
}


@pytest.mark.parametrize("case", LENGTHS)
def test_lengths_lie_in_their_dimension(case: str) -> None:
    nodes, inputs, name = LENGTHS[case]
    model = graph(nodes, inputs, "float[2,N] y")
    found = role(model, name)
    assert (found.kind, found.low, found.high) == (roles.LENGTH, 1, 6)
    profile = {"x": {point: [2, 6] for point in ("min", "opt", "max")}} if "N" in inputs else None
    assert values(sampled(model, profile=profile), name) == set(range(1, 7))


@pytest.mark.parametrize(
    ("inputs", "before", "layout"),
    [
        ("float[1,3,8,9] x", "a = Identity(x)", "NCHW with 3 channels"),
        (
            "float16[1,1,8,9] x",
            "b = Cast<to = 1>(x) m = Constant<value = float {0.5}>() a = Sub(b, m)",
            "NCHW with 1 channel",
        ),
        ("float[1,8,9,4] x", "a = Transpose<perm = [0,3,1,2]>(x)", "NHWC with 4 channels"),
        ("float[1,3,7,7] x", "a = Identity(x)", ""),  # a small map of features
        ("float[1,5,8,9] x", "a = Identity(x)", ""),
        ("float[1,3,8,9] x", "a = Tanh(x)", ""),  # not what a network begins with
        ("float[1,3,8,9] latent_x", "a = Identity(latent_x)", ""),
    ],
)
def test_images_are_0_to_1(inputs: str, before: str, layout: str) -> None:
    channels = 3 if layout == "" else int(layout.split()[2])
    model = graph(
        f"{before} y = Conv(a, k)",
        inputs,
        "float[1,1,A,B] y",
        f"float[1,{channels},1,1] k = {{{','.join(['1.0'] * channels)}}}",
    )
    name = model.graph.input[0].name
    found = role(model, name)
    assert found.kind == (roles.IMAGE if layout else roles.NORMAL)
    assert found.why.endswith(layout)
    if layout:
        array = sampled(model, 1)[0].arrays[name]
        assert 0 <= array.min() < 0.1 < 0.9 < array.max() <= 1


def test_what_nothing_is_known_of() -> None:
    model = graph(
        "a = Cast<to = 1>(i) b = Cast<to = 1>(b8) c = Cast<to = 1>(q) d = Add(a, b) y = Add(c, d)",
        "int64[99] i, bool[99] b8, uint8[99] q",
        "float[99] y",
    )
    batches = sampled(model, 5)
    assert [values(batches, n) for n in ("i", "b8")] == [{0, 1}, {False, True}]
    assert {0, 255} <= values(batches, "q")


def test_ids_beyond_the_dtype() -> None:
    model = graph("c = Cast<to = 7>(i) y = Gather(t, c)", "int8[6] i", "float[6,1] y", "")
    table = numpy_helper.from_array(np.ones((1000, 1), np.float32), "t")
    model.graph.initializer.append(table)
    assert role(model).high == 127


# --- random batches ------------------------------------------------------------------------------------------------


def test_every_batch_has_its_own_seed() -> None:
    """Sample 2 is the same whether 3 or 30 are drawn; another seed gives others; min and max stay one batch each."""
    model = graph("y = Neg(x)", "float[N,4] x", "float[N,4] y")
    profile = {"x": {"min": [1, 4], "opt": [2, 4], "max": [3, 4]}}
    three, many, other = (sampled(model, n, profile, seed=s) for n, s in ((3, 0), (30, 0), (3, 1)))
    assert [b.title for b in three] == ["1x4", "2x4", "2x4 #2", "2x4 #3", "3x4"]
    assert len(many) == 32
    for k, at in ((0, 0), (1, 1), (2, 2), (3, 3), (4, 31)):
        np.testing.assert_array_equal(three[k].arrays["x"], many[at].arrays["x"])
        assert (three[k].arrays["x"] != other[k].arrays["x"]).any()


def test_input_range() -> None:
    model = graph("f = Cast<to = 1>(i) y = Add(x, f)", "float[2,4] x, int32[2,4] i")
    ranges = feed.parse_ranges(["x=5,6.5", "i=-1,1"])
    batches = sampled(model, ranges=ranges)
    assert values(batches) == {-1, 0, 1}
    assert 5 <= min(values(batches, "x")) < max(values(batches, "x")) <= 6.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x=1", "cannot read"),
        ("x=1,2,3", "cannot read"),
        ("1,2", "cannot read"),
        ("x=0,inf", "cannot read"),
        ("x=2,1", "2 is more than 1"),
        ("xx=0,1", "did you mean 'x'"),
        ("i=0,0.5", "no range of int32"),
        ("i=0,3e9", "no range of int32"),
        ("s=1,2", "decide shapes"),
    ],
)
def test_wrong_input_range(text: str, words: str) -> None:
    model = graph("y = Reshape(x, s)", "float[2,4] x, int32[2] i, int64[2] s")
    with pytest.raises(ConvertError, match=words):
        feed.feeds(
            FeedOptions(ranges=feed.parse_ranges([text])), model, Path(), contract(model, values={"s": {"min": [2, 4]}})
        )


def test_one_source_of_inputs() -> None:
    model = graph("y = Neg(x)")
    for options in (FeedOptions(Path("a"), "b.py:c"), FeedOptions(Path("a"), ranges={"x": (0, 1)})):
        with pytest.raises(ConvertError, match="contradict each other"):
            feed.feeds(options, model, Path(), contract(model))


# --- files ---------------------------------------------------------------------------------------------------------

TWO = graph("f = Cast<to = 1>(i) y = Add(x, f)", "float[2,4] x, int64[2,4] i")
ARRAYS: dict[str, NDArray[Any]] = {"x": np.full((2, 4), 0.5, np.float32), "i": np.ones((2, 4), np.int64)}


def read(path: Path, **more: Any) -> list[Batch]:
    return [one() for one in files.batches(path, contract(TWO, **more))]


def onnx_data(folder: Path, names: tuple[str, str] = ("x", "i"), expected: bool = True) -> Path:
    folder.mkdir(parents=True)
    for k, (array, name) in enumerate(zip(ARRAYS.values(), names, strict=True)):
        (folder / f"input_{k}.pb").write_bytes(numpy_helper.from_array(array, name).SerializeToString())
    if expected:
        array = np.full((2, 4), 1.5, np.float32)
        (folder / "output_0.pb").write_bytes(numpy_helper.from_array(array, "").SerializeToString())
    return folder


def check(batch: Batch) -> None:
    assert set(batch.arrays) == {"x", "i"}
    for name, array in batch.arrays.items():
        np.testing.assert_array_equal(array, ARRAYS[name])


def test_npz_npy_and_test_data(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **ARRAYS)
    (tmp_path / "npy").mkdir()
    for name, array in ARRAYS.items():
        np.save(tmp_path / "npy" / f"{name}.npy", array)
    onnx_data(tmp_path / "named", ("x", "i"))
    onnx_data(tmp_path / "unnamed", ("", ""), expected=False)
    for path in ("a.npz", "npy", "named", "unnamed"):
        (batch,) = read(tmp_path / path)
        check(batch)
        assert batch.label == path
        assert set(batch.expected) == ({"y"} if path == "named" else set())


def test_a_folder_of_several(tmp_path: Path) -> None:
    for k in (10, 9, 0):
        onnx_data(tmp_path / f"test_data_set_{k}")
    (tmp_path / "model.onnx").write_bytes(b"")
    assert [b.label for b in read(tmp_path)] == ["test_data_set_0", "test_data_set_9", "test_data_set_10"]


def test_test_data_of_a_baked_input(tmp_path: Path) -> None:
    model = graph("y = Neg(x)")
    folder = onnx_data(tmp_path / "d", ("x", "k"))
    (one,) = files.batches(folder, contract(model, baked=("k",)))
    assert set(one().arrays) == {"x"}


def test_a_name_with_a_slash(tmp_path: Path) -> None:
    model = graph("y = Neg(x)")
    model.graph.input[0].name = model.graph.node[0].input[0] = "in/x:0"
    np.save(tmp_path / "in_x_0.npy", ARRAYS["x"])
    (one,) = files.batches(tmp_path, contract(model))
    assert set(one().arrays) == {"in/x:0"}


WRONG = {
    "missing": ({"x": ARRAYS["x"]}, "no array for input 'i'; there are 'x'"),
    "unknown": (ARRAYS | {"k": ARRAYS["x"]}, "array 'k' is no input of the model"),
    "baked": (ARRAYS | {"b": ARRAYS["x"]}, "made a constant by --bake"),
    "dtype": (ARRAYS | {"x": ARRAYS["x"].astype(np.float64)}, "array 'x' is float64, the model takes float32"),
    "rank": (ARRAYS | {"x": ARRAYS["x"][0]}, r"array 'x' has shape \[4\], the model takes \[2, 4\]"),
    "size": (ARRAYS | {"x": ARRAYS["x"][:, :3]}, r"array 'x' has shape \[2, 3\]"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arrays(case: str, tmp_path: Path) -> None:
    arrays, words = WRONG[case]
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ConvertError, match=words):
        read(tmp_path / "a.npz", baked=("b",))


def test_beyond_the_profile(tmp_path: Path) -> None:
    model = graph("y = Neg(x)", "float[N,4] x", "float[N,4] y")
    known = contract(model, profile={"x": {"min": [1, 4], "opt": [1, 4], "max": [8, 4]}})
    np.savez(tmp_path / "a.npz", x=np.ones((9, 4), np.float32))
    with pytest.raises(ConvertError, match=r"shape \[9, 4\], the engine takes \[1, 4\] to \[8, 4\]"):
        files.batches(tmp_path / "a.npz", known)[0]()


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.npz").write_bytes(b"PK\3\4 nothing")
    (tmp_path / "bad.bin").write_bytes(b"x")
    (tmp_path / "npy").mkdir()
    (tmp_path / "npy" / "x.npy").write_bytes(b"\x93NUMPY")
    few = onnx_data(tmp_path / "few", ("p", "q"), expected=False)
    (few / "input_1.pb").unlink()
    torn = onnx_data(tmp_path / "torn")
    (torn / "input_0.pb").write_bytes(b"\xff\xff\xff")
    other = onnx_data(tmp_path / "other")
    (other / "input_0.pb").write_bytes(b"")
    for name, words in {
        "none": "input file not found",
        "empty": "the folder holds no inputs",
        "bad.npz": "not an .npz file",
        "bad.bin": "not an .npz file",
        "npy": "not an .npy file",
        "few": "1 input files, the model has 2 inputs: x, i",
        "torn": "not a tensor file",
        "other": "it is no tensor",
    }.items():
        with pytest.raises(ConvertError, match=words):
            read(tmp_path / name)


# --- script --------------------------------------------------------------------------------------------------------

SCRIPT = """
import numpy as np
from beside import one

def batches(seed, inputs):
    random = np.random.default_rng(seed)
    for _ in range(3):
        yield {io.name: random.integers(0, 9, io.shape).astype(io.dtype) for io in inputs}

def plain():
    return {"x": np.ones((2, 4), np.float32), "i": [[1, 2, 3, 4], [5, 6, 7, 8]]}

def forever():
    while True:
        yield plain()

def fails():
    yield plain()
    one()

def other(image): pass
def nothing(): pass
def empty(): return []
def number(): return 3
def numbers(): return [3]
def misnamed(): return {"z": 1.0}
def wide(): return plain() | {"x": np.ones((2, 4))}
def thing(): return plain() | {"x": object()}
def ragged(): return plain() | {"i": [[1, 2], [3]]}
def leaves(): raise SystemExit(2)
some = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    (tmp_path / "s.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("def one():\n    return 1 / 0\n")
    return tmp_path


def scripted(folder: Path, name: str, seed: int = 0) -> list[Batch]:
    return list(script_batches(f"{folder / 's.py'}:{name}", contract(TWO), seed))


def test_script(folder: Path) -> None:
    first, again, other = (scripted(folder, "batches", seed) for seed in (0, 0, 1))
    assert [b.label for b in first] == ["s.py #1", "s.py #2", "s.py #3"]
    assert (first[2].arrays["i"] == again[2].arrays["i"]).all()
    assert (first[2].arrays["i"] != other[2].arrays["i"]).any()
    (plain,) = scripted(folder, "plain")
    assert plain.arrays["i"].dtype == np.int64  # a list takes the input's dtype


def test_samples_end_a_script(folder: Path) -> None:
    made = feed.feeds(FeedOptions(script=f"{folder / 's.py'}:forever", samples=4), TWO, Path(), contract(TWO))
    assert len(list(made.batches)) == 4


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fails", r"failed: ZeroDivisionError: division by zero\n  at: .*beside.py, line 2"),
        ("leaves", "failed: SystemExit: 2"),
        ("other", "takes 'image', which trtconvert does not know"),
        ("nothing", "gives nothing, not dicts"),
        ("empty", "yields no inputs"),
        ("number", "gives a int, not dicts"),
        ("numbers", "yields a int, not a dict"),
        ("misnamed", "no array for input 'x', 'i'|no array for input 'i', 'x'"),
        ("wide", "array 'x' is float64, the model takes float32"),
        ("thing", "for 'x' is a object, not an array"),
        ("ragged", "for 'i' cannot be made an array"),
        ("absent", "has no function 'absent'"),
        ("some", "something else than a function named 'some'"),
        ("no-name", "cannot read --input-script"),
    ],
)
def test_script_errors(folder: Path, name: str, words: str) -> None:
    with pytest.raises(ConvertError, match=words):
        scripted(folder, name)


def test_script_that_cannot_be_read(folder: Path) -> None:
    (folder / "t.py").write_text("x = 1\ndef f(:\n")
    with pytest.raises(ConvertError, match=r"SyntaxError.*\n.*t\.py, line 2"):
        list(script_batches(f"{folder / 't.py'}:f", contract(TWO)))
    with pytest.raises(ConvertError, match="not found"):
        list(script_batches(f"{folder / 'u.py'}:f", contract(TWO)))


# --- through the command -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = graph("a = Gather(t, i) y = Add(a, x)", "float[6,4] x, int64[6] i", "float[6,4] y", TABLE)
    return build(save(model, tmp_path_factory.mktemp("feeds")), options=FAST).plan


def test_command_says_the_roles(run: Run, plan: Path) -> None:
    result = run("verify", plan, "--samples", 3, "--json", "--input-range", "x=-1,1")
    assert result.returncode in (0, 3), result.stderr
    assert "note: input i: ids from 0 to 4, as a (Gather) takes them" in result.stderr
    assert "Traceback" not in result.stderr
    told = json.loads(result.stdout)
    assert {name: (r["kind"], r["low"], r["high"]) for name, r in told["inputs"].items()} == {
        "i": ("ids", 0, 4),
        "x": ("given", -1, 1),
    }
    assert {row["shapes"] for row in told["rows"]} == {"6x4 6", "6x4 6 #2", "6x4 6 #3"}


def test_command_with_a_script_that_fails(run: Run, plan: Path, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("def f():\n    raise KeyError('photo')\n")
    assert_clean_error(run("verify", plan, "--input-script", "s.py:f"), "KeyError: 'photo'", "s.py, line 2")
    assert_clean_error(run("verify", plan, "--inputs", "nowhere"), "input file not found")


def test_expected_outputs_are_compared(plan: Path, tmp_path: Path) -> None:
    folder = tmp_path / "test_data_set_0"
    folder.mkdir()
    arrays = {"input_0": np.ones((6, 4), np.float32), "input_1": np.arange(6) % 5}
    for wanted, passes in ((1.5, True), (1.6, False)):
        arrays["output_0"] = np.full((6, 4), wanted, np.float32)
        for name, array in arrays.items():
            (folder / f"{name}.pb").write_bytes(numpy_helper.from_array(array, "").SerializeToString())
        result = verify(plan, folder)
        told = [row for row in result.rows if "expected" in row.comparison]
        assert [row.passed for row in told] == [passes]
        assert result.passed == passes


def test_progress(plan: Path) -> None:
    told: list[tuple[str, int, int]] = []
    verify(plan, samples=3, progress=lambda *step: told.append(step))
    assert told == [("comparing", k, 3) for k in range(4)]
