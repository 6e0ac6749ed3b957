"""Generates a language model's continuations of prompts as JSON lines; a killed run resumes where it stopped."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import nn

from nemo_vfm.core import log
from nemo_vfm.core.device import device
from nemo_vfm.core.optional import needs_gpu
from nemo_vfm.core.precision import Precision, PrecisionName
from nemo_vfm.core.seed import derive
from nemo_vfm.core.storage import files
from nemo_vfm.core.storage.uri import Place, place
from nemo_vfm.core.types.encoders import Tokenizer
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import JobShard, Needs, Outcome, Run, makes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.tokenizers.folder_tokenizer import FolderTokenizer
from nemo_vfm.language.generation import Continues, generate
from nemo_vfm.language.token_choice import Choice
from nemo_vfm.models.convert.gpt_folder import generation_of, stop_tokens
from nemo_vfm.models.convert.gpt_source import GptFolder, is_language_model
from nemo_vfm.parallel.apply.apply_parallelism import allocate
from nemo_vfm.parallel.apply.build_model import build_model, build_unfilled
from nemo_vfm.parallel.checkpoint.checkpoint import load_weights
from nemo_vfm.parallel.checkpoint.checkpoint_reader import fill
from nemo_vfm.parallel.checkpoint.checkpoint_store import open_checkpoint
from nemo_vfm.synth.prompts import Prompts

_PARTS = "texts"


@dataclass(frozen=True, slots=True)
class _TextToWrite:
    """One text that is to be written."""

    index: int
    prompt: str
    repeat: int
    tokens: tuple[int, ...]


@needs_gpu()
@makes("texts.jsonl", "texts")
class Generate:
    """Writes `texts.jsonl`: a line a text, with its prompt, what follows it, and whether the model itself ended it.

    Args:
        model: builds the model: the node that trained it, or `gpt_of_folder` for one that transformers wrote.
        checkpoint: a checkpoint, or a folder of them (the newest whole one is taken), here or in an object store; or a
            folder of transformers. None takes the model as it is built, which is untrained.
        weights: of the checkpoint: the running average, or the raw ones; a folder of transformers has only one set.
        tokenizer: the one that it was trained with.
        prompts: beginnings; an empty one begins a document.
        max_tokens: that a text gets at most.
        choice: how the next token is chosen.
        num_texts: texts for each prompt, each drawn independently.
        batch_size: texts written at once; changes the speed, and the texts no more than rounding does.
        precision: of weights and arithmetic: auto, bf16 or fp32.
    """

    def __init__(
        self, *, model: Factory[[], nn.Module], checkpoint: Place | None = None,
        weights: Literal["ema", "model"] = "ema", tokenizer: Tokenizer, prompts: Prompts, max_tokens: int = 256,
        choice: Choice = Choice(temperature=0.7, top_p=0.95),
        num_texts: int = 1, batch_size: int = 16, precision: PrecisionName = "auto",
    ) -> None:  # fmt: skip
        if min(max_tokens, num_texts, batch_size) < 1:
            raise ValueError(
                f"max_tokens ({max_tokens}), num_texts ({num_texts}) and batch_size ({batch_size}) must be at least 1"
            )
        self.model, self.weights, self.tokenizer, self.prompts = model, weights, tokenizer, prompts
        self.checkpoint = None if checkpoint is None else place(checkpoint)
        self.max_tokens, self.choice, self.num_texts = max_tokens, choice, num_texts
        self.batch_size, self.precision = batch_size, precision

    def run(self, run: Run) -> Outcome:
        """Write what is missing, then all of it as one file."""
        asked = self._read_prompts()
        written = self._write(asked, run)
        done = _read(run.folder)
        lines = [json.dumps(done[one.index], ensure_ascii=False) + "\n" for one in asked]
        files.write_text(run.folder / "texts.jsonl", "".join(lines))
        texts = [done[one.index] for one in asked]
        figures = {
            "texts": len(texts),
            "tokens": sum(one["tokens"] for one in texts),
            "ended": sum(one["ended"] for one in texts) / max(1, len(texts)),
        }
        text = (f"wrote {written} of {len(asked)} texts, {figures['tokens']:,.0f} tokens in all, into "
                f"{run.folder / 'texts.jsonl'}")  # fmt: skip
        return Outcome(text, figures, did_nothing=not written)

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        """See `HasNeeds`."""
        return Needs(rounds=1)

    def run_part(self, run: Run, part: JobShard) -> Outcome:
        """See `ShardedJob`: every `part.count`-th text."""
        written = self._write([one for one in self._read_prompts() if one.index % part.count == part.number], run)
        said = f"wrote {written} texts into {run.folder / _PARTS}"
        return Outcome(said, {"texts": written}, did_nothing=not written)

    def _read_prompts(self) -> list[_TextToWrite]:
        prompts = [prompt.text for prompt in self.prompts.prompts()]
        tokens = [tuple(found) or (self.tokenizer.end(),) for found in self.tokenizer.encode(prompts)]
        every = [(prompt, repeat, beginning) for prompt, beginning in zip(prompts, tokens, strict=True)
                 for repeat in range(self.num_texts)]  # fmt: skip
        return [_TextToWrite(index, *one) for index, one in enumerate(every)]

    def _write(self, asked: Sequence[_TextToWrite], run: Run) -> int:
        """Those that are not there yet; how many."""
        done = _read(run.folder)
        # Long beginnings together, so that few are filled up.
        missing = sorted((one for one in asked if one.index not in done), key=lambda one: -len(one.tokens))
        if not missing:
            return 0
        model = self._open_model(run.seed)
        # The token that ends a document, and those of a generation_config.json beside the tokenizer.
        rows = getattr(model, "vocab", self.tokenizer.vocab_size())
        beside = self.tokenizer.folder if isinstance(self.tokenizer, FolderTokenizer) else None
        stop = frozenset([self.tokenizer.end(), *stop_tokens(generation_of(rows, beside))])
        with log.bar("writing", len(missing), unit="texts") as line:
            for start in range(0, len(missing), self.batch_size):
                group = missing[start : start + self.batch_size]
                found = generate(
                    model, [one.tokens for one in group], max_new=self.max_tokens, choice=self.choice, stop=stop,
                    seeds=[derive(run.seed, "text", one.index) for one in group], device=device(),
                    dtype=Precision(self.precision).resolve()[0],
                )  # fmt: skip
                texts = [
                    {"index": one.index, "prompt": one.prompt, "repeat": one.repeat,
                     "text": self.tokenizer.decode(tokens), "tokens": len(tokens),
                     "ended": len(tokens) < self.max_tokens}
                    for one, tokens in zip(group, found, strict=True)
                ]  # fmt: skip
                files.write_json(run.folder / _PARTS / f"{group[0].index:06d}.json", texts)
                line.advance(len(group), group[-1].prompt[:60])
        return len(missing)

    def _open_model(self, seed: int) -> Continues[object]:
        if self.checkpoint is None:
            model, empty = build_model(self.model, seed), False
        else:
            model, empty = build_unfilled(self.model, seed)
        if not isinstance(model, Continues):
            raise ValueError(f"{type(model).__name__} does not generate text; give a language model such as GPT")
        rows = getattr(model, "vocab", None)
        if isinstance(rows, int) and rows < self.tokenizer.vocab_size():
            raise ValueError(f"the model has {rows} tokens, but the tokenizer has {self.tokenizer.vocab_size()}; "
                             f"they do not belong together")  # fmt: skip
        model.to(Precision(self.precision).resolve()[0])
        if empty:
            allocate(model, device())
        if isinstance(self.checkpoint, Path) and is_language_model(self.checkpoint):
            with GptFolder(self.checkpoint) as weights:
                weights.require_same_function(model)
                fill(model.state_dict(), weights)
        elif self.checkpoint is not None:
            with open_checkpoint(self.checkpoint) as found:
                fill(model.state_dict(), load_weights(found.path, self.weights))
        return model.to(device()).eval()


def _read(folder: Path) -> dict[int, Json]:
    """Texts by their number; each file is whole or absent."""
    return {one["index"]: one for file in sorted((folder / _PARTS).glob("*.json")) for one in files.read_json(file)}
