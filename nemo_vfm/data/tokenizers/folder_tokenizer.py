"""Loads a tokenizer from a local folder that transformers or SentencePiece wrote.

Nothing is downloaded and no code of the folder is run. `tokenizer.json` is used where there is one, and gives the
tokens of transformers' AutoTokenizer; else `tokenizer.model`, which gives those of SentencePiece.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.optional import needs_packages
from nemo_vfm.core.storage.files import sha256_file
from nemo_vfm.core.storage.uri import local
from nemo_vfm.data.tokenizers import sentencepiece_library, tokenizers_library
from nemo_vfm.data.tokenizers.special_tokens import CONFIG_FILES

#: Where a folder's tokenizer lies, the one that is taken first first.
MODELS = (tokenizers_library.FILE, sentencepiece_library.FILE)


#: A tokenizer in memory. Its `vocab_size` is the largest token and one: gaps between numbers count, since a matrix has
#: rows for them. Its `end` takes the name of a token; None is the one that the folder calls the end of a sequence.
Loaded = tokenizers_library.HuggingFace | sentencepiece_library.SentencePiece


@needs_packages("tokenizers", "sentencepiece")
class FolderTokenizer:
    """The tokenizer of a local folder. Its files are read at the first use, once in each process.

    Args:
        folder: with tokenizer.json or tokenizer.model, and tokenizer_config.json where special tokens are named.
        end: the token that ends a document, such as <|endoftext|>; None takes the folder's own eos_token.
    """

    def __init__(self, *, folder: Path, end: str | None = None) -> None:
        self.folder, self.end_token = local(folder, "the folder of a tokenizer"), end

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """See `Tokenizer`. The name of a special token inside a text becomes that token, as in transformers."""
        return self._load_current().encode(texts)

    def decode(self, tokens: Sequence[int]) -> str:
        """See `Tokenizer`. Tokens above the vocabulary, which a model with more rows may draw, say nothing.

        Raises:
            ValueError: a token below 0.
        """
        return self.decoder()(tokens)

    def decoder(self) -> Callable[[Sequence[int]], str]:
        """`decode` with the files as they are now; they are not looked at again with every call."""
        loaded = self._load_current()
        most = loaded.vocab_size()

        def decode(tokens: Sequence[int]) -> str:
            if any(token < 0 for token in tokens):
                raise ValueError(f"{min(tokens)} is not a token: tokens begin at 0")
            return loaded.decode([token for token in tokens if token < most])

        return decode

    def vocab_size(self) -> int:
        """See `Tokenizer`."""
        return self._load_current().vocab_size()

    def token_bytes(self) -> list[bytes | None]:
        """See `TokenizesBytes`."""
        return self._load_current().token_bytes()

    def end(self) -> int:
        """See `Tokenizer`."""
        return self._load_current().end(self.end_token)

    def placed_tokens(self) -> tokenizers_library.HuggingFace:
        """The tokenizer for a chat format, with places and control tokens. UserError if there is no tokenizer.json."""
        loaded = self._load_current()
        if not isinstance(loaded, tokenizers_library.HuggingFace):
            raise UserError(f"{self.folder} has no {tokenizers_library.FILE}, and a chat format needs one: load and "
                            f"save the tokenizer once with transformers")  # fmt: skip
        return loaded

    def fingerprint(self) -> str:
        """The bytes of the files, wherever they lie, and the token that ends a document."""
        hashes = [f"{path.name} {_hash(*_state(path))}" for path in files_of(self.folder)]
        return f"tokenizer/1 {sha256(' '.join(hashes).encode()).hexdigest()[:16]} end={self.end_token}"

    def _load_current(self) -> Loaded:
        return _load(self.folder, tuple(_state(path) for path in files_of(self.folder)))


def files_of(folder: Path) -> list[Path]:
    """The files that decide about tokens, the tokenizer itself first. UserError if there is none."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; download the tokenizer first; nothing is downloaded automatically")
    found = next((folder / name for name in MODELS if (folder / name).is_file()), None)
    if found is None:
        raise UserError(
            f"{folder} has neither {' nor '.join(MODELS)}, so it has no tokenizer. If it is in another "
            f"format (vocab.json and merges.txt, tiktoken), load and save it once with transformers"
        )
    return [found, *(folder / name for name in CONFIG_FILES if (folder / name).is_file())]


def _state(path: Path) -> tuple[Path, int, int]:
    facts = path.stat()
    return path, facts.st_size, facts.st_mtime_ns


@lru_cache(maxsize=8)
def _load(folder: Path, files: tuple[tuple[Path, int, int], ...]) -> Loaded:
    kind = tokenizers_library.load if files[0][0].name == tokenizers_library.FILE else sentencepiece_library.load
    return kind(folder)


@lru_cache(maxsize=256)
def _hash(path: Path, size: int, mtime_ns: int) -> str:
    return sha256_file(path)
