"""Tests that copied recipes and projects work where they lie."""

import os
import re
import subprocess
import sys

import pytest

from nemo_vfm.config import compose
from tests.support.recipe_folder import ROOT, WIDE
from tests.support.repository import yaml_files

RECIPES = [str(path.relative_to(ROOT / "recipes").with_suffix("")) for path in yaml_files("recipes")]

#: The copies that keep their includes: of recipes that include one another in all ways that there are.
ONE_OF_A_ROOM = list({name.partition("/")[0]: name for name in RECIPES}.values())


def composition(recipe: object) -> str:
    """What a recipe composes to, but for the name of its run folder."""
    return re.sub(r"^run_dir: .*\n", "", compose(recipe).to_yaml(), flags=re.MULTILINE)


def test_there_are_recipes_to_copy():
    assert len(RECIPES) >= 7


@pytest.mark.parametrize("name", ONE_OF_A_ROOM)
@pytest.mark.parametrize("how", [(), ("--with-ingredients",)])
def test_a_copy_composes_to_what_the_original_did(kitchen, name, how):
    before = composition(ROOT / "recipes" / f"{name}.yaml")
    assert kitchen.main("copy", name, "mine/copy.yaml", *how) == 0
    assert composition("mine/copy.yaml") == before


@pytest.mark.parametrize("name", RECIPES)
def test_a_flat_copy_composes_to_the_same_takes_nothing_from_elsewhere_and_says_where_all_came_from(kitchen, name):
    kitchen.main("copy", name, "flat.yaml", "--flat")
    text = (kitchen.folder / "flat.yaml").read_text()
    assert "defaults:" not in text and "recipe:" not in text and str(ROOT) not in text
    assert f"# recipes/{name}.yaml:" in text
    assert composition("flat.yaml") == composition(ROOT / "recipes" / f"{name}.yaml")


def test_two_recipes_do_not_share_a_run_folder(kitchen):
    kitchen.main("copy", "quickstart", "flat.yaml", "--flat")
    assert str(compose("flat.yaml").run_dir) == "runs/flat"


def test_by_default_the_copy_has_the_originals_name_and_is_found_by_it(kitchen, capsys):
    kitchen.main("copy", "diffusion/sample")
    assert "recipes/diffusion/sample.yaml" in capsys.readouterr().out
    assert compose("diffusion/sample").path.resolve() == kitchen.folder / "recipes/diffusion/sample.yaml"


def test_the_header_shows_the_command_of_the_copy(kitchen):
    kitchen.main("copy", "quickstart", "mine.yaml")
    header = (kitchen.folder / "mine.yaml").read_text().split("defaults:")[0]
    assert header.count("nemo-vfm run mine.yaml") == 2 and "quickstart" not in header


def test_a_folder_is_a_place_for_a_copy_and_yaml_is_added_where_it_lacks(kitchen):
    (kitchen.folder / "there").mkdir()
    kitchen.main("copy", "curation/clips", "there")
    kitchen.main("copy", "curation/clips", "own")
    kitchen.main("copy", "curation/clips", "to/be/made/")
    made = ("there/clips.yaml", "own.yaml", "to/be/made/clips.yaml")
    assert all((kitchen.folder / name).is_file() for name in made)


def test_a_file_that_is_no_recipe_is_a_sentence(kitchen, capsys):
    (kitchen.folder / "binary.yaml").write_bytes(b"\xff\xfe")
    kitchen.write("loop.yaml", "defaults: [{steps.a: recipe:loop.yaml}]\n_target_: @.Wide\n")
    assert kitchen.main("copy", "binary.yaml", "x") == 2
    assert "must be UTF-8 text" in capsys.readouterr().err
    assert kitchen.main("copy", "loop.yaml", "y", "--flat") == 2
    assert "include each other" in capsys.readouterr().err
    assert not list(kitchen.folder.glob("[xy].yaml"))


