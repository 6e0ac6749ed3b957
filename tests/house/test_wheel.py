"""Tests that the source distribution, its wheel and an installed copy work outside the repository."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from nemo_vfm.config import compose
from tests.support import foreign
from tests.support.fresh_environment import reuse_compiled
from tests.support.repository import CODE, ROOT, yaml_files

pytestmark = pytest.mark.slow  # it builds and installs

SOURCES = ("nemo_vfm", "launcher", "conf", "recipes", "docs", "tests", "benchmarks", ".ci")
BUILD_SDIST = "from setuptools.build_meta import build_sdist; build_sdist('dist')"
RECIPES = {str(path.relative_to(ROOT / "recipes").with_suffix("")) for path in yaml_files("recipes")}
#: What a user does with an installed copy, all in one process, since each would pay some seconds for importing torch.
OUTSIDE = """
import contextlib, io, json, os, sys
from pathlib import Path

import nemo_vfm
from nemo_vfm.cli.main import main
from nemo_vfm.config import Roots, compose

def told(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        status = main(words)
    return status, out.getvalue()

names = [name for name, _ in Roots.standard().all_recipes()]
some = list({name.partition("/")[0]: name for name in names}.values())
answers = {
    "package": nemo_vfm.__file__,
    "composed": {name: compose(name).to_yaml() for name in names},
    "check": {name: told("check", name) for name in some},
    "copy": {name: told("copy", name, "--with-ingredients") for name in ["curation/clips"]},
    "flat": {name: told("copy", name, f"flat/{name}", "--flat") for name in some},
    "copied": told("check", "recipes/curation/clips.yaml"),
    "project": told("copy", "project", "own_things"),
    "run": told("run", "synthetic/shapes", "--overlay", "smoke"),
}
Path("theirs.yaml").write_text(THEIRS)
answers["migrate"] = told("migrate", "theirs.yaml")
os.chdir("own_things")
sys.path.insert(0, os.getcwd())
answers["trusted"] = told("check", "recipes/first.yaml", "--trust", "own_things")
Path("../told.json").write_text(json.dumps(answers))
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Standard output of a command that must succeed."""
    env = {**os.environ, **environment}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from a source distribution of this tree, so that both are known to work."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy(path, source)
    run(sys.executable, "-c", BUILD_SDIST, cwd=source)
    (archive,) = (source / "dist").glob("*.tar.gz")
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "-w", out, archive, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_puts_two_packages_into_site_packages(names):
    assert {name.split("/")[0] for name in names} == {"nemo_vfm", "launcher", "nemo_vfm-0.1.0.dist-info"}


def test_the_wheel_holds_every_module(names):
    here = {str(path.relative_to(ROOT)) for folder in CODE for path in (ROOT / folder).rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == here


def test_the_wheel_holds_every_data_file_of_the_rooms(names):
    suffixes = {".html", ".css", ".js", ".j2", ".svg", ".tmpl"}
    here = {str(path.relative_to(ROOT)) for path in (ROOT / "nemo_vfm").rglob("*") if path.suffix in suffixes}
    assert here <= set(names)


def test_the_wheel_says_that_both_packages_are_annotated(names):
    assert {"nemo_vfm/py.typed", "launcher/py.typed"} <= set(names)


@pytest.mark.parametrize(("folder", "inside"), [("conf", "nemo_vfm/_conf"), ("recipes", "nemo_vfm/_recipes")])
def test_the_wheel_holds_recipes_and_ingredients_inside_the_package(names, folder, inside):
    here = {f"{inside}/{path.relative_to(ROOT / folder)}" for path in yaml_files(folder)}
    assert here and {name for name in names if name.startswith(f"{inside}/")} == here


def test_the_wheel_carries_its_licence(names):
    assert any(re.fullmatch(r"nemo_vfm-[^/]+\.dist-info/(licenses/)?LICENSE", name) for name in names)


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """A folder in which the wheel is installed, and nothing else."""
    folder = tmp_path_factory.mktemp("installed") / "site"
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile")
    run(*pip, "--target", folder, wheel, cwd=folder.parent)
    reuse_compiled(folder)
    return folder


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A working directory that knows nothing of the checkout."""
    return tmp_path_factory.mktemp("elsewhere")


@pytest.fixture(scope="module")
def outside(site, elsewhere):
    """What the installed copy answers there. Our checkout may be installed here, too: the copy has to come first."""
    code = f"THEIRS = {foreign.AUTOMODEL!r}\n{OUTSIDE}"
    run(sys.executable, "-c", code, cwd=elsewhere, PYTHONPATH=str(site), COLUMNS="200")
    return json.loads((elsewhere / "told.json").read_text())


def test_the_installed_command_lists_its_own_recipes(site, tmp_path):
    script = next((site / "bin").glob("nemo-vfm*"))
    listed = run(sys.executable, script, "list", cwd=tmp_path, PYTHONPATH=str(site), COLUMNS="200")
    assert all(name in listed for name in RECIPES)


def test_what_answers_is_the_installed_copy(outside, site):
    assert Path(outside["package"]).is_relative_to(site)


def test_every_recipe_composes_to_the_same_in_the_checkout_and_from_the_wheel(outside, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert outside["composed"].keys() == RECIPES
    for name, text in outside["composed"].items():
        assert text == compose(ROOT / "recipes" / f"{name}.yaml").to_yaml(), name


def test_a_recipe_of_each_room_checks_from_the_wheel(outside):
    assert {name.partition("/")[0] for name in outside["check"]} == {name.partition("/")[0] for name in RECIPES}
    assert not [answer for answer in outside["check"].values() if answer[0] != 0]
    assert all("ok" in told or "for you to give" in told for _, told in outside["check"].values())


def test_a_recipe_and_its_ingredients_are_copied_from_the_wheel(outside, elsewhere):
    ((name, (status, told)),) = outside["copy"].items()
    assert status == 0 and (elsewhere / "recipes" / f"{name}.yaml").is_file(), told
    assert list((elsewhere / "conf").rglob("*.yaml")) and outside["copied"][0] == 0


def test_a_flat_copy_from_the_wheel_names_no_folder_of_this_machine(outside, site, elsewhere):
    assert not [answer for answer in outside["flat"].values() if answer[0] != 0]
    texts = [path.read_text() for path in (elsewhere / "flat").rglob("*.yaml")]
    assert len(texts) == len(outside["flat"]) > 5 and not [text for text in texts if str(site) in text]


def test_a_project_begins_from_the_wheel(outside, elsewhere):
    assert outside["project"][0] == 0, outside["project"][1]
    assert (elsewhere / "own_things" / "own_things" / "letterbox.py").is_file()
    assert outside["trusted"][0] == 0, outside["trusted"][1]


def test_a_file_of_another_framework_is_migrated_from_the_wheel(outside):
    assert outside["migrate"][0] == 0 and "passes the check" in outside["migrate"][1], outside["migrate"][1]


def test_a_recipe_runs_from_the_wheel(outside, elsewhere):
    status, told = outside["run"]
    assert status == 0, told
    assert list((elsewhere / "runs").rglob("*.mp4")) and list((elsewhere / "runs").rglob("report.html"))
