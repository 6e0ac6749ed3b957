"""Loads a folder's tokenizer.model with the `sentencepiece` library."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.optional import require
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.tokenizers import special_tokens
from nemo_vfm.data.tokenizers.trial import require_sound

FILE = "tokenizer.model"
SPACE = "\u2581"  # what pieces have in place of a space
_MAX_BYTES = 1 << 30


@dataclass(frozen=True, eq=False)
class SentencePiece:
    """A model of SentencePiece."""

    _made: Json
    _name: str

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """See `Tokenizer`."""
        whole = [text.encode(errors="replace").decode() for text in texts]
        return [list(found) for found in self._made.encode(whole, out_type=int)]

    def decode(self, tokens: Sequence[int]) -> str:
        """See `Tokenizer`."""
        problems = [
            token for token in map(int, tokens) if not (self._made.is_control(token) or self._made.is_unknown(token))
        ]
        return str(self._made.decode(problems))

    def vocab_size(self) -> int:
        """See `Loaded`."""
        return int(self._made.get_piece_size())

    def token_bytes(self) -> list[bytes | None]:
        """See `Loaded`."""
        found: list[bytes | None] = []
        for token in range(self.vocab_size()):
            if self._made.is_control(token) or self._made.is_unknown(token):
                found.append(None)
                continue
            piece = str(self._made.id_to_piece(token))
            is_byte = self._made.is_byte(token)
            found.append(bytes([int(piece[1:-1], 16)]) if is_byte else piece.replace(SPACE, " ").encode())
        return found

    def end(self, named: str | None) -> int:
        """See `Loaded`."""
        if named is None:
            if (number := int(self._made.eos_id())) < 0:
                raise UserError(f"{self._name} has no token that ends a text; give `end`, the token itself")
            return number
        number = int(self._made.piece_to_id(named))
        if self._made.id_to_piece(number) != named:  # what is not there is the unknown one
            raise UserError(
                f"{self._name} has no token {named!r}, which should end a text; set `end` to one that it has"
            )
        return number


def load(folder: Path) -> SentencePiece:
    """The tokenizer of a folder. DataError if it is damaged, UserError if files beside it add tokens that it lacks."""
    library = require("sentencepiece", purpose="Reading tokenizer.model")
    path = folder / FILE
    if path.stat().st_size > _MAX_BYTES:
        raise DataError(f"{FILE} of {folder.name} is too large for a tokenizer")
    require_sound(path)
    try:
        made = library.SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError, ValueError) as error:
        raise DataError(f"{FILE} of {folder.name} cannot be read as a SentencePiece model: {error}") from error
    size = int(made.get_piece_size())
    beyond = [one.content for one in special_tokens.read(folder).added if one.number is not None and one.number >= size]
    if beyond:
        raise UserError(
            f"{folder.name} adds {len(beyond)} tokens to its {FILE}, such as {beyond[0]!r}, which SentencePiece cannot "
            f"find in text; load and save it once with transformers, which writes a tokenizer.json"
        )
    return SentencePiece(made, folder.name)
