"""Tests that the profile of a whole log holds exactly what plain loops over its samples count."""

import math
from collections import Counter
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import pytest

from nemo_vfm.core.types.job import Run
from nemo_vfm.recsys.profile import Profile
from nemo_vfm.recsys.profiling.locality_stats import EDGES
from nemo_vfm.recsys.profiling.profile_file import load_profile
from nemo_vfm.recsys.profiling.table_rows import TableRows
from tests.support.jagged_rows import lists
from tests.support.session_log import LogInMemory, session_log

BATCH, WINDOWS = 64, 4
TABLES = {"item": TableRows(97, "modulo"), "user": TableRows(400), "rare": TableRows(50, "modulo")}
LOG = session_log(150, 4)
SESSION, TIME = LOG.session_B.tolist(), LOG.time_B.tolist()
ROWS = {name: lists(feature) for name, feature in LOG.features.items()}
LOOKUPS = {name: [[one % table.rows for one in row] for row in ROWS[name]] for name, table in TABLES.items()}


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("profile")
    job = Profile(source=LogInMemory(LOG, 37), fraction=1, tables=TABLES, batch_size=BATCH, windows=WINDOWS)
    job.run(Run(folder))
    return load_profile(folder / "profile.json")


def exactly(value: float) -> Any:
    """A figure whose interval has no width."""
    return dict.fromkeys(("value", "low", "high"), pytest.approx(value, rel=1e-12))


def unchanged(names: list[str]) -> float:
    """d: of the samples that are not the first of their session, those that equal the one before."""
    rows = list(zip(*(ROWS[name] for name in names), strict=True))
    pairs = [same for (one, same) in zip(pairwise(SESSION), pairwise(rows), strict=True) if one[0] == one[1]]
    return sum(one == other for one, other in pairs) / len(pairs)


def factor(names: list[str]) -> float:
    per_session = len(SESSION) / len(set(SESSION))
    return per_session / (1 + (per_session - 1) * (1 - unchanged(names)))


def bins(counts: list[int]) -> list[int]:
    """Counts of (0, 1], (1, 2], (2, 4] ... and more."""
    return [sum(low < count <= high for count in counts) for low, high in pairwise([0, *EDGES.tolist(), math.inf])]


def hot_set(lookups: list[int], share: float = 0.8) -> set[int]:
    taken, rows = 0, set()
    for row, count in sorted(Counter(lookups).items(), key=lambda pair: (-pair[1], pair[0])):
        if taken >= share * len(lookups):
            break
        taken += count
        rows.add(row)
    return rows


def test_sessions_and_samples_are_all_counted(profile):
    sizes = [len(list(samples)) for _, samples in groupby(SESSION)]
    assert profile["samples"] == len(SESSION) and profile["session_runs"] == len(sizes)
    assert profile["sessions"] == exactly(len(sizes)) | {"exact": True}
    assert profile["samples_per_session"] == exactly(sum(sizes) / len(sizes))


@pytest.mark.parametrize("name", ROWS)
def test_a_feature_is_described_by_its_rows(profile, name):
    found, lengths = profile["features"][name], sorted(map(len, ROWS[name]))
    assert found["coverage"] == exactly(sum(length > 0 for length in lengths) / len(lengths))
    assert found["length"]["mean"] == exactly(sum(lengths) / len(lengths))
    assert found["length"]["max"] == lengths[-1]
    for share, length in found["length"]["quantiles"].items():
        assert length == lengths[math.ceil(float(share) * len(lengths)) - 1]
    assert found["distinct"] == exactly(len({one for row in ROWS[name] for one in row})) | {"exact": True}
    assert found["unchanged"] == exactly(unchanged([name]))
    assert found["factor"] == exactly(factor([name]))


