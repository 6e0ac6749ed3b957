"""Draws first weights, one after another on the CPU or, counter-based, all at once on any device.

The latter is Philox4x32-10 (Salmon et al. 2011). Number i depends on the seed and on i alone: ten rounds mix the
counter i // 4 with the key, which is the seed, into four words of 32 bits. They are equal to the bit on every device;
what is computed of them in fp32 is equal to about 1e-7. A CPU draws so in 20 ns a number, and one by one in 4.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod, tau

import torch
from torch import Tensor

from nemo_vfm.core.seed import derive, generator

_MULTIPLIERS, _KEY_STEPS, _WORD = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85), 0xFFFFFFFF
_ROUNDS = 10
#: Counters at a time: few enough for a CPU's cache, or for all of a GPU.
_ON_CPU, _ON_GPU = 2**14, 2**24


def words(first: int, count: int, seed: int, device: torch.device) -> Tensor:
    """(4, count), int64 from 0 to 2^32 - 1: those of `count` counters from `first`, for a seed of 64 bits."""
    counters = torch.arange(first, first + count, device=device)
    a, b = counters & _WORD, counters >> 32
    c, d = torch.zeros_like(a), torch.zeros_like(a)
    keys = [seed & _WORD, seed >> 32 & _WORD]
    for _ in range(_ROUNDS):
        # The product of two words of 32 bits has 64, which wrap around in int64 and keep their bits.
        left, right = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, c = (right >> 32 & _WORD) ^ b ^ keys[0], (left >> 32 & _WORD) ^ d ^ keys[1]
        b, d = right & _WORD, left & _WORD
        keys = [key + step & _WORD for key, step in zip(keys, _KEY_STEPS, strict=True)]
    return torch.stack([a, b, c, d])


def uniform(shape: Sequence[int], seed: int, *names: str) -> Tensor:
    """Evenly spread over [0, 1), fp32, by the seed and what the numbers are for."""
    if _DEVICES[-1] is None:
        return torch.rand(tuple(shape), generator=generator(seed, *names))
    return _by_counters(shape, derive(seed, *names), _DEVICES[-1], lambda found: found)


def normal(shape: Sequence[int], seed: int, *names: str) -> Tensor:
    """Of mean 0 and standard deviation 1, fp32, by the seed and what the numbers are for."""
    if _DEVICES[-1] is None:
        return torch.randn(tuple(shape), generator=generator(seed, *names))
    return _by_counters(shape, derive(seed, *names), _DEVICES[-1], _box_muller)


_DEVICES: list[torch.device | None] = [None]


@contextmanager
def counter_based(device: torch.device | None) -> Iterator[None]:
    """Draw by counters on this device; None draws one number after another, on the CPU."""
    _DEVICES.append(device)
    try:
        yield
    finally:
        _DEVICES.pop()


def _box_muller(found: Tensor) -> Tensor:
    radius, angle = found[:2].log_().mul_(-2).sqrt_(), found[2:].mul_(tau)
    return torch.cat([radius * angle.cos(), radius * angle.sin()])


def _by_counters(shape: Sequence[int], seed: int, device: torch.device, change: Callable[[Tensor], Tensor]) -> Tensor:
    count, size = -(-prod(shape) // 4), _ON_CPU if device.type == "cpu" else _ON_GPU
    numbers = torch.empty(4 * count, device=device)
    for first in range(0, count, size):
        some = words(first, min(size, count - first), seed, device)
        # 23 bits and half a step, which fp32 holds: neither 0, whose logarithm is infinite, nor 1.
        even = (some >> 9).to(torch.float32).add_(0.5).mul_(2.0**-23)
        numbers[4 * first : 4 * first + some.numel()] = change(even).T.flatten()
    return numbers[: prod(shape)].view(*shape)
