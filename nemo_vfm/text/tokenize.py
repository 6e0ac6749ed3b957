"""Tokenizes documents into a folder of tokens (`data/tokens/`) in several processes, every document accounted for."""

import json
import os
import shutil
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import accumulate
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from nemo_vfm.core.errors import DataError, NemoVfmError, NothingKept, UserError
from nemo_vfm.core.log import bar, warn
from nemo_vfm.core.process import end_children, follow_parent, how_it_ended, num_cores, start_child
from nemo_vfm.core.storage.files import read_json_or_none, sha256_text, write_json, write_text
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.types.encoders import Tokenizer
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.tokens.token_manifest import NAME, Manifest
from nemo_vfm.text.document_lines import Portion, files_of, portions
from nemo_vfm.text.tokenize_split import SplitCounts, SplitSettings, counts, read_record, tokenize

_PLAN = "plan.json"


def iterate_done(work: "_TokenizeWork", numbers: Sequence[int], processes: int) -> Iterator[int]:
    """Numbers in the order in which their parts are done. Whatever ends it early ends the processes, too.

    Args:
        processes: at most so many; with one, this process does everything.

    Raises:
        UserError, DataError: a part cannot be done, or a process died.
    """
    if min(processes, len(numbers)) <= 1:
        for number in numbers:
            work.do(number)
            yield number
        return
    members = dict[Connection, BaseProcess]()
    try:
        for _ in range(min(processes, len(numbers))):
            process, pipe = start_child(_serve, work)
            members[pipe] = process
        waiting = iter(numbers)
        busy = {pipe for pipe in members if _give(pipe, waiting)}
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                yield _answer(ready, members[ready])
                if not _give(ready, waiting):
                    busy.remove(ready)
    finally:
        end_children([(process, pipe) for pipe, process in members.items()])


def _answer(pipe: Connection, process: BaseProcess) -> int:
    try:
        found: int | str | NemoVfmError = pipe.recv()
    except (EOFError, ConnectionResetError) as error:
        process.join(5)
        raise UserError(
            f"a worker process {how_it_ended(process.exitcode)}; run the same command again to resume, with fewer "
            "processes if memory ran out"
        ) from error
    if isinstance(found, NemoVfmError):
        raise found
    if isinstance(found, str):
        raise DataError(f"a worker process failed:\n{found}")
    return found


def _give(pipe: Connection, waiting: Iterator[int]) -> bool:
    number = next(waiting, None)
    if number is not None:
        with suppress(BrokenPipeError):  # it died; that is found when its answer is waited for
            pipe.send(number)
    return number is not None


def _serve(pipe: Connection, work: "_TokenizeWork") -> None:
    follow_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    while True:
        try:
            number = pipe.recv()
        except EOFError:
            return
        try:
            work.do(number)
        except NemoVfmError as error:
            pipe.send(error)
        except Exception:
            pipe.send(traceback.format_exc())
        else:
            pipe.send(number)


@makes("tokens", "counts.json", "failed.jsonl")
class TokenizeText:
    """Turns JSONL, Parquet, WebDataset tars and text files into `tokens/`, a shard for each portion of the input.

    A portion that is done is not done again after a kill, and the bytes of the result are the same, however often it
    was killed and with however many processes. `counts.json` says in = kept + dropped + failed; `failed.jsonl` has the
    file and line of each document that could not be read, up to 1,000 of a portion.

    Args:
        path: a file, or a folder with files at any depth: `.jsonl` (also `.gz`, `.zst`, `.bz2`), `.parquet`, `.tar`
            (samples of a WebDataset with `.txt`, or else `.json`), `.txt` (each one document).
        tokenizer: texts to tokens; each document is followed by its end token.
        column: where the text is, in JSON and Parquet.
        min_characters: a document with less is dropped.
        max_characters: a document with more is dropped; None drops none.
        portion_mb: input of one shard, in MB (10^6 bytes).
        processes: that tokenise at once; None takes as many as this process may use cores.
        max_document_mb: a document with more, as it is in its file, is not read, in MB; this bounds the memory.
        max_bad_in_a_row: this many unreadable documents in a row stop the run.
    """

    def __init__(
        self, *, path: Path, tokenizer: Tokenizer, column: str = "text", min_characters: int = 1,
        max_characters: int | None = None, portion_mb: float = 256.0, processes: int | None = None,
        max_document_mb: float = 64.0, max_bad_in_a_row: int = 100,
    ) -> None:  # fmt: skip
        if min(min_characters, max_bad_in_a_row, processes or 1, max_characters or 1) < 1:
            raise ValueError(
                f"min_characters ({min_characters}), max_characters ({max_characters}), processes ({processes}) and "
                f"max_bad_in_a_row ({max_bad_in_a_row}) must be at least 1 if given"
            )
        if not portion_mb > 0 or not max_document_mb > 0:
            raise ValueError(f"portion_mb ({portion_mb}) and max_document_mb ({max_document_mb}) must be above 0")
        self.path, self.tokenizer, self.column = local(path, "the path of documents"), tokenizer, column
        self.min_characters, self.max_characters = min_characters, max_characters
        self.portion_mb, self.processes = portion_mb, processes
        self.max_document_mb, self.max_bad_in_a_row = max_document_mb, max_bad_in_a_row

    def made_vocab(self) -> tuple[str, object]:
        """See `MakesVocab`."""
        return "tokens", self.tokenizer

    def run(self, run: Run) -> Outcome:
        """Tokenise what is not yet; the second time it does nothing.

        Raises:
            UserError: there is nothing to read, a file changes meanwhile, or too many documents in a row are bad.
            NothingKept: no document has tokens.
        """
        folder, files = files_of(self.path)
        found = portions(folder, files, int(self.portion_mb * 1e6))
        most, least = int(self.max_document_mb * 1e6), self.min_characters
        settings = SplitSettings(folder, self.column, least, self.max_characters, most, self.max_bad_in_a_row)
        work = _TokenizeWork(tuple(found), self.tokenizer, settings, run.folder / "tokens", run.folder / "portions")
        rules = [self.column, self.min_characters, self.max_characters, self.max_document_mb]
        made_of = [self.tokenizer.fingerprint(), self.tokenizer.vocab_size(), self.tokenizer.end(), rules]
        cuts = sha256_text(json.dumps([asdict(portion) for portion in found]))  # with the names and sizes of files
        plan = {"made_of": sha256_text(json.dumps([*made_of, cuts])), "portions": len(found)}
        before = read_json_or_none(run.folder / _PLAN)
        if before == plan and (work.out / NAME).is_file():
            return _outcome(work.records_of(), did_nothing=True)
        work.begin(before, plan)
        missing = [number for number in range(len(work.portions)) if work.record(number) is None]
        with bar("tokenise", len(work.portions), len(work.portions) - len(missing)) as line:
            for _ in iterate_done(work, missing, self.processes or num_cores()):
                line.advance()
        records = work.records_of()
        totals = counts(records)
        write_json(run.folder / "counts.json", totals)
        write_text(
            run.folder / "failed.jsonl", "".join(f"{json.dumps(one)}\n" for one in _faults(work.portions, records))
        )
        for reason, count in totals["failed"].items():
            warn(f"{count} of {totals['in']} documents could not be read: {reason}; see failed.jsonl")
        shards = tuple(record.shard for record in records if record.shard is not None)
        if not shards:
            raise NothingKept(f"none of {totals['in']} documents in {self.path} has tokens: {totals}")
        tokenizer = self.tokenizer
        work.sweep()  # once more: a worker of a killed run may have lived on for a moment and begun another file
        # The last file of a folder: from here on it is one.
        manifest = Manifest(tokenizer.fingerprint(), tokenizer.vocab_size(), tokenizer.end(), shards, totals)
        write_json(work.out / NAME, manifest.json())
        return _outcome(records, did_nothing=False)


