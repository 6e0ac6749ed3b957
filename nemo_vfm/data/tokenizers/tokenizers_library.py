"""Loads a folder's tokenizer.json with the `tokenizers` library."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.optional import require
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.tokenizers import special_tokens
from nemo_vfm.data.tokenizers.sentencepiece_library import SPACE
from nemo_vfm.data.tokenizers.trial import require_sound

FILE = "tokenizer.json"
_MAX_BYTES = 1 << 30
_BYTE = re.compile("<0x([0-9A-F]{2})>")


#: GPT-2's letters for bytes: those that can be seen are themselves, and the others follow from 256 on.
_SEEN = {*range(33, 127), *range(161, 173), *range(174, 256)}
_OTHERS = sorted(set(range(256)) - _SEEN)
_BYTES = {chr(byte): byte for byte in _SEEN} | {chr(256 + n): byte for n, byte in enumerate(_OTHERS)}


class HuggingFace:
    """A tokenizer of the `tokenizers` library, without the truncation and padding that its file may ask for."""

    def __init__(self, made: Json, roles: Mapping[str, str], name: str) -> None:
        self._made, self._name = made, name
        self.special_names = dict(roles)  #: texts of special tokens by what they are for, such as eos_token
        self._most: int = 1 + max(made.get_vocab(with_added_tokens=True).values())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """See `Tokenizer`."""
        whole = [text.encode(errors="replace").decode() for text in texts]  # half a surrogate pair is refused there
        with _panics_told(self._name):
            return [list(found.ids) for found in self._made.encode_batch_fast(whole, add_special_tokens=False)]

    def encode_with_offsets(self, text: str, *, names: bool) -> tuple[list[int], list[tuple[int, int]]]:
        """Tokens and the letters [first, last) of each; with `names`, that of a special token becomes the token."""
        made = self._made if names else self._nameless
        with _panics_told(self._name):
            found = made.encode(text.encode(errors="replace").decode(), add_special_tokens=False)
        return list(found.ids), [(int(first), int(last)) for first, last in found.offsets]

    @cached_property
    def _nameless(self) -> Json:
        """A copy to which names are text: it is a setting of the whole tokenizer, and threads share the other one."""
        made = type(self._made).from_str(self._made.to_str())
        made.encode_special_tokens = True
        return made

    def added_tokens(self) -> list[special_tokens.AddedToken]:
        """Tokens that are found in a text as a whole."""
        decoder = self._made.get_added_tokens_decoder()
        return [
            special_tokens.AddedToken(one.content, number, one.special, {}) for number, one in sorted(decoder.items())
        ]

    def decode(self, tokens: Sequence[int]) -> str:
        """See `Tokenizer`."""
        with _panics_told(self._name):
            return str(self._made.decode(list(tokens), skip_special_tokens=True))

    def vocab_size(self) -> int:
        """See `Loaded`."""
        return self._most

    def token_bytes(self) -> list[bytes | None]:
        """See `Loaded`."""
        decoder = self._made.decoder
        told = json.loads(decoder.__getstate__()) if decoder is not None else {}
        kinds = {one["type"] for one in (told, *told.get("decoders", []))} if told else set()
        added = {one.number: None if one.special else one.content.encode() for one in self.added_tokens()}
        return [added[token] if token in added else self._bytes_of(token, kinds) for token in range(self._most)]

    def _bytes_of(self, token: int, kinds: set[str]) -> bytes | None:
        piece = self._made.id_to_token(token)
        if piece is None:
            return None
        if "ByteLevel" in kinds and all(letter in _BYTES for letter in piece):
            return bytes(_BYTES[letter] for letter in piece)
        if "ByteFallback" in kinds and (byte := _BYTE.fullmatch(piece)):
            return bytes([int(byte[1], 16)])
        if {"Metaspace", "Replace"} & kinds:
            return str(piece).replace(SPACE, " ").encode()
        return self.decode([token]).encode(errors="replace")

    def end(self, named: str | None) -> int:
        """See `Loaded`."""
        name = named or self.special_names.get("eos_token")
        if name is None:
            raise UserError(f"nothing in {self._name} defines the token that ends a text; set `end` to that token")
        number = self._made.token_to_id(name)
        if number is None:
            raise UserError(
                f"{self._name} has no token {name!r}, which should end a text; set `end` to one that it has"
            )
        return int(number)


@contextmanager
def _panics_told(name: str) -> Iterator[None]:
    """Raise a DataError where the library fails; its panics are no Exceptions, and would end threads in silence."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit | MemoryError):
            raise
        raise DataError(f"{FILE} of {name} cannot be used: {str(error)[:300]}") from error


def load(folder: Path) -> HuggingFace:
    """The tokenizer of a folder. DataError if the file is damaged."""
    library = require("tokenizers", purpose="Reading tokenizer.json")
    path = folder / FILE
    if path.stat().st_size > _MAX_BYTES:
        raise DataError(f"{FILE} of {folder.name} is too large for a tokenizer")
    require_sound(path)
    with _panics_told(folder.name):
        made = library.Tokenizer.from_file(str(path))
    # transformers asks for neither either: what is cut off here would be missing from training in silence.
    made.no_truncation()
    made.no_padding()
    found = special_tokens.read(folder)
    there = {token.content for token in made.get_added_tokens_decoder().values()}
    for added in found.added:
        # One that is only a word of the vocabulary becomes a token that is found first, as in transformers.
        if added.content not in there or added.number is not None:
            token = library.AddedToken(added.content, special=added.special, **added.settings)
            (made.add_special_tokens if added.special else made.add_tokens)([token])
            if added.number is not None and made.token_to_id(added.content) != added.number:
                raise DataError(
                    f"{folder.name}: tokenizer_config.json gives {added.content!r} the number {added.number}, "
                    f"and {FILE} {made.token_to_id(added.content)}; save the tokenizer again with transformers"
                )
    return HuggingFace(made, found.roles, folder.name)
