"""Turns the tokens of an answer into text as they come, cut before stop strings, and names each token by another text.

The text of a token is no name: parts of a letter all decode to U+FFFD, and several tokens may have one text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nemo_vfm.core.network.thought import ThoughtSplit
from nemo_vfm.core.types.encoders import Tokenizer, TokenizesBytes
from nemo_vfm.serve.continuous.text_request import TextEnding, TextListener, TokenResult

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
    """The bytes and the name of every token."""

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


class StopStrings:
    """A growing text that ends before the first of some strings, none empty; what may become one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._waiting = ""

    def add(self, piece: str) -> tuple[str, bool]:
        """(text that is certain now, whether a stop string ended it)."""
        text = self._waiting + piece
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self._waiting = ""
            return text[: min(places)], True
        # A stop string may begin with the text's end.
        longest = min(len(text), max(map(len, self._stops), default=0))
        kept = next((n for n in range(longest, 0, -1) if any(stop.startswith(text[-n:]) for stop in self._stops)), 0)
        self._waiting = text[len(text) - kept :]
        return text[: len(text) - kept], False

    def rest(self) -> str:
        """What waited for more, at the end."""
        return self._waiting


_BEFORE = 6  # tokens of the prompt that the first word's spelling may depend on


@dataclass(frozen=True, slots=True)
class WrittenToken:
    """A token, and where the text that it completes begins."""

    result: TokenResult  #: with log-probabilities where they were wanted
    offset: int  #: characters of the choice's new text before the text that it completes


@dataclass(slots=True)
class Piece:
    """A part of a choice; the parts together are the choice."""

    text: str = ""  #: new
    thought: str = ""  #: new, where thoughts are split off; it is no part of the text
    tokens: list[WrittenToken] = field(default_factory=list)  #: those whose text begins in it
    #: of the prompt, with log-probabilities; in the first part only.
    given: list[TokenResult] = field(default_factory=list)
    ending: TextEnding | None = None  #: of the last part
    num_tokens: int = 0  #: written so far, those of a stop string among them


class ChoiceWriter(TextListener):
    """Writes one choice.

    Args:
        decode: of the tokenizer.
        prompt: the tokens before the choice.
        stops: strings that end it; they are no part of it.
        publish: is given each part; one part is the whole unless `in_pieces`.
        in_pieces: whether parts are given as soon as their text is certain.
        split: takes the thought out of the text; None leaves it in.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int], stops: Sequence[str],
        publish: Callable[[Piece], None], *, in_pieces: bool, split: ThoughtSplit | None = None,
    ) -> None:  # fmt: skip
        self._text, self._stops = TokenText(decode, prompt[-_BEFORE:]), StopStrings(stops)
        self._publish, self._in_pieces, self._split = publish, in_pieces, split
        self._next = Piece()
        self._waiting: list[WrittenToken] = []
        self._length, self._released = 0, 0  # characters that were decoded; characters that are certain
        self._stopped = False

    def prompt(self, results: list[TokenResult]) -> None:
        self._next.given += results

    def token(self, result: TokenResult) -> bool:
        """See `TextListener`; False after a stop string."""
        self._next.num_tokens += 1
        self._waiting.append(WrittenToken(result, self._length))
        self._release(self._text.add(result.token))
        if self._in_pieces and self._next.text and not self._stopped:
            self._send()
        return not self._stopped

    def end(self, ending: TextEnding) -> None:
        if not self._stopped:
            self._release(self._text.rest())
        if not self._stopped:
            self._next.text += self._stops.rest()
            self._next.tokens += self._waiting
        self._next.ending = "stop" if self._stopped and ending == "length" else ending
        self._send()

    def _release(self, piece: str) -> None:
        self._length += len(piece)
        certain, self._stopped = self._stops.add(piece)
        self._next.text += certain
        self._released += len(certain)
        begun = [token for token in self._waiting if token.offset < self._released]
        self._next.tokens += begun
        self._waiting = self._waiting[len(begun) :]

    def _send(self) -> None:
        sent, self._next = self._next, Piece(num_tokens=self._next.num_tokens)
        if self._split is not None:
            split = self._split.add if sent.ending is None else self._split.add_last
            sent.thought, sent.text = split(sent.text)
        self._publish(sent)