@dataclass(frozen=True, slots=True)
class _TokenizeWork:
    """Portions to tokenise, as other processes get it."""

    portions: tuple[Portion, ...]
    tokenizer: Tokenizer
    settings: SplitSettings
    out: Path  #: of shards
    records: Path  #: of what became of each portion

    def begin(self, before: Json, plan: Json) -> None:
        """Keep what was done by the same plan, and nothing else."""
        folder = self.out.parent
        if before is not None and before != plan:
            warn(f"the input or the settings differ from those that {folder} was started with; the texts are "
                 "tokenized again")  # fmt: skip
        for place in (self.out, self.records):
            if before != plan:
                shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True, exist_ok=True)
        self.sweep()
        write_json(folder / _PLAN, plan)

    def sweep(self) -> None:
        """Delete what a run that was killed left half-written; see core/storage/files.py."""
        for place in (self.out, self.records):
            for path in place.glob(".*.tmp*"):
                path.unlink(missing_ok=True)

    def do(self, number: int) -> None:
        tokenize(self.portions[number], self.tokenizer, self.settings, self.out, self.records)

    def record(self, number: int) -> SplitCounts | None:
        name = f"{self.portions[number].name}.json"
        return read_record(self.records / name, self.out, self.tokenizer.vocab_size())

    def records_of(self) -> list[SplitCounts]:
        """Of all portions, once they are done."""
        return [record for number in range(len(self.portions)) if (record := self.record(number)) is not None]


def _faults(portions: tuple[Portion, ...], records: list[SplitCounts]) -> list[Json]:
    """File, line and reason of documents that could not be read; lines are counted through all parts of a file."""
    spans = [span for portion in portions for span in portion.spans]
    counted = [count for record in records for count in record.counted]
    first = list(accumulate((len(portion.spans) for portion in portions), initial=0))
    before: dict[str, int] = {}
    lines_before = []
    for span, count in zip(spans, counted, strict=True):
        lines_before.append(before.get(span.file, 0))
        before[span.file] = lines_before[-1] + count
    found = []
    for begin, record in zip(first, records, strict=False):
        for number, where, reason in record.faults:
            place = where + lines_before[begin + number] if isinstance(where, int) else where
            found.append({"file": spans[begin + number].file, "where": place, "reason": reason})
    return found


def _outcome(found: list[SplitCounts], *, did_nothing: bool) -> Outcome:
    totals = counts(found)
    tokens = sum(record.shard.tokens for record in found if record.shard is not None)
    dropped, failed = sum(totals["dropped"].values()), sum(totals["failed"].values())
    figures = {"in": totals["in"], "kept": totals["kept"], "dropped": dropped, "failed": failed, "tokens": tokens}
    counts_text = f"{totals['in']:,} in, {dropped:,} dropped, {failed:,} failed"
    text = f"{tokens:,} tokens of {totals['kept']:,} documents; {counts_text}"
    return Outcome(text, figures, did_nothing)
