"""Writes continuations of fixed beginnings with fixed seeds while a language model learns."""

from collections.abc import Sequence
from contextlib import nullcontext

from nemo_vfm.core import log
from nemo_vfm.core.device import device
from nemo_vfm.core.seed import derive
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.core.types.encoders import Tokenizer
from nemo_vfm.language.generation import Continues, generate
from nemo_vfm.language.token_choice import Choice
from nemo_vfm.train.state.train_state import TrainState


class PreviewTexts:
    """Writes `samples/step-<n>.json`, by the averaged weights if there are any. On several devices it does nothing.

    Args:
        tokenizer: the one that the tokens came from.
        prompts: texts to continue, which are not part of the output; an empty one begins a document.
        every_steps: optimizer steps between previews; there is always one at the end.
        max_tokens: that a text gets at most.
        choice: how the next token is chosen.
    """

    def __init__(
        self, *, tokenizer: Tokenizer, prompts: Sequence[str], every_steps: int, max_tokens: int = 128,
        choice: Choice = Choice(temperature=0.7, top_p=0.95),
    ) -> None:  # fmt: skip
        if min(every_steps, max_tokens) < 1 or not prompts:
            raise ValueError(f"every_steps ({every_steps}) and max_tokens ({max_tokens}) must be at least 1, and "
                             f"prompts must not be empty")  # fmt: skip
        self.tokenizer, self.prompts, self.every_steps = tokenizer, tuple(prompts), every_steps
        self.max_tokens, self.choice = max_tokens, choice

    def on_start(self, fit: TrainState) -> None:
        """Say where nothing will come."""
        if fit.plan.world > 1:
            log.info("texts are previewed on one device only")
        elif not isinstance(fit.model, Continues):
            raise ValueError(f"{type(fit.model).__name__} generates no text; remove the preview from callbacks")

    def on_step(self, fit: TrainState) -> None:
        """Write where due."""
        if fit.plan.world > 1 or not fit.is_due(self.every_steps):
            return
        assert isinstance(fit.model, Continues)
        end = self.tokenizer.end()
        beginnings = [tokens or [end] for tokens in self.tokenizer.encode(self.prompts)]
        seeds = [derive(fit.run.seed, "preview", place) for place in range(len(beginnings))]
        fit.model.eval()
        with fit.ema.apply_to(fit.model) if fit.ema else nullcontext():
            made = generate(fit.model, beginnings, max_new=self.max_tokens, choice=self.choice, seeds=seeds,
                            stop=frozenset([end]), device=device())  # fmt: skip
        fit.model.train()
        texts = [self.tokenizer.decode(tokens) for tokens in made]
        found = [{"prompt": prompt, "text": text} for prompt, text in zip(self.prompts, texts, strict=True)]
        write_json(fit.run.folder / "samples" / f"step-{fit.step:08d}.json", {"step": fit.step, "texts": found})
