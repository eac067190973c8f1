"""Make the PyTorch sample models (.onnx files) beside this script: ``python make.py [NAME ...]``.

Weights are random, drawn from a fixed seed. Every graph is the unedited output of an exporter, apart from doc strings
and metadata (stack traces, source paths), which are removed. Each file passes the ONNX checker with full_check and, run
by onnxruntime (CPU, graph optimisation off), gives the same outputs as in PyTorch; except custom_relu and bf16_ln_gelu,
which onnxruntime's CPU provider cannot run.

The files in this folder were made with Python 3.11, torch 2.14.1, onnx 1.23.2, onnxscript 0.7.2 and onnxruntime 1.32.0:

    pip install torch==2.14.1 onnx==1.23.2 onnxscript==0.7.2 onnxruntime==1.32.0

"TorchScript" below is torch.onnx.export(dynamo=False), "dynamo" is torch.onnx.export(dynamo=True). The Keras sample
needs package versions that cannot be installed beside these: see make_keras.py.
"""

import io
import sys
import tempfile
from pathlib import Path

import onnx
import onnxruntime
import onnxscript
import torch
from common import Export, make
from modules import (
    BFloat16LayerNormGelu,
    ConvNextV2Block,
    FeatureExtractor,
    FusedRelu,
    GlobalResponseNorm,
    LayerNorm2d,
    LinearAttentionReduction,
    NearMiss,
    QuantizedMLP,
    ResnetBlock,
    ViTBlock,
)
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from torch import nn

SEED = 0


def _seeded(module: nn.Module) -> nn.Module:
    """Give normalisation layers weights that are not ones and zeros, and put the module in eval mode."""
    for layer in module.modules():
        if isinstance(layer, (nn.LayerNorm, nn.GroupNorm, LayerNorm2d, GlobalResponseNorm)):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias, std=0.2)
    return module.eval().requires_grad_(False)


def _export(module: nn.Module, shape: tuple[int, ...], input_name: str, output_name: str, **options) -> Export:
    """Export a module of one input and one output, and compute its output for a random input of this shape."""
    module = _seeded(module)
    example = torch.randn(shape).to(options.pop("dtype", torch.float32))
    options = {"input_names": [input_name], "output_names": [output_name], "verbose": False, **options}
    if options["dynamo"]:
        proto = torch.onnx.export(module, (example,), **options).model_proto
        exporter = f"dynamo, torch {torch.__version__}, onnxscript {onnxscript.__version__}"
    else:
        buffer = io.BytesIO()
        torch.onnx.export(module, (example,), buffer, **options)
        proto = onnx.load_from_string(buffer.getvalue())
        exporter = f"TorchScript, torch {torch.__version__}"
    expected = module(example).numpy()
    return Export(proto, exporter, {input_name: example.numpy()}, [expected])


def wav2vec2_features() -> Export:
    """wav2vec2-large style feature extractor, static shape (TorchScript, opset 17)."""
    return _export(FeatureExtractor(), (1, 1, 16000), "waveform", "features", dynamo=False, opset_version=17)


def wav2vec2_features_dynamic() -> Export:
    """The same feature extractor with dynamic batch and length (TorchScript, opset 17)."""
    axes = {"waveform": {0: "batch", 2: "length"}, "features": {0: "batch", 2: "frames"}}
    options = {"dynamo": False, "opset_version": 17, "dynamic_axes": axes}
    export = _export(FeatureExtractor(), (2, 1, 4000), "waveform", "features", **options)
    export.shape = "waveform=1x1x400,1x1x16000,4x1x16000"
    return export


def sam_upscaler() -> Export:
    """segment-anything's mask-decoder output_upscaling, with its hand-written LayerNorm2d (TorchScript, opset 14)."""
    module = nn.Sequential(
        nn.ConvTranspose2d(64, 32, 2, 2), LayerNorm2d(32), nn.GELU(), nn.ConvTranspose2d(32, 16, 2, 2), nn.GELU()
    )
    return _export(module, (1, 64, 16, 16), "image_embedding", "upscaled", dynamo=False, opset_version=14)


def vit_block() -> Export:
    """Pre-norm ViT block: LayerNorm, Linear, GELU, so nothing to fuse (dynamo, opset 18)."""
    return _export(ViTBlock(), (1, 50, 96), "tokens", "output", dynamo=True, opset_version=18)


def ln_gelu_opset20() -> Export:
    """LightGlue-style MLP with LayerNormalization and Gelu operators (dynamo, opset 20)."""
    module = nn.Sequential(
        nn.Linear(192, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 96), nn.LayerNorm(96), nn.GELU()
    )
    return _export(module, (2, 7, 192), "features", "output", dynamo=True, opset_version=20)


def tanh_gelu() -> Export:
    """Linear, decomposed LayerNorm, tanh GELU, Linear (TorchScript, opset 14, before LayerNormalization existed)."""
    module = nn.Sequential(nn.Linear(128, 128), nn.LayerNorm(128), nn.GELU("tanh"), nn.Linear(128, 64))
    return _export(module, (4, 10, 128), "hidden", "output", dynamo=False, opset_version=14)


