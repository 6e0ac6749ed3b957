"""Tests curation of the videos that a table names: the very frames of each span, its caption and its scores."""

import io
import json
import random
import re
from itertools import pairwise

import av
import pytest

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.balance import Balance
from nemo_vfm.curate.decide.rule import Rule
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.curate.score.brightness import Brightness
from nemo_vfm.curate.score.motion import Motion
from nemo_vfm.curate.sources.table_source import TableSource
from nemo_vfm.curate.sources.video_source import Folder
from nemo_vfm.data.shards.shard_files import ShardSet
from nemo_vfm.data.video.decode import open_video
from nemo_vfm.data.video.pyav_reader import PyAVReader
from tests.curate.test_job import outputs, rows
from tests.data.test_video_folder import write_table
from tests.support.awkward import film, index_in_front
from tests.support.barcoded import barcoded, numbers_in, write_barcoded
from tests.support.cuts import At
from tests.support.films import job
from tests.support.odd_tables import ODD_TABLES

FPS, FRAMES = (24, 25, 30, 12, 50), 130


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    folder = tmp_path_factory.mktemp("films")
    for video, fps in enumerate(FPS):
        write_barcoded(folder / f"{video}.mp4", video, FRAMES, fps)
    return folder


def curated(folder, table, **changes):
    arguments = {
        "source": TableSource(path=table),
        "split": At(),
        "stages": {},
        "rules": {},
        "executor": Inline(isolated=False),
    }
    return job(folder, **(arguments | changes))


@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_spans_are_the_very_frames_and_each_file_is_opened_once_a_step(count, films, tmp_path, monkeypatch):
    """Spans overlap, touch and leave gaps, in any order; seconds have three decimals."""
    lot, wanted, listed = random.Random(3), {}, []
    while len(wanted) < count:
        video, first = lot.randrange(5), lot.randrange(FRAMES - 1)
        last = min(FRAMES, first + lot.randrange(1, 12))
        if (video, first, last) not in wanted:
            wanted[video, first, last] = f"caption {len(wanted)}"
            seconds = {"start_s": round(first / FPS[video], 3), "end_s": round(last / FPS[video], 3)}
            listed.append({"video": f"{video}.mp4", **seconds, "caption": wanted[video, first, last]})
    opened, original = [], PyAVReader.__init__
    monkeypatch.setattr(PyAVReader, "__init__", lambda self, at, **how: opened.append(at) or original(self, at, **how))
    curated(films, write_table(films / "t.jsonl", listed)).run(Run(tmp_path))
    assert sorted(opened) == sorted([films / f"{video}.mp4" for video in range(5)] * 3), "probe, examine and encode"
    shards, found = ShardSet(tmp_path / "shards"), {}
    for entry in shards.entries:
        with open_video(shards.read(entry, "mp4"), "pyav") as reader:
            seen = [numbers_in(frame) for frame in reader.frames()]
        assert seen == [(seen[0][0], seen[0][1] + place) for place in range(len(seen))]
        found[seen[0][0], seen[0][1], seen[-1][1] + 1] = shards.read(entry, "txt").decode()
    assert found == wanted
    ledger = json.loads((tmp_path / "ledger.json").read_text())
    lasts_s = sum((last - first) / FPS[video] for video, first, last in wanted)
    assert ledger["clips"] == {"in": count, "kept": count, "dropped": {}, "failed": {}}
    assert ledger["seconds"]["in"] == ledger["seconds"]["kept"] == pytest.approx(lasts_s, abs=1e-3)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_rules_read_the_other_columns_which_are_known_of_every_clip(suffix, films, tmp_path):
    listed = [
        {"video": "0.mp4", "start_s": 0.0, "end_s": 1.0, "aesthetic score": 4.5, "kind": "sport", "fps": 99},
        {"video": "0.mp4", "start_s": 1.0, "end_s": 2.0, "aesthetic score": 6.5, "kind": "sport", "fps": 99},
        {"video": "0.mp4", "start_s": 2.0, "end_s": None, "aesthetic score": 7.5, "kind": "news", "fps": 99},
        {"video": "1.mp4", "start_s": None, "end_s": None, "aesthetic score": 7.0, "kind": None, "fps": 99},
    ]
    table = films / f"scores{suffix}"
    if suffix == ".csv":
        lines = [listed[0].keys(), *(row.values() for row in listed)]
        table.write_text("".join(",".join("" if v is None else str(v) for v in line) + "\n" for line in lines))
    else:
        write_table(table, listed)
    rules = {"plain": Rule(score="aesthetic score", below=6.0), "news": Rule(drop='kind == "news"')}
    curated(films, table, rules=rules, stages={"brightness": Brightness()}).run(Run(tmp_path))
    spans = {(row["source"], row["first_frame"]): row for row in rows(tmp_path)}
    assert {key: row["rule"] for key, row in spans.items()} == {
        ("0.mp4", 0): "plain", ("0.mp4", 24): None, ("0.mp4", 48): "news", ("1.mp4", 0): None,
    }  # fmt: skip
    assert spans["0.mp4", 48]["last_frame"] == FRAMES and spans["0.mp4", 24]["kind"] == "sport"
    assert spans["0.mp4", 24]["fps"] == 24 and spans["1.mp4", 0]["kind"] is None
    shards = ShardSet(tmp_path / "shards")
    scores = {json.loads(shards.read(entry, "json"))["scores"]["aesthetic score"] for entry in shards.entries}
    assert scores == {6.5, 7.0}


