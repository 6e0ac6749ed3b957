"""Decodes tokens one by one to the text that all of them have at once, and names each by another text.

The text of a token is no name: parts of a letter all decode to U+FFFD, and several tokens may have one text.
"""

from collections.abc import Callable, Sequence

from nemo_vfm.core.types.encoders import Tokenizer, TokenizesBytes

#: What a decoder says for bytes that are no character, or not yet one; some say it for each byte.
_HALF = "\ufffd"
_LONGEST_WINDOW = 64


class TokenText:
    """A text that grows by a token at a time.

    A token's text depends on those before it: a decoder drops the space before a first word, and a character may take
    several tokens. So a window of tokens is decoded with and without the new one, and U+FFFD at the end waits.

    Args:
        decode: of a tokenizer.
        before: tokens in front of the text, if any; they are no part of it.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int] = ()) -> None:
        self._decode = decode
        self._tokens, self._num_old = list(before), len(before)
        self._shown = len(decode(self._tokens).rstrip(_HALF))  # characters of the window that are out

    def add(self, token: int) -> str:
        """The text that this token completes; empty while a character is not whole."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        if text.endswith(_HALF) and len(self._tokens) <= _LONGEST_WINDOW:
            text = text.rstrip(_HALF)
            piece, self._shown = text[self._shown :], max(self._shown, len(text))
            return piece
        piece = text[self._shown :]
        # All is out: forget the tokens before the last call of this; those since are the next window's beginning.
        self._tokens = self._tokens[self._num_old :]
        self._num_old = len(self._tokens)
        self._shown = len(self._decode(self._tokens))
        return piece

    def rest(self) -> str:
        """What still waits, at the end."""
        return self._decode(self._tokens)[self._shown :]


class TokenNames:
    """The bytes and the name of every token.

    Args:
        tokenizer: of the model.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._bytes: Sequence[bytes | None] = (
            tokenizer.token_bytes() if isinstance(tokenizer, TokenizesBytes)
            else [tokenizer.decode([token]).encode(errors="replace") for token in range(tokenizer.vocab_size())]
        )  # fmt: skip
        self._owners = {_text(one): token for token, one in enumerate(self._bytes) if one}

    def bytes_of(self, token: int) -> bytes | None:
        """What it adds to a text; None for a special one, and for one above the vocabulary."""
        return self._bytes[token] if token < len(self._bytes) else None

    def name(self, token: int) -> str:
        """Its text; else bytes:\\xf0\\x9f, as OpenAI names parts of letters, or token_id:7, as vLLM does."""
        own = self.bytes_of(token)
        text = _text(own) if own else ""
        return text if own and self._owners[text] == token else f"token_id:{token}"


def _text(own: bytes) -> str:
    try:
        return own.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in own)
