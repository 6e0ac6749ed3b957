"""Loads a reward model to serve from a folder of transformers."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.optional import needs_packages
from nemo_vfm.core.precision import Precision, PrecisionName
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.types.component import component
from nemo_vfm.data.tokenizers.folder_tokenizer import FolderTokenizer
from nemo_vfm.models.convert.reward_folder import load_reward
from nemo_vfm.models.pretrained import fingerprint_of, read_mapping
from nemo_vfm.models.reward import RewardHead
from nemo_vfm.serve.served_folder import served_model
from nemo_vfm.serve.served_model import ServedModel


@component
@needs_packages("tokenizers", "sentencepiece")
def served_reward(
    *, folder: Path, name: str | None = None, tokenizer: Path | None = None, context: int | None = None,
    precision: PrecisionName = "auto", attributes: Sequence[str] | None = None,
    weights: Mapping[str, float] | None = None,
) -> ServedModel:  # fmt: skip
    """The reward model of a folder, on this process's device.

    Args:
        folder: config.json of a ...ForSequenceClassification, safetensors, and most often a tokenizer.
        name: as clients call it; None takes the folder's.
        tokenizer: another folder of a tokenizer with a chat template; None takes that of `folder`.
        context: tokens of a conversation at most; None takes what config.json says.
        precision: of weights and arithmetic: auto, bf16 or fp32.
        attributes: names of the head's outputs, in its order, where "_" leaves one out; None takes `id2label`.
        weights: of attributes in the one score; None gives none, unless there is one attribute.
    """
    folder = local(folder, "the folder of a reward model")
    loaded = load_reward(folder, Precision(precision).resolve()[0])
    names = loaded.labels if attributes is None else attributes
    if len(names) != len(loaded.labels):
        raise UserError(f"the model's head has {len(loaded.labels)} outputs ({', '.join(loaded.labels)}), but there "
                        f"are {len(names)} attributes; name each, with _ for one to leave out")  # fmt: skip
    try:
        head = RewardHead(names, weights, loaded.pad)
    except ValueError as error:
        raise UserError(str(error)) from None
    served = served_model(
        loaded.model, FolderTokenizer(folder=tokenizer or folder), name=name or folder.resolve().name,
        context=context or read_mapping(folder / "config.json").get("max_position_embeddings"),
        revision=fingerprint_of(folder), reward=head,
    )  # fmt: skip
    if served.chat is None:
        raise UserError(f"{served.name} has no chat template, which is needed to score a conversation; put "
                        f"chat_template.jinja into its folder, or name another tokenizer")  # fmt: skip
    return served
