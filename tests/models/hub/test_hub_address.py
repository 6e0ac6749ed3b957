"""Tests which texts are model addresses, and what the error suggests for others."""

from pathlib import Path

import pytest

from nemo_vfm.models.hub.hub_names import get_hint, hub_address


@pytest.mark.parametrize(
    ("text", "model", "revision"),
    [
        ("hf://Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "main"),
        ("hf://nvidia/Cosmos-Predict2-2B@refs/pr/3", "nvidia/Cosmos-Predict2-2B", "refs/pr/3"),
        ("hf://a/b@" + "0aF" * 13 + "1", "a/b", "0af" * 13 + "1"),
        ("hf://a/b@v1.0", "a/b", "v1.0"),
        ("hf://a/b/", "a/b", "main"),
    ],
)
def test_a_model_and_its_revision_are_parsed(text, model, revision):
    found = hub_address(text)
    assert (found.model, found.revision, found.name) == (model, revision, model.partition("/")[2])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hf://datasets/a/b", "only models can be downloaded"), ("hf://spaces/a/b", "only models"),
        ("nvidia/Cosmos", r"did you mean hf://nvidia/Cosmos\?"),
        ("https://huggingface.co/nvidia/Cosmos/tree/main", r"did you mean hf://nvidia/Cosmos\?"),
        ("hf://a/b/transformer", r"--only 'transformer\*'"), ("hf://gpt2", "an organisation and a model"),
        ("hf://a/..", "an organisation"), ("hf://a/b--c", "an organisation"), ("hf://a/b c", "an organisation"),
        ("hf://a/-b", "an organisation"), ("hf://", "an organisation"), ("s3://a/b", "expected hf://ORG/MODEL"),
        ("hf://a/b@", "a branch, a tag or a commit"), ("hf://a/b@../x", "a branch"), ("hf://a/b@x y", "a branch"),
        ("hf://a/b@-x", "a branch"), ("hf://a/b@x\ny", "a branch"), ("hf://a/b@" + "x" * 300, "a branch"),
    ],
)  # fmt: skip
def test_other_texts_are_refused_with_a_suggestion(text, words):
    with pytest.raises(ValueError, match=words):
        hub_address(text)


def test_the_hint_repeats_a_model_name_but_not_a_folder_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert get_hint("nvidia/Cosmos") == get_hint(Path("hf://nvidia/Cosmos")) == "nemo-vfm get hf://nvidia/Cosmos"
    assert get_hint("hf://nvidia/Cosmos@v1") == "nemo-vfm get hf://nvidia/Cosmos@v1"
    for folder in ("models/wan", "/data/wan", "mine/wan", "wan", "a/b/c", tmp_path / "wan", "../wan"):
        assert get_hint(folder) == "nemo-vfm get hf://ORG/MODEL"
