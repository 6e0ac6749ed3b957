"""Takes the texts of documents as given rows, and captions of clips out of shards."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.storage.uri import Place, places
from nemo_vfm.synth.given.row_source import GivenRow


class HasTexts(Protocol):
    """Has texts, such as `nemo_vfm.text.documents.Documents`."""

    def texts(self, skipped: Counter[str]) -> Iterator[str]:
        """All of them; how many could not be read is added to `skipped`, by reason."""
        ...


class DocumentRows:
    """Documents as rows with one column. What cannot be read is a row with a fault.

    Args:
        texts: where they are.
        column: that a document is put into.
    """

    def __init__(self, *, texts: HasTexts, column: str = "text") -> None:
        self.texts, self.column = texts, column

    def given_rows(self) -> Iterator[GivenRow]:
        """See `RowSource`."""
        skipped, number = Counter[str](), 0
        for number, text in enumerate(self.texts.texts(skipped), 1):
            yield from _faults(skipped, number)
            yield GivenRow(f"document {number}", {self.column: text})
        yield from _faults(skipped, number + 1)


def _faults(skipped: Counter[str], number: int) -> Iterator[GivenRow]:
    """What was skipped since the last call, before a document."""
    found = sorted(skipped.elements())
    skipped.clear()
    for fault in found:
        yield GivenRow(f"before document {number}", fault=fault)


class ClipCaptions:
    """The captions of clips in shards, as curation writes them: columns `caption` and `clip`.

    Args:
        shards: folder, tar or address of them, or a list.
    """

    def __init__(self, *, shards: Path | str | Sequence[Path | str]) -> None:
        self.shards: tuple[Place, ...] = places(shards)

    def given_rows(self) -> Iterator[GivenRow]:
        """See `RowSource`: in the order of the shards; a clip that nobody captioned is a row with a fault.

        Raises:
            UserError: there are no shards.
        """
        from nemo_vfm.data.shards.sample_reader import caption_of
        from nemo_vfm.data.shards.shard_paths import named_shards

        shards = named_shards(self.shards, None)
        if not shards.entries:
            raise UserError(f"there is no clip in {shards.folder}")
        for entry in shards.entries:
            if caption := caption_of(shards, entry).strip():
                yield GivenRow(f"clip {entry.key}", {"caption": caption, "clip": entry.key})
            else:
                yield GivenRow(f"clip {entry.key}", fault="the clip has no caption")
