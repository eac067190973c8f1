"""Calibration data: files and folders in every form, cut into samples, random where there are none, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, numpy_helper

from tests.graphs import graph
from trtconvert import ConvertError
from trtconvert.calibration import RANDOM, Calibration, calibration
from trtconvert.feeds.contract import Contract
from trtconvert.manifest import model_io

FIXED = graph("s = Add(x, m) y = Relu(s)", "float[2,4] x, float[2,4] m")
OPEN = graph("y = Relu(x)", "float[N,4] x", "float[N,4] y")
DATA = np.arange(48, dtype=np.float32).reshape(6, 2, 4)


def contract(model: ModelProto, **more: Any) -> Contract:
    return Contract(model_io(model, "input"), [o.name for o in model.graph.output], **more)


def range_of(least: int, best: int, most: int) -> dict[str, dict[str, list[int]]]:
    return {"x": {"min": [least, 4], "opt": [best, 4], "max": [most, 4]}}


def of(path: Path, model: ModelProto = FIXED, **more: Any) -> Calibration:
    return calibration(path, model, Path(), contract(model, **more))


def npz(path: Path, **arrays: NDArray[Any]) -> Path:
    np.savez(path, **arrays)
    return path


def test_every_form_gives_the_same_samples(tmp_path: Path) -> None:
    """Along one more axis, along the batch, a file each, NAME.npy, and ONNX's test data."""
    found = {
        "stacked": npz(tmp_path / "stacked.npz", x=DATA, m=-DATA),
        "batched": npz(tmp_path / "batched.npz", x=DATA.reshape(12, 4), m=-DATA.reshape(12, 4)),
        "files": tmp_path / "files",
        "npy": tmp_path / "npy",
        "onnx": tmp_path / "onnx",
    }
    for folder in ("files", "npy", "onnx"):
        found[folder].mkdir()
    np.save(found["npy"] / "x.npy", DATA)
    np.save(found["npy"] / "m.npy", -DATA)
    for index, sample in enumerate(DATA):
        npz(found["files"] / f"sample_{index}.npz", x=sample, m=-sample)
        inner = found["onnx"] / f"test_data_set_{index}"
        inner.mkdir()
        for number, (name, array) in enumerate((("x", sample), ("m", -sample))):
            (inner / f"input_{number}.pb").write_bytes(numpy_helper.from_array(array, name).SerializeToString())
    digests = set()
    for path in found.values():
        data = of(path)
        for _ in range(2):  # twice, as histograms need it
            samples = list(data)
            assert len(samples) == 6
            assert all(
                np.array_equal(s["x"], d) and np.array_equal(s["m"], -d) for s, d in zip(samples, DATA, strict=True)
            )
        digests.add(data.digest())
    assert len(digests) == 1


def test_a_single_sample_and_an_input_that_all_share(tmp_path: Path) -> None:
    assert len(list(of(npz(tmp_path / "one.npz", x=DATA[0], m=DATA[1])))) == 1
    samples = list(of(npz(tmp_path / "shared.npz", x=DATA, m=DATA[1])))
    assert len(samples) == 6
    assert all(np.array_equal(sample["m"], DATA[1]) for sample in samples)


def test_open_batches(tmp_path: Path) -> None:
    """What fits the engine is one sample; what does not is cut at the profile's opt."""
    path = npz(tmp_path / "x.npz", x=DATA.reshape(12, 4))
    sizes = {
        name: [len(sample["x"]) for sample in of(path, OPEN, profile=given)]
        for name, given in (("fits", range_of(1, 4, 16)), ("cut", range_of(1, 4, 8)), ("rest", range_of(1, 5, 8)))
    }
    assert sizes == {"fits": [12], "cut": [4, 4, 4], "rest": [5, 5, 2]}
    with pytest.raises(ConvertError, match=r"shape \[2, 4\], the engine takes \[3, 4\] to \[8, 4\]"):
        list(of(path, OPEN, profile=range_of(3, 5, 8)))


def test_random_data_at_opt_is_always_the_same() -> None:
    data = calibration(None, OPEN, Path(), contract(OPEN, profile=range_of(1, 4, 16)))
    samples = list(data)
    assert [sample["x"].shape for sample in samples] == [(4, 4)] * RANDOM
    assert not np.array_equal(samples[0]["x"], samples[1]["x"])
    assert data.digest() == calibration(None, OPEN, Path(), contract(OPEN, profile=range_of(1, 4, 16))).digest()
    assert data.source == f"{RANDOM} random samples (seed 0)"


def test_random_data_by_role() -> None:
    table = "float[5,4] t = {" + ",".join(["0.5"] * 20) + "}"
    ids = graph("y = Gather(t, i)", "int64[3] i", "float[3,4] y", table)
    values = np.concatenate([sample["i"] for sample in calibration(None, ids, Path(), contract(ids))])
    assert set(values.tolist()) == {0, 1, 2, 3, 4}


BAD: dict[str, tuple[dict[str, NDArray[Any]], str]] = {
    "a missing input": ({"x": DATA}, "no array for input 'm'"),
    "an unknown one": ({"x": DATA, "m": DATA, "n": DATA}, "array 'n' is no input of the model"),
    "another shape": ({"x": DATA[..., :3], "m": DATA}, r"array 'x' has shape \[2, 3\], the model takes \[2, 4\]"),
    "another rank": ({"x": DATA[None, None], "m": DATA}, r"array 'x' has shape \[1, 1, 6, 2, 4\]"),
    "another dtype": ({"x": DATA.astype(np.float64), "m": DATA}, "array 'x' is float64, the model takes float32"),
    "a broken batch": ({"x": DATA.reshape(12, 4)[:11], "m": DATA[0]}, r"array 'x' has shape \[1, 4\]"),
    "other numbers": ({"x": DATA, "m": DATA[:4]}, "different numbers of samples: 6 in 'x', 4 in 'm'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arrays(name: str, tmp_path: Path) -> None:
    arrays, told = BAD[name]
    with pytest.raises(ConvertError, match=told) as raised:
        list(of(npz(tmp_path / "bad.npz", **arrays)))
    assert "bad.npz" in (raised.value.where or "")


def test_bad_places(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.npz").write_text("no archive")
    for name, told in (("empty", "holds no inputs"), ("none", "not found"), ("text.npz", "not an .npz file")):
        with pytest.raises(ConvertError, match=told):
            list(of(tmp_path / name))
