"""Tests which arguments of a command line are the launcher's, and which cluster they name."""

import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.render.script import script
from launcher.request.cluster import Apptainer, Pyxis, Slurm
from launcher.request.cluster_config import cluster_again, cluster_of
from launcher.request.request import add_arguments, parse_request
from nemo_vfm.core.errors import UserError
from tests.support.slurm_jobs import small_job


def words(*given: str):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parse_request(parser.parse_intermixed_args(given))


def test_cluster_and_nodes_are_the_launchers_and_all_else_is_the_recipes():
    found = words("r.yaml", "model=dit_xl", "cluster=dgx_h100", "nodes=2", "a.nodes=3", "cluster.time=1:00:00", "~ema")
    assert found.changes == ("model=dit_xl", "a.nodes=3", "~ema")
    assert (found.cluster, found.nodes, found.cluster_changes) == ("dgx_h100", 2, ("cluster.time=1:00:00",))


def test_a_word_behind_sweep_with_one_value_is_a_change_of_the_recipe_or_says_where():
    found = words("r.yaml", "seed=1", "--sweep", "lr=1,2", "loggers=wandb", "gpus=8", "~ema", "cluster=local")
    assert (found.sweep, found.changes, found.gpus) == (("lr=1,2",), ("seed=1", "loggers=wandb", "~ema"), 8)


def test_what_the_user_allows_reaches_the_job_with_the_buckets_that_were_typed():
    found = words("r.yaml", "cluster=local", "--allow-host", "a.com=KEY", "copy_to=s3://mine/x", "input=s3://mine",
                  "data.shards=[gs://ours/a,/b]", "name=xs3://no", "sink=s3://Bad_/x")  # fmt: skip
    assert found.allow_host == ("a.com=KEY", "s3://mine", "gs://ours")
    options = [f"--allow-host={one}" for one in found.allow_host]
    assert list(found.run_words()) == options and found.recipe_words()[-3:] == options


@pytest.mark.parametrize("name", ["nodes", "gpus"])
@pytest.mark.parametrize("word", ["{}=0", "{}=two", "{}=1.5", "{}=true", "{}.a=1", "{}=[1]", "~{}"])
def test_a_size_that_is_no_number_is_refused(name, word):
    with pytest.raises(UserError, match=f"{name} must be a whole number, one or more"):
        words("r.yaml", "cluster=local", word.format(name))


def test_a_size_is_given_as_nodes_or_as_gpus_and_never_as_both():
    found = words("r.yaml", "cluster=local", "gpus=64", "a.gpus=3")
    assert (found.gpus, found.nodes, found.changes) == (64, None, ("a.gpus=3",))
    with pytest.raises(UserError, match="nodes=8 and gpus=64 both set the size; give only one"):
        words("r.yaml", "cluster=local", "gpus=64", "nodes=8")


def test_without_a_cluster_those_there_are_are_named():
    with pytest.raises(UserError, match=r"Available: cpu_slurm, dgx_a100.* local"):
        words("r.yaml")


def test_an_unknown_cluster_gets_the_nearest_name():
    with pytest.raises(UserError, match="did you mean dgx_h100"):
        cluster_of(words("r.yaml", "cluster=dgx_h10"))


def test_a_cluster_takes_changes_and_ingredients_as_a_recipe_does():
    parse_request = words(
        "r",
        "cluster=dgx_h100",
        "cluster.account=vision",
        "cluster.container=apptainer",
        "cluster.container.image=x.sif",
        "cluster.options={nice: '5'}",
    )
    chosen = cluster_of(parse_request)
    found = chosen.where
    assert isinstance(found, Slurm) and (found.gpus_per_node, found.account) == (8, "vision")
    assert found.container == Apptainer(image="x.sif") and found.options == {"nice": "5"}
    assert cluster_again(chosen.values, replace(parse_request, trusts_cluster=True)) == found


@pytest.mark.parametrize(
    ("change", "said"),
    [("cluster.acount=x", "did you mean account"), ("cluster.segment=0", "segment is 0"),
     ("cluster.gpus_per_node=eight", "expected a whole number"), ("cluster.time=soon", "Slurm takes times such as")],
)  # fmt: skip
def test_a_mistake_in_a_cluster_is_said_at_its_place(change, said):
    with pytest.raises(UserError, match=said):
        cluster_of(words("r", "cluster=dgx_h100", change))


def test_a_cluster_takes_nothing_from_the_environment_since_it_would_stand_in_the_script(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "canary-5f3a")
    change = "cluster.environment={WANDB_API_KEY: '${env:WANDB_API_KEY}'}"
    with pytest.raises(UserError, match=r"cluster\.secrets") as caught:
        cluster_of(words("r", "cluster=dgx_h100", change))
    assert "canary" not in str(caught.value)


def test_a_cluster_of_ones_own_comes_from_conf(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = Path("conf/cluster/mine.yaml")
    file.parent.mkdir(parents=True)
    file.write_text("_target_: launcher.request.cluster.Slurm\ngpus_per_node: 4\n")
    assert cluster_of(words("r", "cluster=mine")).where.gpus_per_node == 4


def test_a_cluster_of_ones_own_may_begin_with_a_container_of_ours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = Path("conf/cluster/mine.yaml")
    file.parent.mkdir(parents=True)
    file.write_text(
        "defaults: [{container: pyxis}]\n_target_: launcher.request.cluster.Slurm\ncontainer: {image: /x/ours.sqsh}\n"
    )
    assert cluster_of(words("r", "cluster=mine", "--trust=cluster")).where.container == Pyxis(image="/x/ours.sqsh")
    assert cluster_of(words("r", "cluster=mine", "~cluster.container")).where.container is None


def test_a_key_that_is_written_into_a_cluster_is_refused_and_not_shown(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "canary-99d1e2")
    with pytest.raises(UserError, match=r"cluster\.secrets") as caught:
        cluster_of(words("r", "cluster=dgx_h100", "cluster.environment={X: canary-99d1e2}"))
    assert "canary" not in str(caught.value)


def test_how_long_ranks_wait_for_each_other_is_handed_on_and_slurm_waits_longer(tmp_path):
    found = words("r", "cluster=local", "--rank-silence=600", "--rank-timeout", "90")
    assert found.run_words() == ("--rank-silence=600", "--rank-timeout=90")
    assert words("r", "cluster=local").run_words() == ()
    patient = script(small_job(tmp_path, tasks_per_node=2, silence_s=600))
    assert "--wait=750" in patient and "750 s after" in patient
    for wrong in ("0", "inf", "nan"):
        with pytest.raises(UserError, match=r"--rank-silence is .*; it must be at least 1 second"):
            words("r", "cluster=local", f"--rank-silence={wrong}")
