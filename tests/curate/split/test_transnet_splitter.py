"""Tests that a cut follows each frame with which the network ends a shot, in videos of any length."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.split import transnet_splitter
from nemo_vfm.curate.split.transnet_splitter import EdgeCuts, TransNetV2Split
from nemo_vfm.models.transnet import TransNetV2, predict
from tests.support.films import job, pan, write_film

FPS = 10


class EndsAtWhite(nn.Module):
    """Says of white frames that a shot ends with them: what is told of which frame can be seen."""

    def forward(self, frames_BTHWC: Tensor) -> tuple[Tensor, Tensor]:
        white_BT = frames_BTHWC.float().mean(dim=(2, 3, 4)) * 20 / 255 - 10
        return white_BT, white_BT


@pytest.fixture
def use(monkeypatch):
    """Puts a network in the place of the one on disk."""
    return lambda model: monkeypatch.setattr(transnet_splitter, "_model", lambda weights: model)


def film(num_frames: int, ends: set[int]) -> list[np.ndarray]:
    return [np.full((27, 48, 3), 255 if number in ends else 0, np.uint8) for number in range(num_frames)]


def splitter(**settings) -> TransNetV2Split:
    return TransNetV2Split(**({"weights": Path("unread"), "min_length_s": 0.0, "max_length_s": 60.0} | settings))


@pytest.mark.slow
def test_films_of_every_length_are_cut_after_each_end_and_covered_to_the_last_frame(use):
    use(EndsAtWhite())
    for num_frames in range(1, 261):
        ends = {end for end in (13, 49, 75, 99, 124, 150, 199, num_frames - 2, num_frames - 1) if 0 < end < num_frames}
        rises = {end for end in ends if end - 1 not in ends}
        edges = sorted({0, num_frames} | {end + 1 for end in rises})
        assert list(splitter().spans(film(num_frames, ends), fps=FPS)) == list(pairwise(edges)), num_frames


def test_a_film_without_a_cut_is_one_shot(use):
    use(EndsAtWhite())
    assert list(splitter().spans(film(130, set()), fps=FPS)) == [(0, 130)]
    assert list(splitter().spans([], fps=FPS)) == []


@pytest.mark.slow
def test_probabilities_while_frames_come_are_those_of_the_whole_film(use):
    torch.manual_seed(0)
    network = TransNetV2(filters=1, width=4, similarity_width=2).eval()
    for num_frames in (1, 60, 76, 130):
        frames = np.random.default_rng(num_frames).integers(0, 256, (num_frames, 27, 48, 3), np.uint8)
        watcher = transnet_splitter._Watcher(network)
        told = [value for frame in frames for value in watcher.see(frame)] + watcher.end()
        assert told == pytest.approx(predict(network, torch.from_numpy(frames)).tolist(), abs=1e-6)


def test_spans_are_at_max_75_frames_behind(use):
    use(EndsAtWhite())
    seen, stop = 0, 0

    def come():
        nonlocal seen
        for frame in film(400, set(range(9, 400, 10))):
            seen += 1
            assert seen - stop <= 75 + 10
            yield frame

    for span in splitter().spans(come(), fps=FPS):
        stop = span[1]


def test_a_transition_of_several_frames_is_one_cut_and_cuts_keep_their_distance():
    assert EdgeCuts(0.4, 1).cuts([0.1, 0.5, 0.9, 0.3, 0.4, 0.41]) == [2, 6]
    assert EdgeCuts(0.4, 5).cuts([0.1, 0.5, 0.1, 0.1, 0.5, 0.1, 0.5, 0.1]) == [5]


def test_without_weights_it_says_where_they_come_from(tmp_path):
    with pytest.raises(UserError, match="nemo-vfm convert"):
        list(TransNetV2Split(weights=tmp_path).spans(film(3, set()), fps=FPS))


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="threshold"):
        splitter(threshold=1.0)


def test_other_weights_are_another_fingerprint_wherever_they_lie(tmp_path):
    for name, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name).write_bytes(content)
    one, same, other = (TransNetV2Split(weights=tmp_path / name).fingerprint() for name in "abc")
    assert one == same != other
    assert TransNetV2Split(weights=tmp_path / "a", threshold=0.5).fingerprint() != one
    with pytest.raises(UserError, match="there are no weights"):
        TransNetV2Split(weights=tmp_path / "none").fingerprint()


def test_weights_of_another_network_stop_a_curation_before_any_file(tmp_path):
    write_film(tmp_path / "films" / "a.mp4", pan(1))
    save_file({"other": torch.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises((UserError, DataError), match=r"model\.safetensors"):
        job(tmp_path / "films", split=TransNetV2Split(weights=tmp_path)).run(Run(tmp_path / "run"))
    assert not list((tmp_path / "run").rglob("findings/*"))
