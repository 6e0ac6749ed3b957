"""Tests that every document is accounted for, and that neither kills nor processes change a byte of the tokens."""

import gzip
import io
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nemo_vfm.core.errors import NemoVfmError, NothingKept, UserError
from nemo_vfm.core.types.job import Job, Run
from nemo_vfm.data.tokenizers.byte_tokenizer import ByteTokenizer
from nemo_vfm.data.tokens.token_manifest import TokenFolder
from nemo_vfm.text.document_lines import FileSpan, files_of, lines, portions
from nemo_vfm.text.tokenize import TokenizeText
from tests.support.repository import ROOT


def documents(count: int, start: int = 0) -> list[str]:
    """Texts of different lengths, some with letters beyond ASCII."""
    return [f"document {n} " + "très long € " * (n * 7 % 13) for n in range(start, start + count)]


def jsonl(path: Path, texts: list[str], column: str = "text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"id": n, column: text}) + "\n" for n, text in enumerate(texts)))
    return path


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as file:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return path


def tokenised(source: Path, out: Path, **settings) -> dict:
    """The counts of a run, which are checked to add up."""
    out.mkdir(exist_ok=True)
    settings = {"processes": 1, **settings}
    figures = TokenizeText(path=source, tokenizer=ByteTokenizer(), **settings).run(Run(out)).figures
    assert figures["in"] == figures["kept"] + figures["dropped"] + figures["failed"]
    counts = json.loads((out / "counts.json").read_text())
    assert (
        figures["in"]
        == counts["in"]
        == counts["kept"] + sum(counts["dropped"].values()) + sum(counts["failed"].values())
    )
    return counts


def texts_in(out: Path) -> list[str]:
    """The documents of a folder of tokens, decoded."""
    folder = TokenFolder(out / "tokens")
    folder.verify()
    found = []
    for number in range(len(folder.manifest.shards)):
        tokens, at = folder.tokens(number), 0
        for end in folder.ends(number).tolist():
            assert tokens[end - 1] == 256
            found.append(bytes(tokens[at : end - 1].tolist()).decode())
            at = end
    return found


def faults(out: Path) -> list[tuple]:
    rows = [json.loads(line) for line in (out / "failed.jsonl").read_text().splitlines()]
    return [(row["file"], row["where"], row["reason"]) for row in rows]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_is_a_job():
    assert isinstance(TokenizeText(path=Path("x"), tokenizer=ByteTokenizer()), Job)


def test_every_kind_of_file_gives_its_documents_in_the_order_of_names(tmp_path):
    source = tmp_path / "in"
    texts = documents(60)
    jsonl(source / "a/one.jsonl", texts[:10])
    (source / "b.jsonl.gz").write_bytes(gzip.compress(jsonl(tmp_path / "x", texts[10:20]).read_bytes()))
    pq.write_table(pa.table({"n": range(20), "text": texts[20:40]}), source / "c.parquet", row_group_size=7)
    members = {f"{n:03d}.txt": text.encode() for n, text in enumerate(texts[40:50])}
    members |= {f"k/{n:03d}.json": json.dumps({"text": text}).encode() for n, text in enumerate(texts[50:59])}
    tar(source / "d.tar", members)
    (source / "e.txt").write_text(texts[59])
    (source / "notes.md").write_text("no document")
    with pa.output_stream(str(source / "f.jsonl.zst"), compression="zstd") as file:
        file.write(json.dumps({"text": "packed"}).encode())
    for megabytes in (256, 0.001):
        out = tmp_path / f"out-{megabytes}"
        assert tokenised(source, out, portion_mb=megabytes) == {"in": 61, "kept": 61, "dropped": {}, "failed": {}}
        assert texts_in(out) == [*texts, "packed"]
    assert len(TokenFolder(tmp_path / "out-0.001/tokens").manifest.shards) > 5


def test_a_file_cut_at_any_byte_loses_no_line_and_doubles_none(tmp_path):
    texts = documents(9)
    source = jsonl(tmp_path / "in.jsonl", texts)
    data = source.read_bytes().rstrip(b"\n")
    source.write_bytes(data)
    for cut in range(len(data) + 1):
        borders = itertools.pairwise((0, cut, min(cut + 50, len(data)), len(data)))
        spans = [FileSpan("in.jsonl", "jsonl", len(data), *border) for border in borders]
        found = [line.text for span in spans for line in lines(tmp_path, span, column="text", max_bytes=10_000)]
        assert found == texts, f"cut at byte {cut}"


def test_what_is_bad_is_counted_and_named_by_file_and_line_also_in_a_later_portion(tmp_path):
    rows = [json.dumps({"text": text}).encode() for text in documents(40)]
    rows[3], rows[11], rows[17] = b'{"text": ', b'["a"]', b'{"other": 1}'
    rows[22], rows[23], rows[25] = b'{"text": 5}', b'{"text": "\xff"}', b'{"text": "\\ud800"}'
    rows[30] = b'{"text": "' + b"x" * 5000 + b'"}'
    rows[32], rows[33], rows[34], rows[35] = b'{"text": ""}', b"", b'{"text": null}', b'{"text": " \\n"}'
    rows[36], rows[37] = b'{"text": "ab"}', b"[" * 3000
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(rows) + b"\n")
    for portion_mb in (1, 0.0005):
        out = tmp_path / f"out-{portion_mb}"
        counts = tokenised(
            tmp_path / "in.jsonl", out, max_document_mb=0.004, min_characters=3, max_characters=140,
            portion_mb=portion_mb,
        )  # fmt: skip
        assert counts["in"] == 40
        assert counts["dropped"]["empty"] == 4 and counts["dropped"]["shorter than min_characters"] == 1
        assert counts["dropped"]["longer than max_characters"] == 2
        assert counts["failed"] == {
            "not JSON": 2, "not a JSON object": 1, "without 'text'": 1, "'text' is not text": 1, "not UTF-8": 1,
            "no Unicode": 1, "longer than 4,000 bytes": 1,
        }  # fmt: skip
        assert [where for _, where, _ in faults(out)] == [4, 12, 18, 23, 24, 26, 31, 38]
    assert contents(tmp_path / "out-1")["failed.jsonl"] == contents(tmp_path / "out-0.0005")["failed.jsonl"]


