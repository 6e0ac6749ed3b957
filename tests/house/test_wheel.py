# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A copy of the source tree in, a source distribution, its wheel and an installed copy of it out."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.repository import ROOT, yaml_files

SOURCES = ("nemo_vfm", "conf", "recipes", "docs", "tests", "benchmarks", ".ci")
BUILD_SDIST = "from setuptools.build_meta import build_sdist; build_sdist('dist')"


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
    """File names inside the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_the_wheel_puts_one_package_into_site_packages(names):
    assert {name.split("/")[0] for name in names} == {"nemo_vfm", "nemo_vfm-0.1.0.dist-info"}


def test_the_wheel_holds_every_module(names):
    here = {str(path.relative_to(ROOT)) for path in (ROOT / "nemo_vfm").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == here


def test_the_wheel_holds_every_data_file_of_the_rooms(names):
    suffixes = {".html", ".css", ".js", ".j2", ".svg"}
    here = {str(path.relative_to(ROOT)) for path in (ROOT / "nemo_vfm").rglob("*") if path.suffix in suffixes}
    assert here <= set(names)


@pytest.mark.parametrize(("folder", "inside"), [("conf", "nemo_vfm/_conf"), ("recipes", "nemo_vfm/_recipes")])
def test_the_wheel_holds_recipes_and_ingredients_inside_the_package(names, folder, inside):
    here = {f"{inside}/{path.relative_to(ROOT / folder)}" for path in yaml_files(folder)}
    assert here and {name for name in names if name.startswith(f"{inside}/")} == here


def test_the_wheel_carries_its_licence(names):
    assert any(re.fullmatch(r"nemo_vfm-[^/]+\.dist-info/(licenses/)?LICENSE", name) for name in names)


def test_an_installed_copy_finds_its_own_recipes(wheel, tmp_path):
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile")
    run(*pip, "--target", site, wheel, cwd=elsewhere)
    # Our checkout may be installed in this environment, too: the copy has to come first.
    listed = run(sys.executable, "-m", "nemo_vfm", "list", cwd=elsewhere, PYTHONPATH=str(site), COLUMNS="200")
    assert "quickstart" in listed
    script = next((site / "bin").glob("nemo-vfm*"))
    assert "usage" in run(sys.executable, script, "--help", cwd=elsewhere, PYTHONPATH=str(site)).lower()
