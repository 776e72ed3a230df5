"""Random numbers without state.

Noise, crops and targets are hashes of (seed, purpose, epoch, image, position), so resuming,
sharding and batch size cannot change them, and every device draws the same numbers.
"""

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_ALL = 0xFFFFFFFFFFFFFFFF


def _signed(value: int) -> int:
    """The 64-bit pattern of a Python integer as torch's signed int64."""
    value &= _ALL
    return value - (1 << 64) if value >> 63 else value


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's own keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix(value: Tensor) -> Tensor:
    """SplitMix64's finaliser (Steele et al. 2014) on int64 tensors, which wrap around."""
    value = (value ^ _shift(value, 30)) * _signed(_FIRST)
    value = (value ^ _shift(value, 27)) * _signed(_SECOND)
    return value ^ _shift(value, 31)


def purpose_key(*parts: int) -> int:
    """One number for (seed, purpose, epoch, ...), from which images' keys are derived.

    The same mixing as for tensors, in Python's integers: a training step needs several keys.
    """
    key = 0
    for part in parts:
        key = (key + _GOLDEN + part) & _ALL
        key = ((key ^ (key >> 30)) * _FIRST) & _ALL
        key = ((key ^ (key >> 27)) * _SECOND) & _ALL
        key ^= key >> 31
    return _signed(key)


def image_keys(key: int | Tensor, images: Tensor) -> Tensor:
    """A key for each image from its number in the data set."""
    return _mix(key + (images.to(torch.int64) + 1) * _signed(_GOLDEN))


def uniform(keys: Tensor, shape: tuple[int, ...] = ()) -> Tensor:
    """Uniform float32 numbers in [0, 1): one block of `shape` for each key."""
    count = 1
    for size in shape:
        count *= size
    positions = torch.arange(1, count + 1, dtype=torch.int64, device=keys.device)
    hashed = _mix(keys[:, None] + positions * _signed(_GOLDEN))
    return (_shift(hashed, 40).to(torch.float32) * 2.0**-24).view(len(keys), *shape)


def integers(keys: Tensor, high: int, shape: tuple[int, ...] = ()) -> Tensor:
    """Uniform integers in [0, high)."""
    return (uniform(keys, shape) * high).to(torch.int64)


def random_signs(images: Tensor, keys: Tensor) -> Tensor:
    """A random sign for every pixel."""
    drawn = uniform(keys, tuple(images.shape[1:]))
    return torch.where(drawn < 0.5, -1.0, 1.0).to(images.dtype)


def derive(keys: Tensor, part: int) -> Tensor:
    """Fresh keys for another use of the same images (a restart, say)."""
    return _mix(keys + _signed(_FIRST * (part + 1)))


def fresh_keys(count: int, device: torch.device) -> Tensor:
    """Keys from torch's own generator, for callers who do not number their images."""
    return torch.randint(-(2**62), 2**62, (count,), dtype=torch.int64).to(device)
