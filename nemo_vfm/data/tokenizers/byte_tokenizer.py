"""Encodes texts as their UTF-8 bytes: a tokenizer without anything to train or download."""

from collections.abc import Sequence

_END = 256


class ByteTokenizer:
    """One token a byte, and one for the end of a document: 257 in all. Whatever was encoded decodes to itself."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """See `Tokenizer`. Half a surrogate pair, which no UTF-8 holds, becomes a question mark."""
        return [list(text.encode(errors="replace")) for text in texts]

    def decode(self, tokens: Sequence[int]) -> str:
        """See `Tokenizer`. Bytes that are no UTF-8 become U+FFFD, tokens above 256 say nothing; ValueError below 0."""
        if any(token < 0 for token in tokens):
            raise ValueError(f"{min(tokens)} is not a token: tokens begin at 0")
        return bytes(token for token in tokens if token < _END).decode(errors="replace")

    def token_bytes(self) -> list[bytes | None]:
        """See `TokenizesBytes`."""
        return [*(bytes([byte]) for byte in range(_END)), None]

    def vocab_size(self) -> int:
        """See `Tokenizer`."""
        return _END + 1

    def end(self) -> int:
        """See `Tokenizer`."""
        return _END

    def fingerprint(self) -> str:
        """See `Tokenizer`."""
        return "bytes/1"
