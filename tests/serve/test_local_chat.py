"""Tests that a model in this process answers as the same model behind the endpoint."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_vfm.config import build, compose
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.language.token_choice import Choice
from nemo_vfm.serve.local_chat import LocalChat
from nemo_vfm.serve.served_folder import served_folder
from nemo_vfm.serve.served_model import ServedModel
from tests.support.served_http import NAME, Running

MESSAGES = [{"role": "user", "content": "the cat"}]


def load(folder: Path) -> ServedModel:
    return served_folder(folder=folder, name=NAME, precision="fp32")


def test_a_served_folder_is_as_its_arguments_say_and_else_as_its_files_say(
    folder: tuple[Path, Any], tmp_path: Path
) -> None:
    given = served_folder(folder=folder[0], name="mine", context=100, precision="bf16")
    assert (given.name, given.context, given.model.embedding.weight.dtype) == ("mine", 100, torch.bfloat16)
    plain = served_folder(folder=folder[0], precision="fp32")
    assert (plain.name, plain.context, plain.model.embedding.weight.dtype) == (folder[0].name, 2048, torch.float32)
    assert plain.chat is not None and plain.stop == {plain.tokenizer.end(), 2}
    bare = shutil.copytree(folder[0], tmp_path / "bare")
    words = tmp_path / "words"
    words.mkdir()
    for file in bare.glob("tokenizer*"):
        file.rename(words / file.name)
    config = json.loads((bare / "config.json").read_text())
    del config["max_position_embeddings"]
    (bare / "config.json").write_text(json.dumps(config | {"eos_token_id": [7, 9]}))
    (bare / "generation_config.json").unlink()
    apart = served_folder(folder=bare, tokenizer=words, precision="fp32")
    assert (apart.name, apart.context, apart.chat) == ("bare", 4096, None)
    assert apart.stop == {apart.tokenizer.end(), 7, 9} and apart.revision != plain.revision


def test_a_recipe_s_local_generator_is_that_model(folder: tuple[Path, Any]) -> None:
    words = [f"generator.model={{folder: {folder[0]}, precision: fp32, name: {NAME}}}", "generator.room_gb=0.01"]
    made = build(compose("synthetic/open_qa", ["generator=local", *words, "generator.max_tokens=20"])).generator
    made.ready()
    ours = LocalChat(model=lambda: load(folder[0]), max_tokens=20, room_gb=0.01).say(MESSAGES)
    assert made.say(MESSAGES).text == ours.text and ours.text


def test_it_says_what_the_endpoint_says_to_any_number_of_threads(folder: tuple[Path, Any], server: Running) -> None:
    chat = LocalChat(model=lambda: load(folder[0]), max_tokens=20, room_gb=0.01)
    chat.ready()
    asked = [[{"role": "user", "content": "the cat " * n}] for n in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(chat.say, asked))
    for messages, said in zip(asked, answers, strict=True):
        body = server.ask({"messages": messages, "max_tokens": 20, "temperature": 0}, "/v1/chat/completions")[2]
        choice = body["choices"][0]
        assert said.text == choice["message"]["content"] and said.model == NAME
        assert (said.tokens_in, said.tokens_out) == (body["usage"]["prompt_tokens"], 20)
        assert (said.ending, choice["finish_reason"], said.revision) == (
            "truncated",
            "length",
            body["system_fingerprint"],
        )
    chat.close()


def test_the_same_messages_again_get_draws_of_their_own(folder: tuple[Path, Any]) -> None:
    def two(seed: int) -> list[str]:
        chat = LocalChat(model=lambda: load(folder[0]), max_tokens=20, choice=Choice(), seed=seed, room_gb=0.01)
        found = [chat.say(MESSAGES).text for _ in range(2)]
        chat.close()
        return found

    first, second = two(1)
    assert first != second and two(1) == [first, second] and two(2)[0] != first


def test_what_cannot_be_answered_is_a_sentence(folder: tuple[Path, Any]) -> None:
    with pytest.raises(UserError, match="no chat format"):
        LocalChat(model=lambda: replace(load(folder[0]), chat=None)).ready()
    with pytest.raises(ValueError, match="must be at least 1"):
        LocalChat(model=lambda: load(folder[0]), max_tokens=0)
    chat = LocalChat(model=lambda: load(folder[0]), max_tokens=1000, room_gb=1e-4)
    with pytest.raises(DataError, match="there is room for"):
        chat.say(MESSAGES)
    with pytest.raises(DataError, match="a message has no content"):
        chat.say([{"role": "user"}])
    chat.max_tokens = 2048
    with pytest.raises(DataError, match="exceed the context of 2,048"):
        chat.say(MESSAGES)
    chat.close()


def test_the_identity_changes_with_all_that_the_words_depend_on(folder: tuple[Path, Any]) -> None:
    served = load(folder[0])

    def identity(**more: Any) -> str:
        chat = LocalChat(model=lambda: served, room_gb=1e-5, **{"at_once": 1} | more)
        found = str(chat.identity())
        chat.close()
        return found

    choices = [Choice(), Choice(temperature=0.5), Choice(top_k=3), Choice(top_p=0.5), Choice(min_p=0.5)]
    ways: list[dict[str, Any]] = [{}, {"max_tokens": 3}, {"seed": 1}, *({"choice": choice} for choice in choices)]
    assert len({identity(**way) for way in ways}) == len(ways) and identity() == identity(at_once=3)
