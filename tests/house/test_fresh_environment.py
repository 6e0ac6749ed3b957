# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests what a user has after `make setup`, and in an image of the Dockerfile: in environments of their own.

The first holds links to the packages that `make setup` has installed here, and to nothing of what came with `dev`; a
second installation of torch would take two minutes. The second is installed from the index that pip is configured for.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.house.test_commands import instructions
from tests.house.test_packages import setup_lists
from tests.support.films import pan, write_film
from tests.support.repository import ROOT

COPIED = ("nemo_vfm", "launcher", "conf", "recipes")
FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "Makefile", "constraints.txt")
NETWORK = "<!-- needs a network -->"  # a line before a block
BLOCK = re.compile(r"(?:^(<!--.*-->)\n+)?^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: What a command of a block gets besides, so that it takes seconds.
SHORTER = (
    (re.compile(r"^(make demo.*)$"), r"\1 RECIPE='recipes/quickstart.yaml --overlay smoke'"),
    (re.compile(r"^(nemo-vfm run (?!.*--overlay).*)$"), r"\1 --overlay smoke"),
    (re.compile(r"\bruns/(clips|encode)/"), r"runs/\1-smoke/"),  # where a run with that overlay lies
    (re.compile(r"^(nemo-vfm parity .*)$"), r"\1 --ranks 1 --quick"),
    (re.compile(r"duration=\d+ steps"), "duration=2 steps"),
    (re.compile(r'compose\(("\w+", \[.*?\])\)'), r'compose(\1, overlay=["smoke"])'),
)
IMPORT_ALL = """
import importlib, json, pkgutil, launcher, nemo_vfm
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


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment, and the folder in which commands run."""

    folder: Path
    bin: Path

    def run(self, text: str, **more: str) -> str:
        """All that some lines of bash print; each must succeed."""
        left_out = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        env = {name: value for name, value in os.environ.items() if name not in left_out}
        env |= {"PATH": f"{self.bin}:{env['PATH']}", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        env |= {"PIP_COMPILE": "0", **more}  # half of an installation's time goes into modules that nobody imports
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=self.folder, env=env, capture_output=True,
                              text=True, timeout=580)  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def fresh(tmp_path_factory) -> Environment:
    """What `make setup` makes of a new checkout, its packages linked, with a folder of small videos in it."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    (folder / "DIR").mkdir()
    for number in range(4):
        write_film(folder / "DIR" / f"{number}.mp4", pan(number, 48))
    venv.create(folder / ".venv", with_pip=True)
    (site,) = (folder / ".venv").glob("lib/python*/site-packages")
    shutil.rmtree(site / "setuptools", ignore_errors=True)  # that of the venv, which a newer one replaces
    for top in _of_setup():
        if not (site / top.name).exists():
            (site / top.name).symlink_to(top)
    made = Environment(folder, folder / ".venv" / "bin")
    made.run("grep -v '^torch==' constraints.txt > .venv/constraints.txt")
    made.run("pip install -q --no-deps --no-build-isolation -e . && make -t setup")
    return made


def _of_setup() -> Iterator[Path]:
    """What lies in site-packages of the packages that ours needs without any extra, and of those that they need."""
    waiting, seen = list(map(Requirement, setup_lists()["RUNTIME"])), set[str]()
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        found = distribution(wanted.name)
        for one in map(Requirement, found.requires or ()):
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in (*wanted.extras, "")):
                waiting.append(one)
        names = {Path(file).parts[0] for file in found.files or ()} - {"..", "__pycache__"}
        yield from (Path(str(found.locate_file(name))) for name in sorted(names))


@pytest.fixture(scope="module")
def image(fresh, tmp_path_factory) -> Environment:
    """What the Dockerfile's RUN lines make of a base that holds torch, and here what `make setup` installs, too."""
    root = tmp_path_factory.mktemp("image")
    venv.create(root / "venv", with_pip=True)
    (base,) = fresh.bin.parent.glob("lib/python*/site-packages")
    (own,) = (root / "venv").glob("lib/python*/site-packages")
    (own / "base.pth").write_text(f"{base}\n")
    made, settings = Environment(root, root / "venv" / "bin"), dict[str, str]()
    for word, rest in instructions():
        rest = rest.replace("/workspace", f"{root}/workspace").replace("/opt/", f"{root}/opt/")
        if word in ("ARG", "ENV"):
            settings |= dict(pair.split("=", 1) for pair in shlex.split(rest) if "=" in pair)
        elif word == "WORKDIR":
            made = Environment(Path(rest), made.bin)
            made.folder.mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            _copy(*rest.split(), to=made.folder)
        elif word == "RUN" and "apt-get" in rest:
            print(f"not tried, since it is for the image's distribution: {rest}")  # noqa: T201
        elif word == "RUN":
            made.run(rest, **settings)
    return made


def _copy(*names: str, to: Path) -> None:
    *sources, target = names
    for name in sources:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, to / target)


def blocks(page: str, language: str) -> Iterator[str]:
    """The blocks of a page that need no network."""
    for mark, kind, text in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        if kind == language and mark != NETWORK:
            yield text


def shorter(text: str) -> str:
    """A block as it is, but for comments, and made small."""
    lines = [re.sub(r"\s+#.*", "", line) for line in text.splitlines()]
    for pattern, instead in SHORTER:
        lines = [pattern.sub(instead, line) for line in lines]
    return "\n".join(lines)


BASH = [shorter(text) for page in ("README.md", "docs/how-to/python.md") for text in blocks(page, "bash")]
BARE = [text for text in BASH if not text.startswith("pip install")]
WITH_EXTRAS = [text for text in BASH if text.startswith("pip install")]


def test_every_module_imports_or_says_which_extra_to_install(fresh):
    told = json.loads(fresh.run(f"python -W ignore -c {shlex.quote(IMPORT_ALL)}").splitlines()[-1])
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
    fresh.run("python page.py")


def test_an_image_has_what_every_recipe_needs_and_its_doctor_finds_nothing_missing_that_is_required(image):
    last = [rest for word, rest in instructions() if word == "RUN"][-1]
    assert last == "nemo-vfm doctor" and "Everything required works." in image.run(last)
    count, _, missing = image.run(f"python -W ignore -c {shlex.quote(MISSING)}").splitlines()[-1].partition(" ")
    assert int(count) > 50 and missing == "[]"
    assert str(image.bin.parent) in image.run("python -c 'import nemo_vfm; print(nemo_vfm.__file__)'")


@pytest.mark.parametrize("block", WITH_EXTRAS, ids=lambda text: text.splitlines()[0])
def test_a_block_that_needs_an_extra_runs_in_an_image(image, block):
    image.run("\n".join(block.splitlines()[1:]))