def test_limits_take_in_the_length_that_they_name(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", ["x" * length for length in range(2, 9)])
    counts = tokenised(source, tmp_path / "out", min_characters=4, max_characters=6)
    assert [len(text) for text in texts_in(tmp_path / "out")] == [4, 5, 6]
    assert counts["dropped"] == {"longer than max_characters": 2, "shorter than min_characters": 2}


def test_a_document_may_have_as_many_bytes_as_the_limit_in_every_kind_of_file(tmp_path):
    text = "x" * 40
    line = json.dumps({"text": text})
    (tmp_path / "a.jsonl").write_text(f"{line}\n{line}")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(f"{line}\n{line}".encode()))
    pq.write_table(pa.table({"text": [text, text]}), tmp_path / "c.parquet")
    tar(tmp_path / "d.tar", {"1.txt": text.encode(), "2.json": line.encode()})
    (tmp_path / "e.txt").write_text(text)
    for portion in portions(*files_of(tmp_path), 1_000_000):
        for span in portion.spans:
            length = len(line if "json" in span.kind or span.kind == "tar" else text)
            for more, expected in ((0, {None}), (-1, {f"longer than {length - 1} bytes"})):
                read = [one.fault for one in lines(tmp_path, span, column="text", max_bytes=length + more)]
                assert set(read[-1:]) == expected and len(read) == (1 if span.kind == "text" else 2), span.file


