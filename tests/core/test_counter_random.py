"""Tests the counter-based generator against its published words, and the moments of what is made of them."""

import pytest
import torch

from nemo_vfm.core import counter_random
from nemo_vfm.core.counter_random import counter_based, normal, uniform, words

CPU = torch.device("cpu")


def test_words_are_those_that_random123_publishes_for_philox4x32_10() -> None:
    assert words(0, 1, 0, CPU)[:, 0].tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    key = 0x299F31D0_A4093822  # of the digits of pi
    found = words(0x05A308D3_243F6A88, 1, key, CPU)[:, 0].tolist()
    assert found == reference([0x243F6A88, 0x05A308D3, 0, 0], [key & 0xFFFFFFFF, key >> 32])


def reference(counter: list[int], key: list[int]) -> list[int]:
    """Ten rounds in whole numbers of any size."""
    a, b, c, d = counter
    for turn in range(10):
        k0, k1 = ((key[0] + 0x9E3779B9 * turn) % 2**32, (key[1] + 0xBB67AE85 * turn) % 2**32)
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (right >> 32) ^ b ^ k0, right % 2**32, (left >> 32) ^ d ^ k1, left % 2**32
    return [a, b, c, d]


def test_numbers_have_their_moments_and_neighbours_do_not_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    with counter_based(CPU):
        even, round_zero = uniform((500, 401), 1, "a"), normal((500, 401), 1, "a")
        monkeypatch.setattr(counter_random, "_ON_CPU", 1000)  # in other pieces they are the same
        assert torch.equal(normal((500, 401), 1, "a"), round_zero) and torch.equal(uniform((500, 401), 1, "a"), even)
        assert not torch.equal(normal((500, 401), 1, "b"), round_zero)
        assert torch.equal(normal((7,), 1, "a"), round_zero.flatten()[:7])
    assert float(even.min()) > 0 and float(even.max()) < 1
    assert float(even.mean()) == pytest.approx(0.5, abs=3e-3) and float(even.var()) == pytest.approx(1 / 12, rel=0.01)
    assert float(round_zero.mean()) == pytest.approx(0, abs=0.01)
    assert float(round_zero.var()) == pytest.approx(1, rel=0.01)
    assert float((round_zero**4).mean()) == pytest.approx(3, rel=0.04)
    for lag in (1, 2, 3, 4, 401):
        flat = round_zero.flatten()
        assert abs(float((flat[lag:] * flat[:-lag]).mean())) < 0.01


def test_outside_of_it_numbers_are_the_generators() -> None:
    assert torch.equal(normal((9,), 3, "x"), torch.randn(9, generator=counter_random.generator(3, "x")))
    assert torch.equal(uniform((9,), 3, "x"), torch.rand(9, generator=counter_random.generator(3, "x")))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_draws_the_same_words_and_weights() -> None:
    cuda = torch.device("cuda")
    assert torch.equal(words(5, 1000, 7, cuda).cpu(), words(5, 1000, 7, CPU))
    drawn = []
    for device in (CPU, cuda):
        with counter_based(device):
            drawn.append(normal((1000, 33), 7, "x").cpu())
    torch.testing.assert_close(*drawn, atol=1e-6, rtol=1e-6)
