"""Tests the output of `nemo-vfm get`, a killed run, and that the token is written nowhere."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.support import preloaded
from tests.support.model_hub import COMMIT, Hub, cut_after, files, model_hub, status
from tests.support.recipe_folder import ROOT

TOKEN = "hf_canaryABCDEFGHIJKLMNOP"
WEIGHTS = "transformer/model.safetensors"
SAFE = {path: data for path, data in files().items() if not path.endswith(".bin")}


@pytest.fixture
def hub(monkeypatch):
    """A hub that requires a token, named by the environment."""
    for name in ("HF_HUB_OFFLINE", "NEMO_VFM_ENDPOINTS"):
        monkeypatch.delenv(name, raising=False)
    with model_hub() as state:
        state.token = TOKEN
        monkeypatch.setenv("HF_ENDPOINT", state.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield state


def arguments_for(hub: Hub, *more: str) -> list[str]:
    """The command's arguments, with the permission for the CDN."""
    return ["get", "hf://acme/tiny-video", *more, "--allow-host", hub.cdn_url]


def downloaded(folder: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if name != "get.json"}


def test_a_model_is_downloaded_into_a_folder_of_its_name_and_a_second_run_does_nothing(hub, kitchen, capfd):
    assert kitchen.main(*arguments_for(hub)) == 0
    captured = capfd.readouterr()
    assert (
        captured.out
        == f"downloaded 6 files (6.1 MB) of hf://acme/tiny-video@main, commit {COMMIT}\nmodels/tiny-video\n"
    )
    assert "1 .bin (60 bytes); --only downloads it" in captured.err and "get: 6/6 MB" in captured.err
    assert downloaded(kitchen.folder / "models/tiny-video") == SAFE
    assert kitchen.main(*arguments_for(hub, "models/tiny-video")) == 0
    assert capfd.readouterr().out.startswith("nothing to do: 6 files (6.1 MB)")


def test_the_token_appears_in_no_output_and_no_file(hub, kitchen, capfd):
    hub.faults["README.md"] = [lambda handler: handler.send(503, TOKEN.encode(), Retry_After="0")]
    kitchen.main(*arguments_for(hub))
    for end, code in (("a", 401), ("b", 404), ("c", 418)):
        hub.always["/revision/main"] = status(code, TOKEN.encode(), X_Error_Code=TOKEN)
        assert kitchen.main(*arguments_for(hub, end)) in (1, 2)
    hub.always["/revision/main"] = status(302, Location=f"http://{TOKEN}:{TOKEN}@127.0.0.1:1/{TOKEN}")
    assert kitchen.main(*arguments_for(hub, "d")) == 1
    captured = capfd.readouterr()
    texts = [captured.out, captured.err, *(path.read_bytes().decode("latin-1") for path in kitchen.folder.rglob("*")
                                   if path.is_file())]  # fmt: skip
    assert len(texts) > 6 and not any(TOKEN in text or TOKEN[3:] in text for text in texts)
    assert "signed-canary" not in captured.out + captured.err


@pytest.mark.slow  # starts and kills processes
@pytest.mark.parametrize("after", [900_000, 3_072_000])
def test_the_same_command_resumes_a_killed_run(hub, kitchen, after):
    reached = []

    def stall(handler):
        reached.append(1)
        if len(reached) > 1:
            time.sleep(60)
        (cut_after(after) if after < 3_000_000 else type(handler).answer)(handler)

    hub.always["cdn:" + WEIGHTS] = stall
    hub.always["cdn:vae/model.safetensors"] = stall
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "nemo_vfm", *arguments_for(hub)]
    process = preloaded.Started(words, cwd=kitchen.folder, env=environment, err=kitchen.folder.with_suffix(".said"))
    while len(reached) < 2:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    hub.always.clear()
    sent, folder = hub.sent, kitchen.folder / "models/tiny-video"
    assert not (folder / "get.json").exists()
    assert kitchen.main(*arguments_for(hub)) == 0
    assert downloaded(folder) == SAFE and hub.sent - sent <= sum(map(len, SAFE.values())) - after


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hf://datasets/a/b"], "only models can be downloaded"), (["acme/tiny-video"], "did you mean hf://acme/tiny-video?"),
        (["hf://acme/tiny-video", "file"], "file exists and was not created by"),
        (["hf://acme/none"], "has no such model, revision or file (404 RepoNotFound)"),
        (["hf://acme/tiny-video", "--allow-host", "x=y"], "give the name of the variable"),
    ],
)  # fmt: skip
def test_a_user_error_is_reported_in_one_line(hub, kitchen, capfd, arguments, message):
    (kitchen.folder / "file").write_text("mine")
    assert kitchen.main("get", *arguments) == 2
    err = capfd.readouterr().err
    assert message in err and err.count("\n") == 1
    assert [path.name for path in kitchen.folder.iterdir()] == ["file"]
