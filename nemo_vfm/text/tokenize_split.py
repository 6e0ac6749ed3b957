"""Tokenizes one portion of documents into one shard, and counts which documents were kept, dropped or failed."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.files import read_json, write_json
from nemo_vfm.core.types.encoders import Tokenizer
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.tokens.token_manifest import Shard, dtype_for
from nemo_vfm.data.tokens.token_writer import ShardFiles
from nemo_vfm.text.document_lines import Portion, lines

_BATCH_TEXTS, _BATCH_CHARACTERS = 256, 1 << 20
_MAX_FAULTS = 1000  # listed of a portion; all are counted


@dataclass(frozen=True, slots=True)
class SplitSettings:
    """Where documents are, and the limits that they must meet."""

    folder: Path  #: the files' names are relative to it
    column: str  #: the JSON key or Parquet column that holds the text
    min_characters: int  #: shorter documents are dropped
    max_characters: int | None  #: longer ones are dropped; None is no limit
    max_bytes: int  #: a document with more bytes in its file counts as unreadable
    max_bad_in_a_row: int  #: this many consecutive unreadable documents stop the run


@dataclass(slots=True)
class SplitCounts:
    """How many of a portion's documents were kept, dropped or failed."""

    read: int = 0  #: all of them
    kept: int = 0  #: those whose tokens are in the shard
    dropped: Counter[str] = field(default_factory=Counter)  #: by the rule that dropped them
    failed: Counter[str] = field(default_factory=Counter)  #: by the reason why they cannot be read
    counted: list[int] = field(default_factory=list)  #: documents of each span
    #: (span, line or row in it or key in a tar, reason) of the first that failed
    faults: list[tuple[int, int | str, str]] = field(default_factory=list)
    shard: Shard | None = None  #: None where no document was kept

    def json(self) -> Json:
        """The content of the record file."""
        numbers = {"read": self.read, "kept": self.kept, "dropped": dict(self.dropped), "failed": dict(self.failed)}
        shard = None if self.shard is None else asdict(self.shard)
        return {**numbers, "counted": self.counted, "faults": self.faults, "shard": shard}


def tokenize(portion: Portion, tokenizer: Tokenizer, settings: SplitSettings, out: Path, records: Path) -> None:
    """Write the shard to `out`, then its record to `records`, which marks it as complete.

    Raises:
        UserError: too many documents in a row cannot be read.
    """
    record = SplitCounts()
    vocab_size, end = tokenizer.vocab_size(), tokenizer.end()
    with ShardFiles(out, portion.name, vocab_size=vocab_size, end=end) as files:
        documents = _kept_texts(portion, settings, record)
        while texts := _next_batch(documents):
            for document in tokenizer.encode(texts):
                files.write(document)
            record.kept += len(texts)
    assert record.read == record.kept + record.dropped.total() + record.failed.total(), "a document was lost"
    record.shard = files.shard()
    if not record.kept:
        record.shard = None
        for path in out.glob(f"{portion.name}.*"):
            path.unlink()
    write_json(records / f"{portion.name}.json", record.json())


def _next_batch(documents: Iterator[str]) -> list[str]:
    """Several texts, which a tokenizer encodes in parallel, within a bound of memory; empty at the end."""
    batch, characters = list[str](), 0
    for text in documents:
        batch.append(text)
        characters += len(text)
        if len(batch) >= _BATCH_TEXTS or characters >= _BATCH_CHARACTERS:
            break
    return batch


def read_record(path: Path, out: Path, vocab_size: int) -> SplitCounts | None:
    """The record of a finished portion; None if there is none, or a file of its shard has another size."""
    try:
        found = read_json(path)
        shard = None if found["shard"] is None else Shard(**found["shard"])
        sizes = {} if shard is None else shard.files(dtype_for(vocab_size))
        if any((out / name).stat().st_size != size for name, (size, _) in sizes.items()):
            return None
        faults = [(span, where, reason) for span, where, reason in found["faults"]]
        dropped, failed = Counter(found["dropped"]), Counter(found["failed"])
        return SplitCounts(found["read"], found["kept"], dropped, failed, found["counted"], faults, shard)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _kept_texts(portion: Portion, settings: SplitSettings, record: SplitCounts) -> Iterator[str]:
    """Yield the texts that no rule drops; count all documents in `record`."""
    in_a_row = 0
    for number, span in enumerate(portion.spans):
        count = 0
        for line in lines(settings.folder, span, column=settings.column, max_bytes=settings.max_bytes):
            count += 1
            record.read += 1
            in_a_row = in_a_row + 1 if line.fault else 0
            if in_a_row >= settings.max_bad_in_a_row:
                raise UserError(
                    f"{in_a_row} documents in a row cannot be read; the last, in {settings.folder / span.file}: "
                    f"{line.error()}. Is column={settings.column} correct?"
                )
            if line.fault:
                reason = str(line.fault)
                record.failed[reason] += 1
                if len(record.faults) < _MAX_FAULTS:
                    record.faults.append((number, line.where, reason))
            elif rule := _rule(line.text or "", settings):
                record.dropped[rule] += 1
            else:
                yield line.text or ""
        record.counted.append(count)


def _rule(text: str, settings: SplitSettings) -> str | None:
    """The rule that drops a document; None keeps it."""
    if not text.strip():
        return "empty"
    if len(text) < settings.min_characters:
        return "shorter than min_characters"
    if settings.max_characters is not None and len(text) > settings.max_characters:
        return "longer than max_characters"
    return None


def counts(records: list[SplitCounts]) -> Json:
    """The sums over portions: in = kept + dropped + failed."""
    dropped: Counter[str] = sum((record.dropped for record in records), Counter())
    failed: Counter[str] = sum((record.failed for record in records), Counter())
    return {
        "in": sum(record.read for record in records), "kept": sum(record.kept for record in records),
        "dropped": dict(sorted(dropped.items())), "failed": dict(sorted(failed.items())),
    }  # fmt: skip
