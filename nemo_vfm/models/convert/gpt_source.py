"""Reads GPT's arguments and, one by one, its parameters from a language model's folder of transformers.

Weights are safetensors, in one file or in several. They are read a tensor at a time, and no code of the folder is run.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import nn

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.component import no_component
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.convert.gpt_weights import tensor_map
from nemo_vfm.models.convert.language.gpt_config import arguments_of, family_of
from nemo_vfm.models.convert.source_folder import SourceFolder, without_memory
from nemo_vfm.models.convert.tensor_map import alias
from nemo_vfm.models.convert.weight_files import open_weights
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.pretrained import checked_folder, read_mapping, told_mapping
from nemo_vfm.parallel.layers.linear import Linear

_EMBEDDING, _HEAD, _SCORE = "model.embed_tokens.weight", "lm_head.weight", "score.weight"
_COMPARED_VALUES = 1 << 24  # at once, in float64


def is_language_model(folder: Path) -> bool:
    """Whether it looks like a folder of transformers with a language model, of whatever architecture."""
    return has_architecture(folder, "ForCausalLM")


def has_architecture(folder: Path, ending: str) -> bool:
    """Whether it looks like a folder of transformers that names a class with this ending."""
    names = told_mapping(folder / "config.json").get("architectures")
    return isinstance(names, list) and any(str(name).endswith(ending) for name in names)


@no_component
class GptFolder(SourceFolder):
    """GPT's parameters by name, each read when it is asked for; to be used in a `with`.

    Args:
        folder: with config.json and safetensors.
        told: its config.json as that of a language model; None is as it is.
        outputs: of a head `score.weight`, (outputs, D), in place of the one for the vocabulary; None for no such head.

    Raises:
        UserError: there is no such folder, or its weights are no safetensors.
        DataError: it is damaged, of another architecture, or its weights are not those that config.json implies.
    """

    model: GPT

    def __init__(self, folder: Path, told: Mapping[str, Json] | None = None, outputs: int | None = None) -> None:
        self.folder, self.config = folder, read_mapping(checked_folder(folder) / "config.json")
        try:
            told = told or self.config
            self.arguments, fused = arguments_of(told), family_of(told).fused
        except DataError as error:
            raise DataError(f"{folder.name}/{error}") from error
        with ExitStack() as stack:
            self._files = open_weights(folder, stack)
            self._require_blocks("model.layers.", self.arguments["depth"], "num_hidden_layers")
            self.model = without_memory(GPT, self.arguments, f"{folder.name}/config.json describes")
            if outputs is not None:
                weight = self.model.embedding.weight
                self.model.head = Linear(self.model.width, outputs, bias=False, device="meta", dtype=weight.dtype)
                self.model.tied = False
            self._maps = {name: tensor_map(name, self.model.sizes, fused) for name in self.model.state_dict()}
            if outputs is not None:
                self._maps["head.weight"] = alias(_SCORE)
            self._take([name for name in self._files if name.endswith("rotary_emb.inv_freq")])
            if self.model.tied:
                self._tensors = {**self._tensors, "head.weight": self._tensors["embedding.weight"]}
                self._require_tied()
            self._stack = stack.pop_all()

    def _require_tied(self) -> None:
        """transformers 5 keeps a head that differs from what it should be tied to, and version 4 drops it."""
        if _HEAD not in self._files:
            return
        embedding, head = self._files[_EMBEDDING], self._files[_HEAD]
        vocab, width = embedding.shape
        rows = max(1, _COMPARED_VALUES // width)
        boxes = [((start, min(start + rows, vocab)), (0, width)) for start in range(0, vocab, rows)]
        if head.shape != embedding.shape or not all(
            torch.equal(head.read(box).double(), embedding.read(box).double()) for box in boxes
        ):
            raise DataError(f"{self.folder.name}/config.json says tie_word_embeddings: True, and {_HEAD} differs from "
                            f"{_EMBEDDING}; to keep that head, set it to false (transformers 4 would drop the head, "
                            f"version 5 keeps it)")  # fmt: skip

    def require_same_function(self, model: nn.Module) -> None:
        """UserError where weights fit a model and mean another function in it."""
        found = next((part for part in model.modules() if isinstance(part, GPT)), None)
        if found is None:
            raise UserError(f"{self.folder} is a language model, but the model to be initialised has no GPT")
        # Settings of which shapes tell nothing; the balance of experts is no part of the function.
        here, there = (
            {
                "rope": model.rope, "tied": model.tied, "activation": model.sizes.activation, "norm": model.sizes.norm,
                "eps": model.sizes.eps, "window": model.window,
                "query_scalar": model.sizes.query_scalar or model.sizes.head_dim,
                "scale_embedding": model.scale_embedding,
                "experts (per_token, normalised)": model.sizes.experts
                and (model.sizes.experts.per_token, model.sizes.experts.normalised),
            } for model in (found, self.model)
        )  # fmt: skip
        self._require_equal(here, there)
