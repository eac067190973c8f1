"""Generated data for real classifiers: images like photographs of shapes, and files as they lie on a disk."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.float64]
SKIN = np.array((224.0, 172.0, 140.0))


def images(seed: int, count: int, size: int = 224, warm: int = 20) -> NDArray[np.float32]:
    """RGB images [count, size, size, 3], 0 to 255. Every `warm`-th is one of shaded warm shapes, the others of anything."""
    made = []
    for index in range(count):
        random = np.random.default_rng([seed, index])
        scene = _warm if index % warm == warm - 1 else _anything
        made.append(np.clip(scene(random, size), 0, 255))
    return np.stack(made).astype(np.float32)


def _anything(random: np.random.Generator, size: int) -> Pixels:
    """A gradient, a smooth random field, up to a dozen shapes of any colour, sharp or soft, and noise."""
    y, x = np.mgrid[0:size, 0:size] / size
    angle = random.uniform(0, 2 * np.pi)
    slope = (np.cos(angle) * x + np.sin(angle) * y)[..., None] - 0.5
    scene = random.uniform(0, 255, 3) + random.uniform(-120, 120, 3) * slope
    scene = scene + _field(random, size, random.uniform(0.8, 2.2)) * random.uniform(5, 60)
    for _ in range(random.integers(0, 12)):
        u, v = _place(random, x, y, 0.03, 0.35)
        radius = np.sqrt(u * u + v * v) if random.random() < 0.6 else np.maximum(abs(u), abs(v))
        cover = np.clip((1 - radius) * random.uniform(3, 60), 0, 1)[..., None]
        colour = random.uniform(0, 255, 3) if random.random() < 0.6 else SKIN * random.uniform(0.5, 1.1)
        scene = scene * (1 - cover) + colour * (1 - 0.4 * random.random() * np.clip(radius, 0, 1)[..., None]) * cover
    return scene + random.normal(0, random.uniform(0.1, 12), scene.shape)


def _warm(random: np.random.Generator, size: int) -> Pixels:
    """A few large rounded shapes of one warm tone, lit from one side."""
    y, x = np.mgrid[0:size, 0:size] / size
    tone = SKIN * random.uniform(0.55, 1.1) + random.normal(0, 8, 3)
    ground = tone if random.random() < 0.5 else random.uniform(0, 255, 3)
    scene = np.ones((size, size, 3)) * ground + _field(random, size, 2.0) * random.uniform(0, 20)
    light = random.uniform(0, 2 * np.pi)
    for _ in range(random.integers(2, 9)):
        u, v = _place(random, x, y, 0.1, 0.6)
        radius = np.sqrt(u * u + v * v)
        cover = np.clip((1 - radius) * random.uniform(4, 30), 0, 1)[..., None]
        round_ = 0.55 + 0.45 * np.sqrt(np.clip(1 - radius**2, 0, 1)) + 0.2 * (np.cos(light) * u + np.sin(light) * v)
        scene = scene * (1 - cover) + (tone + random.normal(0, 10, 3)) * round_[..., None] * cover
    return scene + _field(random, size, 1.2) * random.uniform(0, 6)


def _place(random: np.random.Generator, x: Pixels, y: Pixels, least: float, most: float) -> tuple[Pixels, Pixels]:
    """Coordinates in which a shape somewhere, of some size and turn, is the unit circle or square."""
    (a, b), (p, q), turn = random.uniform(0.05, 0.95, 2), random.uniform(least, most, 2), random.uniform(0, np.pi)
    dx, dy = x - a, y - b
    return (dx * np.cos(turn) + dy * np.sin(turn)) / p, (dy * np.cos(turn) - dx * np.sin(turn)) / q


def _field(random: np.random.Generator, size: int, slope: float) -> Pixels:
    """Mean 0 and variance 1; the spectrum falls with frequency to the power `slope`, as photographs' do with 1 to 2."""
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.fftfreq(size)[None, :])
    frequency[0, 0] = 1
    spectrum = np.fft.fft2(random.standard_normal((3, size, size))) / frequency**slope
    field = np.fft.ifft2(spectrum).real.transpose(1, 2, 0)
    field -= field.mean((0, 1))
    return np.asarray(field / field.std((0, 1)))


def files(seed: int, count: int, length: int = 2048) -> NDArray[np.int32]:
    """First and last bytes of Python's own files [count, length], 256 where a file is shorter: sources, byte code, libraries,
    headers, text, data; of installed packages too where Python has too few. No file is in the sets of two seeds below 2."""
    random = np.random.default_rng(0)
    mixed = _mixed(random, "stdlib", "include")
    if len(mixed) < 2 * count:
        mixed = _mixed(random, "stdlib", "include", "purelib")
    chosen = random.permutation(np.array(mixed, dtype=object))[seed::2][:count]
    return np.stack([_ends(path, length // 2) for path in chosen])


def _mixed(random: np.random.Generator, *places: str) -> list[Path]:
    """Files in these places of Python, at most 120 of a kind, none tiny."""
    found = sorted(p for place in places for p in Path(sysconfig.get_path(place)).rglob("*") if p.is_file())
    by_kind: dict[str, list[Path]] = {}
    for path in found:
        if path.stat().st_size > 64:
            by_kind.setdefault(path.suffix, []).append(path)
    return [p for kind in sorted(by_kind) for p in random.permutation(np.array(by_kind[kind], dtype=object))[:120]]


def _ends(path: Any, half: int) -> NDArray[np.int32]:
    data = np.frombuffer(path.read_bytes().strip(), np.uint8).astype(np.int32)
    made = np.full(2 * half, 256, np.int32)
    first, last = data[:half], data[-half:]
    made[: len(first)] = first
    made[2 * half - len(last) :] = last
    return made
