"""Tests how much of a cluster each step takes, or why it does not fit."""

import re
from dataclasses import replace

import pytest

from launcher.plan import recipe_info
from launcher.plan.chain import chain
from launcher.plan.recipe_info import PhaseInfo, RecipeInfo, Step
from launcher.request.cluster import Slurm
from nemo_vfm.nemo.experiment import NeMoExperiment
from nemo_vfm.runtime import recipe_work

DGX = Slurm(gpu="h100", gpus_per_node=8, cpus_per_node=112)
SHARED = replace(DGX, exclusive=False)
CPU = Slurm(gpus_per_node=0, cpus_per_node=16)


def step(ranks: int, *, name: str = "", on_gpu: bool = True, phases: tuple[int, ...] = (), rounds: int = 0) -> Step:
    named = tuple(PhaseInfo(name=f"p{n}", ranks=one, degrees={}) for n, one in enumerate(phases))
    return Step(name=name, kind="", ranks=ranks, on_gpu=on_gpu, phases=named, degrees={}, rounds=rounds)


def work(*steps: Step) -> RecipeInfo:
    return RecipeInfo(name="r", header="", steps=steps)


@pytest.mark.parametrize(
    ("ranks", "cluster", "nodes", "expected"),
    [(64, DGX, None, (8, 8, 8, 14)), (64, DGX, 8, (8, 8, 8, 14)), (8, DGX, 1, (1, 8, 8, 14)),
     (4, DGX, None, (1, 4, 4, 28)), (1, DGX, 1, (1, 1, 1, 112)), (1, SHARED, 1, (1, 1, 1, 14)),
     (4, CPU, 2, (2, 2, 0, 8)), (4, CPU, None, (1, 4, 0, 4)), (1, CPU, 1, (1, 1, 0, 16))],
)  # fmt: skip
def test_nodes_tasks_gpus_and_cores_follow_from_the_layout(ranks, cluster, nodes, expected):
    (share,) = chain(work(step(ranks)), cluster, nodes)
    assert share.problem == "" and share.name == "job"
    assert (share.nodes, share.tasks_per_node, share.gpus_per_node, share.cpus_per_task) == expected


@pytest.mark.parametrize(
    ("ranks", "cluster", "nodes", "said"),
    [(64, DGX, 3, "nodes=3 gives 24 GPUs, 8 a node, .* multiply to 64; use nodes=8"),
     (4, DGX, 2, "use nodes=1"), (12, DGX, None, "do not fill whole nodes of 8; .* product is 8 or 16"),
     (4, CPU, 3, "use nodes=1, nodes=2, nodes=4"), (1, CPU, 2, "one process cannot be spread")],
)  # fmt: skip
def test_a_size_that_does_not_fit_says_which_would(ranks, cluster, nodes, said):
    (share,) = chain(work(step(ranks)), cluster, nodes)
    assert re.search(said, share.problem), share.problem


def test_a_step_with_ray_has_one_process_on_each_of_the_nodes_and_all_that_they_have():
    curate = replace(step(1, name="curate"), ray=True)
    for shares in (chain(work(curate), DGX, 3), chain(work(curate, step(16, name="train")), DGX, 2)):
        assert (shares[0].tasks_per_node, shares[0].gpus_per_node, shares[0].cpus_per_task) == (1, 8, 112)
        assert shares[0].nodes == (3 if len(shares) == 1 else 2) and shares[0].problem == "" and shares[0].ray


def test_a_step_for_cpus_asks_for_no_gpu_and_nodes_are_those_of_the_widest_step():
    films, train = chain(work(step(1, name="films", on_gpu=False), step(16, name="train")), DGX, 2)
    assert (films.nodes, films.gpus_per_node, films.cpus_per_task) == (1, 0, 112)
    assert (train.nodes, train.gpus_per_node) == (2, 8) and not films.problem + train.problem


