"""Tests that a curation killed at and between its steps resumes to the bytes of an undisturbed one."""

import hashlib
import json
import random
import signal
import sys
from collections import Counter

import numpy as np
import pytest

from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.data.shards.shard_files import ShardSet
from tests.support import own_network, preloaded
from tests.support.films import job, pan, texture, write_film
from tests.support.judges import Brightest

# The process group dies before, or after, the n-th call of a function: all of it, as when a machine goes down.
_RUN = """
import importlib, json, os, signal, sys
from pathlib import Path
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.curate.execute.process_executor import Processes
from nemo_vfm.curate.execute.ray_executor import Ray
from tests.support.films import job
from tests.support.judges import Brightest

from nemo_vfm.curate import media_pipeline

media_pipeline.STRETCH_S = media_pipeline.SEGMENT_S = 1.0  # each film is many pieces; the run that goes on has one
films, folder, executor, module, name, number, when = sys.argv[1:]
if executor == "ray":
    import ray
    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(num_cpus=2, _node_ip_address="127.0.0.1", **options)
owner = importlib.import_module(module)
for part in name.split(".")[:-1]:
    owner = getattr(owner, part)
real, left = getattr(owner, name.split(".")[-1]), [int(number)]

def deadly(*arguments, **named):
    left[0] -= 1
    if left[0] == 0 and when == "before":
        os.killpg(0, signal.SIGKILL)
    result = real(*arguments, **named)
    if left[0] == 0:
        os.killpg(0, signal.SIGKILL)
    return result

setattr(owner, name.split(".")[-1], deadly)
executors = {"inline": Inline(), "processes": Processes(workers=2), "ray": Ray(cpus_per_actor=0.5)}
stages = job(Path(films)).stages | {"brightest": Brightest()}
job(Path(films), executor=executors[executor], stages=stages).run(Run(Path(folder)))
"""
_JOB, _CACHE = "nemo_vfm.curate.job", "nemo_vfm.curate.examine.findings"
_MEDIA = "nemo_vfm.curate.output.transcode"
PLACES = [
    (_CACHE, "Cache.put", 1, "before"),
    (_CACHE, "Cache.put", 3, "after"),  # between two files' probes
    (_JOB, "examine_all", 1, "before"),
    (_CACHE, "Cache.put", 9, "before"),
    (_CACHE, "Cache.put", 13, "after"),  # between two stages of one file
    (_JOB, "add_likeness", 1, "before"),
    (_JOB, "encode_kept", 1, "before"),
    ("nemo_vfm.curate.media_pipeline", "_note", 2, "before"),  # between two files' clips
    (_JOB, "write_captions", 1, "before"),
    (_JOB, "write_shards", 1, "before"),
    ("nemo_vfm.data.shards.shard_files", "ShardWriter.write", 2, "after"),  # in the middle of a shard
    (_JOB, "write_shards", 1, "after"),
    (_JOB, "write_scores", 1, "after"),
    (_JOB, "write_json", 4, "before"),
    ("nemo_vfm.curate.media_pipeline", "ExamineJob.done", 3, "before"),  # between two stretches of one film
    ("nemo_vfm.curate.media_pipeline", "ExamineJob.done", 9, "after"),
    (_CACHE, "Cache.put", 7, "after"),
    ("nemo_vfm.curate.media_pipeline", "_note", 1, "after"),
    ("nemo_vfm.curate.media_pipeline", "_note", 5, "after"),  # between two stretches of one film's clips
    (_JOB, "Curate._write", 1, "after"),
    (_MEDIA, "Media.make_way", 1, "after"),
    (_MEDIA, "Media.drop", 1, "before"),
    (_MEDIA, "write_json", 2, "after"),  # between two clips that only the shards hold from here on
]


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    folder = tmp_path_factory.mktemp("films")
    for seed in range(3):
        write_film(folder / f"{seed}.mp4", pan(seed), pan(seed + 10, 30))
    write_film(folder / "again.mp4", pan(1), crf=34)
    write_film(folder / "still.mp4", np.stack([texture(5)] * 30))
    (folder / "noise.mp4").write_bytes(b"no video" * 100)
    return folder


@pytest.fixture(scope="module")
def done(films, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    curation(films).run(Run(folder))
    return folder


def curation(films):
    return job(films, executor=Inline(), stages=job(films).stages | {"brightest": Brightest()})


def outputs(folder):
    own = {"work", "throughput.json", "captions.json"}
    names = [p for p in sorted(folder.rglob("*")) if p.is_file() and not own & set(p.relative_to(folder).parts)]
    return {p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in names}


def status_of(films, folder, executor, place):
    """The exit status of a curation that is to be killed; it leads a session, and so a group, of its own."""
    errors, words = folder.with_suffix(".errors"), [str(word) for word in (films, folder, executor, *place)]
    if executor == "ray":
        with errors.open("w") as file:
            status = own_network.start(_RUN, *words, stdout=file, stderr=file).wait(300)
    else:
        status = preloaded.Started([sys.executable, "-c", _RUN, *words], err=errors).wait(300)
    assert status in (0, -signal.SIGKILL), errors.read_text()[-2000:]
    return status


def kill_and_go_on(films, folder, executor, place):
    killed = status_of(films, folder, executor, place) == -signal.SIGKILL
    curation(films).run(Run(folder))
    return killed


def check(folder, done):
    assert outputs(folder) == outputs(done)
    keys = Counter(entry.key for entry in ShardSet(folder / "shards").entries)
    assert keys and max(keys.values()) == 1
    ledger = json.loads((folder / "ledger.json").read_text())
    for account in ledger.values():
        parts = account["kept"] + sum(account["dropped"].values()) + sum(account["failed"].values())
        assert account["in"] == pytest.approx(parts, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("executor", "place"), [("processes", 4), ("inline", 22)])
def test_killed_and_run_again_it_gives_the_same_bytes(films, done, tmp_path, executor, place):
    assert kill_and_go_on(films, tmp_path, executor, PLACES[place]), "it ended before it was killed"
    check(tmp_path, done)


@pytest.mark.soak
@pytest.mark.parametrize("executor", ["inline", "processes", "ray"])
@pytest.mark.parametrize("place", range(len(PLACES)))
def test_killed_at_every_boundary_on_every_executor(films, done, tmp_path, executor, place):
    assert kill_and_go_on(films, tmp_path, executor, PLACES[place]), "it ended before it was killed"
    check(tmp_path, done)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_killed_several_times_on_changing_executors(films, done, tmp_path, seed):
    random_ = random.Random(seed)
    for place in sorted(random_.sample(range(len(PLACES) - 1), 3)):
        executor = random_.choice(["inline", "processes"])
        status_of(films, tmp_path, executor, PLACES[place])
    curation(films).run(Run(tmp_path))
    check(tmp_path, done)
