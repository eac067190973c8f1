"""Parts of real models as small torch modules with random weights: what tests/bench/end_to_end.py measures. Needs torch.

Written after the published code: wav2vec2 in transformers, segment-anything, LightGlue, PVT and ConvNeXt-V2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


class SpeechLayer(nn.Module):
    """Convolution, LayerNorm over the channels, GELU: transformers' Wav2Vec2LayerNormConvLayer."""

    def __init__(self, channels: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, 512, kernel, stride)
        self.norm = nn.LayerNorm(512)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x).transpose(-2, -1)).transpose(-2, -1)
        return functional.gelu(x)


def speech() -> nn.Module:
    """Feature extractor of wav2vec2-large: waveform [N, 1, samples] to [N, 512, frames]."""
    sizes = zip((10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2), strict=True)
    return nn.Sequential(*(SpeechLayer(512 if i else 1, *size) for i, size in enumerate(sizes)))


class LayerNorm2d(nn.Module):
    """LayerNorm over the channels of [N, C, H, W], spelled as in segment-anything."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        x = (x - mean) / torch.sqrt(variance + 1e-6)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


def upscaling() -> nn.Module:
    """Output upscaling of SAM's mask decoder: embeddings [N, 256, 64, 64] to [N, 32, 256, 256]."""
    first, second = nn.ConvTranspose2d(256, 64, 2, 2), nn.ConvTranspose2d(64, 32, 2, 2)
    return nn.Sequential(first, LayerNorm2d(64), nn.GELU(), second, nn.GELU())


def downscaling() -> nn.Module:
    """Mask downscaling of SAM's prompt encoder: masks [N, 1, 256, 256] to [N, 256, 64, 64]."""
    first, second = nn.Conv2d(1, 4, 2, 2), nn.Conv2d(4, 16, 2, 2)
    return nn.Sequential(first, LayerNorm2d(4), nn.GELU(), second, LayerNorm2d(16), nn.GELU(), nn.Conv2d(16, 256, 1))


class MatcherLayer(nn.Module):
    """x + ffn([x, message]) of LightGlue; the message is the projection alone, without the attention before it."""

    def __init__(self) -> None:
        super().__init__()
        self.message = nn.Linear(256, 256)
        self.ffn = nn.Sequential(nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU(), nn.Linear(512, 256))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.ffn(torch.cat([x, self.message(x)], -1))


def matcher() -> nn.Module:
    """The MLPs of LightGlue's 9 layers, self and cross: descriptors [N, points, 256] to the same."""
    return nn.Sequential(*(MatcherLayer() for _ in range(18)))


class PyramidBlock(nn.Module):
    """A block of PVTv2 with linear spatial-reduction attention, on x [N, side * side, channels]."""

    def __init__(self, channels: int, heads: int, ratio: int, side: int) -> None:
        super().__init__()
        self.heads, self.side, hidden = heads, side, ratio * channels
        self.norm1, self.norm2 = nn.LayerNorm(channels, 1e-6), nn.LayerNorm(channels, 1e-6)
        self.q, self.kv, self.projection = (nn.Linear(channels, channels * n) for n in (1, 2, 1))
        self.pool, self.reduce = nn.AdaptiveAvgPool2d(7), nn.Conv2d(channels, channels, 1)
        self.norm = nn.LayerNorm(channels)
        self.fc1, self.fc2 = nn.Linear(channels, hidden), nn.Linear(hidden, channels)
        self.depthwise = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)

    def image(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).reshape(-1, x.shape[2], self.side, self.side)

    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def attention(self, x: Tensor) -> Tensor:
        reduced = self.reduce(self.pool(self.image(x))).flatten(2).transpose(1, 2)
        k, v = self.kv(functional.gelu(self.norm(reduced))).chunk(2, -1)
        q, k, v = self.split(self.q(x)), self.split(k), self.split(v)
        weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
        return self.projection((weights @ v).transpose(1, 2).flatten(2))

    def mlp(self, x: Tensor) -> Tensor:
        hidden = self.depthwise(self.image(functional.relu(self.fc1(x)))).flatten(2).transpose(1, 2)
        return self.fc2(functional.gelu(hidden))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def pyramid() -> nn.Module:
    """First stage of PVTv2-b2-linear on a 224x224 image: tokens [N, 3136, 64] to the same."""
    return nn.Sequential(*(PyramidBlock(64, 1, 8, 56) for _ in range(3)))


class ResponseNorm(nn.Module):
    """ConvNeXt V2's global response normalisation, on [N, H, W, C]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma, self.beta = (nn.Parameter(torch.zeros(1, 1, 1, channels)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        norm = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        response = norm / (norm.mean(dim=-1, keepdim=True) + 1e-6)
        return self.gamma * (x * response) + self.beta + x


class ConvBlock(nn.Module):
    """A block of ConvNeXt V2, on [N, C, H, W]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, 1e-6)
        self.expand, self.shrink = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.response = ResponseNorm(4 * channels)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.shrink(self.response(functional.gelu(self.expand(y))))
        return x + y.permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    """The stages of ConvNeXt V2 tiny without stem and head: [N, 96, 56, 56] to [N, 768, 7, 7]."""
    layers: list[nn.Module] = []
    for channels, depth in ((96, 3), (192, 3), (384, 9), (768, 3)):
        if layers:
            layers += [LayerNorm2d(channels // 2), nn.Conv2d(channels // 2, channels, 2, 2)]
        layers += [ConvBlock(channels) for _ in range(depth)]
    return nn.Sequential(*layers)


@dataclass(frozen=True)
class Subject:
    """A model, and its input's shape without the batch."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]


SUBJECTS = {
    "wav2vec2": Subject(speech, (1, 160000)),
    "sam-decoder": Subject(upscaling, (256, 64, 64)),
    "sam-prompt": Subject(downscaling, (1, 256, 256)),
    "lightglue": Subject(matcher, (1024, 256)),
    "pvt-v2": Subject(pyramid, (3136, 64)),
    "convnext-v2": Subject(convnext, (96, 56, 56)),
}


def export(name: str, batch: int, half: str, single: str) -> None:
    """Write the model with float16 weights, and one with the same weights in float32, by the TorchScript exporter, opset 17."""
    torch.manual_seed(0)
    subject = SUBJECTS[name]
    model = subject.make().eval().requires_grad_(False)
    for layer in model.modules():
        if isinstance(layer, nn.LayerNorm | LayerNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias, std=0.2)
        elif isinstance(layer, ResponseNorm):
            nn.init.normal_(layer.gamma, std=0.5)
            nn.init.normal_(layer.beta, std=0.1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, x = model.to(device), torch.randn(batch, *subject.shape).to(device)
    with torch.no_grad():
        for path, dtype in ((half, torch.float16), (single, torch.float32)):
            model, x = model.half().to(dtype), x.half().to(dtype)
            torch.onnx.export(model, (x,), path, opset_version=17, dynamo=False, input_names=["x"], output_names=["y"])
