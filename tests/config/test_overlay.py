# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests which nodes an overlay changes, what takes precedence, and how a bad overlay is refused."""

import re
from pathlib import Path

import pytest

from nemo_vfm.config import RecipeError, Roots, check, compose, read_values
from tests.support.recipe_folder import TRUST, Kitchen

RECIPE = """
_target_: @.Wide
count: 7
stages:
  a: {_target_: '@.Scale', by: 3}
  b: {_target_: '@.Shift'}
chain: [{_target_: '@.Scale', by: 4, mode: rounded}]
"""


@pytest.fixture
def laid(kitchen: Kitchen):
    """Composes RECIPE under the overlay `small`, which scales by 2."""
    kitchen.write("conf/overlay/small/scale.yaml", "for: @.Scale\nset: {by: 2}\n")

    def compose_small(*overrides: str, text: str = RECIPE):
        return compose(kitchen.write("recipe.yaml", text), overrides, overlays=["small"])

    return compose_small


def values(composed) -> dict:
    return read_values(composed.to_yaml(), "composed")


def test_every_node_of_the_class_changes_and_no_other(laid):
    found = values(laid())
    assert found["stages"]["a"]["by"] == 2
    assert found["chain"][0] == {"_target_": "tests.support.parts.Scale", "by": 2, "mode": "rounded"}
    assert found["stages"]["b"] == {"_target_": "tests.support.parts.Shift"} and found["count"] == 7


def test_a_value_of_the_command_line_wins(laid):
    assert values(laid("stages.a.by=9"))["stages"]["a"]["by"] == 9


def test_a_swapped_ingredient_is_laid_over_too(kitchen, laid):
    kitchen.write("conf/stage/big.yaml", "_target_: @.Scale\nby: 100\n")
    assert values(laid("stage=big", text="_target_: @.Wide\nstage: null"))["stage"]["by"] == 2


def test_show_names_the_overlays_file(laid):
    assert "conf/overlay/small/scale.yaml:2" in laid().show()


def test_a_run_under_an_overlay_has_a_folder_of_its_own(laid):
    assert str(laid().run_dir) == "runs/recipe-small"
    assert str(laid("run_dir=x").run_dir) == "x"


def test_a_rule_for_a_missing_argument_leaves_one_alone_that_is_given(kitchen):
    kitchen.write("conf/overlay/fill.yaml", "for: @.Wide\nmissing: name\nset: {name: made, count: 1}\n")
    for name, expected in (("???", ("made", 1)), ("own", ("own", 7)), ("null", (None, 7))):
        found = values(compose(kitchen.write("recipe.yaml", f"{RECIPE}name: {name}\n"), overlays=["fill"]))
        assert (found["name"], found["count"]) == expected


def test_overlays_are_laid_in_the_order_given(kitchen, laid):
    kitchen.write("conf/overlay/later.yaml", "for: @.Scale\nset: {by: 5}\n")
    path = kitchen.write("recipe.yaml", RECIPE)
    assert values(compose(path, overlays=["small", "later"]))["stages"]["a"]["by"] == 5
    assert values(compose(path, overlays=["later", "small"]))["stages"]["a"]["by"] == 2


def test_the_users_rules_join_those_of_other_folders_and_win(kitchen, laid):
    kitchen.write("mine/overlay/small/shift.yaml", "for: @.Shift\nset: {offset: 9}\n")
    kitchen.write("mine/overlay/small/more.yaml", "for: @.Scale\nset: {mode: rounded}\n")
    path = kitchen.write("recipe.yaml", RECIPE)
    kitchen.write("conf/overlay/small/scale.yaml", "for: @.Scale\nset: {by: 2, mode: exact}\n")
    stages = values(compose(path, conf_dirs=[kitchen.folder / "mine"], overlays=["small"]))["stages"]
    assert stages["b"]["offset"] == 9 and stages["a"]["by"] == 2 and stages["a"]["mode"] == "rounded"
    kitchen.write("mine/overlay/small/scale.yaml", "for: @.Scale\nset: {by: 7}\n")
    stages = values(compose(path, conf_dirs=[kitchen.folder / "mine"], overlays=["small"]))["stages"]
    assert stages["a"]["by"] == 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("set: {by: 2}", "an overlay needs the class that it applies to"),
        ("for: [a]\nset: {by: 2}", "an overlay needs the class that it applies to"),
        ("for: @.Scale", "an overlay needs the values that it sets"),
        ("for: @.Scale\nset: {}", "an overlay needs the values that it sets"),
        ("for: @.Scale\nset: {_target_: os.system}", "an overlay changes arguments, not classes"),
        ("for: @.Scale\nsets: {by: 2}", "an overlay has the keys for, missing, set and made, not sets"),
        ("for: @.Scale\nmade: {by: 3}", "made says of an argument"),
        ("for: @.Scale\nmade: {by: {by: a command, as: 3}}", "made says of an argument"),
    ],
)
def test_a_bad_overlay_is_told(kitchen, laid, text, words):
    kitchen.write("conf/overlay/small/scale.yaml", text)
    with pytest.raises(RecipeError, match=words):
        laid()


@pytest.mark.parametrize("name", ["smal", "../small", "/etc", "", "a" * 300])
def test_an_overlay_that_does_not_exist_is_suggested(kitchen, laid, name):
    laid()
    with pytest.raises(RecipeError, match=f"there is no overlay {name}: conf/overlay holds .*small"):
        compose(kitchen.folder / "recipe.yaml", overlays=[name])


def test_what_the_user_must_give_comes_with_the_command_that_makes_some(kitchen):
    kitchen.write(
        "conf/overlay/odd.yaml", "for: @.Wide\nmade: {out: {by: make it, as: runs/it}, size.width: {by: b, as: '3'}}\n"
    )
    recipe = kitchen.write("recipe.yaml", "_target_: @.Wide\nout: ???\nsize: {width: '???'}\nname: ???\n")
    said = "\n".join(problem.render() for problem in check(compose(recipe, overlays=["odd"]), TRUST))
    assert "out=DIR (a path or null); `make it` makes some, then add out=runs/it" in said
    assert "`b` makes some, then add size.width=3" in said and said.count("makes some") == 2
    assert "makes some" not in str(check(compose(recipe), TRUST))
    assert "make it" not in str(check(compose(recipe, ["out=there"], overlays=["odd"]), TRUST))


@pytest.mark.slow
def test_the_commands_that_smoke_names_make_what_its_recipes_need(kitchen):
    wanted = {name: compose(name, overlays=["smoke"]).makers for name, _ in Roots.standard().all_recipes()}
    told = {text for makers in wanted.values() for text in makers.values()}
    assert len(told) > 10
    for command in sorted({re.findall(r"`nemo-vfm (.*?)`", text)[0] for text in told}):
        done = kitchen.command(*command.split(), trust=False)
        assert done.returncode == 0, done.stderr
    for name, makers in wanted.items():
        given = [text.rpartition(" ")[2] for text in makers.values()]
        assert all(Path(word.partition("=")[2].strip("[]")).exists() for word in given), (name, given)
        rest = check(compose(name, given, overlays=["smoke"]))
        assert not {problem.path for problem in rest} & makers.keys(), name


def test_an_argument_that_the_class_does_not_take_is_said_at_the_overlay(kitchen):
    kitchen.write("conf/overlay/odd.yaml", "for: @.Scale\nset: {bye: 2}\n")
    composed = compose(kitchen.write("recipe.yaml", RECIPE), overlays=["odd"])
    said = "\n".join(problem.render() for problem in check(composed, TRUST))
    assert "conf/overlay/odd.yaml:2:7" in said and "did you mean by?" in said
