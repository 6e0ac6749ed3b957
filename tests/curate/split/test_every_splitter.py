"""Tests that every splitter gives each frame at most once, the same each time, and early, for videos of any length."""

import pickle
from collections.abc import Iterator
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_vfm.curate.record.stage import Splitter
from nemo_vfm.curate.split.adaptive import AdaptiveSplit
from nemo_vfm.curate.split.content import ContentSplit
from nemo_vfm.curate.split.finder import Eye
from nemo_vfm.curate.split.shot_lengths import REACH_S, SplitsByGlances, in_parts, pack_glances, spans_of
from nemo_vfm.curate.split.stitch import Stitch
from nemo_vfm.curate.split.stride import FixedStride
from nemo_vfm.curate.split.union import UnionSplit

FPS = 8
TRIM = round(1.5 * FPS)  # frames that a transition may reach from its middle
LIMITS = {"min_length_s": 0.5, "max_length_s": 3.0, "min_tail_s": 0.5}
#: Each with how far it may be behind, in frames, beside its longest length and tail: the promise of its docstring.
SPLITTERS = {
    "adaptive": (AdaptiveSplit(**LIMITS), 4 + 3 + 1 + TRIM),
    "adaptive, tails left": (AdaptiveSplit(**LIMITS, short_tail="leave", trim_s=None), 4 + 3 + 1),
    "content": (ContentSplit(**LIMITS), 4 + 1),
    "union": (UnionSplit(**LIMITS), 4 * FPS + 4 + TRIM),
    "stride": (FixedStride(length_s=3.0, min_length_s=0.5), 1),
    "stitch": (Stitch(splitter=ContentSplit(**LIMITS, threshold=10, flash_s=0), max_length_s=6.0), 3 * FPS + 28 + 1),
}
LONGEST_WITH_TAIL = 3 * FPS + 4


def film(shots: list[tuple[int, int, str]]) -> list[np.ndarray]:
    """Frames of shots, each (seed, length, how it begins)."""
    frames: list[np.ndarray] = []
    for seed, length, begin in shots:
        random = np.random.default_rng(seed)
        picture = random.uniform(20, 230, (9, 16, 3)) if begin != "black" else np.zeros((9, 16, 3))
        before = frames[-1] if frames else picture
        for index in range(length):
            share = min(1.0, (index + 1) / 8) if begin == "dissolve" else 1.0
            light = 120 if begin == "flash" and index == length // 2 else 0
            noisy = (1 - share) * before + share * picture + light + random.normal(0, 2, picture.shape)
            frames.append(np.clip(noisy, 0, 255))
    return [np.kron(frame, np.ones((2, 2, 1))).astype(np.uint8) for frame in frames]


FILMS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 40), st.sampled_from(["cut", "black", "dissolve", "flash"])), max_size=6
).map(film)


def check_cover(spans: list[tuple[int, int]], num_frames: int) -> None:
    assert all(first < stop for first, stop in spans)
    assert bool(spans) == bool(num_frames)
    if spans:
        assert (spans[0][0], spans[-1][1]) == (0, num_frames)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))


@pytest.mark.parametrize("name", SPLITTERS)
@settings(max_examples=25)
@given(frames=FILMS)
def test_all_frames_are_in_one_span_at_max_and_every_time_the_same(name, frames):
    splitter, _ = SPLITTERS[name]
    assert isinstance(splitter, Splitter)
    spans = list(splitter.spans(frames, fps=FPS))
    check_cover(spans, len(frames))
    if getattr(splitter, "trim_s", None) is None:
        assert all(a[1] == b[0] for a, b in pairwise(spans))
    assert list(pickle.loads(pickle.dumps(splitter)).spans(iter(frames), fps=FPS)) == spans


