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
from nemo_vfm.models.convert.tensor_map import TensorMap
from nemo_vfm.models.convert.weight_files import opened
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.pretrained import checked_folder, read_mapping, told_mapping
from nemo_vfm.parallel.checkpoint.tensor_file import MappedFile

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
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

    Raises:
        UserError: there is no such folder, or its weights are no safetensors.
        DataError: it is damaged, of another architecture, or its weights are not those that config.json implies.
    """

    model: GPT
    _files: Mapping[str, MappedFile]

    def __init__(self, folder: Path) -> None:
        self.folder, self.config = folder, read_mapping(checked_folder(folder) / "config.json")
        try:
            told = self._as_language_model()
            self.arguments, self._fused = arguments_of(told), family_of(told).fused
        except DataError as error:
            raise DataError(f"{folder.name}/{error}") from error
        with ExitStack() as stack:
            self._files = opened(folder, stack)
            self._require_blocks("model.layers.", self.arguments["depth"], "num_hidden_layers")
            self.model = self._unborn()
            self._maps = {name: self._map_to(name) for name in self.model.state_dict()}
            self._require_all_used([name for name in self._files if name.endswith("rotary_emb.inv_freq")])
            self._require_shapes()
            self._require_tied()
            self._stack = stack.pop_all()

    def _as_language_model(self) -> Mapping[str, Json]:
        """The config of the model with a head for the vocabulary."""
        return self.config

    def _unborn(self) -> GPT:
        return without_memory(GPT, self.arguments, f"{self.folder.name}/config.json describes")

    def _map_to(self, name: str) -> TensorMap:
        return tensor_map(name, self.model.sizes, self._fused)

    def _map_of(self, name: str) -> TensorMap:
        return self._maps["embedding.weight" if self.model.tied and name == "head.weight" else name]

    def _require_tied(self) -> None:
        """transformers 5 keeps a head that differs from what it should be tied to, and version 4 drops it."""
        if not self.model.tied or _HEAD not in self._files:
            return
        embedding, head = (self._files[name].get_slice(name) for name in (_EMBEDDING, _HEAD))
        rows = max(1, _COMPARED_VALUES // self.model.width)
        if head.get_shape() != embedding.get_shape() or not all(
            torch.equal(head[start : start + rows].double(), embedding[start : start + rows].double())
            for start in range(0, self.model.vocab, rows)
        ):
            raise DataError(f"{self.folder.name}/config.json says tie_word_embeddings: True, and {_HEAD} differs from "
                            f"{_EMBEDDING}; to keep that head, set it to false (transformers 4 would drop the head, "
                            f"version 5 keeps it)")  # fmt: skip

    def require_same_function(self, model: nn.Module) -> None:
        """UserError where weights fit a model and mean another function in it."""
        found = next((part for part in model.modules() if isinstance(part, GPT)), None)
        if found is None:
            raise UserError(f"{self.folder} is a language model, but the model to be initialised has no GPT")
        self._require_equal(_beside_shapes(found), _beside_shapes(self.model))


def _beside_shapes(model: GPT) -> dict[str, object]:
    """Settings of which shapes tell nothing; the balance of experts is no part of the function."""
    sizes = model.sizes
    experts = sizes.experts and (sizes.experts.per_token, sizes.experts.normalised)
    return {
        "rope": model.rope, "tied": model.tied, "activation": sizes.activation, "norm": sizes.norm, "eps": sizes.eps,
        "window": model.window, "query_scalar": sizes.query_scalar or sizes.head_dim,
        "scale_embedding": model.scale_embedding, "experts (per_token, normalised)": experts,
    }  # fmt: skip
