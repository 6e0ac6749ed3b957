"""Tests that every recipe of the repository checks and runs small; new recipes are included by themselves."""

import functools
import json
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import cycle
from pathlib import Path

import pytest

from nemo_vfm.cli.main import main
from nemo_vfm.config import compose, read_values
from nemo_vfm.config.hints import signature
from nemo_vfm.config.locate import DEFAULT_TRUST, locate
from nemo_vfm.config.roots import header
from nemo_vfm.config.tree import Map, Scalar
from nemo_vfm.config.yaml_source import read
from tests.recipes.conftest import Given
from tests.support.cpu_megatron import megatron_on_cpu
from tests.support.recipe_results import missing_files, undeclared_files
from tests.support.repository import ROOT, yaml_files

RECIPES = [str(path.relative_to(ROOT)) for path in yaml_files("recipes")]
TRAININGS = [name for name in RECIPES if "\n_target_: nemo_vfm.train.job.Train\n" in (ROOT / name).read_text()]
_FIRST = {str(Path(name).parent): name for name in reversed(RECIPES)}.values()
#: One of each folder in `make test`; all others, of some seconds each, in `make test-slow`.
RUNS = [pytest.param(name, marks=[] if name in _FIRST else [pytest.mark.slow]) for name in RECIPES]
OVERLAYS = [str(path.relative_to(ROOT)) for path in yaml_files("conf/overlay")]


def test_no_recipe_is_lost():
    assert len(RECIPES) >= 7
    assert len(RECIPES) == sum(path.is_file() for path in (ROOT / "recipes").rglob("*"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_checks(recipe, capsys):
    assert main(["check", str(ROOT / recipe)]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_checks_small_and_says_how_one_gets_what_it_wants(recipe, capsys):
    status, said = main(["check", str(ROOT / recipe), "--overlay", "smoke"]), capsys.readouterr().out
    assert status == 0, said
    helped = said.count("` creates some; then add ") + said.count("; to try it out, add ")
    assert said.count("you must set this") == helped, said


@pytest.mark.parametrize(("recipe", "scales"), zip(TRAININGS, cycle(["block", "current"])))
@pytest.mark.slow
def test_a_training_in_fp8_checks_or_says_which_linear_is_too_narrow(recipe, scales, capsys):
    status = main(["check", str(ROOT / recipe), "precision=fp8", f"precision.fp8.recipe={scales}"])
    said = " ".join(capsys.readouterr().out.split())
    assert status == 0 or (status == 2 and "on each rank, but FP8 by recipe=block needs multiples of 128" in said), said
    assert status == 0 or "1 problem" in said


@pytest.mark.parametrize("recipe", RUNS)
def test_a_recipe_runs_small(recipe, given: Given, tmp_path: Path, capsys):
    folder = tmp_path / "run"
    words = [str(ROOT / recipe), "--overlay", "smoke", f"run_dir={folder}", *given(ROOT / recipe)]
    with megatron_on_cpu() if "megatron" in recipe else nullcontext():
        assert main(["run", *words]) == 0, capsys.readouterr().err[-3000:]
    status = json.loads((folder / "status.json").read_text())
    assert status["state"] == "done" and status["summary"]
    assert (folder / "report.html").stat().st_size > 2000
    beside_input = "in the folder of" in header(ROOT / recipe).expected
    assert not missing_files(recipe, tmp_path if beside_input else folder)
    assert not undeclared_files(folder, read_values((folder / "recipe.yaml").read_text(), "recipe.yaml"))
    assert main(["run", *words]) == 0
    assert "Nothing to do" in capsys.readouterr().out


@functools.cache
def with_callbacks() -> dict[str, tuple[str, str]]:
    """Name of a callback -> the first recipe that has it, and where."""
    found: dict[str, tuple[str, str]] = {}
    for recipe in RECIPES:
        for key in callbacks(compose(ROOT / recipe).root):
            found.setdefault(key.rpartition(".")[2], (recipe, key))
    return found


def test_a_recipe_checks_without_any_one_of_its_callbacks(capsys):
    assert len(with_callbacks()) > 3
    for recipe, key in with_callbacks().values():
        assert main(["check", str(ROOT / recipe), f"~{key}"]) == 0, capsys.readouterr().out


def callbacks(node: Map, above: str = "") -> Iterator[str]:
    """Yield the address of each callback, also of those in a workflow's steps."""
    for name, below in node.items.items():
        if not isinstance(below, Map):
            continue
        if name == "callbacks":
            yield from (f"{above}{name}.{one}" for one in below.items)
        else:
            yield from callbacks(below, f"{above}{name}.")


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipes_kept_text_composes_to_itself(recipe, tmp_path: Path):
    composed = compose(ROOT / recipe)
    kept = tmp_path / "kept.yaml"
    kept.write_text(composed.to_yaml())
    assert compose(kept).to_yaml() == composed.to_yaml()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_sets_arguments_that_its_class_takes(overlay):
    rule = read(ROOT / overlay)
    wanted = rule.items["for"]
    parts = [rule.items[name] for name in ("set", "made") if name in rule.items]
    assert isinstance(wanted, Scalar) and parts
    keys = {key.partition(".")[0] for part in parts if isinstance(part, Map) for key in part.items}
    assert keys <= signature(locate(str(wanted.value), DEFAULT_TRUST)).arguments.keys()
