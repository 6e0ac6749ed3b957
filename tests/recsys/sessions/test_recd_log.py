"""Tests that the log after RecD has the shares of values that its benchmark needs."""

import pytest

from nemo_vfm.recsys.sessions.recd_log import recd_log
from nemo_vfm.recsys.sessions.teacher import ScoreRanks
from nemo_vfm.sparse.dedup_groups import change_statistics


@pytest.mark.parametrize(
    ("share", "unchanged", "each", "auc"), [(0.7, 0.5, 16.5, 0.8), (0.85, 0.9, 9.0, 0.7), (0.9, 0.95, 16.5, 0.9)]
)
def test_values_changes_sessions_and_labels_are_as_asked(share, unchanged, each, auc):
    log = recd_log(
        num_samples=4_000,
        samples_per_session=each,
        session_share=share,
        unchanged=unchanged,
        rows=3_000,
        auc=auc,
        seed=3,
    )
    assert log.seed == 3 and {*log.rows().values()} == {3_000}
    chunk, schema = log.samples(0, 4_000, clustered=True), log.schema()
    values = {name: len(rows.values_N) for name, rows in chunk.features.items()}
    of_sessions = sum(values[name] for names in schema.groups.values() for name in names)
    assert of_sessions / sum(values.values()) == pytest.approx(share, abs=0.002)
    assert sum(values[name] for name in schema.windows) / of_sessions == 0.75
    assert all(bool((chunk.features[name].lengths_B == 48).all()) for name in schema.windows)
    for names in schema.groups.values():
        measured = change_statistics([chunk.features[name] for name in names], chunk.session_B)
        assert measured.unchanged == pytest.approx(unchanged, abs=0.03)
        assert measured.samples_per_session == pytest.approx(each, rel=0.2)
    teacher = chunk.labels["teacher"]
    assert ScoreRanks(teacher).expected_auc(teacher) == pytest.approx(auc, abs=0.005)
