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
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from torch import Tensor, nn
from torch.nn import functional as F

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


class LayerNorm2d(nn.Module):
    """Layer normalisation over the channels of an NCHW tensor, written out as in segment-anything."""

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise over axis 1."""
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


class LayerNormConv(nn.Module):
    """A wav2vec2-large convolution layer: Conv1d, LayerNorm over the channels between two transposes, GELU."""

    def __init__(self, channels_in: int, channels: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels_in, channels, kernel, stride)
        self.layer_norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, T] -> [N, C', T']."""
        x = self.conv(x).transpose(-2, -1)
        x = self.layer_norm(x).transpose(-2, -1)
        return F.gelu(x)


class FeatureExtractor(nn.Module):
    """The start of wav2vec2-large's feature extractor: three layers, on a raw waveform of one channel."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            LayerNormConv(1, 64, 10, 5), LayerNormConv(64, 64, 3, 2), LayerNormConv(64, 64, 3, 2)
        )

    def forward(self, waveform: Tensor) -> Tensor:
        """[N, 1, T] -> [N, 64, T']."""
        return self.layers(waveform)


class QuantizedMLP(nn.Module):
    """Linear layers with LayerNorm and GELU, GELU alone, and LayerNorm alone between them."""

    def __init__(self, dim: int = 96, hidden: int = 192) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(dim, hidden), nn.LayerNorm(hidden), nn.GELU())
        self.second = nn.Sequential(nn.Linear(hidden, hidden), nn.GELU())
        self.third = nn.Sequential(nn.Linear(hidden, hidden), nn.LayerNorm(hidden))
        self.last = nn.Linear(hidden, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """[N, dim] -> [N, dim]."""
        return self.last(self.third(self.second(self.first(tokens))))


class ViTBlock(nn.Module):
    """A pre-norm vision-transformer block: the GELU follows a Linear, not the LayerNorm."""

    def __init__(self, dim: int = 96, heads: int = 3, hidden: int = 192) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.query, self.key, self.value, self.proj = (nn.Linear(dim, dim) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def attention(self, x: Tensor) -> Tensor:
        """Multi-head self-attention."""
        n, length, dim = x.shape
        q, k, v = (
            linear(x).reshape(n, length, self.heads, dim // self.heads).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(n, length, dim))

    def forward(self, tokens: Tensor) -> Tensor:
        """[N, L, C] -> [N, L, C]."""
        tokens = tokens + self.attention(self.norm1(tokens))
        return tokens + self.mlp(self.norm2(tokens))


class FusedReluFunction(torch.autograd.Function):
    """max(x, alpha), exported as the custom operator acme::FusedRelu."""

    @staticmethod
    def forward(_ctx, x: Tensor, alpha: float) -> Tensor:
        """Compute it in PyTorch."""
        return x.clamp(min=alpha)

    @staticmethod
    def symbolic(g, x, alpha: float):
        """Emit the custom operator."""
        return g.op("acme::FusedRelu", x, alpha_f=alpha).setType(x.type())


class FusedRelu(nn.Module):
    """The custom operator as a layer."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        """max(x, alpha)."""
        return FusedReluFunction.apply(x, self.alpha)


class LinearAttentionReduction(nn.Module):
    """PVTv2 linear attention's reduction: convolution, tokens, LayerNorm, GELU, then the key/value Linear."""

    def __init__(self, channels: int = 16, dim: int = 32) -> None:
        super().__init__()
        self.sr = nn.Conv2d(channels, dim, 1)
        self.norm = nn.LayerNorm(dim)
        self.act = nn.GELU()
        self.kv = nn.Linear(dim, 2 * dim)

    def forward(self, image: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, H * W, 2 * dim]."""
        x = self.sr(image).flatten(2).transpose(1, 2)
        return self.kv(self.act(self.norm(x)))


class BFloat16LayerNormGelu(nn.Module):
    """LayerNorm and GELU in bfloat16 between two casts."""

    def __init__(self, dim: int = 80) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, hidden: Tensor) -> Tensor:
        """float32 in, float32 out."""
        return F.gelu(self.norm(hidden.to(torch.bfloat16))).to(torch.float32)


class ResnetBlock(nn.Module):
    """A diffusion model's residual block: GroupNorm, SiLU, convolution, twice, and the time embedding between."""

    def __init__(self, channels_in: int = 16, channels: int = 32, embedding: int = 24, groups: int = 8) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.GroupNorm(groups, c, eps=1e-6) for c in (channels_in, channels))
        self.conv1 = nn.Conv2d(channels_in, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.time_emb_proj = nn.Linear(embedding, channels)
        self.conv_shortcut = nn.Conv2d(channels_in, channels, 1)

    def forward(self, image: Tensor, time: Tensor) -> Tensor:
        """[N, C, H, W] and [N, E] -> [N, C', H, W]."""
        x = self.conv1(F.silu(self.norm1(image)))
        x = x + self.time_emb_proj(F.silu(time))[:, :, None, None]
        return self.conv_shortcut(image) + self.conv2(F.silu(self.norm2(x)))


class GlobalResponseNorm(nn.Module):
    """ConvNeXt V2's global response normalisation, channels last, as transformers writes it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.zeros(1, 1, 1, dim)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """[N, H, W, C] -> [N, H, W, C]."""
        g = torch.linalg.vector_norm(x, ord=2, dim=(1, 2), keepdim=True)
        nx = g / (g.mean(dim=-1, keepdim=True) + 1e-6)
        return self.weight * (x * nx) + self.bias + x


class ConvNextV2Block(nn.Module):
    """A ConvNeXt V2 block: depthwise convolution, LayerNorm, Linear, GELU, GRN, Linear."""

    def __init__(self, dim: int = 24) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1, self.pwconv2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.grn = GlobalResponseNorm(4 * dim)

    def forward(self, image: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C, H, W]."""
        x = self.norm(self.dwconv(image).permute(0, 2, 3, 1))
        x = self.pwconv2(self.grn(F.gelu(self.pwconv1(x))))
        return image + x.permute(0, 3, 1, 2)


class NearMiss(nn.Module):
    """Three LayerNorms that must not be fused with what follows them."""

    def __init__(self, dim: int = 64) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """A LayerNorm with a second use, one before SiLU and one before QuickGELU."""
        normed = self.norm1(tokens)
        x = F.gelu(normed) + normed
        x = F.silu(self.norm2(x))
        x = self.norm3(x)
        return x * torch.sigmoid(1.702 * x)


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