def test_a_training_has_a_job_for_each_number_of_devices_and_neighbours_on_as_many_are_one():
    shares = chain(work(step(32, phases=(8, 8, 16, 32, 32))), DGX, 4)
    assert [(one.name, one.nodes, one.problem) for one in shares] == [("p0", 1, ""), ("p2", 2, ""), ("p3", 4, "")]
    (alone,) = chain(work(step(8, phases=(8, 8))), DGX, None)
    assert alone.name == "job"


def test_work_that_can_be_shared_out_has_an_array_a_round_before_the_whole():
    shares = chain(work(step(1, name="curate", on_gpu=False, rounds=2), step(1, name="train")), CPU, None, 8)
    assert [(one.name, one.array) for one in shares] == [
        ("curate-parts-0", 8), ("curate-parts-1", 8), ("curate", 0), ("train", 0)
    ]  # fmt: skip
    assert shares[1].task_words()[3] == ("--part", "3/8@1") and shares[2].task_words() == ()


@pytest.mark.parametrize(("cluster", "nodes", "expected"), [(DGX, 4, (4, 8)), (DGX, None, (1, 8)), (CPU, 2, (2, 1))])
def test_an_experiment_of_nemo_takes_as_many_whole_nodes_as_are_asked_for(cluster, nodes, expected):
    told = recipe_work._step("", NeMoExperiment(config=None, model=None), [], [""])
    (share,) = chain(work(recipe_info._step(told)), cluster, nodes)
    assert share.problem == "" and (share.nodes, share.tasks_per_node) == expected


@pytest.mark.parametrize(("cluster", "nodes", "expected"), [(DGX, None, (2, 8)), (DGX, 2, (2, 8)), (CPU, None, (1, 1))])
def test_a_job_that_takes_all_gpus_of_its_nodes_has_a_process_on_each(cluster, nodes, expected):
    (share,) = chain(work(replace(step(1), whole_nodes=2)), cluster, nodes)
    assert share.problem == "" and (share.nodes, share.tasks_per_node) == expected


@pytest.mark.parametrize(
    ("ranks", "gpus", "expected"), [(64, 64, (8, 8)), (8, 8, (1, 8)), (4, 4, (1, 4)), (1, 1, (1, 1))]
)
def test_a_number_of_gpus_is_that_of_the_layout_on_as_many_nodes_as_have_them(ranks, gpus, expected):
    films, train = chain(work(step(1, name="films", on_gpu=False), step(ranks, name="train")), DGX, None, gpus=gpus)
    assert (films.nodes, films.gpus_per_node, train.nodes, train.gpus_per_node) == (1, 0, *expected)
    assert not films.problem + train.problem


@pytest.mark.parametrize(
    ("one", "cluster", "gpus", "said"),
    [(step(8), DGX, 64, "gpus=64, but the recipe's layout is for 8; use gpus=8"), (step(8), DGX, 4, "is for 8"),
     (step(8), DGX, 60, "whole nodes of 8; use gpus=56 or gpus=64"), (step(8), CPU, 8, "this cluster has no GPUs"),
     (step(1, on_gpu=False), DGX, 8, "no part of this recipe computes on a GPU"),
     (replace(step(1), ray=True), DGX, 4, "whole nodes of 8; use gpus=8"),
     (step(12), DGX, 12, "do not fill whole nodes of 8; .* product is 8 or 16")],
)  # fmt: skip
def test_another_number_of_gpus_than_the_layout_is_for_is_refused(one, cluster, gpus, said):
    (share,) = chain(work(one), cluster, None, gpus=gpus)
    assert re.search(said, share.problem), share.problem


@pytest.mark.parametrize("how", ["ray", "any_nodes"])
def test_work_that_says_no_number_of_gpus_takes_whole_nodes_for_those_asked_for(how):
    (share,) = chain(work(replace(step(1), **{how: True})), DGX, None, gpus=24)
    assert (share.problem, share.nodes, share.gpus_per_node) == ("", 3, 8)


def test_only_an_experiment_of_nemo_has_as_many_processes_as_a_node_has_gpus():
    (share,) = chain(work(replace(step(1), engine="torch")), DGX, None)
    assert (share.tasks_per_node, share.gpus_per_node) == (1, 1)
