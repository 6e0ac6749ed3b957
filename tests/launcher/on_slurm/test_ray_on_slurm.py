"""Tests that a curation on Ray through `vfm-launch submit` makes its clips on a real Slurm and leaves no process."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.films import pan, write_film
from tests.support.own_network import start
from tests.support.slurm import lacking

# Ray listens at every address of the machine: so the cluster and all of its nodes are where there is only loopback.
_SUBMIT = """
import json, os, sys
from pathlib import Path
from launcher.cli import main
from tests.support.slurm import marked, slurm
root, films, run_dir = map(Path, sys.argv[1:])
with slurm(root) as cluster:
    os.environ["SLURM_CONF"] = str(cluster.conf)
    assert main(["submit", "curation/clips", "executor=ray", f"source.path={films}", f"run_dir={run_dir}", "nodes=2",
                 "cluster=cpu_slurm", "cluster.exclusive=false", "cluster.cpus_per_node=2", "--no-code"]) == 0
    (number,) = json.loads((run_dir / "launch/launch.json").read_text())["jobs"][0]["slurm"]
    state = cluster.ended(number, within_s=300)["JobState"]
    cluster.until(lambda: set(cluster.states().values()) == {"idle"}, "idle nodes")
    left = [Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\\0")[0] for pid in marked(str(cluster.conf))]
    print(json.dumps([number, state, left]), flush=True)
"""


@pytest.mark.soak
@pytest.mark.skipif(bool(lacking()), reason=f"a real Slurm is needed: {lacking()}")
def test_a_job_with_ray_has_a_cluster_on_its_two_nodes_which_ends_with_it(tmp_path: Path):
    pytest.importorskip("ray")
    for seed in range(3):
        write_film(tmp_path / "films" / f"{seed}.mp4", pan(seed))
    run_dir = tmp_path / "run"
    words = (tmp_path / "slurm", tmp_path / "films", run_dir)
    process = start(_SUBMIT, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said, errors = process.communicate(timeout=420)
    logs = "".join(file.read_text() for file in run_dir.glob("launch/logs/*"))
    assert process.returncode == 0, errors[-3000:] + logs[-3000:]
    number, state, left = json.loads(said.splitlines()[-1])
    assert state == "COMPLETED", logs
    assert (run_dir / f"launch/logs/ray-{number}.log").read_text().count("Ray runtime started") == 2
    assert not [name for name in left if not Path(name).name.startswith(("slurm", "munged"))], left
    assert not Path(f"/tmp/ray-{number}").exists() and not list(run_dir.glob("launch/*.token"))
    assert json.loads((run_dir / "status.json").read_text())["state"] == "done"
    assert "probe: 4 actors" in logs, "two cores of each node"
