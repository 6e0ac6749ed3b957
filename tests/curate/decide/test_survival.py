"""Tests that the survival curve agrees with deciding again at the moved threshold."""

import json

import numpy as np
import pytest

from nemo_vfm.curate.decide.rule import Rule, first_broken, survival
from nemo_vfm.curate.decide.score_table import Labels, Table

RANDOM = np.random.default_rng(7)
X = np.round(RANDOM.normal(5, 2, 400), 1)
X[::17] = np.nan
TABLE = Table(
    {
        "x": X,
        "y": RANDOM.random(400),
        "camera": Labels(("pan", "static"), RANDOM.integers(-1, 2, 400).astype(np.int32)),
        "similarity": RANDOM.random(400),
    },
    RANDOM.random(400) > 0.1,
    RANDOM.integers(1, 10**7, 400),
)
OTHER = Rule(score="y", below=0.2)
MOVED = [
    (lambda t: Rule(score="x", below=t), 5.0, 0),
    (lambda t: Rule(score="x", above=t), 5.0, 0),
    (lambda t: Rule(keep=f"x > {t!r}"), 5.0, 0),
    (lambda t: Rule(keep=f'x <= {t!r} and camera == "pan"'), 5.0, 0),
    (lambda t: Rule(keep=f"2 < x < {t!r}"), 5.0, 1),
    (lambda t: Rule(drop=f'x >= {t!r} or camera == "pan" or y > 0.9'), 5.0, 0),
]


def kept(rules):
    chosen = TABLE.alive & [broken is None for broken in first_broken(TABLE, rules)]
    return int(chosen.sum()), TABLE.microseconds[chosen].sum() / 1e6


@pytest.mark.parametrize(("rule", "here", "place"), MOVED)
def test_each_point_of_a_curve_is_what_deciding_again_would_keep(rule, here, place):
    curve = survival(TABLE, {"moved": rule(here), "other": OTHER})["rules"]["moved"]["curves"][place]
    assert curve["threshold"] == here and here in curve["thresholds"]
    for at, clips, seconds in zip(curve["thresholds"], curve["clips"], curve["seconds"], strict=True):
        assert (clips, pytest.approx(seconds)) == kept({"moved": rule(at), "other": OTHER})
    assert len(set(curve["clips"])) > 10


def test_what_a_rule_drops_alone_is_what_removing_it_would_bring_back():
    rules = {"low": Rule(score="x", below=4.0), "other": OTHER, "still": Rule(drop='camera == "static"')}
    found = survival(TABLE, rules)
    for name in rules:
        without = {other: rule for other, rule in rules.items() if other != name}
        assert found["rules"][name]["drops_alone"]["clips"] == kept(without)[0] - kept(rules)[0]
    first = sum(rule["drops_first"]["clips"] for rule in found["rules"].values())
    assert found["in"]["clips"] - first == found["survive"]["clips"] == kept(rules)[0]


def test_comparisons_have_no_curve_and_the_file_is_plain_json():
    found = survival(TABLE, {"copy": Rule(score="similarity", above=0.9), "other": OTHER}, compared=["similarity"])
    assert list(found["rules"]) == ["other"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_table_without_clips_survives():
    empty = Table({}, np.zeros(0, bool), np.zeros(0, np.int64))
    assert survival(empty, {"low": OTHER})["survive"] == {"clips": 0, "seconds": 0.0}
