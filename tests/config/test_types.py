"""Tests values for rarer annotations, and that errors of constructors are shown at their place."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from nemo_vfm.config import RecipeError, build, hints
from nemo_vfm.config.build import mask_secrets
from nemo_vfm.config.slot_fit import fits
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.types.factory import Factory
from tests.support import late, parts
from tests.support.recipe_folder import ROOT, TRUST

TYPED = "_target_: @.Typed\n"


@pytest.mark.parametrize(
    "text, value",
    [
        ("colour: blue", parts.Colour.BLUE),
        ("metres: 3", 3.0),
        ("above_zero: 3", 3),
        ("level: top", "top"),
        ("level: 2", 2),
        ("level: null", None),
        ("by_number: {1: 0.5, -2: 1}", {1: 0.5, -2: 1.0}),
        ("by_colour: {red: 1}", {parts.Colour.RED: 1}),
        ("by_side: {left: 1, right: 2}", {"left": 1, "right": 2}),
        ("grid: [[1, 2], [], [3]]", ((1, 2), (), (3,))),
        ("point: {x: 1}", parts.Point(1, 0)),
        ("limits: {low: 1}", {"low": 1.0}),
        ("sizes: [{width: 1}, {width: 2, height: 3}]", (parts.Size(1), parts.Size(2, 3))),
        ("nothing: []", ()),
        ("mode: fast", "fast"),
        ("mode: 3", 3),
        ("durations: {a: 3 steps}", {"a": Duration(3, "steps")}),
        ("caught: [1, 2, 1]", {1, 2}),
        ("noted: null", None),
        ("limits: {low: 1, high: 2}", {"low": 1.0, "high": 2.0}),
        ("spared: 1", 1),
        ("spared: null", None),
        ("unhashed: 2", 2),
        ("misled: 2", 2),
        ("several: [1, 2]", (1, 2)),
        ("few: {a: 1}", {"a": 1}),
    ],
)
def test_a_value_arrives_as_annotated(kitchen, text, value):
    found = getattr(kitchen.build(TYPED + text), text.partition(":")[0])
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    "text, words",
    [
        ("colour: BLUE", 'expected one of red, blue, got the text "BLUE"; did you mean blue?'),
        ("metres: x", "expected a number"),
        ("above_zero: 0", "greater than 0"),
        ("level: 3", "expected one of 1, 2, top, null, got the number 3"),
        ("level: true", "expected one of 1, 2, top, null, got true"),
        ("by_number: {a: 1}", 'expected a whole number, got the text "a"'),
        ("by_number: {1.5: 1}", "expected a whole number, got the number 1.5"),
        ("by_colour: {rad: 1}", "did you mean red?"),
        ("by_side: {top: 1}", "expected one of left, right"),
        ("grid: [1]", "expected a list, each a whole number, got the number 1"),
        ("grid: [[a]]", "expected a whole number"),
        ("point: {x: 1, z: 2}", "Point takes no argument z"),
        ("point: {}", "Point needs x (a whole number)"),
        ("point: {x: a}", "expected a whole number"),
        ("limits: {}", "Limits needs low (a number)"),
        ("limits: {low: 1, lwo: 2}", "Limits takes no argument lwo; did you mean low?"),
        ("limits: {low: a}", "expected a number"),
        ("either: {_target_: '@.Quiet'}", "Quiet is not a"),
        ("either: {_target_: '@.Scale', yb: 1}", "Scale takes no argument yb"),
        ("either: 3", "expected a Scale, a Shift or null, got the number 3"),
        ("nothing: [1]", "expected an empty list, got 1 values"),
        ("mode: fats", "did you mean fast?"),
        ("when: {days: 1}", "name the class that builds a timedelta"),
        ("when: {_target_: datetime.timedelta, days: 1}", "datetime.timedelta is not trusted"),
        ("makers: {a: {_target_: '@.Quiet'}}", "Quiet is not a Stage"),
        ("makers: {a: {_target_: '@.Mixing'}}", "Mixing is not a Stage: its apply takes other arguments"),
        ("durations: {a: 3}", "add the unit"),
        ("limits: {low: 1, high: a}", "expected a number"),
        ("by_number: {1: 0.5, '+1': 1}", "1 appears twice, here as +1"),
        ("by_number: {1000: 0.5, 1_000: 1}", "1000 appears twice, here as 1_000"),
        ("calling: {_target_: '@.Scale', by: 1}", "Scale is not a Calling: it has no __call__"),
        ("spared: 0", "greater than 0"),
        ("unhashed: a", "expected a whole number"),
        ("misled: a", "expected a whole number or a text"),
        ("several: [1]", "expected a list, each a whole number: Value should have at least 2 items"),
        ("several: [1, a]", "expected a whole number"),
        ("few: {a: 1, b: 2}", "expected a mapping of names to a whole number: Value should have at most 1 item"),
    ],
)
def test_what_does_not_fit_is_said(kitchen, text, words):
    said = kitchen.problems(TYPED + text)
    assert words in said and said.startswith("recipe.yaml:2:")


def test_something_that_is_called_fits_where_calls_are_made(kitchen):
    assert isinstance(kitchen.build(TYPED + "calling: {_target_: '@.Called'}").calling, parts.Called)


@pytest.mark.parametrize("name", ["Relaxed", "Lenient"])
def test_a_method_may_take_more_than_it_is_given_and_give_less_than_it_may(kitchen, name):
    assert isinstance(kitchen.build(f"_target_: @.Wide\nstage: {{_target_: '@.{name}'}}").stage, getattr(parts, name))


def test_a_log_of_clicks_is_no_source_of_videos(kitchen):
    clips = (ROOT / "recipes/curation/clips.yaml").read_text()
    said = kitchen.problems(clips, "source={_target_: nemo_vfm.recsys.sources.criteo_tsv.CriteoTsv, path: a.tsv}")
    assert (
        "CriteoTsv is not a Source: its files returns a list, each a path; expected a list, each a SourceFile" in said
    )


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        (list[Path], list[str], False),
        (list[Path], Sequence[Path], True),
        (Iterator[int], Iterable[float], True),
        (dict[str, int], Mapping[str, float | str], True),
        (dict[str, int], Mapping[str, Sequence[str]], False),
        (tuple[str, ...], Sequence[str], True),
        (None, str, False),
        (None, str | None, True),
        (str | Path, Path, True),
        (Literal["a"], str, True),
        (Literal["a"], int, False),
        (Any, list[Path], True),
        (NDArray[np.uint8], NDArray[np.float32], False),
        (NDArray[np.uint8], np.ndarray, True),
        (parts.Scale, parts.Stage, True),
        (parts.Quiet, parts.Stage, False),
    ],
)
def test_types_that_no_value_has_both_of_are_told_apart(one, other, meet):
    def gives() -> one: ...

    def asked() -> other: ...

    class Made:
        act = gives

    class Asked(Protocol):
        act = asked

    assert fits(Made, Asked) is meet


@pytest.mark.parametrize("target", [late.Point, late.Limits, late.Total])
def test_annotations_that_are_text_are_read_all_the_same(target):
    arguments = hints.signature(target).arguments.values()
    assert [(argument.name, argument.hint, argument.required) for argument in arguments] == [
        ("low", float, True),
        ("high", int, False),
    ]


def test_factories_in_a_mapping_are_factories(kitchen):
    made = kitchen.build(TYPED + "makers: {a: {_target_: '@.Scale', by: 3}}").makers["a"]
    assert isinstance(made, Factory) and made().by == 3.0


class TestFailingConstructors:
    def test_arguments_that_it_cannot_take_get_their_place(self, kitchen):
        with pytest.raises(
            RecipeError, match=r"recipe.yaml:1:1\n.*\n.*Trips cannot take these arguments: text must be"
        ):
            kitchen.build("_target_: '@.Trips'\nhow: argument")

    @pytest.mark.parametrize("how, kind", [("deep", TypeError), ("zero", ZeroDivisionError), ("key", KeyError)])
    def test_a_fault_of_its_own_stays_a_fault_and_says_where_it_happened(self, kitchen, how, kind):
        with pytest.raises(kind) as error:
            kitchen.build(f"_target_: '@.Trips'\nhow: {how}")
        assert error.value.__notes__ == ["This happened while the root of the recipe was being built, recipe.yaml:1."]

    def test_deep_in_a_factory_they_have_their_place_too(self, kitchen):
        make = kitchen.build("_target_: @.Wide\nmake:\n  _target_: '@.Trips'\n  how: argument").make
        with pytest.raises(RecipeError, match=r"recipe.yaml:3:3  make"):
            make()


def test_the_files_that_led_to_a_mistake_are_named(kitchen):
    kitchen.write("conf/stage/deep.yaml", "_target_: '@.Scale'\nyb: 2\nby: 1\n")
    kitchen.write("recipes/inner.yaml", "# inner\ndefaults: [{stage: deep}]\n_target_: '@.Wide'\n")
    said = kitchen.problems("_target_: nemo_vfm.workflow.Workflow\nsteps:\n  a: recipe:inner.yaml\n")
    assert said.splitlines()[-1] == "    (included from recipes/inner.yaml:2, from recipe.yaml:3)"


def test_a_union_below_unions_is_not_tried_in_every_combination(kitchen):
    """Each level has two options that fit: all combinations of 40 levels would take for ever."""
    text = "{_target_: '@.Nested'}"
    for _ in range(40):
        text = f"{{_target_: '@.Nested', below: {text}}}"
    assert build(kitchen.compose(f"_target_: '@.Nested'\nbelow: {text}"), TRUST)
    wrong = text.replace("'@.Nested'}", "'@.Nested', nowhere: 1}", 1)
    assert "takes no argument nowhere" in kitchen.problems(f"_target_: '@.Nested'\nbelow: {wrong}")


@pytest.mark.parametrize(
    "text, shown",
    [
        ("the key hunter22-abcdef is wrong", "the key *** is wrong"),
        ("it begins with hunter and ends with abcdef", "it begins with *** and ends with ***"),
        ("hunt is no part of it", "hunt is no part of it"),
        ("", ""),
    ],
)
def test_a_part_of_a_secret_is_hidden_too(text, shown):
    assert mask_secrets(text, ["hunter22-abcdef"]) == shown
    assert mask_secrets("1 of 12", ["1", "12"]) == "1 of 12"