def test_rows_whose_frames_are_not_there_fail_by_name_and_the_others_are_kept(films, tmp_path):
    table = films / "late.csv"
    table.write_text(
        "video,start_s,end_s\n0.mp4,0,1\n0.mp4,2,5.9\n0.mp4,5,9\n0.mp4,20,\nabsent.mp4,0,1\n0.mp4,0.01,1\n"
    )
    curated(films, table).run(Run(tmp_path))
    ledger = json.loads((tmp_path / "ledger.json").read_text())
    assert (ledger["clips"]["in"], ledger["clips"]["kept"], sum(ledger["clips"]["failed"].values())) == (4, 2, 2)
    messages = sorted(row["message"] for row in rows(tmp_path) if row["message"])
    assert [re.sub(r" of \S*/", " of ", text) for text in messages] == [
        "row 3 (line 4) of late.csv: it requests 5 s to 9 s, but the video lasts 5.42 s",
        "row 4 (line 5) of late.csv: it requests 20 s to its end, but the video lasts 5.42 s",
    ]
    files = {file["file"]: file for file in json.loads((tmp_path / "files.json").read_text())}
    assert files["absent.mp4"]["decision"] == "failed" and files["0.mp4"]["decision"] == "kept"


def test_a_span_ends_before_a_hole_in_the_time_stamps_or_fails(tmp_path):
    stamps_ms = [40 * number + 3000 * (number >= 50) for number in range(100)]
    (tmp_path / "a.mp4").write_bytes(film((barcoded(0, n) for n in range(100)), stamps_ms=stamps_ms, g="12"))
    (tmp_path / "t.csv").write_text("video,start_s,end_s\na.mp4,1,3.5\na.mp4,4,6\na.mp4,1,6\n")
    curated(tmp_path, tmp_path / "t.csv").run(Run(tmp_path / "run"))
    found = {(row["first_frame"], row["last_frame"]): row["message"] for row in rows(tmp_path / "run")}
    assert found.keys() == {(25, 50), (50, 75), (25, 75)} and found[25, 50] is found[50, 75] is None
    assert found[25, 75].endswith("row 3 (line 4) of " + f"{tmp_path}/t.csv: it spans a gap: "
                                  "there are no frames from 2.00 s to 5.00 s")  # fmt: skip
    ledger = json.loads((tmp_path / "run/ledger.json").read_text())
    assert ledger["seconds"]["kept"] == 2.0 and ledger["seconds"]["in"] == 7.0


