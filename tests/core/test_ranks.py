"""Tests that the ranks of one job find each other from what starts them, and nobody else."""

import pytest

from nemo_vfm.core import ranks
from nemo_vfm.core.errors import UserError


def task(number: int = 1, **changes: str) -> dict[str, str]:
    """The environment of a task of srun's after its adoption."""
    found = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_JOB_ID": "70", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(number),
             "SLURM_LOCALID": str(number % 2), "SLURM_STEP_NODELIST": "node[007-008]"} | changes  # fmt: skip
    ranks.adopt_slurm(found)
    return found


def test_the_tasks_of_a_step_are_its_ranks_and_meet_at_one_place():
    found = [task(number) for number in range(4)]
    assert [(one["RANK"], one["LOCAL_RANK"], one["WORLD_SIZE"]) for one in found] == [
        ("0", "0", "4"), ("1", "1", "4"), ("2", "0", "4"), ("3", "1", "4")
    ]  # fmt: skip
    (place,) = {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in found}
    assert place[0] == "node007" and 15_000 <= int(place[1]) < 25_000


def test_another_job_and_another_step_of_it_meet_at_another_port():
    changes = ({}, {"SLURM_JOB_ID": "71"}, {"SLURM_STEP_ID": "5"}, {"SLURM_JOB_ID": "9999999"})
    ports = [task(**change)["MASTER_PORT"] for change in changes]
    assert len(set(ports)) == len(ports) and all(15_000 <= int(port) < 25_000 for port in ports)


@pytest.mark.parametrize(
    "environment",
    [
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"},  # the batch script is alone, whatever its job has
        {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "RANK": "3", "WORLD_SIZE": "8"},  # torchrun below srun
    ],
)
def test_what_is_no_task_of_several_or_has_its_rank_already_adopts_nothing(environment):
    before = dict(environment)
    ranks.adopt_slurm(environment)
    assert environment == before


def test_what_the_user_said_of_the_place_to_meet_stays():
    assert task(MASTER_ADDR="10.0.0.1", MASTER_PORT="99")["MASTER_PORT"] == "99"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node[001-004,007],gpu5", "node001"), ("gpu5,node[1-2]", "gpu5"), ("n[09,11]", "n09"), ("alone", "alone"),
        ("rack[2-3]n[05-06]", "rack2n05"), ("n[1-2]-ib", "n1-ib"), ("", "127.0.0.1"),
    ],
)  # fmt: skip
def test_the_first_host_of_a_list_is_one_name(nodes, first):
    assert ranks.first_host(nodes) == first


def test_a_process_is_the_rank_that_the_environment_says(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert (ranks.rank(), ranks.count(), ranks.local_rank()) == (0, 1, 0) and not ranks.is_given()
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert (ranks.rank(), ranks.count(), ranks.local_rank()) == (5, 8, 5) and ranks.is_given() and not ranks.is_first()
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert ranks.local_rank() == 1
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(UserError, match="WORLD_SIZE=two, which is not a number"):
        ranks.count()
