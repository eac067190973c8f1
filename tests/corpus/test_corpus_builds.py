"""Every fused file of the corpus builds where its source builds, and each fusion is a plugin layer of the network."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import pytest

from tests.corpus.test_corpus import EXPECTED, FOLDER, bounds
from trtconvert import BuildOptions, ConvertError, build
from trtconvert import network as trt_network
from trtconvert.shapes import Range

FILES = [name for name, expected in EXPECTED.items() if bounds(expected)[1]]
ALREADY_THERE = {"m08_already_fused.onnx": 1}
SOURCE_FAILS = {  # TensorRT-RTX refuses the source, or it is not valid ONNX; True: what fuse makes of it builds all the same
    "b05_keras_fused_batchnorm.onnx": True,  # BatchNormalization that is training
    "c06_dec_bf16.onnx": False,
    "t40_autocast_bf16_dyn20.onnx": False,
    "t40_autocast_bf16_leg17.onnx": False,
    "i05_custom_op_upstream.onnx": False,  # a custom op without plugin
    "k03_unknown_rank.onnx": False,
    "k04_unknown_rank_posaxis.onnx": False,
}
_layers: list[int] = []


class Counted(trt_network.Network):
    """The network, its plugin layers counted."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        kinds = [self.network.get_layer(i).type for i in range(self.network.num_layers)]
        _layers.append(kinds.count(self.backend.trt.LayerType.PLUGIN_V3))


def ranges(path: Path) -> dict[str, Range]:
    """Every open dimension between 40 and 64, channels of 8."""
    found = {}
    for value in onnx.load(path).graph.input:
        dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if not all(dims):
            low, high = ([d or (8 if i == len(dims) - 1 > 1 else n) for i, d in enumerate(dims)] for n in (40, 64))
            found[value.name] = Range(tuple(low), tuple(low), tuple(high))
    return found


@pytest.mark.parametrize("name", FILES)
def test_builds(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["trtconvert.network"], "Network", Counted)
    options = {"targets": ("sm_86",), "shapes": ranges(FOLDER / name)}
    unfused = BuildOptions(fuse="none", **options)  # type: ignore[arg-type]
    if name in SOURCE_FAILS:
        with pytest.raises(ConvertError):
            build(FOLDER / name, tmp_path / "source.plan", unfused)
    else:
        build(FOLDER / name, tmp_path / "source.plan", unfused)
    if SOURCE_FAILS.get(name, True):
        result = build(FOLDER / name, tmp_path / "fused.plan", BuildOptions(**options))  # type: ignore[arg-type]
        assert _layers[-1] == len(result.fusions) + ALREADY_THERE.get(name, 0)
        assert result.plan.stat().st_size > 0