def test_a_span_that_lies_in_a_hole_fails_and_gets_no_frame_from_behind_it(tmp_path):
    stamps_ms = [40 * number + 3000 * (number >= 50) for number in range(100)]
    (tmp_path / "a.mp4").write_bytes(film((barcoded(0, n) for n in range(100)), stamps_ms=stamps_ms, g="12"))
    (tmp_path / "t.csv").write_text("video,start_s,end_s\na.mp4,2.5,4.5\na.mp4,3,5.2\na.mp4,5,5.01\na.mp4,2,2.1\n")
    curated(tmp_path, tmp_path / "t.csv").run(Run(tmp_path / "run"))
    kept = {(row["first_frame"], row["last_frame"]) for row in rows(tmp_path / "run") if row["message"] is None}
    assert kept == {(50, 51), (50, 55)}
    failed = [row["message"] for row in rows(tmp_path / "run") if row["message"] is not None]
    assert len(failed) == 2 and all("there are no frames from 2.00 s to 5.00 s" in message for message in failed)


def test_a_row_whose_frames_are_damaged_costs_no_other_that_overlaps_it(tmp_path):
    """Those inside it waited for its end; one that ended at the damage came twice, and stopped the run."""
    whole = film((barcoded(0, n) for n in range(100)), g="12", bf="0")
    with av.open(io.BytesIO(whole)) as container:
        packets = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    (tmp_path / "a.mp4").write_bytes(whole.replace(packets[48], bytes([255]) * len(packets[48])))
    (tmp_path / "t.csv").write_text("video,start_s,end_s\na.mp4,0,8\na.mp4,1,2\na.mp4,0,4\na.mp4,3,5\n")
    curated(tmp_path, tmp_path / "t.csv").run(Run(tmp_path / "run"))
    found = sorted((row["first_frame"], row["last_frame"], row["decision"]) for row in rows(tmp_path / "run"))
    assert found == [(0, 48, "kept"), (0, 96, "failed"), (12, 24, "kept"), (36, 60, "failed")]


