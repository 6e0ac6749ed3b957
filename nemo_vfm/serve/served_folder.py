"""Loads a model to serve from a folder of transformers."""

from contextlib import suppress
from pathlib import Path

from nemo_vfm.core.device import device
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.optional import needs_packages
from nemo_vfm.core.precision import Precision, PrecisionName
from nemo_vfm.core.storage.uri import local
from nemo_vfm.core.types.component import component
from nemo_vfm.core.types.encoders import Tokenizer
from nemo_vfm.data.chat.chat_format import ChatFormat
from nemo_vfm.data.chat.chat_template import has_template
from nemo_vfm.data.tokenizers.folder_tokenizer import FolderTokenizer
from nemo_vfm.models.convert.gpt_folder import load_gpt
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.pretrained import fingerprint_of, read_mapping
from nemo_vfm.models.reward import RewardHead
from nemo_vfm.serve.generation_settings import GenerationSettings, generation_settings
from nemo_vfm.serve.served_model import ServedModel

_UNKNOWN_CONTEXT = 4096


@component
@needs_packages("tokenizers", "sentencepiece")
def served_folder(
    *, folder: Path, name: str | None = None, tokenizer: Path | None = None, context: int | None = None,
    precision: PrecisionName = "auto",
) -> ServedModel:  # fmt: skip
    """The model of a folder, on this process's device.

    Args:
        folder: config.json, safetensors, and most often a tokenizer.
        name: as clients call it; None takes the folder's.
        tokenizer: another folder of a tokenizer; None takes that of `folder`.
        context: tokens of a text at most; None takes what config.json says.
        precision: of weights and arithmetic: auto, bf16 or fp32.
    """
    folder = local(folder, "the folder of a language model")
    config = read_mapping(folder / "config.json")
    model = load_gpt(folder, Precision(precision).resolve()[0])
    return served_model(
        model, FolderTokenizer(folder=tokenizer or folder), name=name or folder.resolve().name,
        context=context or config.get("max_position_embeddings"),
        generation=generation_settings(model.vocab, folder), revision=fingerprint_of(folder),
    )  # fmt: skip


def served_model(
    model: GPT, tokenizer: Tokenizer, *, name: str, context: int | None,
    generation: GenerationSettings = GenerationSettings(), revision: str = "", reward: RewardHead | None = None,
) -> ServedModel:  # fmt: skip
    """A loaded model, ready to be served; see `ServedModel`.

    The token that ends a document, and those of `generation`, end a text. Without a context it is 4,096 tokens.
    """
    model = model.to(device()).eval().requires_grad_(False)
    chat = None
    if isinstance(tokenizer, FolderTokenizer) and has_template(tokenizer.folder):
        chat = ChatFormat(tokenizer=tokenizer)
    tokenizer.vocab_size()  # what is damaged is said here
    stop = generation.stop
    with suppress(UserError):  # a tokenizer may name no token that ends a document
        stop |= {tokenizer.end()}
    return ServedModel(name, model, tokenizer, context or _UNKNOWN_CONTEXT, stop, chat, revision, reward, generation)
