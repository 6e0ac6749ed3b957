"""Tests what a job installs into an image without nemo_vfm, by a real pip, and that no work begins where it fails."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pip
import pytest

from launcher.cli import main
from launcher.render import setup_program
from launcher.render.containers import environment_folder
from launcher.request.cluster import Apptainer, Pyxis, Slurm
from launcher.state.snapshot import requirements
from tests.support.slurm_jobs import run, small_job

PROGRAM = Path(setup_program.__file__).read_text()


def wheel(folder: Path, name: str, version: str, *needs: str) -> Path:
    """A package of one module that knows its version."""
    file = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    meta = "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr(f"{name}.py", f"VERSION = '{version}'\n")
        packed.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{meta}")
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", "")
    return file


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A Python with pip and a torch of its own; the wheels beside it have a newer torch, and what it lacks."""
    (tmp_path / "wheels").mkdir()
    own = wheel(tmp_path, "torch", "2.12.0a0+nv26.6")
    for name, version, *needs in (("torch", "2.13.0"), ("lacking", "1.0", "torch>=2"), ("lacking", "2.0", "torch>=2"),
                                  ("old", "2.0"), ("jealous", "1.0", "torch==2.13.0")):  # fmt: skip
        wheel(tmp_path / "wheels", name, version, *needs)
    venv.create(tmp_path / "image")
    (inside,) = (tmp_path / "image").glob("lib/python*/site-packages")
    for one in (own, wheel(tmp_path, "old", "1.0")):
        zipfile.ZipFile(one).extractall(inside)
    for one in Path(pip.__file__).parents[1].glob("pip*"):
        (inside / one.name).symlink_to(one)
    return tmp_path / "image/bin/python"


def setup(image: Path, target: Path, *wanted: str, job: str = "7") -> "subprocess.Popen[str]":
    """The program as a job begins it, without a network."""
    packages = target.with_name("packages.txt")
    packages.write_text("lacking==1.0\nold==2.0\nodd==1ubuntu2\n")
    wheels = target.parent / "wheels"
    surroundings = {"PATH": os.environ["PATH"], "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "SLURM_JOB_ID": job}
    return subprocess.Popen([image, "-s", "-P", "-c", PROGRAM, target, packages, *wanted], env=surroundings, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip


def versions(python: Path, *names: str) -> list[str]:
    """Of modules, as this Python imports them."""
    code = f"import {', '.join(names)}; print({', '.join(f'{name}.VERSION' for name in names)})"
    return subprocess.run([python, "-P", "-c", code], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.slow  # environments are made
def test_the_image_and_its_torch_stay_and_what_it_lacks_comes_in_the_version_of_the_submission(image, tmp_path):
    target, before = tmp_path / "environment", sorted((tmp_path / "image").rglob("*.py"))
    both = [setup(image, target, "lacking", "old", "torch<2.14,>=2.11", job=job) for job in ("7", "8")]
    said = [one.communicate()[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert versions(target / "bin/python", "torch", "lacking", "old") == ["2.12.0a0+nv26.6", "1.0", "1.0"]
    assert sorted((tmp_path / "image").rglob("*.py")) == before
    assert [one.name for one in tmp_path.glob("environment*")] == ["environment"]  # one of the two, whole
    again = setup(image, target, "jealous")
    assert again.communicate()[0] == "" and again.returncode == 0  # it is there already

    refused = setup(image, tmp_path / "another", "jealous")
    text = refused.communicate()[0]
    assert refused.returncode == 1 and "depends on torch==2.13.0" in text and "PIP_FIND_LINKS" in text
    assert not (tmp_path / "another").exists()


@pytest.mark.parametrize("container", [Pyxis(image="i", setup="pip"), Apptainer(image="i", setup="pip")])
def test_the_setup_runs_once_in_the_container_and_the_work_begins_only_behind_it(tmp_path, container):
    wanted = ("av<19,>=14", "decord; platform_machine == 'x86_64'")
    python = environment_folder(small_job(tmp_path).folder, "i", wanted) / "bin/python"
    job = small_job(tmp_path, Slurm(container=container), nodes=2, command=(str(python), "-m", "nemo_vfm"),
                    setup=wanted)  # fmt: skip
    first, work = run(job, tmp_path / "fakes").steps
    assert "--nodes=1" in first and "--ntasks=1" in first
    assert first[-6:] == ["-c", PROGRAM.rstrip("\n"), str(python.parents[1]), str(job.folder / "packages.txt"), *wanted]
    assert str(python) in work and ("--container-image=i" in first) == isinstance(container, Pyxis)
    failed = run(job, tmp_path / "failing", FAKE_STATUS="1")
    assert len(failed.steps) == 1 and failed.status == 2
    python.parents[1].mkdir(parents=True)
    (again,) = run(job, tmp_path / "later").steps  # a restart does not unpack the image to find its environment
    assert str(python) in again


def test_an_image_without_torch_is_refused_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(setup_program, "distributions", lambda: [])
    with pytest.raises(SystemExit, match="needs an image with torch"):
        setup_program.main(tmp_path / "environment", tmp_path / "packages.txt", ["av"])


def test_a_job_asks_for_what_nemo_vfm_needs_and_for_nemo_vfm_where_its_code_does_not_go_along(
    tmp_path, monkeypatch, capsys, asked_here
):
    assert any(one.startswith("torch<") for one in requirements(with_package=False))
    assert not any(one.startswith(("pytest", "mypy")) for one in requirements(with_package=False))
    monkeypatch.chdir(tmp_path)
    words = ["submit", "synthetic/shapes", "cluster=cpu_slurm", "cluster.cpus_per_node=4", "cluster.container=pyxis",
             "cluster.container.image=i", "cluster.container.setup=pip", "--dry-run", "--print-script"]  # fmt: skip
    assert main(words) == 0
    said = capsys.readouterr()
    text = said.out
    assert "pip installs what i lacks, once" in said.err
    folder = environment_folder(tmp_path / "runs/shapes/launch", "i", requirements(with_package=True))
    assert f"{folder}/bin/python -P -m nemo_vfm run" in text and "nemo_vfm==" in text
    assert sys.executable not in text
