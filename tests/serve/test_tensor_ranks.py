"""Tests that a model split over tensor ranks writes the tokens that one device writes."""

import http.client
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_vfm.cli.main import main
from nemo_vfm.core.errors import UserError
from nemo_vfm.language.token_choice import Choice
from nemo_vfm.models.convert.gpt_folder import load_gpt
from nemo_vfm.parallel.engine.serving_ranks import require_whole_heads, split_for_serving
from nemo_vfm.runtime import orphan_killer
from nemo_vfm.serve.continuous.batch_engine import BatchEngine, ServedText
from nemo_vfm.serve.continuous.key_value_room import KeyValueRoom, bytes_per_token
from nemo_vfm.serve.continuous.model_passes import ModelPasses
from nemo_vfm.serve.continuous.rank_passes import LeadingPasses, follow
from nemo_vfm.serve.continuous.text_request import TextEnding, TextRequest, TokenResult
from tests.support import preloaded
from tests.support.combinations import cases
from tests.support.language_models import written
from tests.support.ranks import on_ranks
from tests.support.served_http import Running

Written = list[tuple[list[int], list[float | None]]]


class _Listener:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float | None] = []
        self.ending: TextEnding | None = None

    def prompt(self, results: list[TokenResult]) -> None:
        self.logprobs += [result.logprob for result in results]

    def token(self, result: TokenResult) -> bool:
        self.tokens.append(result.token)
        return True

    def end(self, ending: TextEnding) -> None:
        self.ending = ending


def _requests() -> list[TextRequest]:
    """Prompts of 1 to 40 tokens, answers of 3 to 24, every second one drawn; the last only scored."""
    found = []
    for number, (length, new) in enumerate([(1, 24), (40, 3), (7, 12), (19, 8), (33, 16), (2, 20)]):
        choice = Choice(temperature=1.0 if number % 2 else 0.0)
        tokens = tuple((31 * number + 7 * place) % 96 for place in range(length))
        found.append(TextRequest(tokens, new, choice, seed=number))
    return [*found, TextRequest(tuple(range(3, 30)), 0, Choice(temperature=0), 0, score_prompt=True, num_top=1)]


def _answers(passes: ModelPasses) -> Written:
    """What is written; a text joins with every second step, three run at once, and one leaves before its end."""
    engine, listeners = BatchEngine(passes, max_running=3, piece=16), []
    waiting = [TextRequest((5, 6), 200, Choice(temperature=0), 0), *_requests()]
    first: ServedText | None = None
    for step in range(400):
        if step % 2 == 0 and waiting:
            listeners.append(_Listener())
            text = ServedText(waiting.pop(0), listeners[-1])
            first = first or text
            engine.submit(text)
        if step == 30 and first is not None:
            engine.cancel(first)
        if not engine.step() and not waiting:
            break
    passes.close()
    assert [one.ending for one in listeners] == ["cancelled", *["length"] * (len(listeners) - 1)]
    return [(one.tokens, one.logprobs) for one in listeners]


def _share(rank: int, folder: str, dtype: torch.dtype) -> tuple[Written, int]:
    """On each rank: what it wrote, and the bytes of its weights."""
    model = load_gpt(Path(folder)).to(dtype).eval().requires_grad_(False)
    ranks = split_for_serving(model, 2)
    num_bytes = sum(one.to_local().nbytes for one in model.parameters() if hasattr(one, "to_local"))
    room = KeyValueRoom(model, 0.001, 2)
    if rank:
        follow(ModelPasses(model, room, 3, ranks=ranks), ranks)
        return [], num_bytes
    return _answers(LeadingPasses(model, room, 3, ranks, _raise)), num_bytes


def _raise(error: Exception) -> None:
    raise error


FAMILIES = [("llama", torch.float64), ("llama 3.1, tied", torch.float32), ("nemotron", torch.float32)]


