"""Loads a reward model from a folder of transformers: a language model with a head for sequence classification."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.gpt_folder import load_weights
from nemo_vfm.models.convert.gpt_source import GptFolder, has_architecture
from nemo_vfm.models.convert.language.config_keys import int_at, refusal, value_text
from nemo_vfm.models.convert.language.gpt_families import FAMILIES
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.pretrained import checked_folder, read_mapping

_ENDING, _ENDING_THERE = "ForCausalLM", "ForSequenceClassification"
_MAX_OUTPUTS = 1000
_DEFAULT_OUTPUTS = 2  # of transformers, which leaves this number out of config.json


@dataclass(frozen=True, slots=True)
class LoadedReward:
    """What the folder of a reward model holds."""

    model: GPT  #: a GPT whose head gives the outputs
    labels: tuple[str, ...]  #: names of the outputs, in their order
    pad: int | None  #: the token that fills texts up; None where there is none


def is_reward_model(folder: Path) -> bool:
    """Whether it looks like a folder of transformers with a head for sequence classification, of whatever model."""
    return has_architecture(folder, _ENDING_THERE)


def load_reward(folder: Path, dtype: torch.dtype = torch.float32) -> LoadedReward:
    """The model of a folder, with its weights; see `GptFolder`."""
    config = read_mapping(checked_folder(folder) / "config.json")
    known = {one.scored or name.removesuffix(_ENDING) + _ENDING_THERE: name for name, one in FAMILIES.items()}
    names = config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in tuple(known):
        raise DataError(
            f"{folder.name}/config.json says {value_text(names)}; known reward models are {', '.join(known)}"
        )
    labels = labels_of(config)
    pad, most = config.get("pad_token_id"), config.get("vocab_size")
    if pad is not None and (type(pad) is not int or pad < -1 or (type(most) is int and pad >= most)):
        raise refusal("pad_token_id", pad, "a token or null")
    with GptFolder(folder, {**config, "architectures": [known[names[0]]]}, len(labels)) as weights:
        return LoadedReward(load_weights(weights, dtype), labels, pad)


def labels_of(config: Mapping[str, Json]) -> tuple[str, ...]:
    """Names of the outputs, as transformers reads them: `id2label`, else as many LABEL_n as `num_labels` says."""
    told = config.get("id2label")
    if told is None:
        count = config.get("num_labels")
        number = _DEFAULT_OUTPUTS if count is None else int_at(config, "num_labels", _MAX_OUTPUTS)
        return tuple(f"LABEL_{place}" for place in range(number))
    expected = [str(place) for place in range(min(len(told), _MAX_OUTPUTS))] if isinstance(told, dict) else []
    if (
        not isinstance(told, dict)
        or not told
        or set(told) != set(expected)
        or not all(isinstance(name, str) for name in told.values())
    ):
        raise refusal("id2label", told, 'a name for each output, "0", "1" and so on')
    return tuple(told[place] for place in expected)
