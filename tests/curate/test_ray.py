"""Tests that a Ray cluster gives the bytes of one process, also when its workers are killed."""

import json
import os
import subprocess

import numpy as np
import pytest

from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.curate.execute.ray_executor import StepResources, shares
from nemo_vfm.curate.sources.video_source import Folder
from tests.curate.test_job import outputs
from tests.support.films import job, pan, texture, write_film
from tests.support.installed import skip_without
from tests.support.own_network import start
from tests.support.stills import turned_jpeg, write_still

skip_without("ray")
pytestmark = pytest.mark.cluster

_RUN = """
import json, signal, sys, threading, time
from pathlib import Path
import psutil
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.execute.ray_executor import Ray
from nemo_vfm.curate.sources.video_source import Folder
from tests.support.films import job
from tests.support.judges import Brightest

def kill(after):
    while sum(path.is_file() for path in Path(sys.argv[2]).rglob("*.jpg")) < after:
        time.sleep(0.1)  # looked at without a pause, it takes the processor from the cluster that begins
    for process in psutil.process_iter(["cmdline"]):
        if (process.info["cmdline"] or [""])[0].startswith("ray::_Actor"):
            process.send_signal(signal.SIGKILL)
            print("killed", process.pid, flush=True)
            return

films, folder, kills, joins = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4] == "joins"
if joins:
    import ray
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
             _node_ip_address="127.0.0.1")
for after in kills:
    threading.Thread(target=kill, args=(after,), daemon=True).start()
stages = job(films).stages | {"brightest": Brightest()}
source = Folder(path=films, take="both")
executor = Ray(cpus_per_actor=0.5, max_actors=2)  # each is a Python that begins anew: two of a step are several
print(job(films, source=source, executor=executor, stages=stages).run(Run(folder)).summary, flush=True)
"""


def videos_and_pictures(folder):
    """Of each some that are damaged, or of which nothing is kept."""
    folder.mkdir()
    for seed in range(2):
        write_film(folder / f"{seed}.mp4", pan(seed), pan(seed + 10, 30))
    write_film(folder / "still.mp4", np.stack([texture(5)] * 30))
    (folder / "noise.mp4").write_bytes(b"no video" * 100)
    for seed, name in enumerate(("photo.jpg", os.fsdecode(b"caf\xe9.png"))):
        write_still(folder / name, seed)
    (folder / "turned.jpg").write_bytes(turned_jpeg(7, 6))
    (folder / "cut.jpg").write_bytes(turned_jpeg(8, 6)[:2000])


def on_ray(films, folder, kills, whose):
    """What a run on a cluster printed."""
    process = start(_RUN, films, folder, json.dumps(kills), whose, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said, errors = process.communicate(timeout=540)
    assert process.returncode == 0, errors[-3000:]
    return said


@pytest.mark.parametrize("whose", ["its own", pytest.param("joins", marks=pytest.mark.soak)])
def test_two_steps_on_ray_with_a_worker_killed_give_the_bytes_of_one_process(tmp_path, whose):
    """Its own wanted a token that we did not send where Ray was told after its import; told of no port, it died."""
    from tests.support.judges import Brightest

    films = tmp_path / "films"
    videos_and_pictures(films)
    stages, source = job(films).stages | {"brightest": Brightest()}, Folder(path=films, take="both")
    job(films, source=source, executor=Inline(), stages=stages).run(Run(tmp_path / "one"))
    assert on_ray(films, tmp_path / "ray", [1] if whose == "its own" else [1, 4], whose).count("killed") >= 1
    assert outputs(tmp_path / "ray") == outputs(tmp_path / "one")
    steps = json.loads((tmp_path / "ray" / "throughput.json").read_text())
    assert [step["step"] for step in steps] == ["probe", "split and score", "judge", "transcode"]
    assert all(step["parts"] and step["workers"] for step in steps)
    images = json.loads((tmp_path / "ray/ledger.json").read_text())["images"]
    assert images["kept"] == 3 and sum(images["failed"].values()) == 1


@pytest.mark.parametrize(
    ("needs", "cpus", "gpus", "expected"),
    [
        ([StepResources(1, 1, 0)], 4, 0, [4]),
        ([StepResources(3, 1, 0), StepResources(1, 1, 0)], 8, 0, [6, 2]),
        ([StepResources(1, 1, 0), StepResources(6, 0.5, 1)], 16, 4, [1, 4]),
        ([StepResources(1, 0.5, 0), StepResources(1, 0.5, 0)], 2, 0, [2, 2]),
        ([StepResources(1, 4, 0), StepResources(1, 4, 0)], 2, 0, [1, 1]),
    ],
)
def test_workers_go_where_the_pipeline_is_slowest(needs, cpus, gpus, expected):
    assert shares(needs, cpus=cpus, gpus=gpus, most=64) == expected
