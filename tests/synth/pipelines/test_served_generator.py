"""Tests that recipes run on models behind servers, and that a model which follows nothing is counted so."""

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from nemo_vfm.config import build, compose
from nemo_vfm.core.errors import NemoVfmError
from nemo_vfm.core.network.chat import Chat
from nemo_vfm.core.network.endpoint import Endpoint
from nemo_vfm.core.types.job import Run
from nemo_vfm.synth.embedded.embedded_responder import EmbeddedResponder
from tests.support.chat_server import allowed
from tests.support.repository import ROOT
from tests.support.served_http import NAME, model_folder, running

RECIPES = sorted(path.stem for path in (ROOT / "recipes/synthetic").glob("*.yaml") if "synthesize" in path.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    model_folder(path)
    return path


@pytest.fixture(scope="module")
def ours(folder: Path) -> Iterator[str]:
    with running(folder, at_once=16, room_tokens=40_000) as server:
        yield server.address


@contextmanager
def transformers_server(folder: Path) -> Iterator[str]:
    """The address of transformers' own server, a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(folder), "--device", "cpu",
               "--port", str(port), "--host", "127.0.0.1"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    try:
        for _ in range(600):
            with suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    break
            assert process.poll() is None, "the server has ended"
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(60)


#: Recipes that ask many questions before the first row, with fewer of them.
FEW = {
    "code": ["pipeline.offspring=1"], "python": ["pipeline.max_keywords=4"],
    "functions": ["pipeline.tools.areas.texts=[a calendar, the post]"], "closed_qa": ["pipeline.max_words=61"],
    "real_prompts": ["pipeline.sft_share=0.04"],
}  # fmt: skip


#: How a run ends whose model answers noise.
ENDS = ("min_yield", "none of the model's answers", "did not answer yes")


def requests_of(run: Path, recipe: str, url: str, model: str, rows: int, *changes: str) -> dict[str, Any]:
    """Runs a recipe with a model behind a server in the place of every embedded one; what the ledger says of it."""
    job = build(compose(str(ROOT / f"recipes/synthetic/{recipe}.yaml"), [f"rows={rows}", "min_yield=1", *changes]))
    chat = Chat(endpoint=Endpoint(url=url, permissions=allowed(url)), model=model, max_tokens=24)
    job.generator = chat
    job.models = {role: chat if isinstance(one, EmbeddedResponder) else one for role, one in job.models.items()}
    try:
        job.run(Run(run))
    except NemoVfmError as error:
        assert any(words in str(error) for words in ENDS), "an end that is no surprise"
    ledger: dict[str, Any] = json.loads((run / "ledger.json").read_text())
    for counts in (ledger["rows"], ledger["requests"]):
        assert counts["in"] == counts["kept"] + sum(counts["dropped"].values()) + sum(counts["failed"].values())
    answers = (run / "answers.jsonl").read_text().splitlines() if (run / "answers.jsonl").exists() else []
    assert len({json.loads(line)["key"] for line in answers}) == len(answers) <= ledger["requests"]["kept"]
    assert ledger["rows"]["kept"] == len((run / "rows.jsonl").read_text().splitlines())
    return ledger


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_random_model_behind_our_server_follows_nothing_and_all_is_counted(
    tmp_path: Path, ours: str, recipe: str
) -> None:
    told = requests_of(tmp_path, recipe, ours, NAME, 3, *FEW.get(recipe, ()))
    if recipe in ("open_qa", "preferences"):
        assert told["requests"] == {"in": 4, "kept": 4, "dropped": {}, "failed": {}} and told["rows"]["in"] == 0


@pytest.mark.soak
def test_a_random_model_behind_the_server_of_transformers_does_the_same(tmp_path: Path, folder: Path) -> None:
    with transformers_server(folder) as url:
        for recipe in RECIPES:
            (tmp_path / recipe).mkdir()
            told = requests_of(tmp_path / recipe, recipe, url, str(folder), 50)
            assert recipe == "filter_rows" or told["requests"]["kept"] > 1, f"{recipe}: it was answered"