def fp16_ln_gelu() -> Export:
    """Linear, LayerNorm, GELU, Linear in float16 throughout (dynamo, opset 20)."""
    module = nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 64)).half()
    options = {"dynamo": True, "opset_version": 20, "dtype": torch.float16}
    export = _export(module, (2, 16, 256), "hidden", "output", **options)
    export.tolerance = 1e-2
    return export


def custom_relu() -> Export:
    """Two convolutions, each followed by the custom operator acme::FusedRelu (TorchScript, opset 17)."""
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), FusedRelu(0.1), nn.Conv2d(8, 8, 3, padding=1), FusedRelu(0.0))
    options = {"dynamo": False, "opset_version": 17, "custom_opsets": {"acme": 1}}
    export = _export(module, (1, 3, 32, 32), "image", "output", **options)
    export.not_run = "acme::FusedRelu has no onnxruntime kernel"
    return export


def pvt_mlp_dynamo() -> Export:
    """PVTv2 linear-attention reduction with a dynamic batch (dynamo, opset 18)."""
    shapes = ({0: torch.export.Dim("batch")},)
    options = {"dynamo": True, "opset_version": 18, "dynamic_shapes": shapes}
    return _export(LinearAttentionReduction(), (2, 16, 8, 8), "image", "output", **options)


def bf16_ln_gelu() -> Export:
    """LayerNorm and GELU in bfloat16 between float32 casts (dynamo, opset 20)."""
    module = BFloat16LayerNormGelu().to(torch.bfloat16)
    export = _export(module, (3, 33, 80), "hidden", "output", dynamo=True, opset_version=20)
    export.not_run = "onnxruntime's CPU provider has no bfloat16 kernels for LayerNormalization's parts (Sqrt)"
    return export


def resnet_block() -> Export:
    """Residual block of a diffusion model with dynamic batch, height and width (TorchScript, opset 17)."""
    image, time = {0: "batch", 2: "height", 3: "width"}, {0: "batch"}
    module, examples = _seeded(ResnetBlock()), (torch.randn(2, 16, 8, 8), torch.randn(2, 24))
    buffer = io.BytesIO()
    torch.onnx.export(
        module,
        examples,
        buffer,
        dynamo=False,
        opset_version=17,
        input_names=["image", "time"],
        output_names=["output"],
        dynamic_axes={"image": image, "time": time, "output": image},
    )
    feeds = {"image": examples[0].numpy(), "time": examples[1].numpy()}
    proto = onnx.load_from_string(buffer.getvalue())
    export = Export(proto, f"TorchScript, torch {torch.__version__}", feeds, [module(*examples).numpy()])
    export.shape = "image=1x16x8x8,2x16x16x16,4x16x32x32 time=1x24,2x24,4x24"
    return export


def convnextv2_block() -> Export:
    """ConvNeXt V2 block with a dynamic batch (dynamo, opset 20)."""
    options = {"dynamo": True, "opset_version": 20, "dynamic_shapes": ({0: torch.export.Dim("batch")},)}
    return _export(ConvNextV2Block(), (2, 24, 14, 14), "image", "output", **options)


def near_miss() -> Export:
    """LayerNorm with a second use, before SiLU and before QuickGELU: nothing to fuse (TorchScript, opset 17)."""
    return _export(NearMiss(), (2, 12, 64), "tokens", "output", dynamo=False, opset_version=17)


class _Calibration(CalibrationDataReader):
    """Random tokens for the quantizer."""

    def __init__(self, name: str, shape: tuple[int, ...], batches: int = 8) -> None:
        self.feeds = iter([{name: torch.randn(shape).numpy()} for _ in range(batches)])

    def get_next(self) -> dict | None:
        """The next feed; None after the last."""
        return next(self.feeds, None)


def qdq_mlp() -> Export:
    """An MLP in int8 by onnxruntime's static quantizer, symmetric, its Gemm nodes alone (dynamo, opset 20)."""
    shape = (64, 96)
    export = _export(QuantizedMLP(), shape, "tokens", "output", dynamo=True, opset_version=20)
    options = {"ActivationSymmetric": True, "WeightSymmetric": True}
    kinds = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8, "quant_format": QuantFormat.QDQ}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quantized.onnx"
        calibration = _Calibration("tokens", shape)
        quantize_static(export.proto, path, calibration, op_types_to_quantize=["Gemm"], extra_options=options, **kinds)
        export.proto = onnx.load(path)
    export.exporter += f", onnxruntime {onnxruntime.__version__} quantize_static"
    export.tolerance = 0.15
    return export


MODELS = (
    wav2vec2_features,
    wav2vec2_features_dynamic,
    sam_upscaler,
    vit_block,
    ln_gelu_opset20,
    tanh_gelu,
    fp16_ln_gelu,
    custom_relu,
    pvt_mlp_dynamo,
    bf16_ln_gelu,
    near_miss,
    resnet_block,
    convnextv2_block,
    qdq_mlp,
)


def _from_seed(function):
    """Wrap a model function so that its random numbers do not depend on which models were made before it."""

    def made() -> Export:
        torch.manual_seed(SEED)
        return function()

    return made


if __name__ == "__main__":
    make({function.__name__: _from_seed(function) for function in MODELS}, sys.argv[1:])
