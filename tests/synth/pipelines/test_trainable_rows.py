"""Tests that `datasets` loads rows of every form from both files alike, and that TRL trains on their texts."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from nemo_vfm.synth.pipelines.ratings import ATTRIBUTES
from tests.support.told_models import ran

TEMPLATE = (
    "{% for one in messages %}<{{ one['role'] }}> {{ one['content'] }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)
KINDS = {"json": "rows.jsonl", "parquet": "rows.parquet"}


def loaded(folder: Path, kind: str) -> Any:
    made = pytest.importorskip("datasets").Dataset
    read = made.from_json if kind == "json" else made.from_parquet
    return read(str(folder / KINDS[kind]), cache_dir=str(folder / "cache"))


def tokenizer(rows: list[dict[str, Any]]) -> Any:
    """One token a word of the rows."""
    transformers = pytest.importorskip("transformers")
    words = {word for row in rows for word in json.dumps(row, ensure_ascii=False).replace('"', " ").split()}
    names = ["<pad>", "<unk>", "<user>", "<assistant>", "<system>", "<end>", *sorted(words)]
    made = Tokenizer(models.WordLevel({word: place for place, word in enumerate(names)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    found = transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<end>")
    found.chat_template = TEMPLATE
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("recipe", "columns"), [
    ("preferences", ("prompt", "chosen", "rejected")), ("dialogues", ("messages",)),
    ("ratings", ("messages", *ATTRIBUTES)),
])  # fmt: skip
def test_what_datasets_loads_is_what_was_written(
    tmp_path: Path, recipe: str, columns: tuple[str, ...], kind: str
) -> None:
    made = ran(tmp_path, recipe, "rows=6", "min_yield=0")
    found = loaded(tmp_path, kind)
    assert [{name: row[name] for name in columns} for row in found] == [
        {name: row[name] for name in columns} for row in made
    ]
    assert not {"prompt", "chosen", "messages"} & {*found.column_names} - {*columns}, (
        "trainers refuse two forms at once"
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_trl_trains_a_step_on_the_prompt_and_the_answers_of_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(pytest.importorskip("huggingface_hub.constants"), "HF_HUB_OFFLINE", True)
    trl, transformers = pytest.importorskip("trl"), pytest.importorskip("transformers")
    made = ran(tmp_path, "preferences", "rows=4", "min_yield=0")
    words = tokenizer(made)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model, reference = (
        transformers.LlamaForCausalLM(
            transformers.LlamaConfig(vocab_size=len(words), **sizes, pad_token_id=0, eos_token_id=5)
        )
        for _ in range(2)
    )
    reference.load_state_dict(model.state_dict())
    settings = trl.DPOConfig(output_dir=str(tmp_path / "out"), max_steps=1, report_to=[], use_cpu=True,
                             per_device_train_batch_size=2, save_strategy="no", bf16=False)  # fmt: skip
    trainer = trl.DPOTrainer(model, reference, settings, train_dataset=loaded(tmp_path, kind), processing_class=words)
    texts = [{name: words.decode(one[f"{name}_ids"]) for name in ("prompt", "chosen", "rejected")}
             for one in trainer.train_dataset]  # fmt: skip
    assert texts == [
        {"prompt": f"<user> {row['prompt'][0]['content']} <end> <assistant>",
         **{name: f"{row[name][0]['content']} <end>" for name in ("chosen", "rejected")}}
        for row in made
    ]  # fmt: skip
    assert trainer.train().training_loss == pytest.approx(0.6931, abs=1e-3), "of a model that is its own reference"
