"""Tests that files of conf/cluster and conf/container give components, and that wrong ones are refused."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from launcher.request.cluster import OURS, Apptainer, Local, Pyxis, Slurm
from nemo_vfm.config import RecipeError, ingredient, trust_list
from nemo_vfm.perf.gpu_specs import gpu_named
from tests.support.repository import ROOT
from tests.support.slurm_jobs import cluster_named, cluster_names


def test_there_is_a_cluster_for_each_machine_that_people_have():
    known = {"cpu_slurm", "dgx_a100", "dgx_b200", "dgx_gb200", "dgx_h100", "dgx_h200", "local"}
    assert set(cluster_names()) == known


@pytest.mark.parametrize("name", cluster_names())
def test_a_cluster_is_what_its_file_says(name):
    found = cluster_named(name)
    if isinstance(found, Local):
        return
    gpus = int(match[1]) if (match := re.search(r"^gpus_per_node: (\d+)", _text(name), re.MULTILINE)) else None
    assert found.gpus_per_node == gpus
    assert found.gpu is None or gpu_named(found.gpu).name == found.gpu, "the name that plan --gpu takes"
    assert (found.gpu is None) == (found.gpus_per_node == 0)


def _text(name: str) -> str:
    return (ROOT / f"conf/cluster/{name}.yaml").read_text()


def test_a_rack_of_nvl72_is_eighteen_nodes():
    rack = cluster_named("dgx_gb200")
    assert isinstance(rack, Slurm) and rack.segment is not None and rack.segment * (rack.gpus_per_node or 0) == 72


@pytest.mark.parametrize("name", ["pyxis", "apptainer"])
def test_a_container_asks_for_its_image(name):
    with pytest.raises(RecipeError, match="you must set this"):
        ingredient("container", name, Pyxis if name == "pyxis" else Apptainer, trust=(*trust_list(), "launcher."))


def test_a_recipe_cannot_name_a_cluster():
    with pytest.raises(RecipeError, match="not trusted"):
        ingredient("cluster", "dgx_h100", Slurm)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"time": "4h"}, "4:00:00"), ({"time": "1\n#SBATCH --uid=0"}, "times"), ({"segment": 0}, "segment is 0"),
        ({"gpus_per_node": -1}, "gpus_per_node"), ({"memory_gb": 0}, "memory_gb is 0"),
        ({"options": {"signal": "KILL@5"}}, "signal is set by the script"), ({"options": {"a b": None}}, "option"),
        ({"step_options": {"--x": None}}, "option"), ({"environment": {"A-B": "1"}}, "a variable name"),
        ({"environment": {"SLURM_NNODES": "1"}}, "SLURM_NNODES"), ({"environment": {"BASH_ENV": "x"}}, "BASH_ENV"),
        ({"environment": {"WANDB_API_KEY": "0123456789"}}, "cluster.secrets"),
        ({"environment": {"A": "1"}, "secrets": {"A": Path("/a")}}, "in both environment and secrets"),
        ({"cpu_nodes": 2}, "needs cpus_per_cpu_node"), ({"environment": {"UID": "0"}}, "UID"),
        ({"interface": "ib0; rm"}, "ib0,ib1"), ({"cpu_bind": "a b"}, "cores"), ({"ib_timeout": 32}, "from 1 to 31"),
        ({"rank_timeout_s": 0}, "at least 1 second"), ({"secrets": {"A B": Path("/a")}}, "a variable name"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_a_sentence(wrong, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        Slurm(**wrong)


@pytest.mark.parametrize("kind", [Pyxis, Apptainer])
@pytest.mark.parametrize("wrong", [
    {"image": "--help"}, {"image": ""}, {"image": "/x", "mounts": {"/a": "/b:/etc"}},
    *({"image": "/x", "mounts": {f"/a{odd}b": "/b"}} for odd in ("$HOME", "`id`", "\\", '"', "\n")),
])  # fmt: skip
def test_a_container_that_would_be_read_as_something_else_is_refused(kind, wrong):
    with pytest.raises(ValueError, match=r"image is|cannot be mounted"):
        kind(**wrong)


@pytest.mark.parametrize(
    ("kind", "image", "sentence"),
    [
        (Pyxis, "images/nemo_vfm.sqsh", "whole path"), (Pyxis, "~/x.SQSH", "whole path"), (Pyxis, "x.sif", "whole"),
        (Pyxis, "oras://registry.example.com/team/image:1", "enroot cannot read"),
        (Apptainer, "registry.example.com#team/image:1", "docker://registry.example.com/team/image:1"),
    ],
)  # fmt: skip
def test_an_image_that_would_be_looked_for_elsewhere_is_refused_with_what_to_write(kind, image, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        kind(image=image)
    assert kind(image="./x.sqsh").image == "./x.sqsh"


def test_what_a_cluster_has_arguments_for_is_no_free_option():
    named = {field.name.replace("_", "-") for field in fields(Slurm)}
    assert {"exclusive", "exclude", "time", "segment"} <= named & OURS


def test_whole_numbers_and_booleans_of_the_environment_are_texts_and_others_are_to_be_quoted():
    made = Slurm(environment={"A": 1, "B": True, "C": "12.10", "D": None})
    assert made.variables == {"A": "1", "B": "true", "C": "12.10", "D": None}
    with pytest.raises(ValueError, match=r"A is the number 12\.1,.*quote it as text.*cluster\.environment\.A='12\.1'"):
        Slurm(environment={"A": 12.10})
