"""Tests trainings on made-up samples: of every kind of data, the same on any ranks, and with none of its files."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_vfm.cli.main import main
from nemo_vfm.config import RecipeError, build, check, compose
from nemo_vfm.core.types.sample_batches import PackedBatch, TokenBatch, VideoBatch
from nemo_vfm.core.types.training_data import HasTableRows
from nemo_vfm.sparse.feature_batch import FeatureBatch
from nemo_vfm.train.job import Train
from nemo_vfm.workflow import jobs_in
from tests.support.repository import ROOT

#: Recipes of every kind of data, with changes, and what a batch then is.
KINDS: dict[str, tuple[list[str], type, dict[str, Any]]] = {
    "llm/nemotron4_1b": ([], TokenBatch, {"tokens_BS": (2, 32)}),
    "llm/stories": ([], TokenBatch, {"tokens_BS": (2, 32)}),
    "diffusion/train_small": ([], VideoBatch, {"latents_BCTHW": (2, 384, 2, 4, 4)}),
    "diffusion/train_folder": ([], VideoBatch, {"text_BLD": None}),
    "diffusion/train_streamed": ([], VideoBatch, {"video_BCTHW": (2, 3, 9, 48, 48)}),
    "diffusion/train_autoencoder": ([], VideoBatch, {"latents_BCTHW": None}),
    "diffusion/train_blend": ([], VideoBatch, {"latents_BCTHW": None}),
    "diffusion/train_packed": (["mock_data.latents=[[2,4,4],[1,4,8]]"], PackedBatch, {}),
    "diffusion/dit_7b_8k": (["mock_data.latents=[[2,4,4]]"], VideoBatch, {"latents_BCTHW": (2, 1536, 2, 4, 4)}),
    "recommendation/dlrm_log": ([], FeatureBatch, {"dense_BF": (32, 1)}),
    "recommendation/hstu_history": (["steps.import.source.paths=[x]"], FeatureBatch, {"dense_BF": (32, 0)}),
    "recommendation/dcnv2_mlperf": (
        ["steps.import.source.paths=[x]", "steps.held_out.source.paths=[x]"], FeatureBatch, {"dense_BF": (32, 13)},
    ),
}  # fmt: skip


def mocked(recipe: str, *changes: str) -> Train:
    """The one training of a recipe under `data=mock`, small; nothing that its data need is given."""
    composed = compose(ROOT / f"recipes/{recipe}.yaml", ["data=mock", *changes], overlays=["smoke"])
    given = [f"{one.path}=[x]" for one in check(composed) if not one.path.startswith(("data.", "steps.train.data."))]
    job = build(compose(composed.path, ["data=mock", *changes, *given], overlays=["smoke"]))
    return next(one for _, one in jobs_in(job) if isinstance(one, Train))


@pytest.mark.parametrize("recipe", KINDS)
def test_a_training_reads_made_up_samples_of_its_shapes_on_any_number_of_ranks(recipe: str) -> None:
    changes, kind, shapes = KINDS[recipe]
    job = mocked(recipe, *changes)
    job.data.start(seed=1, first_batch=0)
    batches: Any = job.data
    batch = batches.by_number()[3][0]
    assert isinstance(batch, kind)
    for name, shape in shapes.items():
        found = getattr(batch, name)
        assert (None if found is None else tuple(found.shape)) == shape
    model = job.model()
    prepared = job.task.prepare(batch, seed=0, training=True)
    assert torch.isfinite(job.task.losses(model(**prepared.inputs).float(), prepared)).all()
    again: Any = mocked(recipe, *changes).data
    again.start(seed=1, first_batch=0)
    assert again.position(3) == job.data.position(3), "so that a resume in another process goes on at its sample"
    if kind is PackedBatch:
        assert len(set(batch.sizes_THW)) == 2
        return
    halves = []
    for rank in range(2):
        again.start(seed=1, first_batch=0, rank=rank, num_ranks=2)
        halves.append(again.by_number()[3][0])
    assert [key for half in halves for key in half.keys] == list(batch.keys)
    for name in batch.__dataclass_fields__:
        whole = getattr(batch, name)
        if isinstance(whole, torch.Tensor) and name != "inverse_B":
            assert torch.equal(torch.cat([getattr(half, name) for half in halves]), whole), name


def test_samples_differ_and_hold_more_than_one_value() -> None:
    data: Any = mocked("diffusion/train_small").data
    data.start(seed=1, first_batch=0)
    latents = torch.cat([data.by_number()[index][0].latents_BCTHW for index in range(4)])
    assert abs(float(latents.mean())) < 0.05 and abs(float(latents.std()) - 1) < 0.05
    assert all(not torch.equal(one, other) for one, other in pairwise(latents))


def test_documents_are_packed_and_of_many_lengths() -> None:
    data: Any = mocked("llm/stories").data
    data.start(seed=1, first_batch=0)
    documents = [length for index in range(8) for row in data.by_number()[index][0].documents for length in row]
    assert len(set(documents)) > 4 and data.vocab_size() == 512
    assert any(True for _ in data.val_dataloader()), "a share of them is held out"


def test_tables_whose_rows_the_data_says_are_made_too() -> None:
    job = mocked("recommendation/dlrm_log")
    assert isinstance(job.data, HasTableRows)
    assert len(job.data.table_rows()) == 8


def test_a_made_up_history_is_of_any_length_that_the_model_keeps() -> None:
    data: Any = mocked("recommendation/hstu_history", "steps.import.source.paths=[x]").data
    data.start(seed=1, first_batch=0)
    features = data.by_number()[0][0].features
    assert set(features["history"].lengths_B.tolist()) > set(range(3, 8)), "of 32 samples"
    assert set(features["user_id"].lengths_B.tolist()) == {1}


def test_the_word_asks_for_no_path_of_a_source_and_for_all_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "diffusion/train_blend", "data=mock"]) == 0
    assert "you must set this" not in capsys.readouterr().out
    assert main(["check", "world_model/lora", "data=mock"]) == 0
    said = capsys.readouterr().out
    assert "base=" in said and "data.path" not in said
    absent = ["check", "llm/nemotron4_1b", "data.sources.text.folder=nowhere", "--paths"]
    assert main(absent) == 2 and "nowhere" in capsys.readouterr().out
    assert main([*absent, "data=mock"]) == 0, "what is not read need not be there"


def test_a_made_up_run_has_a_folder_of_its_own_and_its_recipe_says_so() -> None:
    composed = compose("llm/nemotron4_1b", ["data=mock"])
    assert str(composed.run_dir) == "runs/nemotron4_1b-mock"
    assert "mock_data:" in composed.to_yaml() and "mock_data" not in compose("llm/nemotron4_1b").to_yaml()


def test_a_recipe_that_trains_nothing_is_refused() -> None:
    with pytest.raises(RecipeError, match="no step of this recipe is a training of ours"):
        compose("diffusion/sample", ["data=mock"])


def test_an_ingredient_of_this_name_is_taken_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "conf/data").mkdir(parents=True)
    (tmp_path / "conf/data/mock.yaml").write_text((ROOT / "conf/data/shards.yaml").read_text())
    composed = compose("diffusion/train_small", ["data=mock"], conf_dirs=[tmp_path / "conf"])
    assert "mock_data" not in composed.to_yaml()


def test_data_of_a_users_own_class_is_refused_in_a_sentence() -> None:
    from nemo_vfm.train.mock_data import MockData
    from nemo_vfm.train.mock_data import mocked as made_up

    with pytest.raises(ValueError, match="object cannot make samples up"):
        made_up(object(), MockData(), object, object())  # type: ignore[arg-type]


def test_a_training_on_made_up_samples_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "llm/nemotron4_1b", "--overlay", "smoke", "data=mock", f"run_dir={tmp_path / 'run'}"]
    assert main(words) == 0, capsys.readouterr().err
    assert (tmp_path / "run/checkpoints").is_dir()
