"""Tests what the node check says where a node lacks what its cluster's file asks for."""

import os
import subprocess
from pathlib import Path

import pytest

from launcher.render.script import check_text, script
from launcher.request.cluster import NodeCheck, Slurm
from tests.support.slurm_jobs import run, small_job

SMI = "#!/bin/bash\nif [[ $1 == nvlink ]]; then echo '{links}'; else for i in {gpus}; do echo GPU-$i; done; fi\n"


def checked(folder: Path, check: NodeCheck, *, gpus: int = 0, seen: int = 0, links: str = "Link 0: 25 GB/s") -> str:
    """Status and words of the check on a node with so many GPUs."""
    smi = folder / "bin/nvidia-smi"
    smi.parent.mkdir(exist_ok=True)
    smi.write_text(SMI.format(links=links, gpus=" ".join(map(str, range(seen)))))
    smi.chmod(0o755)
    job = small_job(folder, Slurm(node_check=check), gpus_per_node=gpus)
    environment = {**os.environ, "PATH": f"{smi.parent}:{os.environ['PATH']}", "SLURMD_NODENAME": "n7"}
    done = subprocess.run(["bash", "-uc", check_text(job)], env=environment, capture_output=True, text=True)
    return f"{done.returncode} {done.stdout}{done.stderr}".strip()


@pytest.mark.parametrize(
    ("check", "more", "told"),
    [
        (NodeCheck(), {"gpus": 8, "seen": 8}, ""),
        (NodeCheck(), {"gpus": 8, "seen": 7}, "nvidia-smi shows 7 GPUs of 8"),
        (NodeCheck(), {"gpus": 1, "seen": 1, "links": "Link 0: <inactive>"}, "1 NVLinks are down"),
        (NodeCheck(links=False), {"gpus": 1, "seen": 1, "links": "Link 0: <inactive>"}, ""),
        (NodeCheck(min_memory_gb=10**6), {}, "of memory are free, 1000000 GB are required"),
        (NodeCheck(min_disk_gb=10**6), {}, "are free, 1000000 GB are required"),
    ],
)
def test_a_node_that_lacks_something_says_what_and_its_name(tmp_path, check, more, told):
    said = checked(tmp_path, check, **more)
    assert said == "0" if not told else said.startswith("1 vfm-launch: the check of node n7 failed: ") and told in said


def test_the_work_is_begun_after_the_check_and_not_where_none_is_asked_for(tmp_path):
    plain = run(small_job(tmp_path / "a"), tmp_path / "fakes")
    with_check = run(small_job(tmp_path / "b", Slurm(node_check=NodeCheck())), tmp_path / "more_fakes")
    assert len(plain.steps) == 1 and len(with_check.steps) == 2
    assert with_check.steps[0][-3:-1] == ["bash", "-c"] and "run" in with_check.steps[1]


def test_network_and_binding_of_a_cluster_reach_the_script(tmp_path):
    found = script(small_job(tmp_path, Slurm(interface="ib0,ib1", ib_timeout=22, cpu_bind="cores")))
    assert "export NCCL_SOCKET_IFNAME=ib0,ib1" in found and "export GLOO_SOCKET_IFNAME=ib0,ib1" in found
    assert "export NCCL_IB_TIMEOUT=22" in found and "--cpu-bind=cores" in found
