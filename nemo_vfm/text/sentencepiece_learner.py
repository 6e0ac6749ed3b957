"""Learns a SentencePiece tokenizer like those of Llama 2, Mistral 7B and Nemotron-4, by `sentencepiece`."""

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.optional import needs_packages, require
from nemo_vfm.core.storage.files import write_bytes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.text.learner import require_tokens, write_config

_MAX_LETTERS = 1000  # of what the trainer takes for one sentence: at most 4,000 bytes, and it skips those above 4,192
_THREADS = 16  # its sums depend on their number, so it is not that of the machine
_OWN = ("<unk>", "<s>", "</s>")
#: Letters of the names of bytes, such as <0x4F>. Each has a piece, else tokenizer.json would read a name as its byte.
_OF_BYTES = "<>0123456789ABCDEFx"
_PART = re.compile(rf"(?s).{{1,{_MAX_LETTERS}}}(?=\s|$)|.{{1,{_MAX_LETTERS}}}")
_SPACE = "\u2581"


@needs_packages("sentencepiece", "tokenizers")
class SentencePieceModel:
    """Pieces of words with the space in front of them (Kudo and Richardson 2018); what has no piece is spelt in bytes.

    Nothing is normalised and no space is dropped, so that code and tables come back as they were.

    Args:
        vocab_size: tokens in all, <unk>, <s>, </s> and the bytes among them; a small text may have fewer.
        kind: unigram (Kudo 2018) or bpe.
        special_tokens: others, such as <|user|>; they come fourth, in this order.
        split_digits: whether each digit is a piece of its own, as in Nemotron-4 and Llama 2.
        byte_fallback: whether letters without a piece become their bytes; else they become <unk> and are lost.
        leading_space: whether a space is put before each text, so that its first word is the one of other places.
        character_coverage: share of the letters of the texts that get a piece.
    """

    def __init__(
        self, *, vocab_size: int, kind: Literal["unigram", "bpe"] = "unigram", special_tokens: Sequence[str] = (),
        split_digits: bool = True, byte_fallback: bool = True, leading_space: bool = True,
        character_coverage: float = 0.9995,
    ) -> None:  # fmt: skip
        names = (*_OWN, *special_tokens)
        require_tokens(vocab_size, names, len(names) + (256 + len(_OF_BYTES)) * byte_fallback + 1)
        if kind not in ("unigram", "bpe"):
            raise ValueError(f"kind must be unigram or bpe, got {kind!r}")
        if not 0.98 <= character_coverage <= 1:  # the library takes no less
            raise ValueError(f"character_coverage must be from 0.98 to 1, got {character_coverage}")
        self.vocab_size, self.kind, self.special_tokens = vocab_size, kind, tuple(special_tokens)
        self.split_digits, self.byte_fallback, self.leading_space = split_digits, byte_fallback, leading_space
        self.character_coverage = character_coverage

    def settings(self) -> Mapping[str, Json]:
        """See `Learner`."""
        return {**vars(self), "kind": f"SentencePiece {self.kind}", "special_tokens": list(self.special_tokens)}

    def learn(self, texts: Iterable[str], folder: Path) -> None:
        """See `Learner`: tokenizer.model, and tokenizer.json that gives the same tokens."""
        library = require("sentencepiece", purpose="SentencePieceModel")
        tokenizers = require("tokenizers", purpose="SentencePieceModel")  # before the work, not after
        model = _train(
            library, texts, model_type=self.kind, vocab_size=self.vocab_size,
            byte_fallback=self.byte_fallback, split_digits=self.split_digits, add_dummy_prefix=self.leading_space,
            character_coverage=self.character_coverage, control_symbols=list(self.special_tokens),
            required_chars=_OF_BYTES if self.byte_fallback else "",
            normalization_rule_name="identity", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
            hard_vocab_limit=False, num_threads=_THREADS, minloglevel=2,
        )  # fmt: skip
        write_bytes(folder / "tokenizer.model", model)
        made = library.SentencePieceProcessor(model_proto=model)
        tokenizer = tokenizers.Tokenizer(_same_model(tokenizers, made, self.kind))
        change, back = tokenizers.normalizers, tokenizers.decoders
        spaces = [change.Prepend(_SPACE)] if self.leading_space else []
        tokenizer.normalizer = change.Sequence([*spaces, change.Replace(" ", _SPACE)])
        strip = [back.Strip(content=" ", left=1, right=0)] if self.leading_space else []
        tokenizer.decoder = back.Sequence([back.Replace(_SPACE, " "), back.ByteFallback(), back.Fuse(), *strip])
        own = [number for number in range(made.get_piece_size()) if made.is_unknown(number) or made.is_control(number)]
        tokenizer.add_special_tokens(
            [tokenizers.AddedToken(made.id_to_piece(number), special=True, normalized=False) for number in own]
        )
        tokenizer.save(str(folder / "tokenizer.json"))
        roles = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
        write_config(folder, roles, self.special_tokens)


def _train(library: Json, texts: Iterable[str], **settings: Json) -> bytes:
    """The model of lines, long ones in parts that begin with their space.

    Our errors are as they were: the library turns all into text and adds where it was in its code.
    """
    failures, model = list[Exception](), io.BytesIO()

    def sentences() -> Iterator[str]:
        try:
            for text in texts:
                for line in text.encode(errors="replace").decode().split("\n"):
                    yield from _PART.findall(line)
        except Exception as error:
            failures.append(error)
            raise

    try:
        library.SentencePieceTrainer.train(sentence_iterator=sentences(), model_writer=model, **settings)
    except RuntimeError as error:
        if failures:
            raise failures[0] from None
        reason = str(error).rpartition("] ")[2]
        raise UserError(f"SentencePiece cannot learn {settings['vocab_size']:,} tokens from these texts: "
                        f"{reason}") from error  # fmt: skip
    return model.getvalue()


def _same_model(library: Json, made: Json, kind: str) -> Json:
    """The model of SentencePiece as one of `tokenizers`."""
    numbers = range(made.get_piece_size())
    pieces = [made.id_to_piece(n) for n in numbers]
    spelt = [made.is_byte(n) or made.is_control(n) or made.is_unknown(n) for n in numbers]
    has_bytes = any(map(made.is_byte, numbers))
    if kind == "unigram":
        # Bytes and control pieces have a score of 0, the best there is: the library would find "<0x41>" spelt in a
        # text. It must be above that of unknown letters, so it needs a piece for each letter of such names to lose
        # against.
        scores = [float(made.get_score(n)) for n in numbers]
        worst = 10 * min(scores) - 100
        scored = [(pieces[n], worst if spelt[n] else scores[n]) for n in numbers]
        return library.models.Unigram(scored, unk_id=made.unk_id(), byte_fallback=has_bytes)
    # The pairs that make each piece; pieces are numbered in the order in which they are joined.
    names = {piece: number for number, piece in enumerate(pieces)}
    merges = [
        (piece[:place], piece[place:])
        for piece, number in names.items()
        if not spelt[number]
        for place in range(1, len(piece))
        if piece[:place] in names and piece[place:] in names
    ]
    return library.models.BPE(names, merges, unk_token=pieces[made.unk_id()], fuse_unk=True, byte_fallback=has_bytes)
