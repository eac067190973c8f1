"""Shapes that kernels and engines are timed at: large ones, at which only memory counts, and small ones."""

from __future__ import annotations

from trtconvert.op import Case, case

HALF, FULL, BRAIN = "float16", "float32", "bfloat16"


def _rows(rows: int, channels: int) -> Case:
    return case((rows, channels), (channels,), (channels,))


def _planes(*shape: int) -> Case:
    return case(shape, (shape[1],), (shape[1],), axis=1)


_LAST = [
    _rows(rows, channels)
    for rows, channels in ((262144, 512), (174592, 768), (131072, 1024), (65536, 2048), (32768, 4096))
]
_FIRST = [_planes(32, 256, 128, 128), _planes(16, 512, 8000), _planes(64, 64, 256, 256)]
_ODD = [_planes(16, 512, 7999), _planes(4, 512, 31999)]
_SMALL = [_rows(197, 768), _rows(2048, 512), _planes(1, 64, 128, 128), _planes(1, 32, 256, 256), _planes(1, 512, 3999)]

_INT8 = [
    case(shape, x_scale=0.05, y_scale=0.025) for shape in ((131072, 1024), (32768, 3072), (4096, 3072), (197, 3072))
]


def _quantized(tested: Case) -> Case:
    return case(*tested.shapes, **dict(tested.attributes), y_scale=0.03)


def _channels(*shape: int, **attributes: int) -> Case:
    """A scale and a bias for each channel: axis 1, or the last one for axis=-1."""
    channels = shape[attributes.get("axis", 1)]
    return case(shape, (channels,), (channels,), **attributes)


_GROUPS = [
    _channels(16, 320, 128, 128),
    _channels(32, 640, 64, 64),
    _channels(8, 512, 128, 128),
    _channels(2, 128, 512, 512),
]
_FEW_GROUPS = [
    _channels(n, c, s, s) for n, c, s in ((2, 320, 64), (1, 320, 64), (1, 640, 32), (1, 1280, 16), (1, 1280, 8))
]
_RESPONSES = [
    *(_channels(n, s, s, c, axis=-1) for n, s, c in ((64, 56, 384), (128, 28, 768), (256, 14, 1536), (256, 7, 3072))),
    _channels(64, 384, 56, 56, axis=1),
]
_FEW_RESPONSES = [
    *(_channels(n, s, s, c, axis=-1) for n, s, c in ((8, 14, 1536), (1, 56, 384), (1, 14, 1536), (1, 7, 3072))),
    _channels(1, 384, 56, 56, axis=1),
]

ROWS: list[tuple[str, Case, str]] = [
    *(("LayerNormGelu", tested, dtype) for dtype in (HALF, FULL) for tested in (*_LAST, *_FIRST)),
    *(("LayerNormGelu", tested, BRAIN) for tested in (_LAST[2], _FIRST[0])),
    *(("LayerNormGelu", tested, HALF) for tested in (*_ODD, *_SMALL)),
    *(
        (name, _quantized(tested), dtype)
        for name in ("LayerNormGeluQuantize", "LayerNormQuantize")
        for tested, dtype in (*((t, HALF) for t in (*_LAST, *_FIRST, *_SMALL)), (_LAST[2], FULL), (_FIRST[0], FULL))
    ),
    *(("DequantizeGeluQuantize", tested, "int8") for tested in _INT8),
    *(("GroupNormSilu", tested, HALF) for tested in (*_GROUPS, *_FEW_GROUPS)),
    *(("GroupNormSilu", _GROUPS[0], dtype) for dtype in (FULL, BRAIN)),
    *(("GlobalResponseNorm", tested, HALF) for tested in (*_RESPONSES, *_FEW_RESPONSES)),
    *(("GlobalResponseNorm", _RESPONSES[0], dtype) for dtype in (FULL, BRAIN)),
]
