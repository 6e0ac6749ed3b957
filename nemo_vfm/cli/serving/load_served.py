"""Loads a language model or a reward model to serve: a run, a checkpoint, or a folder of transformers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nemo_vfm.cli.conversion.language_model import known_model

if TYPE_CHECKING:
    import torch

    from nemo_vfm.core.precision import PrecisionName
    from nemo_vfm.models.gpt import GPT
    from nemo_vfm.serve.served_model import ServedModel


@dataclass(frozen=True, slots=True)
class ServedSource:
    """Which model, and what its files do not say."""

    #: a run folder, a folder of checkpoints or a checkpoint below one, what `convert` wrote, or a folder of
    #: transformers
    folder: Path
    name: str | None = None  #: as clients call it; None takes the folder's
    tokenizer: Path | None = None  #: its folder; None takes the one that the model's files name
    weights: Literal["ema", "model"] | None = None  #: of a checkpoint: ema or model; None takes ema where there is one
    context: int | None = None  #: tokens of a text at most; None takes what the model was trained on
    precision: "PrecisionName" = "auto"  #: auto, bf16 or fp32
    #: names of a reward model's outputs, in their order; None takes those of its files
    attributes: Sequence[str] | None = None
    score_weights: Mapping[str, float] | None = None  #: of attributes in a reward model's one score
    trust: Sequence[str] = ()
    allow_host: Sequence[str] = ()


def load_served(source: ServedSource) -> "ServedModel":
    """The model, on this process's device."""
    from nemo_vfm.core.errors import UserError
    from nemo_vfm.core.precision import Precision
    from nemo_vfm.data.tokenizers.folder_tokenizer import FolderTokenizer
    from nemo_vfm.models.convert.gpt_source import is_language_model
    from nemo_vfm.models.convert.reward_folder import is_reward_model
    from nemo_vfm.models.convert.video.other_library import require_read
    from nemo_vfm.serve.generation_settings import generation_settings
    from nemo_vfm.serve.rewards.served_reward import served_reward
    from nemo_vfm.serve.served_folder import served_folder, served_model

    if is_reward_model(source.folder):
        return served_reward(folder=source.folder, name=source.name, tokenizer=source.tokenizer, context=source.context,
                             precision=source.precision, attributes=source.attributes,
                             weights=source.score_weights)  # fmt: skip
    if source.attributes is not None or source.score_weights is not None:
        raise UserError(f"{source.folder} is not a reward model (...ForSequenceClassification); --attributes and "
                        "--score-weights are for those")  # fmt: skip
    if is_language_model(source.folder):
        return served_folder(folder=source.folder, name=source.name, tokenizer=source.tokenizer,
                             context=source.context, precision=source.precision)  # fmt: skip
    require_read(source.folder)
    from nemo_vfm.parallel.checkpoint import checkpoint

    known = known_model(source.folder, source.trust, source.allow_host, "are served")
    saved = checkpoint.open_checkpoint(source.folder)
    group = source.weights or ("ema" if "ema" in saved.groups else "model")
    model = _with_weights(known.model, source, group, Precision(source.precision).resolve()[0])
    tokenizer = known.tokenizer if source.tokenizer is None else FolderTokenizer(folder=source.tokenizer)
    if tokenizer is None:
        raise UserError(f"no tokenizer is known for {source.folder}; give --tokenizer DIR")
    beside = tokenizer.folder if isinstance(tokenizer, FolderTokenizer) else None
    return served_model(
        model, tokenizer, name=source.name or source.folder.resolve().name,
        context=source.context or known.max_tokens, revision=f"step {saved.step}",
        generation=generation_settings(model.vocab, beside, known.generation),
    )  # fmt: skip


def _with_weights(model: "GPT", source: ServedSource, group: str, dtype: "torch.dtype") -> "GPT":
    """The model of the meta device, filled; adapters are merged into it."""
    import torch

    from nemo_vfm.cli.conversion.adapter import load_trained, merged_weights
    from nemo_vfm.models.adapters.low_rank_adapter import adapted_linears
    from nemo_vfm.models.gpt import GPT
    from nemo_vfm.parallel.checkpoint import checkpoint
    from nemo_vfm.parallel.checkpoint.checkpoint_reader import require_same_weights, shapes_of

    if adapted_linears(model):
        adapted = load_trained(source.folder, group, source.trust, source.allow_host)
        weights = merged_weights(adapted)
        assert isinstance(adapted, GPT)
        sizes = adapted.sizes
        with torch.device("meta"):
            model = GPT(
                vocab=adapted.vocab, width=sizes.width, depth=adapted.depth, heads=sizes.heads,
                mlp_hidden=sizes.mlp_hidden, groups=sizes.groups, head_dim=sizes.head_dim, activation=sizes.activation,
                norm=sizes.norm, eps=sizes.eps, rope=adapted.rope, tied=adapted.tied, qkv_bias=sizes.qkv_bias,
                qk_norm=sizes.qk_norm, post_norm=sizes.post_norm, query_scalar=sizes.query_scalar,
                scale_embedding=adapted.scale_embedding, window=adapted.window, experts=sizes.experts,
            )  # fmt: skip
    else:
        weights = dict(checkpoint.weights_of(checkpoint.open_checkpoint(source.folder), group))
    model = model.to_empty(device="cpu").to(dtype)
    if model.tied:
        model.head.weight = model.embedding.weight
    own = dict(model.named_parameters())
    given = {name: tensor for name, tensor in weights.items() if name in own or not model.tied}
    require_same_weights(shapes_of(own), shapes_of(given))
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])
    return model
