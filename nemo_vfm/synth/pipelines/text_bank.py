"""Holds short texts that rows are made from: keywords, or tasks to begin with."""

from collections.abc import Sequence
from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.network.permission import SentText


class TextBank:
    """Texts, each once.

    Args:
        texts: given in the recipe.
        file: a text a line; empty lines are passed over. None: there are no more than those in the recipe.
    """

    def __init__(self, *, texts: Sequence[SentText] = (), file: Path | None = None) -> None:
        if not file and not any(text.strip() for text in texts):
            raise ValueError("a bank needs at least one text: give texts, or a file with one text per line")
        self.texts, self.file = tuple(texts), file

    def max_texts(self) -> int | None:
        """How many there are at most; None where the file decides."""
        return len(self.texts) if self.file is None else None

    def all(self) -> list[str]:
        """Those of the recipe, then those of the file."""
        texts = list(self.texts)
        if self.file is not None:
            try:
                texts += self.file.read_text(encoding="utf-8").split("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise UserError(f"{self.file} cannot be read as a file with one text per line: {error}") from None
        found = list(dict.fromkeys(text.strip() for text in texts if text.strip()))
        if not found:
            raise UserError(f"{self.file} holds no text; write one per line")
        return found
