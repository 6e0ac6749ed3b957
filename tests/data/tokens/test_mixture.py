"""Tests that any prefix of a blend has its shares within one row, and which shares are rounded."""

from fractions import Fraction

import pytest

from nemo_vfm.data.tokens.token_data import Mixture, normalise_weights


def furthest(mixture: Mixture, shares: dict[str, Fraction], rows: int) -> Fraction:
    """How far any source's count ever is from its share."""
    counts, names, most = dict.fromkeys(shares, 0), list(shares), Fraction(0)
    for row in range(rows):
        which, number = mixture.turn(row)
        assert number == counts[names[which]]
        counts[names[which]] += 1
        most = max(most, *(abs(counts[name] - share * (row + 1)) for name, share in shares.items()))
    assert counts == mixture.rows_taken(rows)
    return most


def test_thirds_stay_thirds():
    shares = {"a": Fraction(1, 3), "b": Fraction(2, 3)}
    assert furthest(Mixture({"a": Fraction(1), "b": Fraction(2)}, seed=0), shares, 20_000) < 1


def test_sizes_are_rounded_to_ten_thousandths_and_keep_to_them():
    sizes = {"a": Fraction(7_654_321), "b": Fraction(1_234_567), "c": Fraction(99)}
    shares = normalise_weights(sizes)
    assert sum(shares.values()) == 1 and all(share * 10_000 == int(share * 10_000) for share in shares.values())
    assert max(abs(float(shares[n] - sizes[n] / sum(sizes.values()))) for n in sizes) < 2e-4
    assert shares["c"] == Fraction(1, 10_000)
    assert furthest(Mixture(sizes, seed=3), shares, 12_000) < 1


def test_many_small_sources_get_a_turn_each_and_the_largest_gives_it():
    sizes = {"large": Fraction(10**12 + 1)} | {f"small{n}": Fraction(1) for n in range(300)}
    shares = normalise_weights(sizes)
    assert sum(shares.values()) == 1 and min(shares.values()) == Fraction(1, 10_000)
    assert shares["large"] == Fraction(9700, 10_000)


def test_no_weight_may_be_zero_and_somebody_must_be_there():
    for weights in ({}, {"a": Fraction(0)}, {"a": Fraction(-1), "b": Fraction(3)}):
        with pytest.raises(ValueError, match="sources need weights above 0"):
            normalise_weights(weights)
