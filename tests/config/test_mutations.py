"""Tests that real recipes with random damage check or raise a RecipeError, and nothing else."""

import random
import shutil

import pytest

from nemo_vfm.config import RecipeError, build, check, compose
from tests.support.recipe_folder import ROOT
from tests.support.repository import yaml_files

PIECES = (
    "${a}",
    "${env:HOME}",
    "${",
    "}",
    "{",
    "[",
    "]",
    ": ",
    "- ",
    "\n",
    "  ",
    "\t",
    "'",
    '"',
    "&a ",
    "*a",
    "!!x ",
    "<<: ",
    "???",
    "null",
    "true",
    "1e400",
    "010",
    ".nan",
    "9" * 50,
    "-1",
    "0",
    "1e308",
    "x" * 300,
    "recipe:quickstart.yaml",
    "recipe:../x",
    "_target_: os.system",
    "_target_: nemo_vfm.workflow.Workflow",
    "_target_: nemo_vfm.models.dit.DiT",
    "defaults: [{model: dit_s}]",
    "steps: {a: 1}",
    "# ",
    "|\n",
    ">\n",
    "? ",
    "\u202e",
    "é",
    "\x00",
    "~",
    "a.b.c",
    "..",
    "400 steps",
    "-5 s",
    "{a: 1}",
    "[1, 2]",
    "%YAML 1.1\n",
    "---\n",
    "...\n",
)
WORDS = (
    "loop.duration=1 steps",
    "~model",
    "model=dit_s",
    "model=dit_xl",
    "stages=standard",
    "seed=-1",
    "run_dir=",
    "_target_=x.Y",
    "steps.train.model.depth=0",
    "steps.train=recipe:diffusion/sample.yaml",
    "input=${run_dir}",
    "defaults=[1]",
    "a.b=[",
    "steps={}",
    "steps.a={_target_: nemo_vfm.workflow.Workflow, steps: {}}",
    "optimizer.lr=${seed}",
    "data=???",
)


def damaged(text: str, chance: random.Random) -> str:
    """The text after a few accidents."""
    for _ in range(chance.randint(1, 4)):
        lines = text.split("\n")
        where, line = chance.randrange(len(text) + 1), chance.randrange(len(lines))
        kind = chance.randrange(8)
        if kind == 0:
            text = text[:where] + chance.choice(PIECES) + text[where:]
        elif kind == 1:
            text = text[:where] + text[where + chance.randint(1, 20) :]
        elif kind == 2:
            text = (
                text[:where] + chr(chance.choice([chance.randrange(128), chance.randrange(0xD7FF)])) + text[where + 1 :]
            )
        elif kind == 3:
            text = "\n".join([*lines[:line], lines[line], *lines[line:]])
        elif kind == 4:
            text = "\n".join(lines[:line] + lines[line + 1 :])
        elif kind == 5:
            key, colon, _ = lines[line].partition(": ")
            text = "\n".join([*lines[:line], key + colon + chance.choice(PIECES), *lines[line + 1 :]])
        elif kind == 6:
            text = "\n".join([*lines[:line], " " * chance.randint(1, 6) + lines[line], *lines[line + 1 :]])
        else:
            text = text[:where]
    return text


def only_recipe_errors(kitchen, number):
    """Damage one file, and sometimes add changes; then do all that a verb does before it runs."""
    chance = random.Random(number)
    recipes = [file.relative_to(ROOT) for file in yaml_files("recipes")]
    victim = chance.choice([file.relative_to(ROOT) for file in (*yaml_files("recipes"), *yaml_files("conf"))])
    before = (ROOT / victim).read_text()
    recipe = victim if victim.parts[0] == "recipes" else chance.choice(recipes)
    try:
        kitchen.write(str(victim), damaged(before, chance).encode("utf-8", "replace").decode().replace("@", "x"))
        words = chance.sample(WORDS, chance.choice([0, 0, 1, 2]))
        composed = compose(recipe, words)
        composed.show()
        _ = composed.seed, composed.run_dir
        problems = check(composed)
        assert all(problem.render() for problem in problems)
        if not problems:
            composed.to_yaml()
            build(composed)
    except RecipeError as error:
        assert 0 < len(str(error)) < 60_000
    finally:
        kitchen.write(str(victim), before)


@pytest.fixture
def real(kitchen):
    """A copy of our recipes and ingredients."""
    for name in ("recipes", "conf"):
        shutil.copytree(ROOT / name, kitchen.folder / name)
    return kitchen


def test_a_damaged_recipe_ends_in_a_recipe_error_or_is_right(real):
    for number in range(60):
        only_recipe_errors(real, number)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(20))
def test_two_thousand_damaged_recipes(real, block):
    for number in range(1000 + 100 * block, 1100 + 100 * block):
        only_recipe_errors(real, number)
