"""Tokenizes one portion of documents into one shard, with a record of what became of each document."""

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

_TEXTS_AT_ONCE, _CHARACTERS_AT_ONCE = 256, 1 << 20
_FAULTS_KEPT = 1000  # of a portion; all are counted


@dataclass(frozen=True, slots=True)
class SplitSettings:
    """What decides about a document.
    min_characters, max_characters: shorter and longer documents are dropped; None is no limit.
    max_bytes: what a document may have in its file.
    max_bad_in_a_row: so many that cannot be read stop the run.
    """

    folder: Path  #: that the files are below
    column: str  #: where the text is
    min_characters: int
    max_characters: int | None
    max_bytes: int
    max_bad_in_a_row: int


@dataclass(slots=True)
class SplitCounts:
    """What became of a portion's documents."""

    read: int = 0  #: all of them
    kept: int = 0  #: those whose tokens are in the shard
    dropped: Counter[str] = field(default_factory=Counter)  #: how many a rule took out, by rule
    failed: Counter[str] = field(default_factory=Counter)  #: how many could not be read, by reason
    counted: list[int] = field(default_factory=list)  #: lines, rows or samples of each span
    #: (span, where, reason) of those that failed, as many as are kept
    faults: list[tuple[int, int | str, str]] = field(default_factory=list)
    shard: Shard | None = None  #: None where no document was kept

    def json(self) -> Json:
        """As it is written."""
        numbers = {"read": self.read, "kept": self.kept, "dropped": dict(self.dropped), "failed": dict(self.failed)}
        shard = None if self.shard is None else asdict(self.shard)
        return {**numbers, "counted": self.counted, "faults": self.faults, "shard": shard}


def tokenize(portion: Portion, tokenizer: Tokenizer, settings: SplitSettings, out: Path, records: Path) -> None:
    """Write the shard and then its record, which says that the shard is whole."""
    record = SplitCounts()
    vocab_size, end = tokenizer.vocab_size(), tokenizer.end()
    with ShardFiles(out, portion.name, vocab_size=vocab_size, end=end) as files:
        documents = _kept_texts(portion, settings, record)
        while texts := _some(documents):
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


def _some(documents: Iterator[str]) -> list[str]:
    """The next ones: tokenizers work on many in parallel, and memory is bounded."""
    group, characters = list[str](), 0
    for text in documents:
        group.append(text)
        characters += len(text)
        if len(group) >= _TEXTS_AT_ONCE or characters >= _CHARACTERS_AT_ONCE:
            break
    return group


def read_record(path: Path, out: Path, vocab_size: int) -> SplitCounts | None:
    """The record of a portion that is done; None where it is not, or its shard's files are not what it says."""
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
    """The texts that no rule drops."""
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
                if len(record.faults) < _FAULTS_KEPT:
                    record.faults.append((number, line.where, reason))
            elif rule := _rule(line.text or "", settings):
                record.dropped[rule] += 1
            else:
                yield line.text or ""
        record.counted.append(count)


def _rule(text: str, settings: SplitSettings) -> str | None:
    """The rule that drops a document."""
    if not text.strip():
        return "empty"
    if len(text) < settings.min_characters:
        return "shorter than min_characters"
    if settings.max_characters is not None and len(text) > settings.max_characters:
        return "longer than max_characters"
    return None


def counts(records: list[SplitCounts]) -> Json:
    """What became of all documents: in = kept + dropped + failed."""
    dropped: Counter[str] = sum((record.dropped for record in records), Counter())
    failed: Counter[str] = sum((record.failed for record in records), Counter())
    return {
        "in": sum(record.read for record in records), "kept": sum(record.kept for record in records),
        "dropped": dict(sorted(dropped.items())), "failed": dict(sorted(failed.items())),
    }  # fmt: skip
