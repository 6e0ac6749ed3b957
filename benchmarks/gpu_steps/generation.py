"""Measures text generation by a small GPT on one GPU, ours beside transformers' `generate`.

    python benchmarks/gpu_steps/generation.py [--json FILE] [--only WORDS] [--quick]

32 texts of 12 tokens are continued by 64, by 3 blocks of width 128 over 384 words, with the same random weights.
`greedy_equal` is the share of greedy tokens that are the same as those of transformers' dynamic cache.
"""

import tempfile
from functools import partial
from pathlib import Path

import torch
from timing import DEVICE, Figures, by_kind, report_of, timed
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from nemo_vfm.language.generation import generate
from nemo_vfm.language.token_choice import Choice
from nemo_vfm.models.convert.gpt_folder import load_gpt

TEXTS, GIVEN, NEW = 32, 12, 64
SAMPLED = {"do_sample": True, "temperature": 0.5, "top_k": 0}


class Generation:
    """Both models with the same weights, and the beginnings of texts.

    Args:
        new: tokens to add to each text.
        rounds: that are measured.
    """

    def __init__(self, new: int, rounds: int) -> None:
        torch.manual_seed(0)
        config = LlamaConfig(vocab_size=384, hidden_size=128, intermediate_size=384, num_hidden_layers=3,
                             num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=512,
                             tie_word_embeddings=True, attn_implementation="sdpa", pad_token_id=0, bos_token_id=None,
                             eos_token_id=None)  # fmt: skip
        self.theirs = LlamaForCausalLM(config).eval()
        with tempfile.TemporaryDirectory() as folder:
            self.theirs.save_pretrained(folder)
            self.ours: nn.Module = load_gpt(Path(folder)).eval()
        self.words = torch.randint(1, 384, (TEXTS, GIVEN))
        self.new, self.rounds = new, rounds

    def our_texts(self, dtype: torch.dtype, temperature: float) -> list[list[int]]:
        """New tokens."""
        return generate(self.ours, self.words.tolist(), max_new=self.new, choice=Choice(temperature=temperature),
                        seeds=list(range(TEXTS)), device=DEVICE, dtype=dtype)  # fmt: skip

    def their_texts(self, temperature: float, cache: str) -> list[list[int]]:
        """New tokens."""
        how = {
            **(SAMPLED if temperature else {"do_sample": False}),
            **({"cache_implementation": cache} if cache else {}),
        }
        given = self.words.to(DEVICE)
        found = self.theirs.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=self.new,
                                     min_new_tokens=self.new, **how)  # fmt: skip
        return found[:, GIVEN:].tolist()

    def measure_ours(self, dtype: torch.dtype, temperature: float) -> Figures:
        """With the share of tokens that are the other's, where both are greedy."""
        self.ours.to(DEVICE, dtype)
        found = self._timed(partial(self.our_texts, dtype, temperature))
        if temperature:
            return {**found, **by_kind(partial(self.our_texts, dtype, temperature), 1)}
        self.theirs.to(DEVICE, dtype)
        pairs = zip(self.our_texts(dtype, 0), self.their_texts(0, ""), strict=True)
        same = sum(a == b for mine, other in pairs for a, b in zip(mine, other, strict=True))
        return {**found, "greedy_equal": round(same / (TEXTS * self.new), 4)}

    def measure_theirs(self, dtype: torch.dtype, temperature: float, cache: str) -> Figures:
        """With a cache that grows, or with a static one."""
        self.theirs.to(DEVICE, dtype)
        return self._timed(partial(self.their_texts, temperature, cache))

    def _timed(self, call: partial[list[list[int]]]) -> Figures:
        found = timed(call, self.rounds)
        milliseconds = found["ms"]
        assert isinstance(milliseconds, float)
        return {**found, "new_tokens_per_s": round(1e3 * TEXTS * self.new / milliseconds)}


def main() -> None:
    """Each dtype, greedy and sampled."""
    report = report_of(__doc__)
    one = Generation(*((4, 1) if report.quick else (NEW, 7)))
    for dtype in (torch.float32, torch.bfloat16):
        for temperature in (0.0, 0.5):
            how = f"{str(dtype).removeprefix('torch.')}, temperature {temperature}"
            report.side(f"ours, {how}", partial(one.measure_ours, dtype, temperature))
            report.side(f"transformers, {how}, dynamic cache", partial(one.measure_theirs, dtype, temperature, ""))
            report.side(f"transformers, {how}, static cache", partial(one.measure_theirs, dtype, temperature, "static"))


if __name__ == "__main__":
    main()