def test_a_span_that_ends_among_frames_that_were_cut_off_fails_however_few_they_are(tmp_path):
    whole = index_in_front(film((barcoded(0, n) for n in range(100)), g="12", bf="0"))
    (tmp_path / "a.mp4").write_bytes(whole[: len(whole) * 2 // 3])
    with open_video(tmp_path / "a.mp4") as reader:
        shown = reader.info().num_frames
    ends = {shown: "kept", shown + 1: "failed", shown + 4: "failed", 101: "failed"}
    lines = "".join(f"a.mp4,1,{end / 12:.3f}\n" for end in ends)
    (tmp_path / "t.csv").write_text(f"video,start_s,end_s\n{lines}a.mp4,2,\n")
    curated(tmp_path, tmp_path / "t.csv").run(Run(tmp_path / "run"))
    found = {(row["first_frame"], row["last_frame"]): row["decision"] for row in rows(tmp_path / "run")}
    assert found == {**{(12, end): fate for end, fate in ends.items()}, (24, shown): "kept"}


def test_spans_of_a_copy_are_spans_of_the_file_that_stays(tmp_path):
    (tmp_path / "a copy.mp4").write_bytes(write_barcoded(tmp_path / "a.mp4", 0, 60, 24).read_bytes())
    table = tmp_path / "t.csv"
    table.write_text("video,start_s,end_s,caption\na.mp4,0,1,a\na copy.mp4,1,2,b\na copy.mp4,0,1,c\n")
    curated(tmp_path, table).run(Run(tmp_path / "run"))
    found = {(row["source"], row["first_frame"], row["caption"]) for row in rows(tmp_path / "run")}
    assert found == {("a.mp4", 0, "a"), ("a.mp4", 24, "b")}
    seconds = json.loads((tmp_path / "run/ledger.json").read_text())["seconds"]
    assert (seconds["in"], seconds["kept"], seconds["dropped"]) == (3, 2, {"exact_duplicate": 1}), "0 to 1 came twice"


@pytest.mark.parametrize("names", [("a.mp4", "a copy.mp4"), ("a copy.mp4", "a.mp4")])
def test_spans_of_a_copy_are_part_of_the_film_that_stays_whole(names, tmp_path):
    whole, other = names
    (tmp_path / whole).write_bytes(write_barcoded(tmp_path / other, 0, 60, 24).read_bytes())
    (tmp_path / "t.csv").write_text(f"video,start_s,end_s\n{whole},,\n{other},0.5,1\n{other},2,\n")
    curated(tmp_path, tmp_path / "t.csv").run(Run(tmp_path / "run"))
    assert {row["source"] for row in rows(tmp_path / "run") if row["decision"] == "kept"} == {whole}
    seconds = json.loads((tmp_path / "run/ledger.json").read_text())["seconds"]
    assert (seconds["in"], seconds["kept"], seconds["dropped"]) == (3.5, 2.5, {"exact_duplicate": 1})


def test_another_stage_or_caption_looks_at_the_same_spans_and_other_spans_are_looked_at_anew(films, tmp_path):
    def run(text, **changes):
        (films / "again.csv").write_text("video,start_s,end_s,caption\n" + text)
        curated(films, films / "again.csv", **changes).run(Run(tmp_path))
        return [(r["first_frame"], r["last_frame"], r["caption"], r.get("motion") is not None) for r in rows(tmp_path)]

    assert run("2.mp4,1,2,a\n2.mp4,0,3,b\n") == [(0, 90, "b", False), (30, 60, "a", False)]
    assert run("2.mp4,1,2,c\n2.mp4,0,3,b\n", stages={"motion": Motion()}) == [(0, 90, "b", True), (30, 60, "c", True)]
    fresh = tmp_path / "fresh"
    curated(films, films / "again.csv", stages={"motion": Motion()}).run(Run(fresh))
    assert outputs(fresh) == {name: value for name, value in outputs(tmp_path).items() if not name.startswith("fresh")}
    assert run("2.mp4,1,3,c\n") == [(30, 90, "c", False)]
    halves = [(0, 65, "c", False), (65, 130, "c", False)]
    assert run("2.mp4,,,c\n", split=At(65)) == halves and run("2.mp4,0,,c\n", split=At(65)) == [(0, 130, "c", False)]


def test_spans_of_a_table_are_the_same_in_a_process_of_their_own(films, tmp_path):
    write_table(films / "t.jsonl", [{"video": f"{v}.mp4", "start_s": 4, "end_s": None} for v in range(2)])
    for name, executor in (("here", Inline(isolated=False)), ("there", Inline())):
        curated(films, films / "t.jsonl", executor=executor).run(Run(tmp_path / name))
    assert outputs(tmp_path / "here") == outputs(tmp_path / "there")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("video,start_s,end_s\na.mp4,5,2\n", r"row 1 \(line 2\) .* span from 5 to 2 s"),
        ("video,start_s,end_s\na.mp4,-1,2\n", r"row 1 \(line 2\) .* span from -1 to 2 s"),
        ("video,start_s,end_s\na.mp4,0:01,2\n", r"row 1 \(line 2\) .*'0:01' under 'start_s' where seconds"),
        ("video,start_s\na.mp4,nan\n", r"row 1 \(line 2\) .*'nan' under 'start_s'"),
        ("video,start_s,caption\na.mp4,1,x\nb.mp4,1,x\na.mp4,1.0,y\n", r"row 3 .* and row 1 .* differ for"),
        ("video,start_s\na.mp4,1\na.mp4,\n", r"row 2 .* a whole video, but row 1 .* a span"),
        ("video,end_s\na.png,1\n", r"row 1 .* a start or end for an image"),
        ("video,score\na.mp4,1.5\nb.mp4,n/a\n", r"row 2 \(line 3\) .*'n/a' under 'score', which holds numbers"),
        ("video\n../a.mp4\n/b.mp4\n", "names no file below"),
        ("video\n", "names no file below"), ("file\na.mp4\n", "has no column video; it has file"),
    ],
)  # fmt: skip
def test_a_table_that_says_no_sense_is_an_error_that_names_the_row(content, words, tmp_path):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises((DataError, UserError), match=words):
        TableSource(path=tmp_path / "t.csv").files()


@pytest.mark.parametrize(("name", "content", "words"), ODD_TABLES)
def test_curation_refuses_the_rows_that_training_refuses(name, content, words, tmp_path):
    (tmp_path / name).write_bytes(content)
    words = words.replace("line 2 has no column", r"\(line 2\) of \S* has no column")  # a caption is no must here
    with pytest.raises((DataError, UserError), match=words):
        TableSource(path=tmp_path / name).files()


