"""Converts a SentencePiece model without normalisation to a tokenizer.json that gives the same tokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from nemo_vfm.core.optional import require
from nemo_vfm.core.types.json_value import Json

_SPACE = "\u2581"


def write_tokenizer_json(made: Json, folder: Path, *, kind: Literal["unigram", "bpe"], leading_space: bool) -> None:
    """Write it.

    Args:
        made: the SentencePieceProcessor; trained with the identity for a normaliser, no space removed.
        folder: where `tokenizer.json` goes.
        kind: of the model.
        leading_space: whether the model puts a space before each text.
    """
    library = require("tokenizers", purpose="Writing tokenizer.json")
    tokenizer = library.Tokenizer(_unigram(library, made) if kind == "unigram" else _bpe(library, made))
    change, back = library.normalizers, library.decoders
    spaces = [change.Prepend(_SPACE)] if leading_space else []
    tokenizer.normalizer = change.Sequence([*spaces, change.Replace(" ", _SPACE)])
    strip = [back.Strip(content=" ", left=1, right=0)] if leading_space else []
    tokenizer.decoder = back.Sequence([back.Replace(_SPACE, " "), back.ByteFallback(), back.Fuse(), *strip])
    own = [number for number in range(made.get_piece_size()) if made.is_unknown(number) or made.is_control(number)]
    tokenizer.add_special_tokens(
        [library.AddedToken(made.id_to_piece(number), special=True, normalized=False) for number in own]
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def _unigram(library: Json, made: Json) -> Json:
    size = made.get_piece_size()
    scores = [float(made.get_score(number)) for number in range(size)]
    # Bytes and control pieces have a score of 0, the best there is: the library would find "<0x41>" spelt in a text. It
    # must be above that of unknown letters, so it needs a piece for each letter of such names to lose against.
    worst = 10 * min(scores) - 100
    spelt = [made.is_byte(n) or made.is_control(n) or made.is_unknown(n) for n in range(size)]
    pieces = [(made.id_to_piece(n), worst if spelt[n] else scores[n]) for n in range(size)]
    return library.models.Unigram(pieces, unk_id=made.unk_id(), byte_fallback=_has_bytes(made))


def _bpe(library: Json, made: Json) -> Json:
    names = {made.id_to_piece(number): number for number in range(made.get_piece_size())}
    merges = [pair for number in range(made.get_piece_size()) for pair in _pairs(made, number, names)]
    return library.models.BPE(
        names, merges, unk_token=made.id_to_piece(made.unk_id()), fuse_unk=True, byte_fallback=_has_bytes(made)
    )


def _pairs(made: Json, number: int, names: dict[str, int]) -> Iterator[tuple[str, str]]:
    """The pairs that make a piece; pieces are numbered in the order in which they are joined."""
    piece = made.id_to_piece(number)
    if made.is_byte(number) or made.is_control(number) or made.is_unknown(number):
        return
    for place in range(1, len(piece)):
        if piece[:place] in names and piece[place:] in names:
            yield piece[:place], piece[place:]


def _has_bytes(made: Json) -> bool:
    return any(made.is_byte(number) for number in range(made.get_piece_size()))
