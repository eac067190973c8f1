"""The PyTorch modules that the sample models are exported from: parts of real networks, small."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


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
