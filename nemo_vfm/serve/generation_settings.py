"""Reads stop tokens and sampling defaults from a model's generation_config.json."""

from dataclasses import dataclass, field
from pathlib import Path

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.language.token_choice import Choice
from nemo_vfm.models.convert.gpt_folder import GENERATION, generation_of, stop_tokens

#: Range in which scores stay finite.
REPETITION_PENALTY_RANGE = (0.01, 100.0)
_SAMPLING = ("temperature", "top_k", "top_p", "min_p")
#: Keys that do not affect the choice of the next token, or are read elsewhere.
_IGNORED = {"_from_model_config", "transformers_version", "bos_token_id", "eos_token_id", "pad_token_id", "do_sample"}
#: Values that have no effect.
_NO_EFFECT: dict[str, Json] = {
    "num_beams": 1, "num_return_sequences": 1, "length_penalty": 1, "typical_p": 1, "repetition_penalty": 1,
    "no_repeat_ngram_size": 0, "use_cache": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GenerationSettings:
    """Defaults for what a request leaves out.

    Args:
        stop: tokens that end a text.
        choice: how the next token is chosen.
        repetition_penalty: see `TokenRules`.
        note: what of the file is applied, and what is not; empty if nothing in it has an effect.
    """

    stop: frozenset[int] = frozenset()
    choice: Choice = field(default_factory=Choice)
    repetition_penalty: float = 1.0
    note: str = ""


def generation_settings(vocab: int, *folders: Path | None) -> GenerationSettings:
    """Settings of the first folder that has the file: the model's, or the tokenizer's beside its model.

    Args:
        vocab: the model's vocabulary size; token ids in the file must be below it.
        folders: in order; None is skipped.

    Raises:
        DataError: a value in the file is not valid.
    """
    found = generation_of(vocab, *folders)
    wanted = {
        name: value
        for name, value in found.items()
        if name not in _IGNORED and value is not None and (name not in _NO_EFFECT or value != _NO_EFFECT[name])
    }
    # Without do_sample they are ignored, as in transformers. There the text is then greedy; here a request that names
    # no temperature gets 1, the default of OpenAI's API.
    sampled = {name: wanted[name] for name in _SAMPLING if name in wanted} if found.get("do_sample") is True else {}
    penalty = wanted.get("repetition_penalty", 1.0)
    try:
        # top_k 0 keeps all tokens, in transformers too; `Choice` has None for that.
        choice = Choice(**sampled | ({"top_k": None} if sampled.get("top_k") == 0 else {}))
        if not isinstance(choice.top_k, int | None):
            raise ValueError(f"top_k must be a whole number, got {choice.top_k}")
        lowest, highest = REPETITION_PENALTY_RANGE
        if not lowest <= penalty <= highest:
            raise ValueError(f"repetition_penalty must be from {lowest:g} to {highest:g}, got {penalty}")
    except (TypeError, ValueError) as error:
        raise DataError(f"{GENERATION}: {error}") from None
    applied = sampled | {name: value for name, value in wanted.items() if name == "repetition_penalty"}
    defaults = [f"{name} {value}" for name, value in applied.items()]
    left = [name for name in wanted if name not in applied]
    why = " (do_sample is not true)" if set(left) <= set(_SAMPLING) else ""
    parts = [f"a request without its own values gets {', '.join(defaults)}"] if defaults else []
    parts += [f"not applied: {', '.join(left)}{why}"] if left else []
    note = f"{GENERATION}: {'; '.join(parts)}" if parts else ""
    return GenerationSettings(frozenset(stop_tokens(found)), choice, float(penalty), note)
