"""Tests the header and the place of every recipe and ingredient."""

import re

import pytest

from nemo_vfm.config import compose
from nemo_vfm.config.roots import header as read_header
from tests.support.recipe_results import FIGURES, UNMEASURED, files, said_s, unread_numbers
from tests.support.repository import ROOT, load_yaml, yaml_files

RECIPES = [str(path.relative_to(ROOT)) for path in yaml_files("recipes")]
#: What a header has to tell, as you would tell a friend.
LABELS = ("Hardware", "Time", "Expected")


def header(recipe: str) -> str:
    """The comment lines on top of a recipe."""
    lines = (ROOT / recipe).read_text(encoding="utf-8").splitlines()
    top = []
    for line in lines:
        if not line.startswith("#"):
            break
        top.append(line.lstrip("# "))
    return "\n".join(top)


def test_at_min_five_recipes_are_found():
    assert len(RECIPES) >= 5
    assert "recipes/quickstart.yaml" in RECIPES


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("label", LABELS)
def test_a_recipe_tells_on_top(recipe, label):
    assert re.search(rf"\b{label}: \S+ \S+", header(recipe)), (
        f"{recipe} begins without '{label}: ...':\n{header(recipe)}"
    )


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_that_takes_nothing_of_the_users_is_among_those_that_are_compared(recipe):
    assert (recipe in FIGURES) == ("???" not in compose(ROOT / recipe).to_yaml())


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_expected_result_is_compared_with_a_run_or_says_that_there_is_none_yet(recipe):
    expected = read_header(ROOT / recipe).expected
    if recipe in FIGURES or UNMEASURED not in expected:
        assert not unread_numbers(recipe), f"{recipe}: no Figure reads {unread_numbers(recipe)} in '{expected}'"
        assert recipe in FIGURES or files(recipe), f"{recipe} names neither a file nor '{UNMEASURED}': {expected}"


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_time_of_a_whole_run_is_that_of_a_recipe_which_is_run_whole(recipe):
    assert (said_s(recipe) is not None) == (recipe in FIGURES), read_header(ROOT / recipe).time


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_shows_its_own_command(recipe):
    assert f"nemo-vfm run {recipe}" in header(recipe), f"{recipe} should say: nemo-vfm run {recipe} ..."


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_a_job_of_ours(recipe):
    assert (compose(ROOT / recipe).root.target() or "").startswith("nemo_vfm."), "the root of a recipe is a job"


def test_recipes_and_ingredients_end_in_yaml():
    strays = [str(path.relative_to(ROOT)) for folder in ("conf", "recipes") for path in (ROOT / folder).rglob("*")
              if path.is_file() and path.suffix != ".yaml"]  # fmt: skip
    assert not strays, f"the wheel takes *.yaml from these folders, so these would be left out: {strays}"


def test_every_ingredient_begins_with_a_line_that_says_what_it_is():
    silent = [str(p.relative_to(ROOT)) for p in yaml_files("conf") if not p.read_text(encoding="utf-8").startswith("#")]
    assert not silent, f"no comment on top of: {silent}"


def test_every_recipe_and_ingredient_is_yaml():
    unread = [str(p.relative_to(ROOT)) for p in (*yaml_files("conf"), *yaml_files("recipes")) if load_yaml(p) is None]
    assert not unread, f"not YAML, or nothing in it: {unread}"
