"""Tests that a made log's labels have the AUC that was asked for, and that pairs are out of reach of single ids."""

import pytest
import torch

from nemo_vfm.recsys.sessions.id_feature import IdFeature
from nemo_vfm.recsys.sessions.session_log import SessionGroup, SessionLog
from nemo_vfm.recsys.sessions.teacher import ScoreRanks, Teacher
from nemo_vfm.sparse.log_chunk import LogChunk

NAMES = [f"c{number}" for number in range(6)]


def labelled(teacher: Teacher, num_samples: int = 50_000) -> LogChunk:
    """A log with three dense features and six of ids, one of them of users and one with empty rows."""
    features = {name: IdFeature(rows=100) for name in NAMES[:4]} | {"c4": IdFeature(rows=90, length=3, shortest=0)}
    user = SessionGroup(unchanged=0.9, features={"c5": IdFeature(rows=400)})
    log = SessionLog(
        num_samples=num_samples, samples_per_session=4.0, window=20_000, groups={"user": user}, features=features,
        dense=["d0", "d1", "d2"], teacher=teacher,
    )  # fmt: skip
    return LogChunk.cat(list(log.log_chunks()))


def test_expected_auc_equals_the_sum_over_all_pairs():
    numbers = torch.Generator().manual_seed(0)
    p = torch.rand(40, generator=numbers, dtype=torch.float64)
    scores = torch.randint(9, (40,), generator=numbers)  # with ties
    won = (scores[:, None] > scores[None]).double() + 0.5 * (scores[:, None] == scores[None])
    pairs = p[:, None] * (1 - p[None]) * (1 - torch.eye(40))
    assert ScoreRanks(scores).expected_auc(p) == pytest.approx(float((won * pairs).sum() / pairs.sum()), abs=1e-12)
    assert ScoreRanks(torch.tensor([1.0, 2.0, 2.0, 3.0])).expected_auc(torch.tensor([0, 1, 0, 1])) == 0.875
    with pytest.raises(ValueError, match="both labels"):
        ScoreRanks(scores).expected_auc(torch.ones(40))


@pytest.mark.parametrize(("auc", "rate"), [(0.6, 0.5), (0.8, 0.25), (0.9, 0.03), (0.97, 0.5)])
def test_the_teacher_has_the_auc_and_rate_asked_for_and_clicks_follow_it(auc, rate):
    teacher = Teacher(auc=auc, rate=rate, single=["c0", "c4"], pairs=[["c1", "c5"]], dense=["d0", "d1"])
    labels = labelled(teacher).labels
    p = labels["teacher"].double()
    assert ScoreRanks(p).expected_auc(p) == pytest.approx(auc, abs=0.006)
    assert p.mean() == pytest.approx(rate, abs=0.006)
    assert set(labels["click"].unique().tolist()) == {0.0, 1.0}
    assert ScoreRanks(p).expected_auc(labels["click"]) == pytest.approx(auc, abs=0.01)
    for low, high in ((0.0, rate), (rate, 1.0)):
        among = (p >= low) & (p < high)
        assert labels["click"][among].double().mean() == pytest.approx(float(p[among].mean()), abs=0.01)


def test_terms_have_their_shares_of_the_variance():
    teacher = Teacher(single=["c0"], pairs=[["c1", "c2"]], dense=["d0"], pairs_share=0.5, dense_share=0.2)
    chunk = labelled(teacher)
    z = torch.logit(chunk.labels["teacher"].double())
    total = float(z.var())
    assert dependence(z, chunk.features["c0"].values_N) / total == pytest.approx(0.3, abs=0.02)
    both = chunk.features["c1"].values_N * 1_000 + chunk.features["c2"].values_N
    assert dependence(z, both) / total == pytest.approx(0.5, abs=0.2)  # with the noise of few samples a pair
    for name in ("c1", "c2", "c3"):
        assert dependence(z, chunk.features[name].values_N) / total < 0.02
    dense = chunk.dense["d0"].double()
    assert float((z * dense).mean() - z.mean() * dense.mean()) ** 2 / total == pytest.approx(0.2, abs=0.02)


def dependence(z: torch.Tensor, ids: torch.Tensor) -> float:
    """Variance of z that knowing the ids alone explains."""
    _, of = ids.unique(return_inverse=True)
    counts = of.bincount().double()
    means = torch.zeros_like(counts).index_add_(0, of, z) / counts
    return float(means[of].var())


def test_the_labels_of_a_sample_do_not_depend_on_how_many_are_read():
    teacher = Teacher(single=["c0"], pairs=[["c1", "c2"]], dense=["d0"])
    log = SessionLog(
        num_samples=3_000, features={name: IdFeature(rows=50) for name in NAMES[:3]}, dense=["d0"], teacher=teacher
    )
    every = log.samples(0, 3_000).labels
    assert all(torch.equal(log.samples(1_000, 1_500).labels[name], every[name][1_000:1_500]) for name in every)


def test_the_teacher_thinks_the_same_of_an_id_on_every_day_and_clicks_follow_it_on_each():
    features = {name: IdFeature(rows=200) for name in NAMES[:2]}
    teacher = Teacher(auc=0.8, rate=0.3, single=["c0"], pairs=[["c0", "c1"]], dense_share=0.0)
    log = SessionLog(num_samples=60_000, days=3, new_ids=0.3, features=features, teacher=teacher)
    days = [LogChunk.cat(list(log.day_chunks(day))) for day in range(3)]
    every = LogChunk.cat(days)
    both = every.features["c0"].values_N * 1_000 + every.features["c1"].values_N
    with_p = torch.stack([both.double(), every.labels["teacher"].double()], 1)
    assert len(with_p.unique(dim=0)) == len(both.unique())
    assert ScoreRanks(days[0].labels["teacher"]).expected_auc(days[0].labels["teacher"]) == pytest.approx(0.8, abs=1e-3)
    for chunk in days:
        p, click = chunk.labels["teacher"], chunk.labels["click"]
        ranks = ScoreRanks(p)
        assert ranks.expected_auc(click) == pytest.approx(ranks.expected_auc(p), abs=0.01)
        assert click.mean() == pytest.approx(float(p.mean()), abs=0.01)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"single": ["a"], "pairs": [["a", "a"]], "dense": ["d"]}, "two different features"),
        ({"single": ["a"], "dense": ["d"]}, "pairs has the share 0.5 of the variance and 0 features"),
        ({"single": ["a"], "pairs": [["a", "b"]], "dense_share": 0.0, "pairs_share": 1.0}, "single has the share 0"),
        ({"single": ["a"], "auc": 0.5}, "auc must be at least 0.501"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Teacher(**settings)