@pytest.mark.slow
@pytest.mark.parametrize("name", SPLITTERS)
@settings(max_examples=25)
@given(frames=FILMS)
def test_spans_come_as_early_as_is_promised_and_do_not_hang_on_what_follows(name, frames):
    splitter, behind = SPLITTERS[name]
    gap = 0 if getattr(splitter, "trim_s", None) is None else 2 * round(REACH_S * FPS)  # frames that belong to no span
    seen = 0

    def come() -> Iterator[np.ndarray]:
        nonlocal seen
        for frame in frames:
            seen += 1
            assert seen - stop <= LONGEST_WITH_TAIL + behind + gap, "more is held back than is promised"
            yield frame

    stop = 0
    told: list[tuple[tuple[int, int], int]] = []
    for span in splitter.spans(come(), fps=FPS):
        stop = span[1]
        told.append((span, seen))
    for _, until in told[:-1]:  # what has been told stands, whatever comes later
        early = [span for span, at in told if at <= until and at < len(frames)]
        again = list(splitter.spans(frames[:until] + frames[:5], fps=FPS))
        assert again[: len(early)] == early


@pytest.mark.parametrize("name", SPLITTERS)
def test_one_frame_is_one_span_and_no_frame_is_none(name):
    splitter, _ = SPLITTERS[name]
    assert list(splitter.spans([], fps=FPS)) == []
    assert list(splitter.spans(film([(0, 1, "cut")]), fps=FPS)) == [(0, 1)]


@pytest.mark.parametrize("name", SPLITTERS)
@settings(max_examples=10)
@given(shots=st.lists(FILMS, min_size=1, max_size=4).map(lambda parts: [part for part in parts if part]))
def test_parts_between_holes_are_split_as_if_each_were_a_film_of_its_own(name, shots):
    splitter, _ = SPLITTERS[name]
    begins = [0, *accumulate(map(len, shots))]
    alone = [(start + begin, stop + begin) for part, begin in zip(shots, begins, strict=False)
             for start, stop in splitter.spans(part, fps=FPS)]  # fmt: skip
    frames = [frame for part in shots for frame in part]
    assert list(in_parts(frames, begins[1:-1], lambda part: splitter.spans(part, fps=FPS))) == alone
    if isinstance(splitter, SplitsByGlances):
        sent = [pack_glances([eye.look(frame) for frame in part]) for part in shots for eye in [Eye()]]
        assert spans_of(sent, splitter, FPS, begins[1:-1]) == alone


def test_every_piece_of_a_joined_film_begins_where_the_one_before_ends():
    spans = list(SPLITTERS["stitch"][0].spans(film([(0, 30, "cut"), (1, 30, "cut"), (1, 9, "flash")]), fps=FPS))
    assert all(a[1] == b[0] for a, b in pairwise(spans))


#: Cuts, a flash, a dissolve, short shots, a shot whose rest is three frames, and a fade through nearly black.
VARIED = film([(3, 6, "cut"), (0, 27, "cut"), (1, 30, "cut"), (2, 4, "cut"), (3, 20, "flash"), (4, 30, "cut"),
               (5, 30, "dissolve"), (1, 12, "cut"), (2, 28, "cut")])  # fmt: skip
VARIED += [
    np.maximum(frame * (abs(k - 15) / 15), 8).astype(np.uint8) for k, frame in enumerate(VARIED[-15:] + VARIED[:15])
]
ONE_EACH = {
    "adaptive": {"ratio": 30.0, "window": 9, "min_length_s": 0.1, "max_length_s": 2.0, "short_tail": "leave",
                 "min_tail_s": 1.5, "trim_s": None, "black": 5.0, "min_content": 90.0},
    "content": {"threshold": 90.0, "flash_s": 0.0, "min_length_s": 1.0, "max_length_s": 2.0, "short_tail": "leave",
                "min_tail_s": 1.5, "trim_s": 0.25},
    "union": {"ratio": 30.0, "window": 9, "min_content": 90.0, "flash_s": 0.0, "black": 5.0, "dissolve": None,
              "min_length_s": 1.0, "max_length_s": 2.0, "short_tail": "leave", "min_tail_s": 1.5, "trim_s": None},
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_EACH)
def test_each_setting_moves_a_cut(name):
    kind = type(SPLITTERS[name][0])
    usual = list(kind(**LIMITS).spans(VARIED, fps=FPS))
    same = [one for one, value in ONE_EACH[name].items()
            if list(kind(**LIMITS | {one: value}).spans(VARIED, fps=FPS)) == usual]  # fmt: skip
    assert not same
