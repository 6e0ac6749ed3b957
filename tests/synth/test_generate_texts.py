"""Tests that each prompt and repetition gives a line, equal however texts were batched or interrupted."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from nemo_vfm.core.types.job import Job, JobShard, Run
from nemo_vfm.data.tokenizers.byte_tokenizer import ByteTokenizer
from nemo_vfm.data.tokenizers.folder_tokenizer import FolderTokenizer
from nemo_vfm.language.token_choice import Choice
from nemo_vfm.models.convert.gpt_folder import gpt_of_folder, write_gpt
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.apply.build_model import build_model
from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.synth import generate_texts as module
from nemo_vfm.synth.generate_texts import Generate
from nemo_vfm.synth.prompts import PromptList
from tests.support.tiny_tokenizers import byte_level

TEXTS = ["One day Mia", "", "The", "At home"]
MODEL = partial(GPT, vocab=264, width=32, depth=1, heads=2, mlp_hidden=32, init_std=0.3)


def job(**more: object) -> Generate:
    given = {"model": MODEL, "tokenizer": ByteTokenizer(), "prompts": PromptList(texts=TEXTS), "max_tokens": 12,
             "num_texts": 2, "batch_size": 3, "precision": "fp32"}  # fmt: skip
    return Generate(**(given | more))


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "texts.jsonl").read_bytes().splitlines()]


def test_every_prompt_has_its_texts_in_order(tmp_path: Path) -> None:
    outcome = job().run(Run(tmp_path, seed=3))
    found = lines(tmp_path)
    assert isinstance(job(), Job) and [(one["prompt"], one["repeat"]) for one in found] == [
        (text, repeat) for text in TEXTS for repeat in (0, 1)
    ]
    assert found[0]["text"] != found[1]["text"] and all(0 <= one["tokens"] <= 12 for one in found)
    assert outcome.figures["texts"] == 8 and outcome.figures["tokens"] == sum(one["tokens"] for one in found)
    again = job().run(Run(tmp_path, seed=3))
    assert again.did_nothing and again.figures == outcome.figures


def test_equal_prompts_get_texts_of_their_own_and_another_seed_others(tmp_path: Path) -> None:
    same = PromptList(texts=["The"] * 4)
    for seed in (3, 4):
        job(prompts=same).run(Run(tmp_path / str(seed), seed=seed))
    assert len({str(one["text"]) for seed in (3, 4) for one in lines(tmp_path / str(seed))}) == 16


def test_texts_do_not_depend_on_batches_or_on_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (1, 3, 8):
        job(batch_size=size).run(Run(tmp_path / str(size), seed=1))
    write, calls = module.files.write_json, []

    def dies(path: Path, value: object) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write(path, value)

    monkeypatch.setattr(module.files, "write_json", dies)
    with pytest.raises(KeyboardInterrupt):
        job().run(Run(tmp_path / "killed", seed=1))
    first = calls[0].stat().st_mtime_ns
    monkeypatch.undo()
    job(batch_size=2).run(Run(tmp_path / "killed", seed=1))
    assert calls[0].stat().st_mtime_ns == first, "it is not written again"
    assert lines(tmp_path / "killed") == lines(tmp_path / "1") == lines(tmp_path / "3") == lines(tmp_path / "8")


def test_parts_write_the_texts_of_the_whole(tmp_path: Path) -> None:
    job().run(Run(tmp_path / "whole", seed=1))
    for number in (2, 0, 1):
        assert job().run_part(Run(tmp_path / "parts", seed=1), JobShard(number, 3)).figures["texts"] in (2, 3)
    outcome = job().run(Run(tmp_path / "parts", seed=1))
    assert outcome.did_nothing and lines(tmp_path / "parts") == lines(tmp_path / "whole")


@pytest.mark.parametrize("ends", [True, False])
def test_an_end_that_the_model_writes_ends_the_text(ends: bool, tmp_path: Path) -> None:
    class Sure(GPT):
        def scores(self, *given: object, **more: object) -> torch.Tensor:
            found = super().scores(*given, **more)
            found[:, 256] = 1000.0 if ends else -1000.0
            return found

    outcome = job(model=partial(Sure, **MODEL.keywords)).run(Run(tmp_path))
    assert all((one["ended"], one["tokens"]) == (ends, 0 if ends else 12) for one in lines(tmp_path))
    assert outcome.figures["ended"] == float(ends)


def test_every_end_that_lies_beside_the_tokenizer_ends_the_text(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra transformers")

    class Sure(GPT):
        def scores(self, *given: object, **more: object) -> torch.Tensor:
            found = super().scores(*given, **more)
            found[:, 300] = 1000.0
            return found

    tokenizer = FolderTokenizer(folder=byte_level(tmp_path / "tokenizer"))
    (tmp_path / "tokenizer/generation_config.json").write_text('{"eos_token_id": [1, 300]}')
    job(model=partial(Sure, **MODEL.keywords | {"vocab": 400}), tokenizer=tokenizer).run(Run(tmp_path / "run"))
    assert all(one["ended"] and one["tokens"] == 0 for one in lines(tmp_path / "run"))


def test_a_checkpoint_and_a_folder_of_transformers_write_the_same(tmp_path: Path) -> None:
    model = build_model(MODEL, seed=9)
    checkpoint.save(tmp_path / "checkpoints", 1, {"ema": dict(model.state_dict())}, {})
    write_gpt(model, dict(model.named_parameters()), tmp_path / "folder", max_tokens=64)
    job(checkpoint=tmp_path / "checkpoints").run(Run(tmp_path / "a"))
    of_folder = {"model": partial(gpt_of_folder, folder=tmp_path / "folder"), "checkpoint": tmp_path / "folder"}
    job(**of_folder).run(Run(tmp_path / "b"))
    job().run(Run(tmp_path / "untrained"))
    raw = dict(build_model(MODEL, seed=8).state_dict())
    checkpoint.save(tmp_path / "both", 1, {"ema": raw, "model": dict(model.state_dict())}, {})
    for weights in ("ema", "model"):
        job(checkpoint=tmp_path / "both", weights=weights).run(Run(tmp_path / weights))
    assert lines(tmp_path / "model") == lines(tmp_path / "a") != lines(tmp_path / "ema")
    assert lines(tmp_path / "a") == lines(tmp_path / "b") != lines(tmp_path / "untrained")


def test_it_writes_in_bfloat16(tmp_path: Path) -> None:
    assert job(precision="bf16", choice=Choice(temperature=0)).run(Run(tmp_path)).figures["texts"] == 8


def test_what_cannot_be_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 200 tokens, but the tokenizer has 257"):
        job(model=partial(GPT, **(MODEL.keywords | {"vocab": 200}))).run(Run(tmp_path))
    with pytest.raises(ValueError, match="DiT does not generate text"):
        job(model=partial(DiT, in_channels=4, text_dim=8, width=24, depth=1, heads=2)).run(Run(tmp_path))
    with pytest.raises(ValueError, match=r"max_tokens \(0\)"):
        job(max_tokens=0)
