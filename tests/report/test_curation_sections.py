"""Tests what the page says of right and damaged buckets.json and similarity.json."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.sections import (
    buckets,
    captions,
    contact_sheet,
    copies,
    encoded,
    funnel,
    scores,
    survival_curves,
    worker_throughput,
)
from tests.report.conftest import read_page
from tests.support import fake_run

AMOUNT = {"clips": 2, "seconds": 4.0}
VIDEO = fake_run.mp4(fake_run.draw("red", "circle", "up", 4, 48))
STAGE = {
    "column": "similarity", "above": 0.85, "how": "valley", "proposed_epsilon": 0.15, "proposed_by": "valley",
    "removed": [{"epsilon": 0.1, "removed_percent": 10.0}, {"epsilon": 0.2, "removed_percent": 30.0}],
}  # fmt: skip


def shown(part: Any, folder: Path, name: str, value: Any) -> str:
    (folder / name).write_text(json.dumps(value))
    run = RunFolder.open(folder)
    return " ".join(f"{one.lead} {one.body}" for one in part.sections(run, SectionMedia(run, 0)))


def text(html: str) -> str:
    return read_page(f"<div>{html}</div>").text


def test_each_bucket_says_what_it_receives_and_each_reason_what_is_lacking(tmp_path):
    short = {**AMOUNT, "nearest": {"wide": 2}, "more_frames": {"least": 3, "median": 7.5, "most": 12}}
    told = {
        "buckets": {"wide": {"clips": 6, "seconds": 75.0}, "tall": {"clips": 0, "seconds": 0.0}},
        "unbinned": {"rare": {"clips": 1, "seconds": 1.0}, "too few frames": short},
        "nearest_misses": [{"clip_id": "abcdef0123456789", "bucket": "wide", "needs": "3 more frames"}],
    }
    html = shown(buckets, tmp_path, "buckets.json", told)
    said = text(html)
    assert "6 of 9 kept clips fit a bucket" in said and "wide 6 1 min 15 s tall 0 –" in said
    assert "too few frames 2 4.0 s wide (2) 3 to 12, median 7.5 rare 1" in said, "the most frequent reason first"
    assert "abcdef01 wide 3 more frames" in said
    assert html.count('class="bar') == 1, "an empty bucket has no bar"


def test_a_bucket_list_of_any_length_makes_a_page_that_is_read(tmp_path):
    many = {f"b{number}": {"clips": number, "seconds": 1.0} for number in range(500)}
    said = text(shown(buckets, tmp_path, "buckets.json", {"buckets": many, "unbinned": {}}))
    assert "b499" in said and "b459 " not in said and "Fit no bucket" not in said


def test_a_stage_says_its_threshold_where_it_comes_from_and_where_it_stands_on_the_curve(tmp_path):
    html = shown(copies, tmp_path, "similarity.json", {"near_duplicate": STAGE})
    assert "near duplicate similarity 0.85 the valley between duplicates and others 0.85, the valley" in text(html)
    assert "percent of clips dropped from 30 to 10; now from 20 to 20" in html, "between two that were tried"


def test_likenesses_that_do_not_tell_suggest_nothing(tmp_path):
    stage = STAGE | {"how": "given", "above": 0.99, "proposed_by": "given"}
    html = shown(copies, tmp_path, "similarity.json", {"near": stage})
    assert "0.99 given none: no clear threshold" in text(html) and "now from" not in html


@pytest.mark.parametrize("part", [buckets, copies])
@pytest.mark.parametrize("damage", [None, "x", -1, 1e999, [], {}, [None], {"clips": "many"}, {"a": {"b": None}}])
def test_damaged_values_cost_at_max_the_section(tmp_path, part, damage):
    whole = {"buckets": {"wide": AMOUNT}, "unbinned": {"short": AMOUNT}, "nearest_misses": []}
    name, value = ("buckets.json", whole) if part is buckets else ("similarity.json", {"near": STAGE})
    for key in value:
        shown(part, tmp_path, name, value | {key: damage})
        inner = value[key]
        for below in inner if isinstance(inner, dict) else ():
            text(shown(part, tmp_path, name, value | {key: inner | {below: damage}}))


def in_shards(step: Path, keys: list[str], bytes_of: bytes) -> None:
    """The clips as members of one shard, one after the other."""
    (step / "shards").mkdir()
    (step / "shards/shard-000000.tar").write_bytes(b"".join(bytes_of for _ in keys))
    samples = [
        {"key": key, "members": {"mp4": [place * len(bytes_of), len(bytes_of)]}} for place, key in enumerate(keys)
    ]
    fake_run.write_json(step / "shards/shard-000000.json", {"samples": samples})


@pytest.mark.slow
@pytest.mark.parametrize("damage, kind", [(None, "video"), ("span", "image"), ("bytes", "image"), ("large", "image")])
def test_a_captions_video_plays_beside_it_and_its_frames_stand_in(folder: Path, damage: str | None, kind: str):
    step = folder / "curate"
    rows = parquet.read_table(step / "scores.parquet").to_pylist()
    kept = [row["clip_id"] for row in rows if row["decision"] == "kept"]
    video = {"bytes": b"no video at all", "large": VIDEO + bytes(3_000_000)}.get(damage or "")
    in_shards(step, kept, video or VIDEO)
    if damage == "span":
        index = step / "shards/shard-000000.json"
        index.write_text(index.read_text().replace('"mp4": [', '"mp4": ["x", '))
    run = RunFolder.open(folder)
    (part,) = captions.sections(run, SectionMedia(run, 2_000_000))
    assert len(re.findall("<video" if kind == "video" else "<img", str(part.body))) == captions.MAX_CLIPS


def test_kinds_are_rows_and_the_files_stand_beneath(tmp_path):
    files = {"in": 25, "kept": 1, "dropped": {"exact_duplicate": 1}, "failed": {"the file is damaged: frame N": 23}}
    broken = [
        {"file": f"{n}<b>.mp4", "decision": "failed", "reason": "", "failures": ["the file is damaged: frame N"]}
        for n in range(23)
    ]
    copy = {"file": "copy.mp4", "decision": "dropped", "reason": "exact_duplicate", "duplicate_of": "a.mp4", "clips": 0}
    (tmp_path / "files.json").write_text(json.dumps([copy, *broken, 7]))
    sound = {"in": 6, "kept": 3, "dropped": {"no_audio": 2}, "failed": {"bad": 1}, "kept_as": {"copied": 2, "flac": 1}}
    html = shown(funnel, tmp_path, "ledger.json", {"files": files, "audio": sound})
    said = text(html)
    assert said.count("is damaged") == 1 and "19<b>.mp4 and 3 more" in said and "20<b>" not in said
    assert "2 with the source's sound, 1 with FLAC beside it, 2 without, as the source has none, 1 failed: bad" in said
    assert "copy.mp4 = a.mp4" in said and html.count("<tr") == 5


def test_failed_clips_are_not_called_dropped_in_charts(tmp_path):
    decided = ["kept", "dropped", "failed", "failed"]
    table = {"motion": [1.0, 2.0, 3.0, 4.0], "decision": decided, "rule": [None, "slow", None, None]}
    parquet.write_table(pa.table(table), tmp_path / "scores.parquet")
    run = RunFolder.open(tmp_path)
    said = text(" ".join(str(one.body) for one in scores.sections(run, SectionMedia(run, 0))))
    assert "kept 1" in said and "dropped 1" in said and "failed 2" in said


def test_captions_are_shown_of_kept_clips_all_over_the_table(tmp_path):
    """A caption tells which clip it is of."""
    decided = ["dropped", "failed", "dropped", "kept", "dropped", "failed", "failed"] * 20
    table = {"clip_id": [f"{place:032x}" for place in range(140)], "decision": decided, "source": ["a.mp4"] * 140,
             "caption": [f"number {place}" for place in range(140)]}  # fmt: skip
    parquet.write_table(pa.table(table), tmp_path / "scores.parquet")
    said = text(shown(captions, tmp_path, "captions.json", {"by": {"vlm": 140}}))
    places = [int(number) for number in re.findall(r"number (\d+)", said)]
    assert len(places) == captions.MAX_CLIPS and {decided[place] for place in places} == {"kept"}
    assert places[0] < 14 and places[-1] >= 126, "from the beginning to near the end"


@pytest.mark.parametrize(("op", "moves"), [("<", "MVHVH"), ("<=", "MVHVH"), (">", "MHVHV"), (">=", "MHVHV")])
def test_clips_that_stay_are_counted_on_the_side_of_a_threshold_that_its_rule_keeps(tmp_path, op, moves):
    curve = {"score": "motion", "op": op, "threshold": 1.0, "thresholds": [0.0, 1.0, 2.0], "clips": [4, 2, 0]}
    counts = {"drops": {"clips": 5}, "drops_first": {"clips": 4}, "drops_alone": {"clips": 3}}
    told = {"rules": {"slow": {"rule": f"motion {op} 1", "curves": [curve], **counts}}}
    html = shown(survival_curves, tmp_path, "survival.json", told)
    assert re.sub(r"[\d. ]", "", re.findall(r' d="([^"]*)"', html)[0]) == moves
    assert f"slow motion {op} 1 5 4 3" in text(html)


def test_work_is_told_with_its_rate_and_the_share_of_time_that_workers_were_busy(tmp_path):
    steps = [{"step": "split", "workers": 2, "parts": 90, "busy_s": 45.0, "wall_s": 30.0},
             {"step": "none", "workers": 0, "parts": 0, "busy_s": 0.0, "wall_s": 0.0}]  # fmt: skip
    html = shown(worker_throughput, tmp_path, "throughput.json", steps)
    assert "split 2 90 30 s 3 0.5 s none 0 0 0.0 s – –" in text(html)
    assert re.findall(r"width:([\d.]+)%", html) == ["75.0", "0.0"]


def test_clips_that_were_encoded_or_not_are_counted_by_reason_on_one_scale(tmp_path):
    told = {"clips": 9, "by_bucket": {"wide": 4, "tall": 2}, "unbinned": {"too short": 3}, "failed": {}, "made_of": "x"}
    html = shown(encoded, tmp_path, "encode.json", told)
    said = text(html)
    assert "bucket clips wide 4 tall 2" in said and "no bucket fits clips too short 3" in said
    assert re.findall(r"width:([\d.]+)%", html) == ["100.0", "50.0", "75.0"]
    assert "clips 9" in said and "made of" not in said


def test_a_text_made_of_a_clips_numbers_is_called_a_stand_in_wherever_it_is_shown(tmp_path):
    rows = [{"clip_id": f"{place:032x}", "decision": "kept", "source": f"{place}.mp4", "caption": f"text {place}",
             "caption_by": "description" if place % 2 else "vlm"} for place in range(8)]  # fmt: skip
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "scores.parquet")
    sheets = shown(contact_sheet, tmp_path, "rules.json", {})
    beside = shown(captions, tmp_path, "captions.json", {"by": {"description": 4, "vlm": 4}})
    pictures, mark, listed = sheets.partition("<details")
    for said, places in ((text(pictures), 6), (text(mark + listed), 8), (text(beside), 8)):
        found = re.findall(r"(placeholder: )?text (\d)", said)
        assert len(found) == places and all(bool(told) == bool(int(place) % 2) for told, place in found)
    assert "placeholders from numbers 4" in text(beside) and "by vlm 4" in text(beside)


def test_the_text_of_a_dropped_clip_is_a_stand_in_where_nobody_wrote_captions(tmp_path):
    row = {"clip_id": "0" * 32, "decision": "dropped", "rule": "slow", "source": "a.mp4", "caption": "text"}
    parquet.write_table(pa.Table.from_pylist([row]), tmp_path / "scores.parquet")
    for by, told in (({"description": 3, "nobody": 1}, True), ({"description": 3, "table": 1}, False), ({}, False)):
        said = shown(contact_sheet, tmp_path, "captions.json", {"by": by})
        assert ("placeholder: text" in text(f"{said}")) == told, by


def test_each_picture_stands_with_the_words_of_its_own_clip_and_a_duplicate_behind_its_keeper(tmp_path):
    """A clip's caption, source and score are numbered as the clip is."""
    decided = [("kept", None, None)] * 3 + [("dropped", "slow", None)] * 2 + [("dropped", "alike", f"{1:032x}")] * 2
    rows = [{"clip_id": f"{place:032x}"[::-1], "decision": decision,
             "rule": rule, "duplicate_of": original and original[::-1], "caption": f"caption {place}",
             "source": f"{place}.mp4", "motion": float(place)}
            for place, (decision, rule, original) in enumerate(decided)]  # fmt: skip
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "scores.parquet")
    rules = {"slow": {"score": "motion", "op": "<", "threshold": 9.0}}
    html = shown(contact_sheet, tmp_path, "rules.json", rules)
    figures = [text(one) for one in re.findall(r'<figure class="clip">.*?</figure>', html, re.DOTALL)]
    found = [(int(re.findall(r"caption (\d)", one)[0]), int(re.findall(r"(\d).mp4 · \1(?:000)", one)[0]), one)
             for one in figures]  # fmt: skip
    assert [place for place, *_ in found] == [0, 1, 2, 3, 4, 1, 5, 1, 6] and all(a == b for a, b, _ in found)
    facts = {place: one.partition("caption")[0] for place, _, one in found}
    assert "motion 3 < 9" in facts[3] and "motion 4 < 9" in facts[4] and "alike" in facts[5]
    assert "kept" in found[5][2] and "kept" not in found[6][2]


