"""Tests which clips a recipe's rules drop, what is refused, and what rules.json says of them."""

import numpy as np
import pytest

from nemo_vfm.config import Mark, Problem, RecipeError, SourceText, build, compose
from nemo_vfm.curate.decide.rule import Limit, Rule, check_columns, first_broken
from nemo_vfm.curate.decide.score_table import Labels, Table

NAN = float("nan")
TABLE = Table(
    {"x": np.array([1.0, 2.0, 3.0, NAN, 9.0]), "camera": Labels.of(["static", "pan", None, "pan", "pan"])},
    np.array([1, 1, 1, 1, 0], bool),
    np.ones(5, np.int64),
)
KNOWN = {"x": None, "camera": ("pan", "static", "tilt")}


def dropped(**rule):
    return [place for place, drops in enumerate(Rule(**rule).drops(TABLE)) if drops]


def test_a_threshold_keeps_itself_and_what_has_no_score():
    assert dropped(score="x", below=2.0) == [0]
    assert dropped(score="x", above=2.0) == [2, 4]


def test_keep_drops_what_it_is_not_certainly_true_of_and_drop_what_it_is():
    assert dropped(keep="x > 2") == [0, 1, 3]
    assert dropped(drop="x <= 2") == [0, 1]
    assert dropped(keep="x > 2 or x is missing") == [0, 1]


def test_the_first_broken_rule_is_named_and_what_failed_is_not_decided():
    rules = {"low": Rule(score="x", below=2.0), "still": Rule(keep='camera == "pan"'), "high": Rule(drop="x > 0")}
    assert first_broken(TABLE, rules) == ["low", "high", "still", None, None]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({}, "exactly one of score, keep and drop, got none"),
        ({"score": "x"}, "either below or above"),
        ({"score": "x", "below": 1.0, "above": 2.0}, "either below or above"),
        ({"score": "x", "below": 1.0, "keep": "x > 1"}, "got score and keep"),
        ({"keep": "x > 1", "drop": "x > 1"}, "got keep and drop"),
        ({"keep": "x > 1", "below": 1.0}, "belong to score"),
        ({"keep": "1 < 2"}, "reads no column"),
        ({"keep": "x >"}, r"got the end\n    x >\n       \^"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_by_its_constructor(rule, message):
    with pytest.raises(ValueError, match=message):
        Rule(**rule)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("xx > 1", r"did you mean 'x'\? .*\n    xx > 1\n    \^"),
        ("x > 1 and qqqq > 1", r"There are camera, x.*\n.*\n {14}\^"),
        ("camera > 1", "as a number, but it holds words such as pan, static, tilt"),
        ("x == 'pan'", "compares 'x' with a word, but it holds numbers"),
        ("camera == 'pann'", r"is never 'pann'; did you mean 'pan'\?\n.*\n {14}\^"),
        ("x > pct(qqqq, 5)", "reads the score 'qqqq'"),
    ],
)
def test_columns_and_words_that_no_stage_gives_are_refused_where_they_stand(text, message):
    with pytest.raises(ValueError, match=message):
        check_columns(KNOWN, {"odd": Rule(keep=text)})


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"keep": "x > 1"}, [("<", 1.0, True)]),
        ({"keep": "1 <= x < pct(100)"}, [("<", 1.0, False), (">", 3.0, True)]),
        ({"drop": "x < 1 or x > 1 + 1"}, [("<", 1.0, False), (">", 2.0, False)]),
        ({"drop": "x < 1 and x > 0"}, []),
        ({"keep": "x < 1 or x > 2"}, []),
        ({"keep": 'camera == "pan" and x > 1'}, [("<", 1.0, True)]),
        ({"keep": "x != 1 and 2 * x > 3 and not x > 4"}, []),
    ],
)
def test_the_thresholds_that_drop_by_themselves_are_found(rule, expected):
    found = Rule(**rule).limits(TABLE)
    assert [(limit.op, limit.threshold, limit.inclusive) for limit in found] == expected
    assert all(isinstance(limit, Limit) and limit.score == "x" for limit in found)


def test_a_rule_drops_all_that_each_of_its_limits_drops():
    for rule in (Rule(keep="1 < x <= 2"), Rule(drop="x < 2 or x > 2"), Rule(score="x", above=2.0)):
        for limit in rule.limits(TABLE):
            assert not (limit.drops(TABLE) & ~rule.drops(TABLE)).any()


def test_rules_json_says_the_threshold_that_a_percentile_came_to():
    assert Rule(keep="x >= pct(50)").to_json(TABLE) == {
        "keep": "x >= pct(50)", "score": "x", "op": "<", "threshold": 2.0, "inclusive": False,
        "limits": [{"score": "x", "op": "<", "threshold": 2.0, "inclusive": False}],
    }  # fmt: skip
    assert Rule(score="x", below=2).to_json() == {"score": "x", "op": "<", "threshold": 2.0}


def test_a_recipe_shows_the_mistake_at_its_place_and_inside_the_expression(tmp_path):
    recipe = tmp_path / "r.yaml"
    rule = "{_target_: nemo_vfm.curate.decide.rule.Rule, keep: motion > > 1}"
    recipe.write_text(f"_target_: nemo_vfm.curate.redecide.Redecide\ncurated: x\nrules:\n  odd: {rule}\n")
    with pytest.raises(RecipeError) as caught:
        build(compose(recipe))
    *_, said, line, caret = str(caught.value).split("\n")
    assert said.endswith("expected a number, a column or ( here, got '>'")
    assert line.strip() == "motion > > 1" and caret.index("^") == line.index("> 1")


def test_other_messages_stay_in_one_line():
    forged = Problem("a", Mark(SourceText("x.yaml", ("a: 1",)), 1, 1), "wrong\nx.yaml:9:9  all is well")
    assert len(forged.render().split("\n")) == 3
