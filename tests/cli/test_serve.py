"""Tests which models `serve` loads (runs, checkpoints, folders), and that each option reaches its part."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_vfm.cli.serving.load_served import ServedSource, load_served
from nemo_vfm.cli.verbs import serve
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.serve.generation_settings import GenerationSettings, generation_settings

transformers = pytest.importorskip("transformers", reason="needs the extra transformers")
pytest.importorskip("starlette", reason="needs the extra serve")
from nemo_vfm.serve.openai_api.request_fields import CompletionRequest  # noqa: E402
from tests.cli.test_convert_language_model import GENERATION, trained  # noqa: E402
from tests.support.language_models import scores, words  # noqa: E402


def test_a_run_a_checkpoint_and_what_was_converted_are_one_model(kitchen, monkeypatch) -> None:
    monkeypatch.chdir(kitchen.folder)
    expected = scores(trained(kitchen), words())
    assert kitchen.main("convert", "run", "ours") == 0
    assert kitchen.main("convert", "run", "theirs", "--to", "transformers") == 0
    assert kitchen.main("convert", "theirs", "back") == 0
    for folder in ("run", "run/checkpoints", "theirs", "back"):
        served = load_served(ServedSource(Path(folder), precision="fp32"))
        assert torch.equal(scores(served.model, words()), expected), folder
        assert (served.name, served.context) == (Path(folder).name, 64)
        assert served.stop == {served.tokenizer.end()} and served.revision


def test_a_model_stops_and_samples_as_its_files_say_wherever_it_lies(kitchen, monkeypatch) -> None:
    monkeypatch.chdir(kitchen.folder)
    trained(kitchen)
    Path("tokenizer/generation_config.json").write_text(json.dumps(GENERATION))
    assert kitchen.main("convert", "run", "theirs", "--to", "transformers") == 0
    assert kitchen.main("convert", "theirs", "back") == 0
    for folder in ("run", "theirs", "back"):
        served = load_served(ServedSource(Path(folder), precision="fp32"))
        assert served.stop == {7, 1, 9}, folder
        asked = [
            CompletionRequest.read({"prompt": "a", **body}, 400, served.generation)
            for body in ({}, {"temperature": 1, "top_k": -1})
        ]
        own, other = (vars(one.choice()) for one in asked)
        assert asked[0].repetition_penalty == 1.05
        assert own == {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.0}
        assert other == own | {"temperature": 1.0, "top_k": None}


@pytest.mark.parametrize(("told", "note"), [
    ({"do_sample": True, "temperature": 0.6, "num_beams": 1, "max_length": 4096},
     "a request without its own values gets temperature 0.6; not applied: max_length"),
    ({"temperature": 0.6, "top_p": None}, "not applied: temperature (do_sample is not true)"),
    ({"do_sample": False, "suppress_tokens": [3]}, "not applied: suppress_tokens"),
    ({"do_sample": True, "eos_token_id": 3}, ""),
])  # fmt: skip
def test_the_server_says_what_of_a_models_own_sampling_holds(told: dict[str, Any], note: str, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(told))
    assert generation_settings(9, tmp_path).note == (f"generation_config.json: {note}" if note else "")
    for name, value in (("top_p", "x"), ("top_k", 2.5), ("temperature", -1), ("repetition_penalty", 0)):
        (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True, name: value}))
        with pytest.raises(DataError, match=r"generation_config\.json: "):
            generation_settings(9, tmp_path)


def test_what_files_do_not_say_is_an_argument(kitchen, monkeypatch) -> None:
    monkeypatch.chdir(kitchen.folder)
    half = trained(kitchen)
    for parameter in half.parameters():
        parameter.data /= 2
    served = load_served(ServedSource(Path("run"), name="mine", weights="model", context=16, precision="fp32"))
    assert torch.equal(scores(served.model, words()), scores(half, words()))
    assert (served.name, served.context) == ("mine", 16)
    assert kitchen.main("convert", "run", "theirs", "--to", "transformers") == 0
    for path in Path("theirs").glob("token*"):
        path.unlink()
    with pytest.raises(UserError, match="so it has no tokenizer"):
        load_served(ServedSource(Path("theirs"), precision="fp32"))
    assert load_served(ServedSource(Path("theirs"), tokenizer=Path("tokenizer"), precision="fp32")).stop


def test_what_is_no_model_is_a_sentence(kitchen, capsys) -> None:
    (kitchen.folder / "empty").mkdir()
    for folder, said in (("empty", "is not a run folder"), ("absent", "is not a run folder")):
        assert kitchen.main("serve", folder) == 2
        assert said in capsys.readouterr().err


#: What each option becomes part of: as the server is made, the arguments of each part are written down.
REACHES = {
    "--port=7": "'127.0.0.1', port=7", "--host=::1": "host='::1'", "--api-key-env=THE_KEY": "key='the value'",
    "--allow-name=proxy": "names=('proxy',)", "--name=mine": "name='mine'", "--tokenizer=words": "PosixPath('words')",
    "--weights=ema": "weights='ema'", "--context=7": "context=7", "--precision=fp32": "precision='fp32'",
    "--attributes=a, _": "attributes=('a', '_')", "--score-weights=a=1,b=2": "score_weights={'a': 1.0, 'b': 2.0}",
    "--room-gb=7": "KeyValueRoom('weights', 7.0)", "--at-once=7": "ModelPasses('weights', 'KeyValueRoom', 7)",
    "--queue=7": "EngineThread('BatchEngine', max_waiting=7)", "--piece=7": "max_running=16, piece=7",
    "--max-body-mb=7": "max_body_bytes=7000000", "--trust=mine": "trust=['mine']",
    "--allow-host=h": "allow_host=['h']", "--reasoning-parser=think": "split_thoughts=True",
    "--tensor=7": "tensor=7, words=['serve', '--tensor=7', '--', 'MODEL'], room_gb=2.0, at_once=16",
}  # fmt: skip


@pytest.fixture
def parts_of(monkeypatch) -> Callable[..., str]:
    """What a server with these options is made of, as text; nothing is loaded and nobody listens."""
    made: list[str] = []

    def part(name: str) -> Callable[..., object]:
        def make(*args: object, **kwargs: object) -> object:
            given = [*map(repr, args), *(f"{word}={value!r}" for word, value in kwargs.items())]
            made.append(f"{name}({', '.join(given)})")
            return Part(name)

        return make

    for place in ("continuous.batch_engine.BatchEngine", "continuous.engine_thread.EngineThread",
                  "continuous.key_value_room.KeyValueRoom", "continuous.model_passes.ModelPasses",
                  "continuous.packed_block.pack_modules", "memory_settings.set_memory",
                  "memory_settings.collapse_pages", "openai_api.http_server.HttpServer",
                  "openai_api.routes.application"):  # fmt: skip
        monkeypatch.setattr(f"nemo_vfm.serve.{place}", part(place.rpartition(".")[2]))
    monkeypatch.setattr("nemo_vfm.cli.serving.load_served.load_served", part("load_served"))
    monkeypatch.setattr("nemo_vfm.cli.serving.tensor_ranks.serve_on_ranks", part("serve_on_ranks"))

    def parts(*words: str) -> str:
        made.clear()
        parser = argparse.ArgumentParser()
        serve.add_arguments(parser)
        serve.run(parser.parse_args(["MODEL", *words]))
        return "\n".join(made)

    return parts


class Part:
    """Stands for a part of a server, or for what was loaded."""

    name, model, address = "loaded", "weights", "http://127.0.0.1"
    generation = GenerationSettings()

    def __init__(self, called: str) -> None:
        self._called = called

    def __repr__(self) -> str:
        return repr(self._called)

    def max_tokens(self) -> int:
        return 1

    def run(self) -> None:
        pass

    close = run


@pytest.mark.parametrize("word", REACHES)
def test_an_option_of_a_server_reaches_the_part_that_it_is_for(parts_of, monkeypatch, word) -> None:
    monkeypatch.setenv("THE_KEY", "the value")
    assert REACHES[word] in parts_of(word) and REACHES[word] not in parts_of()


def test_the_ranks_of_a_server_get_every_option_as_it_was_typed() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    serve.add_arguments(parser)
    assert {one.option_strings[0] for one in parser._actions if one.option_strings} == {
        word.partition("=")[0] for word in REACHES
    }
    typed = parser.parse_args(["MODEL", *REACHES, "--trust=second", "--allow-name=other"])
    (program, *words) = serve._words(typed)
    assert program == "serve" and parser.parse_args(words) == typed