def test_many_reasons_are_one_row_and_every_bar_begins_where_the_rest_ends(tmp_path):
    failed = {f"reason {number}": 2 for number in range(20)}
    clips = {"in": 100, "kept": 40, "dropped": {"slow": 20}, "failed": failed}
    html = shown(funnel, tmp_path, "ledger.json", {"clips": clips})
    rows = re.findall(r'<tr class="(?:dropped|failed)".*?</tr>', html, re.DOTALL)
    spans = [[float(width) for width in re.findall(r"width:([\d.]+)%", row)] for row in rows]
    assert len(rows) == 1 + funnel.MAX_FAILURES + 1 and "failed: 8 more reasons −16" in text(html)
    assert [rest + gone for rest, gone in spans] == [100.0, *(rest for rest, _ in spans[:-1])] and spans[-1][0] == 40.0


def test_kept_pairs_that_a_lower_threshold_would_drop_are_listed_with_their_likeness(tmp_path):
    rows = [{"clip_id": f"{place:032x}", "decision": "kept" if place < 4 else "dropped", "rule": None,
             "duplicate_of": None, "caption": f"caption {place}", "source": f"{place}.mp4"}
            for place in range(5)]  # fmt: skip
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "scores.parquet")
    pairs = [{"stays": f"{a:032x}", "goes": f"{b:032x}", "likeness": alike}
             for a, b, alike in ((0, 1, 0.86), (2, 3, 0.5), (0, 4, 0.4))]  # fmt: skip
    damaged = [{"stays": ["0"], "goes": {}}, 7, {"stays": f"{0:032x}"}]
    told = {"near": {"column": "similarity", "above": 0.9, "pairs": pairs + damaged}, "no": {"pairs": 5}, "odd": []}
    html = shown(contact_sheet, tmp_path, "nearest_pairs.json", told)
    near = html[html.index("Most similar kept clips by similarity") :]
    found = [text(one) for one in re.findall(r'<figure class="clip">.*?</figure>', near, re.DOTALL)]
    assert [re.findall(r"caption (\d)", one)[0] for one in found] == ["0", "1", "2", "3"]
    assert "0.86, below 0.9" in found[1] and "0.5, below 0.9" in found[3] and "kept" in found[0]
