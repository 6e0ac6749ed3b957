"""Tests that a reward model gives the scores of transformers, and that its padding and its names are read as there."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.convert.reward_folder import LoadedReward, is_reward_model, labels_of, load_reward
from nemo_vfm.models.reward import RewardHead
from tests.support.language_models import FAMILIES, scores, words, written

PAD = 95


def write(folder: Path, family: str, **more: Any) -> Any:
    return written(folder, family, transformers.AutoModelForSequenceClassification, **{"num_labels": 3, **more})


def scored(ours: LoadedReward, tokens: list[int]) -> torch.Tensor:
    """The outputs after the token that is scored."""
    end = RewardHead(ours.labels, pad=ours.pad).scored_prefix(tokens)
    return scores(ours.model, torch.tensor([end]))[0, -1]


def rows(pad: int) -> torch.Tensor:
    """Texts of 40 tokens: whole; padded behind; in front; with padding inside; of padding alone but for the start."""
    tokens = words()[:1].repeat(5, 1).clamp_max(94)
    tokens[1, 30:], tokens[2, :9], tokens[3, 20:25], tokens[4, 1:] = pad, pad, pad, pad
    return tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_transformers_wherever_padding_is(family: str, tmp_path: Path) -> None:
    theirs = write(tmp_path, family, pad_token_id=PAD)
    ours, tokens = load_reward(tmp_path), rows(PAD)
    with torch.no_grad():
        expected = theirs(tokens).logits
    found = torch.stack([scored(ours, row) for row in tokens.tolist()])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert ours.pad == PAD and len({tuple(row) for row in found[:, :1].tolist()}) > 2


def test_without_padding_the_last_token_is_scored_whatever_it_is(tmp_path: Path) -> None:
    theirs, tokens = write(tmp_path, "llama"), rows(0)[1:2]
    with torch.no_grad():
        expected = theirs(tokens).logits[0]
    ours = load_reward(tmp_path)
    assert ours.pad is None
    torch.testing.assert_close(scored(ours, tokens[0].tolist()), expected, atol=1e-4, rtol=1e-4)


def test_padding_alone_is_scored_at_its_first_token_as_in_transformers(tmp_path: Path) -> None:
    theirs, tokens = write(tmp_path, "qwen 3", pad_token_id=PAD), torch.full((1, 6), PAD)
    with torch.no_grad():
        expected = theirs(tokens).logits[0]
    torch.testing.assert_close(scored(load_reward(tmp_path), [PAD] * 6), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "more", [{"num_labels": 1}, {"num_labels": 2}, {"num_labels": 2, "id2label": {0: "good", 1: "long"}}], ids=str
)
def test_names_of_outputs_are_those_that_transformers_reads(more: dict[str, Any], tmp_path: Path) -> None:
    theirs = write(tmp_path, "llama", **more)
    again = transformers.AutoConfig.from_pretrained(tmp_path).id2label
    labels = load_reward(tmp_path).labels
    assert labels == tuple(again.values()) and len(labels) == len(theirs.score.weight)


def test_a_reward_model_is_known_by_its_class(tmp_path: Path) -> None:
    write(tmp_path, "llama")
    assert is_reward_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())

    def refused(said: str, **changes: Any) -> None:
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        with pytest.raises(DataError, match=said):
            load_reward(tmp_path)

    refused("known reward models are LlamaForSequenceClassification", architectures=["BertForSequenceClassification"])
    refused("known reward models", architectures=["LlamaForCausalLM"])
    assert not is_reward_model(tmp_path)
    refused("score.weight has shape", id2label={"0": "a"})
    refused("a token or null", pad_token_id=[1])


@pytest.mark.parametrize("told", [{"1": "a"}, {"0": "a", "2": "b"}, {"0": 1}, [], {}, {"00": "a"}], ids=str)
def test_labels_that_are_no_names_of_outputs_are_refused(told: Any) -> None:
    with pytest.raises(DataError, match="id2label"):
        labels_of({"id2label": told})


def test_attributes_are_picked_by_place_and_weighed_by_name() -> None:
    head = RewardHead(["_", "helpfulness", "_", "verbosity"], {"helpfulness": 2.0, "verbosity": -0.5})
    found = head.scores([9.0, 1.5, 8.0, 3.0])
    assert found == {"helpfulness": 1.5, "verbosity": 3.0} and head.score(found) == 1.5
    assert RewardHead(["a", "b"]).score({"a": 1.0, "b": 2.0}) is None and RewardHead(["a"]).score({"a": 1.0}) == 1.0


@pytest.mark.parametrize(
    ("names", "weights", "said"),
    [(["a", "a"], None, "each once"), (["_"], None, "at least one"), (["a:b"], None, "not a name of an"),
     ([""], None, "not a name of an"), (["a,b"], None, "not a name of an"), (["a"], {"b": 1.0}, "a weight for b"),
     (["a"], {"a": float("nan")}, "finite")],
    ids=str,
)  # fmt: skip
def test_attributes_that_cannot_be_answered_with_are_refused(names: Any, weights: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RewardHead(names, weights)
