"""Keeps successful captions in the journal of answers, under the fingerprint of who wrote them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from nemo_vfm.asking.journal import Journal, OpenJournal
from nemo_vfm.core.sanitize import clean
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.caption.caption_types import Caption

_TEXTS = ("text", "by", "model", "revision", "prompt_hash")
_NUMBERS = ("tokens_in", "tokens_out")


@contextmanager
def caption_journal(folder: Path, name: str) -> Iterator[OpenJournal]:
    """The journal `<name>.jsonl` of a folder; captions in the folder's other journals are known, too.

    Parts of a job write at the same time, so each has a file of its own.

    Raises:
        UserError: another process writes to it.
    """
    file = folder / f"{name}.jsonl"
    others = [other for other in sorted(folder.glob("*.jsonl")) if other != file]
    with Journal(file=file, others=others).open() as journal:
        yield journal


class KeptCaptions:
    """What one captioner said.

    Args:
        journal: of all captioners; going back to an earlier one costs nothing. None where nobody keeps anything.
        fingerprint: of the captioner; empty keeps nothing.
    """

    def __init__(self, journal: OpenJournal | None, fingerprint: str) -> None:
        self._journal, self._prefix = journal if fingerprint else None, sha256_text(fingerprint)[:32]

    def get(self, key: str) -> Caption | None:
        """What was said under this very key, or None."""
        return None if self._journal is None else _caption(self._journal.get(f"{self._prefix} {key}"), key)

    def put(self, caption: Caption) -> None:
        """Keep a success. A failure is never kept: it is tried again by the next run."""
        if self._journal is not None and caption.spoken:
            self._journal.put(f"{self._prefix} {caption.key}", asdict(caption))

    def forget(self, key: str) -> None:
        """As if it had never been said."""
        if self._journal is not None:
            self._journal.forget(f"{self._prefix} {key}")


def _caption(entry: Json, key: str) -> Caption | None:
    """The entry as a caption, where it is one and says that it belongs to this key."""
    match entry:
        case {"key": str(own), "status": "success" | "truncated" as status} if own == key:
            text, by, model, revision, prompt_hash = (clean(str(entry.get(name, ""))) for name in _TEXTS)
            tokens_in, tokens_out = (_count(entry.get(name)) for name in _NUMBERS)
            caption = Caption(key, text, status, None, by, model, revision, prompt_hash, tokens_in, tokens_out)
            return caption if text else None
    return None


def _count(value: Json) -> int:
    return value if isinstance(value, int) else 0
