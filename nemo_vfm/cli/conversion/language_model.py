"""Converts a language model from a transformers folder to our weights and an ingredient, and back.

The tokenizer is copied along. Weights are read one by one and written a file at a time, so neither direction needs
the memory of a whole model.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nemo_vfm.cli.conversion.model_folder import DTYPES, INGREDIENT, write_in
from nemo_vfm.cli.conversion.run_weights import run_of

if TYPE_CHECKING:
    from nemo_vfm.core.types.encoders import Tokenizer
    from nemo_vfm.core.types.json_value import Json
    from nemo_vfm.models.gpt import GPT

TOKENIZER = "tokenizer"
#: Files beside a tokenizer that say how a chat is written, and nothing about tokens.
_BESIDE = ("chat_template.jinja",)


def convert_in(source: Path, target: Path) -> str:
    """Write the weights of a folder of transformers, its model as an ingredient and its tokenizer; one sentence."""
    from nemo_vfm.core.storage.files import write_json
    from nemo_vfm.models.convert.gpt_folder import GENERATION, generation_of
    from nemo_vfm.models.convert.gpt_source import GptFolder

    with GptFolder(source) as weights:
        length = weights.config.get("max_position_embeddings")
        generation = generation_of(weights.model.vocab, source)
        settings = write_in(weights, target, weights.arguments, "transformers", source.name, max_tokens=length)
        family, count = weights.config["architectures"][0], weights.num_values()
    tokenizer_note = _tokenizer_copied(source, target / TOKENIZER)
    # Beside the tokenizer, whose tokens it names, a run that reads the tokenizer finds it, too.
    beside = target / TOKENIZER if (target / TOKENIZER).is_dir() else target
    if generation:
        write_json(beside / GENERATION, generation)
    return f"a {family}: {count:,} parameters, {INGREDIENT}{tokenizer_note}\n{settings}"


def convert_out(
    source: Path, target: Path, *, key: str | None = None, tokenizer: Path | None = None, trust: Sequence[str] = (),
    allow_host: Sequence[str] = (), max_tokens: int | None = None, dtype: Literal["fp32", "bf16"] | None = None,
) -> str:  # fmt: skip
    """Write a folder that transformers loads; one sentence about it.

    Args:
        source: a run folder, a folder of checkpoints or a checkpoint below one, or what `convert_in` wrote.
        key: model or ema; None takes ema where there is one.
        tokenizer: folder of the tokenizer; None takes the one that the run's data names.
        max_tokens: the longest text it was trained on; None takes the length of the run's rows.
        dtype: of the weights written; None leaves them as they are.
    """
    import torch

    from nemo_vfm.cli.conversion.adapter import load_trained, merged_weights
    from nemo_vfm.core.errors import UserError
    from nemo_vfm.data.tokenizers.folder_tokenizer import FolderTokenizer
    from nemo_vfm.models.adapters.low_rank_adapter import adapted_linears
    from nemo_vfm.models.convert.gpt_folder import write_gpt
    from nemo_vfm.models.convert.gpt_source import is_language_model
    from nemo_vfm.parallel.checkpoint import checkpoint
    from nemo_vfm.parallel.plan.adapter_split import is_adapter

    if not (source / INGREDIENT).is_file() and is_language_model(source):
        raise UserError(f"{source} is already a transformers folder; without --to it is converted to ours")
    known = known_model(source, trust, allow_host, "can be written for transformers")
    own = known.tokenizer.folder if isinstance(known.tokenizer, FolderTokenizer) else None
    length, folder = max_tokens or known.max_tokens, tokenizer or own
    if length is None:
        raise UserError(f"{source} does not define the length of its texts; give --max-tokens, such as 4096")
    saved = checkpoint.open_checkpoint(source)
    group = key or ("ema" if "ema" in saved.groups else "model")
    adapted = bool(adapted_linears(known.model))
    weights = (
        merged_weights(load_trained(source, group, trust, allow_host))
        if adapted
        else checkpoint.weights_of(saved, group)
    )
    write_gpt(known.model, weights, target, length, generation=_generation(known, folder),
              dtype=None if dtype is None else getattr(torch, DTYPES[dtype]))  # fmt: skip
    _warn_of_qwen(folder, target)
    tokenizer_note = "; no tokenizer is known, see --tokenizer" if folder is None else _tokenizer_copied(folder, target)
    count = sum(parameter.numel() for name, parameter in known.model.named_parameters() if not is_adapter(name))
    return f"the {group} weights of step {saved.step}: {count:,} parameters, for transformers{tokenizer_note}"


@dataclass(frozen=True, slots=True)
class KnownModel:
    """What a source says of itself."""

    model: "GPT"  #: without weights
    max_tokens: int | None  #: of a text; None where it is not said
    tokenizer: "Tokenizer | None"  #: None where none is named
    generation: Path | None = None  #: where its generation_config.json lies, if there is no tokenizer to lie beside


def known_model(source: Path, trust: Sequence[str], allow_host: Sequence[str], purpose: str) -> KnownModel:
    """What `convert_in` wrote, or the recipe of a run, says of a language model; `purpose` ends "only they can ..."."""
    import torch

    from nemo_vfm.config import read_values
    from nemo_vfm.core.errors import UserError
    from nemo_vfm.core.storage.files import read_json
    from nemo_vfm.core.types.encoders import Tokenizer
    from nemo_vfm.data.tokenizers.folder_tokenizer import FolderTokenizer
    from nemo_vfm.explain.step_report import load_training
    from nemo_vfm.models.gpt import GPT

    if (source / INGREDIENT).is_file():
        settings = dict(read_values((source / INGREDIENT).read_text(), INGREDIENT.name))
        with torch.device("meta"):
            model = _build_node(settings)
        length, folder = read_json(source / "convert.json").get("max_tokens"), source / TOKENIZER
        if folder.is_dir():
            return KnownModel(model, length, FolderTokenizer(folder=folder))
        return KnownModel(model, length, None, source)
    job, _, _ = load_training(run_of(source), trust, allow_host)
    with torch.device("meta"):
        model = job.model()
    if not isinstance(model, GPT):
        raise UserError(f"{source} trained a {type(model).__name__}; only language models {purpose}")
    tokenizer = getattr(job.data, "tokenizer", None)
    return KnownModel(model, getattr(job.data, "sequence_length", None),
                      tokenizer if isinstance(tokenizer, Tokenizer) else None)  # fmt: skip


def _build_node(value: Any) -> Any:
    """A node of an ingredient that `convert_in` wrote; KeyError where it is of another class."""
    from nemo_vfm.models.blocks.text import experts, rope_scaling, sliding_window
    from nemo_vfm.models.blocks.text_rope import LongContext, TextRope
    from nemo_vfm.models.gpt import GPT

    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, Mapping):
        return value
    kinds = (GPT, TextRope, LongContext, rope_scaling.LinearScaling, rope_scaling.YarnScaling, rope_scaling.LongRope,
             sliding_window.SlidingWindow, experts.Experts)  # fmt: skip
    known = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in kinds}
    return known[value["_target_"]](**{key: _build_node(one) for key, one in value.items() if key != "_target_"})


def _generation(known: KnownModel, tokenizer: Path | None) -> "dict[str, Json]":
    """What lies beside the tokenizer or came in with the model; the token after a document ends a text, too."""
    from nemo_vfm.core.errors import UserError
    from nemo_vfm.data.tokenizers.folder_tokenizer import FolderTokenizer
    from nemo_vfm.models.convert.gpt_folder import generation_of, stop_tokens

    vocab = known.model.vocab
    generation = generation_of(vocab, tokenizer, known.generation)
    if tokenizer is None:
        return generation
    document = FolderTokenizer(folder=tokenizer)
    if document.vocab_size() > vocab:
        raise UserError(f"the tokenizer of {tokenizer} has {document.vocab_size()} tokens, but the model has {vocab}")
    if document.end() in (ends := stop_tokens(generation)):
        return generation
    ends = [*ends, document.end()]
    return {"_from_model_config": False, "bos_token_id": None, "pad_token_id": None, **generation,
            "eos_token_id": ends if len(ends) > 1 else ends[0]}  # fmt: skip


def _warn_of_qwen(tokenizer: Path | None, target: Path) -> None:
    """transformers 5 takes Qwen2Tokenizer for every model of that kind, and cuts texts as Qwen does."""
    from nemo_vfm.core.log import warn
    from nemo_vfm.core.storage.files import read_json

    settings = None if tokenizer is None else tokenizer / "tokenizer_config.json"
    if settings is None or not settings.is_file() or read_json(target / "config.json")["model_type"] != "qwen2":
        return
    if not str(read_json(settings).get("tokenizer_class", "")).startswith("Qwen2Tokenizer"):
        warn(f"next to a model of this kind, transformers splits texts as Qwen does, whatever the tokenizer's files "
             f"say; if yours differs, load it from {tokenizer} directly")  # fmt: skip


def _tokenizer_copied(source: Path, target: Path) -> str:
    """The files of the tokenizer brought along; the end of a sentence about it."""
    from nemo_vfm.data.tokenizers.folder_tokenizer import MODELS, files_of

    if not any((source / name).is_file() for name in MODELS):
        return "; it has no tokenizer"
    target.mkdir(parents=True, exist_ok=True)
    models = [source / name for name in MODELS if (source / name).is_file()]
    beside = [source / name for name in _BESIDE if (source / name).is_file()]
    for path in dict.fromkeys([*files_of(source), *models, *beside]):
        shutil.copyfile(path, target / path.name)
    return "; with its tokenizer"
