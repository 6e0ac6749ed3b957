"""Tests that the ledger adds up for random fates of files and clips."""

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_vfm.curate.record.ledger import ClipRecord, FileRecord, LedgerColumn, SourceFile, count, kind_of
from nemo_vfm.data.shards.clip_id import Clip


def record(us, rule=None, message=None, source="a.mp4"):
    clip = Clip("0" * 64, 0, 1, 0, 1, Fraction(1, 10))
    return ClipRecord(clip, source, (Path(source),), 10.0, 4, 4, us, rule=rule, message=message)


CLIPS = st.lists(
    st.builds(
        lambda us, fate: record(us, *fate),
        st.integers(0, 10**9),
        st.sampled_from([(None, None), ("static", None), ("black", None), (None, "it broke")]),
    ),
    max_size=6,
)
FILES = st.lists(
    st.one_of(
        CLIPS.filter(bool).map(
            lambda clips: FileRecord(
                SourceFile(Path("a"), "a"), clips=clips, duration_us=sum(c.duration_us for c in clips)
            )
        ),
        st.integers(0, 10**9).map(
            lambda us: FileRecord(SourceFile(Path("b"), "b"), duration_us=us, rule="exact_duplicate")
        ),
        st.just(0).map(lambda us: FileRecord(SourceFile(Path("c"), "c"), duration_us=us, message="not a video")),
    ),
    max_size=8,
)


@given(FILES)
def test_in_is_kept_and_dropped_and_failed(files):
    ledger = count(files).to_json()
    for unit, side in ledger.items():
        out = side["kept"] + sum(side["dropped"].values()) + sum(side["failed"].values())
        assert out == pytest.approx(side["in"], abs=1e-5), unit
    assert ledger["files"]["in"] == len(files)
    assert ledger["clips"]["in"] == sum(len(file.clips) for file in files)


def test_a_ledger_that_does_not_add_up_is_refused():
    file = FileRecord(SourceFile(Path("a"), "a"), clips=[record(5)], duration_us=6)
    with pytest.raises(AssertionError, match="microseconds do not add up"):
        count([file])
    assert not LedgerColumn(total=1).adds_up()


@pytest.mark.parametrize(
    ("clips", "fate"),
    [
        ([record(1), record(1, "static")], ("kept", "")),
        ([record(1, "static"), record(1, "static")], ("dropped", "static")),
        ([record(1, "static"), record(1, "black")], ("dropped", "no_clip_kept")),
        ([record(1, "static"), record(1, None, "it broke")], ("dropped", "static")),
        ([record(1, None, "it broke")], ("failed", "it broke")),
        ([], ("failed", "none of its frames could be decoded")),
    ],
)
def test_the_fate_of_a_file_follows_from_its_clips(clips, fate):
    assert FileRecord(SourceFile(Path("a"), "a"), clips=clips).fate() == fate


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("a b.mp4: frames from 37 on cannot be decoded", "frames from N on cannot be decoded"),
        ("a b.mp4 is damaged: frame 1,203 of 15000x15000", "the file is damaged: frame N of N"),
        ("x/a b.mp4 took 1.5 s with h264 in limits.cpu_s", "x/the file took N s with h264 in limits.cpu_s"),
        ("its encoding was killed by SIGSEGV", "its encoding was killed by SIGSEGV"),
    ],
)
def test_a_reason_is_counted_by_its_kind(message, kind):
    assert kind_of(message, "a b.mp4") == kind


def test_files_with_one_trouble_share_a_row():
    files = [
        FileRecord(SourceFile(Path(n), n), message=f"{n} has {place} frames")
        for place, n in enumerate(("a.mp4", "b.mp4"))
    ]
    assert count(files).to_json()["files"]["failed"] == {"the file has N frames": 2}
    assert [file.kinds() for file in files] == [["the file has N frames"]] * 2


def test_what_is_trimmed_between_clips_counts_in_seconds_and_is_no_clip():
    file = FileRecord(SourceFile(Path("a"), "a"), clips=[record(5), record(2)], duration_us=9, trimmed_us=2)
    ledger = count([file])
    assert ledger.microseconds.dropped == {"transition": 2} and ledger.clips.total == 2