def test_files_that_break_off_give_what_is_whole_and_one_failure_each(tmp_path):
    source = tmp_path / "in"
    packed = gzip.compress(jsonl(source / "a.jsonl", documents(400)).read_bytes())
    (source / "b.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    (source / "c.tar").write_bytes(b"no tar at all" * 100)
    members = {f"{n}.txt": text.encode() for n, text in enumerate(documents(9))} | {"x.jpg": b"picture"}
    whole = tar(tmp_path / "whole.tar", members).read_bytes()
    (source / "d.tar").write_bytes(whole[: 8 * 1024 + 600])
    counts = tokenised(source, tmp_path / "out")
    assert 410 < counts["kept"] < 810 and sum(counts["failed"].values()) >= 3
    named = {file for file, _, _ in faults(tmp_path / "out")}
    assert named == {"b.jsonl.gz", "c.tar", "d.tar"}


def test_a_sample_of_a_tar_without_text_is_named_by_its_key(tmp_path):
    tar(
        tmp_path / "in.tar",
        {"one.txt": b"yes", "two.jpg": b"no", "three.json": b"{", "one.json": b'{"text": "not me"}'},
    )
    counts = tokenised(tmp_path / "in.tar", tmp_path / "out")
    assert counts["failed"] == {"neither .txt nor .json": 1, "not JSON": 1} and texts_in(tmp_path / "out") == ["yes"]
    assert [where for _, where, _ in faults(tmp_path / "out")] == ["two", "three"]


@pytest.mark.parametrize("portion_mb", [1e-6, 1])
def test_a_parquet_column_of_broken_or_missing_text_fails_by_row(tmp_path, portion_mb):
    texts = [b"good", None, b"\xff\xfe", b"fine"] * 40
    texts[100:] = [b"fine"] * 60
    values = pa.array(texts, pa.binary())
    column = pa.StringArray.from_buffers(160, values.buffers()[1], values.buffers()[2], values.buffers()[0])
    pq.write_table(pa.table({"text": column}), tmp_path / "in.parquet", row_group_size=90)
    counts = tokenised(tmp_path / "in.parquet", tmp_path / "out", portion_mb=portion_mb)
    assert counts == {"in": 160, "kept": 110, "dropped": {"empty": 25}, "failed": {"not UTF-8": 25}}
    assert faults(tmp_path / "out") == [("in.parquet", row, "not UTF-8") for row in range(3, 100, 4)]


def test_a_wrong_column_is_said_and_does_not_read_on_for_hours(tmp_path):
    pq.write_table(pa.table({"body": ["a"], "n": [1]}), tmp_path / "in.parquet")
    with pytest.raises(UserError, match="no column 'text'; it has body, n"):
        tokenised(tmp_path / "in.parquet", tmp_path / "out")
    with pytest.raises(UserError, match=r"column 'n' of .* is int64, expected text"):
        tokenised(tmp_path / "in.parquet", tmp_path / "out", column="n")
    jsonl(tmp_path / "in.jsonl", documents(200), column="body")
    with pytest.raises(
        UserError, match=r"100 documents in a row .* without 'text'; it has [a-z, ]*body[a-z, ]*\. Is column=text"
    ):
        tokenised(tmp_path / "in.jsonl", tmp_path / "out-2")
    assert tokenised(tmp_path / "in.jsonl", tmp_path / "out-3", column="body")["kept"] == 200


def test_nothing_to_read_and_nothing_kept_are_said(tmp_path):
    (tmp_path / "in").mkdir()
    with pytest.raises(UserError, match="no file of documents"):
        tokenised(tmp_path / "in", tmp_path / "out")
    jsonl(tmp_path / "in/a.jsonl", ["", " "])
    with pytest.raises(NothingKept, match="none of 2 documents"):
        tokenised(tmp_path / "in", tmp_path / "out")
    assert not list((tmp_path / "out/tokens").iterdir())


def test_the_second_run_does_nothing_and_other_input_begins_anew(tmp_path):
    source = jsonl(tmp_path / "in/a.jsonl", documents(30)).parent
    job = TokenizeText(path=source, tokenizer=ByteTokenizer(), processes=1, portion_mb=0.001)
    run = Run(tmp_path / "out")
    run.folder.mkdir()
    assert not job.run(run).did_nothing
    before = {path: path.stat().st_mtime_ns for path in (run.folder / "tokens").iterdir()}
    again = job.run(run)
    assert again.did_nothing and again.figures["kept"] == 30
    assert before == {path: path.stat().st_mtime_ns for path in (run.folder / "tokens").iterdir()}
    jsonl(source / "b.jsonl", documents(5, 30))
    assert job.run(run).figures["kept"] == 35 and texts_in(run.folder) == documents(35)


class Doubling(ByteTokenizer):
    """Another tokenizer of as many tokens."""

    def fingerprint(self) -> str:
        return "d" * 64

    def encode(self, texts):
        return super().encode([text + text for text in texts])


@pytest.mark.parametrize(
    "change",
    [{"column": "other"}, {"min_characters": 30}, {"max_characters": 60}, {"max_document_mb": 0.0001},
     {"portion_mb": 0.001}, {"tokenizer": Doubling()}], ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_any_setting_that_decides_about_a_token_begins_anew_and_leaves_nothing_of_before(tmp_path, change):
    rows = [{"text": text, "other": text[::-1]} for text in documents(30)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {"path": tmp_path / "in.jsonl", "tokenizer": ByteTokenizer(), "processes": 1}
    TokenizeText(**given).run(Run(tmp_path / "run"))
    assert TokenizeText(**given | {"max_bad_in_a_row": 5}).run(Run(tmp_path / "run")).did_nothing
    assert not TokenizeText(**given | change).run(Run(tmp_path / "run")).did_nothing
    TokenizeText(**given | change).run(Run(tmp_path / "first"))
    found = [{path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.*")}
             for name in ("run", "first")]  # fmt: skip
    assert found[0] == found[1]


def test_a_run_that_stopped_halfway_does_the_rest_alone_and_gives_the_same_bytes(tmp_path, monkeypatch):
    source = jsonl(tmp_path / "in.jsonl", documents(60))
    tokenised(source, tmp_path / "whole", portion_mb=0.001)
    from nemo_vfm.text import tokenize

    real, calls = tokenize.tokenize, []

    def counted(portion, *rest):
        calls.append(portion.number)
        if len(calls) == 4:
            raise KeyboardInterrupt
        real(portion, *rest)

    monkeypatch.setattr(tokenize, "tokenize", counted)
    with pytest.raises(KeyboardInterrupt):
        tokenised(source, tmp_path / "halved", portion_mb=0.001)
    with pytest.raises(UserError, match="unfinished; run the same command again"):
        TokenFolder(tmp_path / "halved/tokens")
    (tmp_path / "halved/tokens/.shard-000009.77.tmp.tokens").write_bytes(b"left")
    tokenised(source, tmp_path / "halved", portion_mb=0.001)
    assert calls == [0, 1, 2, 3, *range(3, calls[-1] + 1)]
    assert contents(tmp_path / "halved") == contents(tmp_path / "whole")


def test_a_shard_that_was_damaged_before_the_end_is_made_again(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", documents(60))
    tokenised(source, tmp_path / "out", portion_mb=0.001)
    whole = contents(tmp_path / "out")
    (tmp_path / "out/tokens/tokens.json").unlink()
    (tmp_path / "out/tokens/shard-000002.ends").write_bytes(b"1234")
    (tmp_path / "out/portions/shard-000004.json").write_text("{")
    tokenised(source, tmp_path / "out", portion_mb=0.001)
    assert contents(tmp_path / "out") == whole


SCRIPT = """
import sys
from pathlib import Path
from nemo_vfm.core.types.job import Run
from nemo_vfm.data.tokenizers.byte_tokenizer import ByteTokenizer
from nemo_vfm.text.document_lines import lines
from nemo_vfm.text.document_lines import FileSpan
from nemo_vfm.text.tokenize import TokenizeText
if __name__ == "__main__":
    job = TokenizeText(path=Path(sys.argv[1]), tokenizer=ByteTokenizer(), portion_mb=0.02, processes=2)
    job.run(Run(Path(sys.argv[2])))
"""


def started(source: Path, out: Path, script: Path) -> subprocess.Popen:
    script.write_text(SCRIPT)
    out.mkdir(exist_ok=True)
    words = [sys.executable, str(script), str(source), str(out)]
    return subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL)


def kill_after(source: Path, out: Path, script: Path, records: int) -> None:
    """Begin a run and kill it once so many portions are done."""
    process = started(source, out, script)
    deadline = time.monotonic() + 120
    while len(list(out.glob("portions/shard-*.json"))) < records and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_what_a_worker_of_a_killed_run_begins_after_the_next_run_has_swept_is_gone_in_the_end(tmp_path, monkeypatch):
    from nemo_vfm.text import tokenize

    source = jsonl(tmp_path / "in.jsonl", documents(50))
    tokenised(source, tmp_path / "alone")
    begin = tokenize._TokenizeWork.begin

    def late(work, before, plan):
        begin(work, before, plan)
        (work.out / ".shard-000033.9286.tmp.tokens").touch()

    monkeypatch.setattr(tokenize._TokenizeWork, "begin", late)
    tokenised(source, tmp_path / "two")
    assert contents(tmp_path / "two") == contents(tmp_path / "alone")


@pytest.mark.slow
def test_two_processes_that_are_killed_and_begun_again_give_the_bytes_of_one(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", documents(3000))
    tokenised(source, tmp_path / "alone", portion_mb=0.02)
    kill_after(source, tmp_path / "two", tmp_path / "run.py", 3)
    assert not (tmp_path / "two/tokens/tokens.json").exists()
    assert started(source, tmp_path / "two", tmp_path / "run.py").wait(120) == 0
    assert contents(tmp_path / "two") == contents(tmp_path / "alone")


@pytest.mark.soak
def test_a_run_that_is_killed_again_and_again_gives_the_bytes_of_one_that_was_not(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", documents(9000))
    tokenised(source, tmp_path / "alone", portion_mb=0.02)
    for records in range(1, 40, 3):
        kill_after(source, tmp_path / "two", tmp_path / "run.py", records)
    assert started(source, tmp_path / "two", tmp_path / "run.py").wait(120) == 0
    assert contents(tmp_path / "two") == contents(tmp_path / "alone")


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "tar"])
def test_files_that_were_damaged_anywhere_are_counted_or_refused_and_never_crash(tmp_path, kind):
    texts, numbers, odd = documents(60), random.Random(0), 0
    whole = jsonl(tmp_path / "whole.jsonl", texts).read_bytes()
    path = tmp_path / f"in.{kind}"
    match kind:
        case "jsonl":
            path.write_bytes(whole)
        case "parquet":
            pq.write_table(pa.table({"text": texts}), path, row_group_size=20)
        case "tar":
            tar(path, {f"{n}.txt": text.encode() for n, text in enumerate(texts)})
        case _:
            with pa.output_stream(str(path), compression="gzip" if kind == "jsonl.gz" else "zstd") as file:
                file.write(whole)
    data = path.read_bytes()
    folder, span = tmp_path / "damaged", None
    folder.mkdir()
    for _ in range(40):
        damaged, at = bytearray(data), numbers.randrange(len(data))
        damaged[at : at + numbers.choice([1, 40])] = numbers.choice([b"", b"\x00", numbers.randbytes(30)])
        (folder / path.name).write_bytes(damaged)
        try:
            ((span,),) = [portion.spans for portion in portions(folder, files_of(folder)[1], 1 << 30)]
            found = list(lines(folder, span, column="text", max_bytes=100_000))
        except NemoVfmError as error:
            assert str(folder) in str(error)
            odd += 1
            continue
        odd += any(line.fault for line in found) or [line.text for line in found] != texts
    assert odd > 10


class _Dies:
    """A tokenizer whose process is killed."""

    def encode(self, texts):
        os.kill(os.getpid(), signal.SIGKILL)

    vocab_size = ByteTokenizer.vocab_size
    end = ByteTokenizer.end
    fingerprint = ByteTokenizer.fingerprint


class _Lies(ByteTokenizer):
    """A tokenizer that makes tokens beyond its vocabulary."""

    def encode(self, texts):
        return [[300]]


def test_a_process_that_dies_is_told_with_a_sentence(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", documents(100))
    with pytest.raises(UserError, match=r"was killed by SIGKILL; run the same command again to resume"):
        TokenizeText(path=source, tokenizer=_Dies(), processes=2, portion_mb=0.003).run(Run(tmp_path))
    assert not (tmp_path / "tokens/tokens.json").exists()


def test_a_tokenizer_whose_vocabulary_is_too_small_is_found_out(tmp_path):
    source = jsonl(tmp_path / "in.jsonl", documents(10))
    with pytest.raises(UserError, match="tokens from 300 to 300, but the tokenizer claims a vocabulary of 257"):
        TokenizeText(path=source, tokenizer=_Lies(), processes=1).run(Run(tmp_path))


def test_a_document_may_be_longer_than_the_memory_that_a_batch_of_them_takes(tmp_path):
    texts = ["x" * 3_000_000, *documents(3), "y" * 1_500_000]
    source = jsonl(tmp_path / "in.jsonl", texts)
    assert tokenised(source, tmp_path / "out", portion_mb=0.5)["kept"] == 5
    assert texts_in(tmp_path / "out") == texts
