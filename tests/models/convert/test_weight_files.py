"""Tests that a model folder gives the weights that transformers would read, and that damage gives an error message."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.convert.gpt_folder import load_gpt
from nemo_vfm.models.convert.weight_files import TRANSFORMERS
from tests.support.language_models import scores, words, written

INDEX, NORM = f"{TRANSFORMERS}.safetensors.index.json", "model.norm.weight"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama in several files with an index."""
    folder: Path = tmp_path_factory.mktemp("shards") / "llama"
    written(folder, "llama")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    theirs.save_pretrained(folder, max_shard_size="40KB")
    return folder


@pytest.fixture
def folder(shards: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shards, tmp_path / "llama"))


def index_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / INDEX).read_text())
    return found


def shard_of(folder: Path, weight: str) -> Path:
    return folder / index_of(folder)["weight_map"][weight]


def same_as_theirs(folder: Path) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        torch.testing.assert_close(scores(load_gpt(folder), words()), theirs(words()).logits, atol=1e-4, rtol=1e-4)


def test_stale_and_foreign_files_beside_the_shards_are_left_out_and_named(folder: Path, capfd: Any) -> None:
    save_file({NORM: torch.full((48,), 9.0)}, folder / "model-00009-of-00009.safetensors")
    save_file({"layers.0.wq": torch.zeros(2)}, folder / "consolidated.safetensors")
    same_as_theirs(folder)
    said = " ".join(capfd.readouterr().err.split())
    assert said.count("not read: consolidated.safetensors, model-00009-of-00009.safetensors") == 1


def test_a_single_file_wins_over_an_index_as_in_transformers(folder: Path) -> None:
    whole = {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}
    save_file(whole | {NORM: torch.full((48,), 3.0)}, folder / "model.safetensors", metadata={"format": "pt"})
    same_as_theirs(folder)
    assert load_gpt(folder).norm.weight[0].item() == 3


def test_shards_that_are_links_are_read_as_in_a_hubs_cache(folder: Path, tmp_path: Path) -> None:
    path = shard_of(folder, NORM)
    (tmp_path / "blobs").mkdir()
    path.rename(tmp_path / "blobs" / "0a1b")
    path.symlink_to(tmp_path / "blobs" / "0a1b")
    same_as_theirs(folder)


def with_index(change: Callable[[dict[str, Any], Path], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        index = index_of(folder)
        change(index["weight_map"], folder)
        (folder / INDEX).write_text(json.dumps(index))

    return damage


def with_more(weight: str, listed: bool) -> Callable[[Path], None]:
    """One shard more holds what another holds, or what nobody asked for."""

    def damage(folder: Path) -> None:
        other = next(path for path in sorted(folder.glob("*.safetensors")) if path != shard_of(folder, NORM))
        save_file(load_file(other) | {weight: torch.ones(48)}, other)
        assert listed == (weight in index_of(folder)["weight_map"])

    return damage


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: shard_of(folder, NORM).unlink(), "there is no such safetensors file in the folder"),
        (with_index(lambda places, _: places.update({NORM: "../llama/config.json"})), "there is no such"),
        (with_index(lambda places, at: places.update({NORM: str(shard_of(at, NORM))})), "no such safetensors file"),
        (with_index(lambda places, _: places.update({NORM: "config.json"})), "no such safetensors file"),
        (with_index(lambda places, _: places.update({NORM: 7})), "no such safetensors file"),
        (with_index(lambda places, _: places.update({NORM: "x" * 5000 + ".safetensors"})), "no such safetensors file"),
        (with_index(lambda places, _: places.pop(NORM)), "holds model.norm.weight, which .* does not name"),
        (with_index(lambda places, _: places.update({"a.b": places[NORM]})), r"has no a\.b, which .* places there"),
        (with_more(NORM, listed=True), "holds model.norm.weight, which .* places in model-0"),
        (with_more("adapter", listed=False), "holds adapter, which .* does not name"),
        (with_index(lambda places, _: places.clear()), "has no weight_map"),
        (lambda folder: (folder / INDEX).write_text("[]"), "index.json cannot be read: it is not a mapping"),
        (lambda folder: (folder / INDEX).write_text('{"weight_map": {"a": "b", "a": "c"}}'), "it has 'a' twice"),
        (lambda folder: (folder / INDEX).write_text("[" * 100_000), "index.json cannot be read"),
        (lambda folder: (folder / INDEX).unlink(), "has neither model.safetensors nor model.safetensors.index.json"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "holds an adapter"),
    ],
)  # fmt: skip
def test_an_index_that_is_not_true_is_refused(damage: Callable[[Path], object], said: str, folder: Path) -> None:
    damage(folder)
    with pytest.raises(DataError, match=said):
        load_gpt(folder)


def test_a_tied_head_that_differs_is_refused_and_an_equal_one_is_not(tmp_path: Path) -> None:
    written(tmp_path, "llama 3.1, tied")
    weights = load_file(tmp_path / "model.safetensors")
    head = weights["model.embed_tokens.weight"].clone()
    save_file(weights | {"lm_head.weight": head}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    same_as_theirs(tmp_path)
    head[-1, -1] += 1
    save_file(weights | {"lm_head.weight": head}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match="to keep that head, set it to false"):
        load_gpt(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    same_as_theirs(tmp_path)
