"""Decodes tokens one by one to the text that all of them have at once."""

from collections.abc import Callable, Sequence

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
