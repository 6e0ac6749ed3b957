# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests `nemo-vfm get` as a user runs it: what it prints, a killed run, and that no token is written anywhere."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.model_hub import COMMIT, Hub, cut_after, files, model_hub, status
from tests.support.recipe_folder import ROOT

TOKEN = "hf_canaryABCDEFGHIJKLMNOP"
WEIGHTS = "transformer/model.safetensors"
SAFE = {path: data for path, data in files().items() if not path.endswith(".bin")}


@pytest.fixture
def hub(monkeypatch):
    """A hub that the environment names, which wants a token."""
    for name in ("HF_HUB_OFFLINE", "NEMO_VFM_ENDPOINTS"):
        monkeypatch.delenv(name, raising=False)
    with model_hub() as state:
        state.token = TOKEN
        monkeypatch.setenv("HF_ENDPOINT", state.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield state


def words(hub: Hub, *more: str) -> list[str]:
    """The command's words, with the permission for the host that gives the bytes."""
    return ["get", "hf://acme/tiny-video", *more, "--allow-host", hub.cdn_url]


def brought(folder: Path) -> dict[str, bytes]:
    """What lies in a folder beside the record."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if name != "get.json"}


def test_a_model_comes_into_a_folder_of_its_name_and_a_second_run_has_nothing_to_do(hub, kitchen, capfd):
    assert kitchen.main(*words(hub)) == 0
    said = capfd.readouterr()
    assert said.out == f"brought 6 files (6.1 MB) of hf://acme/tiny-video@main, commit {COMMIT}\nmodels/tiny-video\n"
    assert "1 .bin (60 bytes); --only brings it" in said.err and "get: 6/6 MB" in said.err
    assert brought(kitchen.folder / "models/tiny-video") == SAFE
    assert kitchen.main(*words(hub, "models/tiny-video")) == 0
    assert capfd.readouterr().out.startswith("nothing to do: 6 files (6.1 MB)")


def test_the_token_is_in_no_line_and_in_no_file_whatever_happens(hub, kitchen, capfd):
    hub.faults["README.md"] = [lambda handler: handler.send(503, TOKEN.encode(), Retry_After="0")]
    kitchen.main(*words(hub))
    for end, code in (("a", 401), ("b", 404), ("c", 418)):
        hub.always["/revision/main"] = status(code, TOKEN.encode(), X_Error_Code=TOKEN)
        assert kitchen.main(*words(hub, end)) in (1, 2)
    hub.always["/revision/main"] = status(302, Location=f"http://{TOKEN}:{TOKEN}@127.0.0.1:1/{TOKEN}")
    assert kitchen.main(*words(hub, "d")) == 1
    said = capfd.readouterr()
    texts = [said.out, said.err, *(path.read_bytes().decode("latin-1") for path in kitchen.folder.rglob("*")
                                   if path.is_file())]  # fmt: skip
    assert len(texts) > 6 and not any(TOKEN in text or TOKEN[3:] in text for text in texts)
    assert "signed-canary" not in said.out + said.err


@pytest.mark.slow  # processes of their own, which are killed
@pytest.mark.parametrize("after", [900_000, 3_072_000])
def test_a_run_that_is_killed_is_continued_by_the_same_command(hub, kitchen, after):
    reached = []

    def stalls(handler):
        reached.append(1)
        if len(reached) > 1:
            time.sleep(60)
        (cut_after(after) if after < 3_000_000 else type(handler).answer)(handler)

    hub.always["cdn:" + WEIGHTS] = stalls
    hub.always["cdn:vae/model.safetensors"] = stalls
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-m", "nemo_vfm", *words(hub)], cwd=kitchen.folder, env=environment)
    while len(reached) < 2:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    hub.always.clear()
    sent, folder = hub.sent, kitchen.folder / "models/tiny-video"
    assert not (folder / "get.json").exists()
    assert kitchen.main(*words(hub)) == 0
    assert brought(folder) == SAFE and hub.sent - sent <= sum(map(len, SAFE.values())) - after


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hf://datasets/a/b"], "only models are brought here"), (["acme/tiny-video"], "did you mean hf://acme/tiny-video?"),
        (["hf://acme/tiny-video", "file"], "file exists and does not come from"),
        (["hf://acme/none"], "has no such model, revision or file (404 RepoNotFound)"),
        (["hf://acme/tiny-video", "--allow-host", "x=y"], "comes the name of the variable"),
    ],
)  # fmt: skip
def test_what_the_user_can_fix_is_one_sentence(hub, kitchen, capfd, arguments, said):
    (kitchen.folder / "file").write_text("mine")
    assert kitchen.main("get", *arguments) == 2
    err = capfd.readouterr().err
    assert said in err and err.count("\n") == 1
    assert [path.name for path in kitchen.folder.iterdir()] == ["file"]
