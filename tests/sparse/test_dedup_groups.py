"""Tests that groups are found again in made logs, and that deduplication saves what the formula says."""

import math

import pytest
import torch

from nemo_vfm.sparse.dedup_groups import ChangeStatistics, change_statistics, choose_groups
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.row_deduplication import deduplicate
from tests.support.jagged_rows import jagged


def sessions(mean: float, generator: torch.Generator) -> torch.Tensor:
    """The session of each of about 60,000 samples, one session after another. The lengths are geometric: its quantiles
    at even steps, in any order, so that their mean is not left to chance."""
    steps = (torch.arange(round(60_000 / mean), dtype=torch.float64) + 0.5) / round(60_000 / mean)
    lengths = torch.ceil(torch.log1p(-steps) / math.log1p(-1 / mean)).long()
    order = torch.randperm(len(lengths), generator=generator)
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths[order])


def changing(session_B: torch.Tensor, unchanged: float, generator: torch.Generator) -> torch.Tensor:
    """A version of each sample that goes up at each change and at each session."""
    first = torch.ones(len(session_B), dtype=torch.bool)
    first[1:] = session_B[1:] != session_B[:-1]
    return (first | (torch.rand(len(session_B), generator=generator) >= unchanged)).cumsum(0)


def of_versions(version_B: torch.Tensor, length: int) -> Jagged:
    """A feature of so many ids that are others in each version."""
    return Jagged((version_B[:, None] * length + torch.arange(length)).flatten(), torch.full((len(version_B),), length))


@pytest.mark.parametrize("unchanged", [0.5, 0.8, 0.9, 0.95, 1.0])
@pytest.mark.parametrize("mean", [4.0, 16.5])
def test_the_measured_factor_is_the_formulas_within_two_percent(mean, unchanged):
    generator = torch.Generator().manual_seed(1)
    session_B = sessions(mean, generator)
    feature = of_versions(changing(session_B, unchanged, generator), 2)
    for clustered in (False, True):
        group = deduplicate({"a": feature}, {"a": ["a"]}, clustered=clustered)["a"]
        assert group.factor == pytest.approx(ChangeStatistics(mean, unchanged).factor, rel=0.02)
    measured = change_statistics([feature], session_B)
    assert measured.samples_per_session == pytest.approx(mean, rel=0.02)
    assert measured.unchanged == pytest.approx(unchanged, abs=0.01)
    assert measured.factor == pytest.approx(group.factor, rel=1e-9)


def made_log() -> tuple[dict[str, Jagged], torch.Tensor]:
    """Two pairs that change together, one feature of its own, and one that changes in nine samples of ten."""
    generator = torch.Generator().manual_seed(2)
    session_B = sessions(16.5, generator)
    history, profile, alone = (changing(session_B, d, generator) for d in (0.9, 0.97, 0.9))
    log = {
        "history": of_versions(history, 3), "times": of_versions(history + 7, 2), "alone": of_versions(alone, 1),
        "country": of_versions(profile, 1), "language": of_versions(profile + 9, 1),
        "candidate": of_versions(changing(session_B, 0.1, generator), 1),
    }  # fmt: skip
    return log, session_B


def test_features_that_change_together_make_a_group_and_those_that_change_often_stay_out():
    log, session_B = made_log()
    groups = choose_groups(log, session_B)
    assert sorted(sorted(names) for names in groups.values()) == [
        ["alone"],
        ["country", "language"],
        ["history", "times"],
    ]
    assert all(names[0] == group for group, names in groups.items())
    assert all(group.factor >= 1.5 for group in deduplicate(log, groups).values())


def test_a_higher_min_factor_leaves_groups_out_and_a_wide_tolerance_joins_them():
    log, session_B = made_log()
    assert [set(names) for names in choose_groups(log, session_B, min_factor=8).values()] == [{"country", "language"}]
    wide = choose_groups(log, session_B, tolerance=1)
    assert [set(names) for names in wide.values()] == [set(log) - {"candidate"}]
    kept = deduplicate(log, choose_groups(log, session_B, min_factor=5, tolerance=1))
    assert len(kept) > 1 and all(group.factor >= 5 for group in kept.values())


def test_small_losses_do_not_add_up_in_a_long_group():
    """Each feature changes wherever the one before does and 4 % more often: the third would cost the first 8 %."""
    generator = torch.Generator().manual_seed(4)
    session_B = sessions(16.5, generator)
    first = torch.diff(session_B, prepend=torch.tensor([-1])) != 0
    drawn = torch.rand(len(session_B), generator=generator)
    log = {str(share): of_versions((first | (drawn < share)).cumsum(0), 1) for share in (0.1, 0.107, 0.1145)}
    assert choose_groups(log, session_B) == {"0.1": ("0.1", "0.107"), "0.1145": ("0.1145",)}


def test_nothing_is_worth_deduplicating_in_a_shuffled_log():
    log, session_B = made_log()
    order = torch.randperm(len(session_B), generator=torch.Generator().manual_seed(3))
    assert choose_groups({name: feature.select(order) for name, feature in log.items()}, session_B[order]) == {}


def test_a_change_between_sessions_is_none_and_a_log_without_samples_is_refused():
    measured = change_statistics([jagged([[1], [2], [2], [3]])], torch.tensor([5, 6, 6, 6]))
    assert (measured.samples_per_session, measured.unchanged) == (2, 0.5)
    assert change_statistics([jagged([[1]])], torch.tensor([5])).factor == 1
    with pytest.raises(ValueError, match="no samples"):
        change_statistics([jagged([])], torch.tensor([], dtype=torch.int64))
