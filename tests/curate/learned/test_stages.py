"""Tests that stages with a tiny CLIP give a plain script's numbers in any batch, and what training changed."""

import json
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.curate.learned.aesthetic import Aesthetic
from nemo_vfm.curate.learned.cosmos_embed import CosmosEmbed
from nemo_vfm.curate.learned.learned_duplicate import LearnedDuplicate
from nemo_vfm.curate.learned.scorer_task import Rate, Recognise, Sort
from nemo_vfm.curate.learned.video_type import VideoType
from nemo_vfm.curate.record.stage import Compares, HasLabels, LearnedStage
from nemo_vfm.dedup.semantic import as_text, as_vectors
from nemo_vfm.models.scorer import Scorer
from tests.curate.score.test_semantic_duplicate import record
from tests.support.encoders import tiny_clip, tiny_head
from tests.support.films import pan

Made = Callable[..., partial[Scorer]]
NAMES = ("nature", "game", "driving")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture(scope="module")
def scorer(clip: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A scorer with a head of so many outputs from a file."""
    folder = tmp_path_factory.mktemp("heads")

    def made(outputs: int = 1, hidden: tuple[int, ...] = ()) -> partial[Scorer]:
        head = tiny_head(folder / f"{outputs}-{len(hidden)}.safetensors", 12, *hidden, outputs)
        return partial(Scorer, folder=clip, outputs=outputs, hidden=hidden, head=head)

    return made


@pytest.fixture(scope="module")
def aesthetic(scorer: Made) -> Aesthetic:
    return Aesthetic(model=scorer(hidden=(8,)), task=Rate(label="aesthetic"), batch_size=4)


def films(*lengths: int) -> list[np.ndarray]:
    clips = [pan(seed, length) for seed, length in enumerate(lengths)]
    clips[-1] = np.stack([cv2.resize(frame, (90, 50)) for frame in clips[-1]])
    return clips


def test_they_are_what_they_say(aesthetic: Aesthetic, clip: Path, scorer: Made):
    kind = VideoType(model=scorer(3), task=Sort(label="type", classes=NAMES))
    alike = LearnedDuplicate(model=partial(Scorer, folder=clip, outputs=0), task=Recognise())
    assert all(isinstance(stage, LearnedStage) for stage in (aesthetic, kind, alike))
    assert isinstance(kind, HasLabels) and isinstance(alike, Compares) and len(alike.columns()) == 1


def test_the_scores_are_those_of_transformers_and_a_few_products(aesthetic: Aesthetic, clip: Path):
    from transformers import CLIPImageProcessorPil, CLIPModel

    from nemo_vfm.parallel.apply.build_model import build_model

    (film,) = films(6)
    head = build_model(aesthetic.bearer.model, seed=0).head
    with torch.no_grad():
        inputs = CLIPImageProcessorPil.from_pretrained(clip)(list(film), return_tensors="pt")
        features = CLIPModel.from_pretrained(clip).eval().get_image_features(**inputs).pooler_output
        scores = head(features / features.norm(dim=-1, keepdim=True))[:, 0].double().numpy()
    found = aesthetic.judge([film])[0].scores
    assert aesthetic.bearer.say([film])[0][:, 0] == pytest.approx(scores, abs=1e-5)
    wanted = {"mean": scores.mean(), "min": scores.min(), "p10": np.percentile(scores, 10)}
    assert found == pytest.approx({f"aesthetic.{name}": value for name, value in wanted.items()}, abs=6e-5)


def test_a_clip_gets_the_same_finding_in_any_company(clip: Path, scorer: Made):
    stages = [
        Aesthetic(model=scorer(), task=Rate(label="a"), batch_size=3),
        VideoType(model=scorer(3), task=Sort(label="t", classes=NAMES), batch_size=3),
        LearnedDuplicate(model=partial(Scorer, folder=clip, outputs=0), task=Recognise(), batch_size=3),
    ]
    clips = films(1, 5, 2, 7, 4)
    for stage in stages:
        together, backwards = stage.judge(clips), stage.judge(clips[::-1])[::-1]
        alone = [stage.judge([one])[0] for one in clips]
        assert together == alone == backwards
        assert len({str(finding) for finding in alone}) == len(alone)


def test_one_frame_a_second_is_wanted_and_no_more_than_the_most(aesthetic: Aesthetic):
    assert aesthetic.frame_indices(60, 24.0) == [0, 24, 48]
    assert aesthetic.frame_indices(1, 24.0) == [0]
    assert len(aesthetic.frame_indices(24 * 600, 24.0)) == 60


def test_each_stage_wants_the_frames_and_the_training_that_it_was_given(scorer: Made, clip: Path, tmp_path: Path):
    types, encoder = Sort(label="t", classes=NAMES), partial(Scorer, folder=clip, outputs=0)
    makes: list[Callable[..., LearnedStage]] = [
        partial(Aesthetic, model=scorer(), task=Rate(label="a")),
        partial(VideoType, model=scorer(3), task=types),
        partial(LearnedDuplicate, model=encoder, task=Recognise()),
    ]
    settings = [{"max_frames": 3, "per_second": 24.0}, {"num_frames": 3}, {"num_frames": 3}]
    for make, more in zip(makes, settings, strict=True):
        assert make(**more).frame_indices(100, 24.0) == [0, 50, 99] and len(make().frame_indices(2400, 24.0)) > 3
        with pytest.raises(UserError, match="no checkpoint"):
            make(trained=tmp_path).fingerprint()


def test_the_better_of_two_is_told_by_the_score_that_the_recipe_names(clip: Path):
    encoder = partial(Scorer, folder=clip, outputs=0)
    makes: list[Callable[..., Compares]] = [
        partial(LearnedDuplicate, model=encoder, task=Recognise()),
        partial(CosmosEmbed, folder=clip),
    ]
    clips = [record(0, sharpness=1.0, light=9.0), record(1, sharpness=9.0, light=1.0)]
    same = [as_text(np.eye(4)[0])] * 2
    for make in makes:
        found = [make(**more).duplicates(clips, same, 0.4) for more in ({}, {"quality": "light"})]
        assert found == [{0: 1}, {1: 0}]


def test_a_lower_temperature_tells_clips_further_apart():
    halves = torch.nn.functional.normalize(torch.randn(4, 2, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    halves[:, 1] = halves[:, 0]
    losses = [Recognise(temperature=t).losses(halves, ModelInputs({}, {}, torch.ones(4))).mean() for t in (1.0, 0.1)]
    assert losses[0] > 2 * losses[1]


def test_a_type_is_the_likeliest_and_shares_add_up(scorer: Made):
    stage = VideoType(model=scorer(3), task=Sort(label="type", classes=NAMES))
    (finding,) = stage.judge(films(4))
    shares = {name: finding.scores[f"type.{name}"] for name in NAMES}
    assert finding.scores["type"] == max(shares, key=shares.__getitem__)
    assert sum(shares.values()) == pytest.approx(1, abs=2e-4)
    assert set(finding.scores) == set(stage.columns()) and stage.labels() == {"type": NAMES}


def test_classes_in_another_order_than_the_heads_folder_says_are_refused(tmp_path: Path, scorer: Made):
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"0": "game", "1": "nature", "2": "driving"}}))
    task = Sort(label="type", classes=NAMES)
    stage = VideoType(model=scorer(3), task=task, classes=tmp_path)
    with pytest.raises(UserError, match=r"\['game', 'nature', 'driving'\].*\['nature', 'game', 'driving'\]"):
        stage.load()
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="names no classes"):
        stage.load()


def test_an_output_too_few_costs_the_clip_a_sentence(scorer: Made):
    stage = VideoType(model=scorer(2), task=Sort(label="type", classes=NAMES))
    with pytest.raises(ValueError, match="2 outputs for the 3 classes"):
        stage.judge(films(2))


def test_copies_have_the_same_vector_and_unit_length(clip: Path):
    stage = LearnedDuplicate(model=partial(Scorer, folder=clip, outputs=0), task=Recognise())
    one, other = films(8, 8)
    texts = [str(finding.vector) for finding in stage.judge([one, one[::2], other])]
    assert np.linalg.norm(as_vectors(texts), axis=1) == pytest.approx(np.ones(3), abs=1e-3)
    likeness = stage.likeness(texts)
    assert min(likeness[:2]) > 0.99 > likeness[2]


def test_one_frame_of_a_clip_is_enough_and_none_is_refused(clip: Path):
    model = partial(Scorer, folder=clip, outputs=0)
    assert len(LearnedDuplicate(model=model, task=Recognise(), num_frames=1).judge(films(8))) == 1
    with pytest.raises(ValueError, match="num_frames is 0"):
        LearnedDuplicate(model=model, task=Recognise(), num_frames=0)


def test_a_fingerprint_follows_model_task_and_settings_but_not_the_batch(scorer: Made):
    def stamp(**more: object) -> str:
        settings = {"model": scorer(), "task": Rate(label="a")} | more
        return Aesthetic(**settings).fingerprint()

    assert stamp() == stamp(batch_size=2)
    others = [stamp(per_second=2.0), stamp(task=Sort(label="a", classes=NAMES)), stamp(model=scorer(hidden=(3,)))]
    assert len({stamp(), *others}) == 4


def test_a_stage_that_has_worked_can_be_sent_to_another_process(aesthetic: Aesthetic):
    (film,) = films(3)
    before = aesthetic.judge([film])
    sent = pickle.dumps(aesthetic)
    assert len(sent) < 5_000
    assert pickle.loads(sent).judge([film]) == before


def test_a_clip_without_frames_is_refused(aesthetic: Aesthetic):
    with pytest.raises(ValueError, match="without a frame"):
        aesthetic.judge([np.zeros((0, 8, 8, 3), np.uint8)])


def test_a_head_that_nobody_trained_is_refused(clip: Path):
    stage = Aesthetic(model=partial(Scorer, folder=clip), task=Rate(label="a"))
    with pytest.raises(UserError, match="head has no weights"):
        stage.load()