def test_a_list_is_no_score_unless_the_scores_are_named(tmp_path):
    table = write_table(tmp_path / "t.jsonl", [{"video": "a.mp4", "tags": ["x"], "good": 1, "also": "2"}])
    with pytest.raises(DataError, match=r"row 1 .* under 'tags', which is neither .*source\.scores="):
        TableSource(path=table).files()
    source = TableSource(path=table, scores=["good"])
    assert [dict(row.scores) for file in source.files() for row in file.rows] == [{"good": 1.0}]
    with pytest.raises(UserError, match="has no column bad"):
        TableSource(path=table, scores=["bad"]).files()
    with pytest.raises(UserError, match="has no column text"):
        TableSource(path=table, caption="text", scores=[]).files()
    with pytest.raises(ValueError, match="score 'fps' is computed for every clip"):
        TableSource(path=table, scores=["fps"])


def test_a_rule_on_a_column_that_neither_stage_nor_table_has_is_refused_before_any_work(films, tmp_path):
    table = write_table(films / "known.jsonl", [{"video": "0.mp4", "aesthetic": 1.0}])
    with pytest.raises(UserError, match="reads the score 'esthetic', which no stage gives; did you mean 'aesthetic'"):
        curated(films, table, rules={"plain": Rule(score="esthetic", below=1.0)}).run(Run(tmp_path))
    write_table(table, [{"video": "0.mp4", "motion": 1.0}])
    with pytest.raises(UserError, match="the score 'motion' is given by the source and by the stage 'motion'"):
        curated(films, table, stages={"motion": Motion()}).run(Run(tmp_path))
    assert not (tmp_path / "work").exists()


def test_a_column_of_words_balances_clips_and_one_of_numbers_or_none_is_refused_before_any_work(films, tmp_path):
    listed = [{"video": f"{n}.mp4", "kind": kind, "size": 1.0} for n, kind in enumerate(("news", "news", "sport"))]
    table = write_table(films / "kinds.jsonl", listed)
    curated(films, table, balance=Balance(by="kind", caps={"news": 1})).run(Run(tmp_path / "a"))
    found = json.loads((tmp_path / "a/balance.json").read_text())["groups"]
    assert {name: (group["clips"], group["kept"]) for name, group in found.items()} == {"news": (2, 1), "sport": (1, 1)}
    for by, words in (("knd", "did you mean 'kind'"), ("size", "holds numbers"), ("width", "holds numbers")):
        with pytest.raises((UserError, ValueError), match=words):
            curated(films, table, balance=Balance(by=by, caps={"*": 1})).run(Run(tmp_path / "b"))
    assert not (tmp_path / "b/work").exists()


def test_a_larger_share_contains_a_smaller_one_and_first_counts_what_it_leaves(films, tmp_path):
    listed = [{"video": f"{number % 5}.mp4", "start_s": number / 100, "end_s": 5.0} for number in range(200)]
    table = write_table(tmp_path / "t.parquet", listed)

    def by_table(**part):
        found = TableSource(path=table, root=films, **part).files()
        return [(file.name, row.start_s) for file in found for row in file.rows]

    def by_folder(**part):
        return [file.name for file in Folder(path=films, **part).files()]

    for take, count, whole in ((by_table, 200, by_table()), (by_folder, 5, by_folder())):
        shares = [set(take(share=share)) for share in (0.005, 0.01, 0.2, 0.6, 1.0)]
        assert all(less <= more for less, more in pairwise(shares))
        assert [len(share) for share in shares] == [-(-count * part // 1000) for part in (5, 10, 200, 600, 1000)]
        assert set(take(share=0.6, first=3)) <= shares[3] and len(take(share=0.6, first=3)) == 3
        assert len(take(first=2)) == 2 and len(take(first=10**6)) == count == len(whole)
    assert by_folder(first=2) == ["0.mp4", "1.mp4"] and by_table(first=2) == [("0.mp4", 0.0), ("1.mp4", 0.01)]


@pytest.mark.parametrize("part", [{"first": 0}, {"share": 0.0}, {"share": 1.5}, {"share": float("nan")}])
def test_a_part_that_is_none_is_refused(part, tmp_path):
    for kind in (Folder, TableSource):
        with pytest.raises(ValueError, match=f"{next(iter(part))} is"):
            kind(path=tmp_path / "t.csv", **part)