@pytest.mark.cluster  # several ranks
@pytest.mark.parametrize(("family", "dtype"), cases(FAMILIES, FAMILIES[1:2]), ids=str)
def test_two_ranks_write_the_tokens_of_one(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    written(tmp_path, family, initializer_range=0.3)
    model = load_gpt(tmp_path).to(dtype).eval()
    expected = _answers(ModelPasses(model, KeyValueRoom(model, 0.001), 3))
    (found, num_bytes), (_, other_bytes) = on_ranks(2, _share, str(tmp_path), dtype)
    whole = sum(one.nbytes for name, one in load_gpt(tmp_path).to(dtype).named_parameters() if "norm" not in name)
    assert num_bytes == other_bytes == whole // 2
    for (tokens, logprobs), (other, other_logprobs) in zip(expected, found, strict=True):
        assert tokens == other
        assert logprobs == pytest.approx(other_logprobs, abs=1e-4)


def test_a_rank_has_room_for_twice_the_tokens(tmp_path: Path) -> None:
    written(tmp_path, "llama")
    model = load_gpt(tmp_path)
    alone, share = KeyValueRoom(model, 0.001), KeyValueRoom(model, 0.001, 2)
    assert share.num_tokens == 1e6 // (bytes_per_token(model) // 2)
    assert share.pool.shape[2] * 2 == alone.pool.shape[2]
    assert max(share.pool.nbytes, alone.pool.nbytes) <= 1e6


def test_ranks_that_would_share_a_head_are_refused(tmp_path: Path) -> None:
    written(tmp_path, "llama")
    with pytest.raises(UserError, match=r"--tensor 3 does not divide .* 2 heads .*\(6 of queries\); 1, 2 would"):
        require_whole_heads(load_gpt(tmp_path), 3)


@contextmanager
def _served(said: Path, *words: str) -> Iterator[tuple[preloaded.Started, int]]:
    """(a server on two ranks, its port); what it says goes into a file, and what is left of it is killed at the end."""
    command = [sys.executable, "-m", "nemo_vfm", "serve", "--port=0", "--room-gb=0.01", "--tensor=2", *words]
    process = preloaded.Started(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, err=said)
    try:
        while (address := re.search(r":(\d+)/v1, room for ", said.read_text())) is None:
            assert process.poll() is None, said.read_text()
            time.sleep(0.05)
        yield process, int(address[1])
    finally:
        process.kill()
        process.wait()


def _ask(port: int, body: dict[str, Any]) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    sent = json.dumps({"model": "tiny"} | body)
    connection.request("POST", "/v1/completions", sent, {"Content-Type": "application/json"})
    return json.loads(connection.getresponse().read())


def _ranks_of(process: preloaded.Started) -> list[int]:
    """The processes of its ranks, by rank, as it told the one that ends orphans."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parent = (place / "stat").read_text().rpartition(") ")[2].split()[1]
            words = (place / "cmdline").read_text().split("\0")[:-1]
        except OSError:
            continue
        if int(parent) == process.pid and words[3:4] == [orphan_killer.__file__]:
            return [int(word) for word in words[5:]]
    return []


@pytest.mark.cluster  # several ranks
def test_the_verb_starts_its_ranks_answers_as_one_device_does_and_ends_them_all(
    folder: tuple[Path, Any], server: Running, tmp_path: Path
) -> None:
    body = {"prompt": ["hello", "a longer prompt"], "max_tokens": 24, "temperature": 0.8, "seed": 5}
    expected = [choice["text"] for choice in server.ask(body)[2]["choices"]]
    with _served(tmp_path / "said", str(folder[0]), "--name=tiny", "--precision=fp32") as (process, port):
        assert [choice["text"] for choice in _ask(port, body)["choices"]] == expected
        members = _ranks_of(process)
        assert len(members) == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert not any(Path(f"/proc/{member}").exists() for member in members)


@pytest.mark.cluster  # several ranks
def test_a_rank_that_dies_ends_the_others_with_a_sentence(folder: tuple[Path, Any], tmp_path: Path) -> None:
    with _served(tmp_path / "said", str(folder[0]), "--name=tiny") as (process, port):
        members = _ranks_of(process)
        os.kill(members[1], signal.SIGKILL)
        with pytest.raises((OSError, http.client.HTTPException)):
            _ask(port, {"prompt": "hello", "max_tokens": 1000})
        assert process.wait(120) == 69
    said = (tmp_path / "said").read_text()
    assert "rank 1 of 2 died" in said and "Rank 0 of the server ends" in said
    assert "rank 1 of 2 was killed by SIGKILL. Start the server again" in said
    assert not any(Path(f"/proc/{member}").exists() for member in members)


@pytest.mark.parametrize(("tensor", "said"), [("0", "--tensor must be at least 1, got 0"),
                                              ("1", "--tensor 1 needs as many ranks, but 2 ")])  # fmt: skip
def test_numbers_of_ranks_that_do_not_fit_are_a_sentence(
    tensor: str, said: str, folder: tuple[Path, Any], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["serve", str(folder[0]), "--tensor", tensor]) == 2
    assert said in capsys.readouterr().err
