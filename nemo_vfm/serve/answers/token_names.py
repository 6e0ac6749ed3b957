"""Names the tokens of a vocabulary in answers, each by another text.

The text of a token is no name: parts of a letter all decode to U+FFFD, and several tokens may have one text.
"""

from collections.abc import Sequence

from nemo_vfm.core.types.encoders import Tokenizer, TokenizesBytes


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
