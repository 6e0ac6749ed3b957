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
        ("for: @.Scale", "an overlay needs values to set"),
        ("for: @.Scale\nset: {}", "an overlay needs values to set"),
        ("for: @.Scale\nset: {_target_: os.system}", "an overlay changes arguments, not classes"),
        ("for: @.Scale\nsets: {by: 2}", "an overlay takes only the keys for, missing, where, set and made, not sets"),
        ("for: @.Scale\nwhere: 3\nset: {by: 2}", "where must map addresses to the values"),
        ("for: @.Scale\nmade: {by: 3}", "made must map each argument"),
        ("for: @.Scale\nmade: {by: {by: a command, as: 3}}", "made must map each argument"),
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
    assert "out=DIR (a path or null); `make it` creates some; then add out=runs/it" in said
    assert "`b` creates some; then add size.width=3" in said and said.count("creates some") == 2
    assert "makes some" not in str(check(compose(recipe), TRUST))
    assert "make it" not in str(check(compose(recipe, ["out=there"], overlays=["odd"]), TRUST))


def test_a_reference_to_what_is_missing_leads_to_the_command_that_makes_some(kitchen):
    kitchen.write("conf/overlay/odd.yaml", "for: @.Wide\nmade: {out: {by: make it, as: runs/it}}\n")
    kitchen.write("conf/overlay/odd2.yaml", "for: @.Wide\nmade: {name: {as: x}}\n")
    recipe = kitchen.write(
        "recipe.yaml", "_target_: @.Wide\ninput: ???\nout: ${size.a}\nsize: {a: '${input}'}\nname: ???\n"
    )
    assert compose(recipe, overlays=["odd", "odd2"]).makers == {
        "input": "; `make it` creates some; then add input=runs/it", "name": "; to try it out, add name=x",
    }  # fmt: skip
    kitchen.write("recipe.yaml", "_target_: @.Wide\nout: ${name}\nname: ???\n")
    own = {"name": "; to try it out, add name=x"}
    assert compose(recipe, overlays=["odd", "odd2"]).makers == own, "what is for the value itself goes first"
    kitchen.write("recipe.yaml", "_target_: @.Wide\nout: ${name}\nname: ${out}\n")
    assert not compose(recipe, overlays=["odd"]).makers, "a loop is said by the check, and ends here"


def test_a_rule_with_where_is_for_nodes_with_these_values_only(kitchen):
    kitchen.write("conf/overlay/odd.yaml", "for: @.Wide\nwhere: {count: 7, size.width: 3}\nset: {name: made}\n")
    for count, width, expected in ((7, 3, "made"), (7, 4, "own"), (8, 3, "own"), ("null", 3, "own")):
        text = f"_target_: @.Wide\ncount: {count}\nsize: {{width: {width}}}\nname: own\n"
        assert values(compose(kitchen.write("recipe.yaml", text), overlays=["odd"]))["name"] == expected


#: Recipes that are cheap to run whole on what the commands make; the others are checked with it.
CHEAP = (
    "curation/check_captions", "curation/train_scorer", "diffusion/dit_xl", "lightning/fit_test_predict",
    "llm/generate", "recommendation/import_criteo", "restore/destripe",
)  # fmt: skip


@pytest.mark.slow
def test_the_commands_that_smoke_names_make_what_its_recipes_need(kitchen):
    names = [name for name, _ in Roots.standard().all_recipes() if name != "nemo/transcribe"]  # its model is on a hub
    wanted = {name: compose(name, overlays=["smoke"]).makers for name in names}
    told = {text for makers in wanted.values() for text in makers.values()}
    lines = [found for text in told for found in re.findall(r"`(.*?)`", text)]
    assert len(lines) > 15
    for command in dict.fromkeys(command for line in sorted(lines) for command in line.split(" && ")):
        done = kitchen.command(*command.removeprefix("nemo-vfm ").split(), trust=False)
        assert done.returncode == 0, done.stderr
    for name, makers in wanted.items():
        given = [word for text in makers.values() for word in text.partition(" add ")[2].split()]
        paths = [Path(word.partition("=")[2].strip("[]")) for word in given if "/" in word]
        assert all(path.exists() for path in paths), (name, given)
        rest = check(compose(name, given, overlays=["smoke"]))
        assert not rest, (name, rest)
        if name in CHEAP:
            done = kitchen.command("run", name, "--overlay=smoke", *given, trust=False)
            assert done.returncode == 0, (name, done.stderr)


def test_an_argument_that_the_class_does_not_take_is_said_at_the_overlay(kitchen):
    kitchen.write("conf/overlay/odd.yaml", "for: @.Scale\nset: {bye: 2}\n")
    composed = compose(kitchen.write("recipe.yaml", RECIPE), overlays=["odd"])
    said = "\n".join(problem.render() for problem in check(composed, TRUST))
    assert "conf/overlay/odd.yaml:2:7" in said and "did you mean by?" in said
