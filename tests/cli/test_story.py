"""Tests what `explain RUN CLIP` prints and draws of the clips of a small curation."""

import json
import re
import shutil
from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save

from nemo_vfm.cli.main import main
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.decide.rule import Rule
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.explain.clip.clip_report import _FAMILIES, _UNITS, RuleResult
from nemo_vfm.explain.clip.rule_verdicts import Margin, spares_at
from nemo_vfm.explain.clip.write_report import _margin, _rank_text
from tests.support import films
from tests.support.repository import ROOT


@pytest.fixture(scope="module")
def curated(tmp_path_factory) -> Path:
    """Two films: two good shots and a black one; and one of the good shots once more, coarser."""
    folder = tmp_path_factory.mktemp("story")
    (folder / "videos").mkdir()
    films.write_film(folder / "videos/a.mp4", films.pan(1, 30), films.black(), films.pan(2))
    films.write_film(folder / "videos/b.mp4", films.pan(1, 30), crf=26)
    shutil.copyfile(folder / "videos/a.mp4", folder / "videos/a copy.mp4")
    (folder / "videos/noise.mp4").write_bytes(b"no video")
    (folder / "videos/a.txt").write_text("\x1b[2Ja pan\u202e of squares")
    rules = films.job(folder / "videos").rules | {"both": Rule(keep="motion > 0.1 and sharpness > pct(1)")}
    rules |= {"named": Rule(keep='caption_by in ("sidecar", "description")')}
    films.job(folder / "videos", rules=rules).run(Run(folder / "run/curate"))
    return folder / "run"


@pytest.fixture
def run(kitchen, curated) -> Path:
    """A copy of the run, to be spoilt."""
    shutil.copytree(curated, "run")
    return Path("run")


def rows(run: Path) -> list[dict]:
    return pq.read_table(run / "curate/scores.parquet").to_pylist()


def one(run: Path, decision: str, rule: str | None = None) -> dict:
    return next(row for row in rows(run) if row["decision"] == decision and row["rule"] == rule)


def told(kitchen, capsys, *words: object) -> str:
    assert main(["explain", *map(str, words)]) == 0  # not the kitchen's, where @ stands for something else
    return capsys.readouterr().out


def refused(kitchen, capsys, *words: object) -> str:
    assert kitchen.main("explain", *map(str, words)) == 2
    return capsys.readouterr().err


@pytest.mark.slow
def test_a_dropped_clip_is_told_with_the_rule_and_what_would_spare_it(kitchen, capsys, run):
    black = one(run, "dropped", "black")
    shown = told(kitchen, capsys, run, black["clip_id"])
    assert "dropped by the rule black" in shown and "in no shard" in shown
    assert "drops black_ratio > 0.5" in " ".join(shown.split())
    line = r"^  black +drops <- +1, 0.5 too high; would pass at 1 +drops"
    assert re.search(line, shown, re.M)
    assert re.search(r"^  too_short +passes +2, 1 to spare +drops", shown, re.M)
    assert re.search(r"^  static +drops  ", shown, re.M), "a later rule that would drop it, too"
    assert re.search(r"^  black_ratio +1 +of its frames +highest of \d+$", shown, re.M)
    assert "frames 30 to 53, 2.50 to 4.50 s: 24 frames, 2.00 s" in shown