def test_nothing_is_overwritten_and_then_nothing_is_written(kitchen, capsys):
    kept = kitchen.write("conf/model/dit_xl.yaml", "# mine\n")
    kitchen.write("other/model/dit_xl.yaml", "_target_: a.B\n")
    assert kitchen.main("copy", "diffusion/dit_xl", "x.yaml", "--with-ingredients", "--conf", "other") == 2
    assert "conf/model/dit_xl.yaml is there already" in capsys.readouterr().err
    assert kept.read_text() == "# mine\n" and not (kitchen.folder / "x.yaml").exists()


def test_a_second_copy_is_refused_and_the_first_stays(kitchen, capsys):
    kitchen.main("copy", "quickstart")
    mine = kitchen.folder / "recipes/quickstart.yaml"
    mine.write_text("# changed\n_target_: nemo_vfm.synth.make_shapes.MakeVideos\n")
    assert kitchen.main("copy", "quickstart") == 2
    assert "choose another place" in capsys.readouterr().err and "# changed" in mine.read_text()


def test_ingredients_that_are_the_users_already_are_left_where_they_are(kitchen, capsys):
    kitchen.write("conf/model/dit_xl.yaml", (ROOT / "conf/model/dit_xl.yaml").read_text())
    assert kitchen.main("copy", "diffusion/dit_xl", "x.yaml", "--with-ingredients") == 0
    assert "conf/model/" not in capsys.readouterr().out


def test_a_change_to_a_copied_ingredient_takes_effect(kitchen):
    kitchen.main("copy", "diffusion/dit_xl", "--with-ingredients")
    adamw = kitchen.folder / "conf/optimizer/adamw.yaml"
    adamw.write_text(adamw.read_text().replace("1e-4", "3e-4"))
    assert "lr: 0.0003" in compose("diffusion/dit_xl").to_yaml()


def test_an_include_that_lies_beside_the_original_is_found_from_the_copy(kitchen):
    kitchen.write("theirs/part.yaml", WIDE + "count: 5\n")
    kitchen.write("theirs/whole.yaml", "defaults: [{steps.a: recipe:part.yaml}]\n_target_: @.Wide\n")
    before = composition("theirs/whole.yaml")
    assert kitchen.main("copy", "theirs/whole.yaml", "elsewhere/deep/whole.yaml") == 0
    assert composition("elsewhere/deep/whole.yaml") == before and "count: 5" in before
    assert "recipe:../../theirs/part.yaml" in (kitchen.folder / "elsewhere/deep/whole.yaml").read_text()


def test_an_unknown_recipe_is_a_sentence(kitchen, capsys):
    assert kitchen.main("copy", "quickstrat") == 2
    assert "did you mean quickstart" in capsys.readouterr().err


def test_flat_and_with_ingredients_exclude_each_other(kitchen, capsys):
    assert kitchen.main("copy", "quickstart", "--flat", "--with-ingredients") == 2
    assert "leave out" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_leaves_nothing_behind(kitchen, capsys):
    kitchen.write("conf", "a file where a folder should be\n")
    assert kitchen.main("copy", "diffusion/dit_xl", "x.yaml", "--with-ingredients") == 2
    assert "nothing was copied" in capsys.readouterr().err and not (kitchen.folder / "x.yaml").exists()


@pytest.fixture
def project(kitchen, monkeypatch):
    """A new project, and the working directory in it."""
    assert kitchen.main("copy", "project", "my-project") == 0
    folder = kitchen.folder / "my-project"
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "my_project"]:
        del sys.modules[name]


