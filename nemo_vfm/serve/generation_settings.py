"""Reads from a model's generation_config.json what ends its texts and how it wants tokens chosen."""

from dataclasses import dataclass, field
from pathlib import Path

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.language.token_choice import Choice
from nemo_vfm.models.convert.gpt_folder import GENERATION, generation_of, stop_tokens

#: The smallest and the largest that keep scores finite.
REPETITION_PENALTIES = (0.01, 100.0)
_SAMPLING = ("temperature", "top_k", "top_p", "min_p")
#: Keys that say nothing about the next token, and values that ask for nothing.
_SILENT = {"_from_model_config", "transformers_version", "bos_token_id", "eos_token_id", "pad_token_id", "do_sample"}
_NEUTRAL: dict[str, Json] = {
    "num_beams": 1, "num_return_sequences": 1, "length_penalty": 1, "typical_p": 1, "repetition_penalty": 1,
    "no_repeat_ngram_size": 0, "use_cache": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """What holds for a text where its request says nothing.

    Args:
        stop: tokens that end it.
        choice: how the next token is chosen.
        repetition_penalty: see `TokenRules`.
        note: what of the file is applied, and what is not; empty where it asks for nothing.
    """

    stop: frozenset[int] = frozenset()
    choice: Choice = field(default_factory=Choice)
    repetition_penalty: float = 1.0
    note: str = ""


def generation_settings(vocab: int, *folders: Path | None) -> GenerationSettings:
    """Of the first folder that has the file: of a model, or of a tokenizer that lies with its model's files."""
    found = generation_of(vocab, *folders)
    wanted = {
        name: value
        for name, value in found.items()
        if name not in _SILENT and value is not None and (name not in _NEUTRAL or value != _NEUTRAL[name])
    }
    sampled = {name: wanted[name] for name in _SAMPLING if name in wanted} if found.get("do_sample") is True else {}
    penalty = wanted.get("repetition_penalty", 1.0)
    try:
        # 0 leaves all words, in transformers too.
        choice = Choice(**{name: value for name, value in sampled.items() if (name, value) != ("top_k", 0)})
        if not isinstance(choice.top_k, int | None):
            raise ValueError(f"top_k must be a whole number, got {choice.top_k}")
        if not REPETITION_PENALTIES[0] <= penalty <= REPETITION_PENALTIES[1]:
            raise ValueError(f"repetition_penalty must be from 0.01 to 100, got {penalty}")
    except (TypeError, ValueError) as error:
        raise DataError(f"{GENERATION}: {error}") from None
    applied = sampled | {name: value for name, value in wanted.items() if name == "repetition_penalty"}
    told = [f"{name} {value}" for name, value in applied.items()]
    left = [name for name in wanted if name not in applied]
    why = " (do_sample is not true)" if set(left) <= set(_SAMPLING) else ""
    parts = [f"a request without its own values gets {', '.join(told)}"] if told else []
    parts += [f"not applied: {', '.join(left)}{why}"] if left else []
    note = f"{GENERATION}: {'; '.join(parts)}" if parts else ""
    return GenerationSettings(frozenset(stop_tokens(found)), choice, float(penalty), note)