@pytest.mark.parametrize("columns", ["40", "80"])
def test_a_narrow_terminal_loses_no_column(kitchen, capsys, run, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    shown = " ".join(told(kitchen, capsys, run, one(run, "dropped", "black")["clip_id"]).split())
    assert "drops black_ratio > 0.5" in shown and "keeps motion > 0.1 and sharpness > pct(1)" in shown


def test_a_duplicate_and_its_keeper_name_each_other(kitchen, capsys, run):
    gone = one(run, "dropped", "near_duplicate")
    shown = told(kitchen, capsys, run, gone["clip_id"])
    assert f"like {gone['duplicate_of'][:12]}" in shown and "which is kept" in shown
    kept = json.loads(told(kitchen, capsys, run, gone["duplicate_of"], "--json"))
    assert [other["clip_id"] for other in kept["duplicates"]] == [gone["clip_id"]]
    assert kept["duplicates"][0]["likeness"] == gone["similarity"]
    verdict = next(rule for rule in kept["rules"] if rule["rule"] == "near_duplicate")
    assert verdict["says"] == "passes" and "the one kept among its duplicates" in verdict["why"]
    black = json.loads(told(kitchen, capsys, run, one(run, "dropped", "black")["clip_id"], "--json"))
    assert {rule["rule"]: rule["says"] for rule in black["rules"]}.items() >= {"near_duplicate": "not asked",
                                                                             "named": "not asked"}.items()  # fmt: skip


def test_every_rule_says_of_every_clip_what_the_curation_decided(kitchen, capsys, run):
    stories = {}
    for row in rows(run):
        story = stories[row["clip_id"]] = json.loads(told(kitchen, capsys, run, row["clip_id"], "--json"))
        first = next((rule["rule"] for rule in story["rules"] if rule["says"] == "drops"), None)
        assert first == row["rule"] == story["rule"]
        assert [rule["rule"] for rule in story["rules"] if rule["decided"]] == ([row["rule"]] if row["rule"] else [])
    (run / "curate/vectors.parquet").unlink()  # it is large, and not kept for ever
    again = {clip: json.loads(told(kitchen, capsys, run, clip, "--json"))["rules"] for clip in stories}
    assert again == {clip: story["rules"] for clip, story in stories.items()}


def test_where_its_bytes_are_is_where_they_are(kitchen, capsys, run):
    kept = one(run, "kept")
    story = json.loads(told(kitchen, capsys, run, kept["clip_id"], "--json"))
    offset, size = story["bytes"]["members"]["mp4"]
    tar = (run / "curate/shards" / story["bytes"]["shard"]).read_bytes()
    assert tar[offset + 4 : offset + 8] == b"ftyp" and len(tar) > offset + size
    assert story["caption_by"] in ("sidecar", "description") and story["caption_facts"]["caption_status"] == "success"


def test_latents_of_the_same_run_are_found_and_what_was_left_out_is_said(kitchen, capsys, run):
    kept = [row["clip_id"] for row in rows(run) if row["decision"] == "kept"]
    with ShardWriter(run / "encode/shards") as writer:
        index = {"clip": kept[0], "bucket": "wide", "latent_shape": [4, 2, 3, 3], "fps": 8.0}
        latents = np.random.default_rng(0).normal(size=(4, 2, 3, 3)).astype(np.float32)
        writer.write(f"{kept[0]}-w0", {"latents.safetensors": save({"latents": latents})}, index)
    (run / "encode/encode.json").write_text(json.dumps({"codec": "haar/1", "unbinned": {"too short": 1}}))
    shown = told(kitchen, capsys, run, kept[0], "--out", "sheet.png")
    assert f"key {kept[0]}-w0" in shown and "4x2x3x3" in shown and "bucket wide" in shown
    assert "nothing of it; clips that were left out there: 1 too short" in told(kitchen, capsys, run, kept[1])
    sheet = cv2.imread("sheet.png")
    assert sheet.shape[1] == 6 + 4 * 326 and sheet.shape[0] > 3 * 240, "4 of the source, 8 encoded, 2 latents"


@pytest.mark.parametrize("word", ["a.mp4:30", "a.mp4:53", "a.mp4@2.5", "a.mp4@4.4", "videos/a.mp4:31"])
def test_a_clip_is_found_by_its_file_and_a_frame_or_second(kitchen, capsys, run, word):
    assert told(kitchen, capsys, run, word).startswith(one(run, "dropped", "black")["clip_id"])


def test_a_clip_is_found_by_how_its_id_begins(kitchen, capsys, run):
    ids = [row["clip_id"] for row in rows(run)]
    assert told(kitchen, capsys, run, ids[1][:6]).startswith(ids[1])
    assert told(kitchen, capsys, run / "curate", ids[1]).startswith(ids[1])
    assert "at least 6 characters" in refused(kitchen, capsys, run, ids[1][:4])


def test_what_is_not_found_is_a_sentence(kitchen, capsys, run):
    ids = [row["clip_id"] for row in rows(run)]
    assert f"did you mean {ids[2][:12]}" in refused(kitchen, capsys, run, f"{ids[2][:9]}xyz")
    assert "no clip holds frame 9,999 of a.mp4" in refused(kitchen, capsys, run, "a.mp4:9999")
    assert "did you mean a.mp4" in refused(kitchen, capsys, run, "aa.mp4:1")
    assert "name one by its id" in refused(kitchen, capsys, run)
    assert "no scores.parquet in it" in refused(kitchen, capsys, run / "curate/thumbnails", "x")
    shutil.copytree(run / "curate", run / "again")
    assert "several steps" in refused(kitchen, capsys, run, ids[0])
    assert (
        refused(kitchen, capsys, run / "again", ids[0], "--out", "x.jpg").count(".png") and not Path("x.jpg").exists()
    )


def test_clips_that_share_a_beginning_are_listed(kitchen, capsys, run):
    path = run / "curate/scores.parquet"
    table = pq.read_table(path)
    ids = [f"same-beginning-{number}" for number in range(len(table))]
    pq.write_table(table.set_column(0, "clip_id", pa.array(ids)), path)
    said = refused(kitchen, capsys, run, "same-begin")
    assert f"{len(ids)} clips begin with same-begin" in said and "a.mp4, frames 30 to 53" in said


def test_a_hostile_run_cannot_steer_the_terminal_or_lead_elsewhere(kitchen, capsys, run):
    path, evil = run / "curate/scores.parquet", "\x1b[2J\x9b5m\u202e\x07evil"
    table = pq.read_table(path)
    for name in ("caption", "source", "message"):
        place = table.column_names.index(name)
        table = table.set_column(place, name, pa.array([evil] * len(table)))
    ids = ["../../secret", *table["clip_id"].to_pylist()[1:]]
    pq.write_table(table.set_column(0, "clip_id", pa.array(ids)), path)
    (run / "curate/rules.json").write_text(json.dumps({evil: {"keep": evil}, "odd": 3, "x": {"op": "<"}}))
    (run / "curate/restored.json").write_text(json.dumps({"clips": {ids[1]: {"restored": [evil], "facts": {evil: 1}}}}))
    (run / "secret.jpg").write_bytes((run / "curate/thumbnails" / f"{ids[1]}.jpg").read_bytes())
    for words in ([ids[1]], [ids[1], "--json"]):
        shown = told(kitchen, capsys, run, *words)
        assert not set("\x1b\x9b\u202e\x07") & set(shown) and "evil" in shown
    assert "nothing to show" in refused(kitchen, capsys, run, ids[0], "--out", "x.png")


def test_a_threshold_that_is_said_to_spare_a_clip_does():
    for value in (0.98896, 3.2, -7.77777, 0.0, 123456.7, 1e-7, 1.0, 9.9999):
        for op in ("<", ">"):
            for inclusive in (False, True):
                at = spares_at(value, op, inclusive=inclusive)
                assert (value > at or (value == at and not inclusive)) if op == "<" else (
                    value < at or (value == at and not inclusive)
                ), (value, op, inclusive, at)  # fmt: skip
                assert abs(at - value) <= max(abs(value) * 2e-3, 2e-4)


def test_units_are_of_columns_that_the_docs_know():
    docs = "".join((ROOT / "docs" / name).read_text() for name in ("reference/scores.md", "how-to/video/duplicates.md"))
    assert [name for name in (*_UNITS, *_FAMILIES) if f"`{name}" not in docs] == []


def test_a_file_is_told_with_what_became_of_it_and_of_its_clips(kitchen, capsys, run):
    shown = told(kitchen, capsys, run, "a.mp4")
    assert re.search(r"3 clips, \d kept", shown) and re.search(r"frames 30 to 53 +dropped black", shown)
    assert all(row["clip_id"][:12] in shown for row in rows(run) if row["source"] == "a.mp4")
    assert "dropped: exact duplicate of a.mp4" in told(kitchen, capsys, run, "a copy.mp4")
    assert "cannot be opened as a video" in " ".join(told(kitchen, capsys, run, "noise.mp4").split())
    found = json.loads(told(kitchen, capsys, run, "a copy.mp4", "--json"))
    assert (found["duplicate_of"], found["of_clips"]) == ("a.mp4", [])
    assert "exact duplicate of a.mp4" in refused(kitchen, capsys, run, "a copy.mp4:3")


def test_a_time_is_counted_by_the_clips_own_rates(kitchen, capsys, run):
    table = pq.read_table(run / "curate/scores.parquet").to_pylist()
    for row in table:
        if row["source"] == "a.mp4" and row["first_frame"] > 0:
            row["fps"], row["duration_s"] = row["fps"] / 3, row["duration_s"] * 3
    pq.write_table(pa.Table.from_pylist(table), run / "curate/scores.parquet")
    second = next(row for row in table if row["source"] == "a.mp4" and row["first_frame"] == 30)
    found = [json.loads(told(kitchen, capsys, run, f"a.mp4@{at}", "--json"))["clip_id"] for at in (2.4, 2.6, 8.4, 8.6)]
    assert [clip == second["clip_id"] for clip in found] == [False, True, True, False]


def test_a_score_is_ranked_among_all_clips_that_did_not_fail(kitchen, capsys, run):
    table = rows(run)
    table[0] |= {"decision": "failed", "rule": None, "message": "it broke", "motion": -5.0, "sharpness": 1e9}
    pq.write_table(pa.Table.from_pylist(table), run / "curate/scores.parquet")
    alive = [row for row in table if row["message"] is None]
    assert len(alive) == len(table) - 1 >= 3
    for row in alive:
        story = json.loads(told(kitchen, capsys, run, row["clip_id"], "--json"))
        for score in (one for one in story["scores"] if isinstance(one["value"], float)):
            others = [other[score["name"]] for other in alive if other[score["name"]] is not None]
            lower, equal = sum(o < score["value"] for o in others), sum(o == score["value"] for o in others)
            assert (score["among"], score["lower"], score["equal"]) == (len(others), lower, equal), score["name"]
            assert score["percentile"] == pytest.approx(100 * lower / len(others))


@pytest.mark.parametrize(("value", "op", "drops", "says", "text"), [
    (0.5, "<", True, "drops", "0.5, 1.5 too low; would pass at 0.5"), (3.0, "<", False, "passes", "3, 1 to spare"),
    (3.0, ">", True, "drops", "3, 1 too high; would pass at 3"), (0.5, ">", False, "passes", "0.5, 1.5 to spare"),
    (3.0, ">", True, "passes", "3"), (3.0, ">", True, "not asked", "3"),
    (None, ">", False, "passes", "x was not measured"),
])  # fmt: skip
def test_how_far_a_clip_is_from_a_threshold_is_said_on_the_side_where_it_is(value, op, drops, says, text):
    by = None if value is None else abs(value - 2.0)
    assert _margin(Margin("x", value, op, 2.0, drops, by, value if drops else None), says) == text


@pytest.mark.parametrize(("among", "lower", "equal", "text"), [
    (10, 0, 1, "lowest of 10"), (10, 9, 1, "highest of 10"), (10, 0, 3, "lowest, as 3 of 10"),
    (10, 7, 3, "highest, as 3 of 10"), (10, 4, 1, "above 40 % of 10"), (10, 0, 10, "all 10 are equal"),
    (1, 0, 1, "the only one"), (10, None, 4, "as 4 of 10"), (10, 8, 1, "above 80 % of 10"),
])  # fmt: skip
def test_a_rank_is_said_with_its_ties_and_at_both_ends(among, lower, equal, text):
    assert _rank_text(RuleResult("x", 1.0, "", among, lower, equal)) == text


@pytest.mark.parametrize(("frame", "nearest"), [(31, 0), (41, 0), (42, 54), (53, 54), (9999, 54)])
def test_where_no_clip_holds_a_frame_the_nearest_on_either_side_is_named(kitchen, capsys, run, frame, nearest):
    """Frames 30 to 53 are in no clip."""
    table = [row for row in rows(run) if row["rule"] != "black"]
    pq.write_table(pa.Table.from_pylist(table), run / "curate/scores.parquet")
    (clip,) = [row["clip_id"] for row in table if row["source"] == "a.mp4" and row["first_frame"] == nearest]
    assert f"the nearest is {clip[:12]} (a.mp4, frames {nearest} to" in refused(kitchen, capsys, run, f"a.mp4:{frame}")