@pytest.mark.slow  # runs pytest on a project
def test_a_projects_own_tests_pass(project):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(words, cwd=project, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_a_projects_recipe_needs_trust_and_runs_with_it(project, kitchen, capsys):
    from nemo_vfm.cli.main import main

    assert main(["check", "recipes/first.yaml"]) == 2
    assert "add --trust my_project" in capsys.readouterr().out
    assert main(["check", "recipes/first.yaml", "--trust", "my_project"]) == 0
    assert main(["run", "recipes/first.yaml", "--trust", "my_project"]) == 0
    assert len(list((project / "runs/first/sample/samples").glob("*.mp4"))) == 2
    table = compose("recipes/first.yaml").to_yaml()
    assert "my_project.ralston.Ralston" in table and "my_project.letterbox.Letterbox" in table


def test_no_placeholder_is_left_in_a_project(project):
    files = [path for path in project.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert len(files) == 9
    assert not [path for path in files if "@package@" in path.read_text() or path.suffix == ".tmpl"]


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("2fast", "cannot be the name of a package"),
        ("class", "cannot be the name of a package"),
        ("été", "cannot be the name of a package"),
        ("json", "Python's own module json"),
        ("torch", "the installed package torch"),
        ("nemo_vfm", "the installed package nemo_vfm"),
        ("tests", "the project's own folder tests"),
    ],
)
def test_a_name_that_cannot_be_a_package_is_refused(kitchen, capsys, folder, words):
    assert kitchen.main("copy", "project", folder) == 2
    assert words in capsys.readouterr().err and not list(kitchen.folder.iterdir())


def test_a_folder_with_something_in_it_is_refused(kitchen, capsys):
    kitchen.write("mine/notes.txt", "x")
    assert kitchen.main("copy", "project", "mine") == 2
    assert "mine is not empty" in capsys.readouterr().err
    assert [path.name for path in (kitchen.folder / "mine").iterdir()] == ["notes.txt"]


def test_a_project_without_a_folder_is_a_sentence(kitchen, capsys):
    assert kitchen.main("copy", "project") == 2
    assert "needs a folder" in capsys.readouterr().err


@pytest.mark.slow  # starts a process without the package installed
def test_a_projects_recipe_needs_no_installation(project):
    program = "import sys; from nemo_vfm.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-P", "-c", program, "check", "recipes/first.yaml", "--trust", "my_project"]
    done = subprocess.run(words, cwd=project, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_ingredient_that_becomes_a_fifo_is_not_waited_for(kitchen, monkeypatch, capsys):
    kitchen.write("conf/split/mine.yaml", "_target_: nemo_vfm.curate.split.content.ContentSplit\n")
    kitchen.write("recipes/mine.yaml", "# Mine.\ndefaults: [{split: mine}]\n")
    from nemo_vfm.cli import copy_recipe

    def becomes_a_fifo(file: object, roots: object) -> list[copy_recipe.IngredientUse]:
        os.mkfifo("pipe")
        return [copy_recipe.IngredientUse("split", "other", kitchen.folder / "pipe")]

    monkeypatch.setattr(copy_recipe, "ingredients", becomes_a_fifo)
    assert kitchen.main("copy", "mine", "yours.yaml", "--with-ingredients") != 0
    assert "not a regular file" in capsys.readouterr().err


def test_a_flat_copy_has_what_the_users_own_ingredients_say(kitchen):
    kitchen.write("mine/stage/scale.yaml", "_target_: '@.Scale'\nby: 7\n")
    kitchen.write("conf/stage/scale.yaml", "_target_: '@.Scale'\nby: 5\n")
    kitchen.write("r.yaml", f"defaults: [{{stage: scale}}]\n{WIDE}")
    for name, options, by in (("one", [], 5), ("two", ["--conf", "mine"], 7)):
        assert kitchen.main("copy", "r.yaml", f"{name}.yaml", "--flat", *options) == 0
        assert compose(f"{name}.yaml").root.items["stage"].items["by"].value == by
    assert kitchen.main("copy", "r.yaml", "three.yaml", "--with-ingredients", "--conf", "mine") == 2, "it is there"
    (kitchen.folder / "conf/stage/scale.yaml").unlink()
    assert kitchen.main("copy", "r.yaml", "three.yaml", "--with-ingredients", "--conf", "mine") == 0
    assert compose("three.yaml").root.items["stage"].items["by"].value == 7
