"""Gives the rows of a table probabilities: Zipf-Mandelbrot with heavy hitters, or fitted to a published histogram.

Shape letter: R rows of the table.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from nemo_vfm.core.bounds import require_between
from nemo_vfm.core.storage.uri import local

_MAX_HEAVY = 20


@runtime_checkable
class Popularity(Protocol):
    """How often each rank of a table is drawn."""

    def probabilities(self, rows: int) -> Tensor:
        """Of the most popular rank first: float64 (R,), with the sum 1."""
        ...


class ZipfMandelbrot:
    """p_k ~ (k + q)^-s for k = 1, 2, ..., after some heavy hitters of explicit probability.

    Args:
        exponent: s, from 0 (all alike) to 5.
        shift: q, above -1; larger ones flatten the head.
        heavy_hitters: probabilities of the most popular ids, at most 20; the others share what is left.
    """

    def __init__(self, *, exponent: float = 1.05, shift: float = 0.0, heavy_hitters: Sequence[float] = ()) -> None:
        require_between(0, 5, exponent=exponent)
        require_between(-0.999, 1e9, shift=shift)
        if len(heavy_hitters) > _MAX_HEAVY or any(p <= 0 for p in heavy_hitters) or sum(heavy_hitters) >= 1:
            raise ValueError(
                f"heavy_hitters {list(heavy_hitters)} must be at most {_MAX_HEAVY} probabilities above 0 that add up "
                "to less than 1"
            )
        self.exponent, self.shift, self.heavy_hitters = exponent, shift, tuple(heavy_hitters)

    def probabilities(self, rows: int) -> Tensor:
        """See `Popularity`.

        Raises:
            ValueError: there are not more rows than heavy hitters.
        """
        num_heavy = len(self.heavy_hitters)
        if rows <= num_heavy:
            raise ValueError(f"a table of {rows} rows has no room for {num_heavy} heavy hitters and others")
        ranks = torch.arange(1, rows - num_heavy + 1, dtype=torch.float64)
        tail = (ranks + self.shift) ** -self.exponent
        heavy = torch.tensor(self.heavy_hitters, dtype=torch.float64)
        return torch.cat([heavy, tail * ((1 - heavy.sum()) / tail.sum())])


class FittedReuse:
    """Probabilities whose draws repeat a published histogram of reuse, see `nemo_vfm.recsys.profiling.reuse_mixture`.

    They do where as many ids are drawn at once as the rates add up to; the share of ids is right for any number.

    Args:
        histogram: a file in the format of `locality_stats`.
    """

    def __init__(self, *, histogram: Path) -> None:
        self.histogram = local(histogram, "the histogram of reuse")

    def probabilities(self, rows: int) -> Tensor:
        """See `Popularity`.

        Raises:
            DataError: the file has no two histograms.
        """
        from nemo_vfm.recsys.profiling.locality_stats import first_histogram
        from nemo_vfm.recsys.profiling.reuse_mixture import fit

        mixture = fit(first_histogram(self.histogram))
        rates = torch.from_numpy(mixture.rates_of_rows(rows)).flip(0)
        return rates / rates.sum()