def test_groups_have_the_factors_that_the_formula_and_the_batches_give(profile):
    assert {name: group["features"] for name, group in profile["groups"].items()} == {
        "user": ["user", "history"], "rare": ["rare"]
    }  # fmt: skip
    whole = len(SESSION) // BATCH * BATCH
    for group in profile["groups"].values():
        rows = list(zip(*(ROWS[name] for name in group["features"]), strict=True))
        stored = sum(at % BATCH == 0 or rows[at] != rows[at - 1] for at in range(whole))
        assert group["measured"] == exactly(whole / stored)
        assert group["unchanged"] == exactly(unchanged(group["features"]))
        assert group["predicted"] == exactly(factor(group["features"]))


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_described_before_and_after_hashing(profile, name):
    found, flat = profile["tables"][name], [one for row in LOOKUPS[name] for one in row]
    counts, ids = Counter(flat), Counter(one for row in ROWS[name] for one in row)
    assert found["accesses"] == len(flat) and found["accesses_per_occupied_row"] == len(flat) / len(counts)
    assert found["before"]["distinct"]["value"] == len(ids)
    assert found["before"]["ids_by_count"] == bins(list(ids.values()))
    assert found["after"]["occupied"] == len(counts) and found["after"]["collided"] == len(ids) - len(counts)
    assert found["after"]["rows_by_count"] == bins(list(counts.values()))
    rows = TABLES[name].rows
    assert found["after"]["expected_occupied"] == pytest.approx(rows * (1 - math.exp(-len(ids) / rows)))


@pytest.mark.parametrize("name", TABLES)
def test_the_icdf_is_that_of_sorted_counts(profile, name):
    counts = sorted(Counter(one for row in LOOKUPS[name] for one in row).values(), reverse=True)
    least = [
        next(rows for rows in range(len(counts) + 1) if 100 * sum(counts[:rows]) >= percent * sum(counts))
        for percent in range(101)
    ]
    assert profile["tables"][name]["icdf"] == {"value": least, "low": least, "high": least}


@pytest.mark.parametrize("name", TABLES)
def test_reuse_is_that_of_the_rows_of_each_batch(profile, name):
    counts = [
        list(Counter(one for row in LOOKUPS[name][begin : begin + BATCH] for one in row).values())
        for begin in range(0, len(SESSION) // BATCH * BATCH, BATCH)
    ]
    flat, found = [one for batch in counts for one in batch], profile["tables"][name]["reuse"]
    assert found["rows"]["value"] == pytest.approx([one / len(flat) for one in bins(flat)])
    edges = pairwise([0, *EDGES.tolist(), math.inf])
    held = [sum(one for one in flat if low < one <= high) / sum(flat) for low, high in edges]
    assert found["accesses"]["value"] == pytest.approx(held)
    assert found["mean"] == exactly(sum(flat) / len(flat))


@pytest.mark.parametrize("name", TABLES)
def test_drift_is_between_windows_of_equal_duration(profile, name):
    span, windows = TIME[-1] - TIME[0] + 1, [[] for _ in range(WINDOWS)]
    for time, row in zip(TIME, LOOKUPS[name], strict=True):
        at = max(w for w in range(WINDOWS) if time - TIME[0] >= span * w // WINDOWS)
        windows[at] += row
    found = profile["tables"][name]["drift"]
    assert found["accesses"] == [*map(len, windows)]
    for (one, other), distance, stays in zip(pairwise(windows), found["distance"], found["hot_set_stays"], strict=True):
        shares = [{row: count / len(half) for row, count in Counter(half).items()} for half in (one, other)]
        apart = sum(abs(shares[0].get(row, 0) - shares[1].get(row, 0)) for row in {*one, *other}) / 2
        assert distance == pytest.approx(apart)
        assert stays == len(hot_set(one) & hot_set(other)) / len(hot_set(one))


def test_only_what_drifts_is_further_apart_than_random_shares_of_the_sessions(profile):
    for name, table in profile["tables"].items():
        beyond = max(table["drift"]["distance"]) > 1.5 * max(table["drift"]["at_random"]["distance"])
        assert beyond == (name == "item")


@pytest.mark.parametrize("max_values", [8_000, 1 << 24])
def test_without_drift_windows_are_as_far_apart_as_random_shares_however_uneven_and_however_few_are_kept(
    max_values, tmp_path
):
    log = session_log(3000, 2, drifting=False)
    uneven = replace(log, time_B=log.ids_B**3)
    job = Profile(source=LogInMemory(uneven, 5000), fraction=1, tables=TABLES, windows=4, max_values=max_values)
    job.run(Run(tmp_path))
    found = load_profile(tmp_path / "profile.json")
    assert (found["kept"]["fraction"] < 1) == (max_values == 8_000)
    for name in ("item", "user"):
        drift = found["tables"][name]["drift"]
        assert drift["distance"] == pytest.approx(drift["at_random"]["distance"], rel=0.3)
