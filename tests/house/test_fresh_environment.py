"""Tests what a user has after `make setup`, and in an image of the Dockerfile: in environments of their own.

The first is the fixture `fresh`. The second has links to the packages of its extras, which `make setup-dev` installed.
"""

import json
import re
import shlex
import shutil
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from tests.house.test_commands import instructions
from tests.house.test_packages import setup_lists
from tests.support import preloaded
from tests.support.fresh_environment import Environment, blocks, link_packages, reuse_compiled, shorter
from tests.support.repository import ROOT

IMPORT_ALL = """
import importlib, json, pkgutil, warnings, launcher, nemo_vfm
warnings.simplefilter("ignore")
told = {}
for package in (nemo_vfm, launcher):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__") and ".template" not in module.name:
            try:
                importlib.import_module(module.name)
                told[module.name] = ""
            except Exception as error:
                told[module.name] = f"{type(error).__name__}: {error}"
print(json.dumps(told))
"""
MISSING = """
from nemo_vfm.config import Roots, compose, trust_list
from nemo_vfm.core.network.permission import NOTHING
from nemo_vfm.runtime.checks.missing_packages import missing_packages
names = [name for name, _ in Roots.standard().all_recipes()]
print(len(names), [one for name in names for one in missing_packages(compose(name), trust_list(["nemo"]), NOTHING)])
"""


@pytest.fixture(scope="module")
def image(fresh, tmp_path_factory) -> Environment:
    """What the Dockerfile's RUN lines make of a base that holds torch, and here what `make setup` installs, too."""
    root = tmp_path_factory.mktemp("image")
    venv.create(root / "venv")
    (base,) = fresh.bin.parent.glob("lib/python*/site-packages")
    (own,) = (root / "venv").glob("lib/python*/site-packages")
    (own / "base.pth").write_text(f"{base}\n")
    link_packages(["pip"], own)
    made, settings = Environment(root, root / "venv" / "bin"), dict[str, str]()
    for word, rest in instructions():
        rest = rest.replace("/workspace", f"{root}/workspace").replace("/opt/", f"{root}/opt/")
        if word in ("ARG", "ENV"):
            settings |= dict(pair.split("=", 1) for pair in shlex.split(rest) if "=" in pair)
            if rest.startswith("EXTRAS="):  # pip finds them there, and still asks whether all of them fit together
                link_packages(
                    [one for name in settings["EXTRAS"].split(",") for one in setup_lists()["EXTRAS"][name]], own
                )
        elif word == "WORKDIR":
            made = Environment(Path(rest), made.bin)
            made.folder.mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            _copy(*rest.split(), to=made.folder)
        elif word == "RUN" and "apt-get" in rest:
            print(f"not tried, since it is for the image's distribution: {rest}")  # noqa: T201
        elif word == "RUN":  # what builds is installed: `make` has just had pip fetch the same
            told = made.run(rest.replace("pip install -c", "pip install --no-build-isolation -c"), **settings)
            reuse_compiled(own)
    return replace(made, shell=preloaded.Shell(made.bin / "python", made.folder), told=told)


def _copy(*names: str, to: Path) -> None:
    *sources, target = names
    for name in sources:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / target)  # with what is compiled: pip leaves that out of the package
        else:
            shutil.copy(ROOT / name, to / target)


BASH = [shorter(text) for page in ("README.md", "docs/how-to/python.md") for text in blocks(page, "bash")]
BARE = [text for text in BASH if not text.startswith("pip install")]
WITH_EXTRAS = [text for text in BASH if text.startswith("pip install")]


def test_every_module_imports_or_says_which_extra_to_install(fresh):
    told = json.loads(fresh.run(f"copied-python -c {shlex.quote(IMPORT_ALL)}").splitlines()[-1])
    assert len(told) > 700
    sentence = re.compile(r"MissingPackage: .* Install it: pip install .*'(nemo_vfm\[\w+\]|triton)'")
    wrong = {name: text for name, text in told.items() if text and not sentence.match(text)}
    assert not wrong and len([text for text in told.values() if text]) < 60


@pytest.mark.parametrize("block", BARE, ids=lambda text: text.splitlines()[0])
def test_a_block_of_commands_runs_after_make_setup(fresh, block):
    fresh.run(block)


@pytest.mark.parametrize("block", WITH_EXTRAS, ids=lambda text: text.splitlines()[0])
def test_check_names_the_extras_that_a_block_installs_first(fresh, block):
    install, *commands = block.splitlines()
    recipes = [line.replace("nemo-vfm run", "nemo-vfm check") for line in commands if line.startswith("nemo-vfm run")]
    assert recipes
    told = "".join(fresh.run(line) for line in recipes)
    assert install in told and set(re.findall(r"nemo_vfm\[.*?\]", told)) == set(re.findall(r"nemo_vfm\[.*?\]", install))


def test_the_blocks_of_the_page_about_python_run_one_after_another(fresh):
    script = fresh.folder / "page.py"
    script.write_text(shorter("\n".join(blocks("docs/how-to/python.md", "python"))))
    fresh.run("copied-python -m page")


def test_an_image_has_what_every_recipe_needs_and_its_doctor_finds_nothing_missing_that_is_required(image):
    last = [rest for word, rest in instructions() if word == "RUN"][-1]
    assert last == "nemo-vfm doctor" and "Everything required works." in image.told
    count, _, missing = image.run(f"copied-python -c {shlex.quote(MISSING)}").splitlines()[-1].partition(" ")
    assert int(count) > 50 and missing == "[]"
    assert str(image.bin.parent) in image.run("python -c 'import nemo_vfm; print(nemo_vfm.__file__)'")


@pytest.mark.parametrize("block", WITH_EXTRAS, ids=lambda text: text.splitlines()[0])
def test_a_block_that_needs_an_extra_runs_in_an_image(image, fresh, block):
    shutil.copytree(fresh.folder / "DIR", image.folder / "DIR", dirs_exist_ok=True)
    image.run("\n".join(block.splitlines()[1:]))
