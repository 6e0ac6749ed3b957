"""Converts video models from diffusers folders to our weights and a `model` ingredient, and to other libraries."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nemo_vfm.cli.conversion.model_folder import DTYPES, INGREDIENT, write_in
from nemo_vfm.cli.conversion.run_weights import run_of

if TYPE_CHECKING:
    from nemo_vfm.models.convert.video.wan_native import WanWeights
    from nemo_vfm.models.dit import DiT


def convert_in(source: Path, target: Path) -> str:
    """Write the weights for `start_from` and the matching `model` ingredient; return a summary.

    `source` is a diffusers pipeline folder, its transformer folder, or a folder of Wan's own programs.
    """
    from nemo_vfm.models.convert.video.transformer_folder import TransformerFolder
    from nemo_vfm.models.convert.video.wan_native import WanWeights, is_wan_folder

    if is_wan_folder(source):
        with WanWeights.of_folder(source) as own:
            return wan_of(own, target)
    with TransformerFolder(source) as weights:
        tensors = write_in(weights, target, weights.arguments, "diffusers", source.name)
        family, count = weights.config["_class_name"], weights.num_values()
    return f"a {family}: {count:,} parameters, {INGREDIENT}\n{tensors}"


def wan_of(weights: "WanWeights", target: Path) -> str:
    """The same of a Wan under its own names or ComfyUI's."""
    told = write_in(weights, target, weights.arguments, "Wan's own names", weights.folder.name)
    scaled = f"\n{weights.num_scaled} weights multiplied by their scales" if weights.num_scaled else ""
    left = f"\nleft: {', '.join(weights.unused_names()[:6])}" if weights.unused_names() else ""
    return f"a Wan under its own names: {weights.num_values():,} parameters, {INGREDIENT}\n{told}{scaled}{left}"


def convert_out(
    source: Path, target: Path, to: Literal["diffusers", "native", "comfyui"], *, key: str | None = None,
    pipeline: Path | None = None, replaces: str | None = None, trust: Sequence[str] = (),
    allow_host: Sequence[str] = (),
    dtype: Literal["fp32", "bf16"] | None = None,
) -> str:  # fmt: skip
    """Write a folder that diffusers can load, or a file under others' names; return a one-line summary.

    Args:
        source: a run folder, a checkpoints folder, one checkpoint in it, or the output of `convert_in`.
        key: model or ema; None takes ema if the checkpoint has it.
        pipeline: a pipeline folder whose other parts are copied, so that the result is a whole pipeline; None writes
            the transformer folder alone.
        replaces: which network of a pipeline with two to replace; None if it has one.
        dtype: dtype of the written weights; None keeps the stored one.
    """
    import torch

    from nemo_vfm.cli.conversion.adapter import load_trained, merged_weights
    from nemo_vfm.models.adapters.low_rank_adapter import adapted_linears
    from nemo_vfm.models.convert.video.native_weights import write_native
    from nemo_vfm.models.convert.video.transformer_folder import copy_pipeline, replaced_part, write_transformer
    from nemo_vfm.parallel.checkpoint import checkpoint
    from nemo_vfm.parallel.plan.adapter_split import is_adapter

    model = _model(source, trust, allow_host)
    saved = checkpoint.open_checkpoint(source)
    group = key or ("ema" if "ema" in saved.groups else "model")
    adapted = bool(adapted_linears(model))
    weights = (
        merged_weights(load_trained(source, group, trust, allow_host))
        if adapted
        else checkpoint.weights_of(saved, group)
    )
    kind = None if dtype is None else getattr(torch, DTYPES[dtype])
    count = sum(parameter.numel() for name, parameter in model.named_parameters() if not is_adapter(name))
    content = "weights with the adapter merged into them" if adapted else "weights"
    summary = f"the {group} {content} of step {saved.step}: {count:,} parameters"
    if to != "diffusers":
        file = write_native(model, weights, target, dtype=kind, comfyui=to == "comfyui")
        return f"{summary}, under {'ComfyUI' if to == 'comfyui' else 'its own programs'}'s names in {file.name}"
    part = None if pipeline is None else replaced_part(pipeline, replaces)
    parts = [] if pipeline is None or part is None else copy_pipeline(pipeline, target, part)
    write_transformer(model, weights, target if part is None else target / part, dtype=kind)
    copied = f"; copied {', '.join(parts)} from {pipeline}" if pipeline else "; add --pipeline for a whole pipeline"
    return f"{summary}, for diffusers{copied}"


def _model(source: Path, trust: Sequence[str], allow_host: Sequence[str]) -> "DiT":
    import torch

    from nemo_vfm.core.errors import UserError
    from nemo_vfm.models.convert.video.transformer_folder import FAMILIES, transformer_in
    from nemo_vfm.models.dit import DiT

    if transformer_in(source) is not None:
        raise UserError(f"{source} is a diffusers folder already; leave --to out to convert it to ours")
    if (source / INGREDIENT).is_file():
        from nemo_vfm.config import read_values

        arguments = dict(read_values((source / INGREDIENT).read_text(), INGREDIENT.name))
        target = arguments.pop("_target_")
        kinds = {f"{one.kind.__module__}.{one.kind.__qualname__}": one.kind for one in FAMILIES.values()}
        if target not in kinds:
            raise UserError(f"{source} is a {target}; only {', '.join(kinds)} can be written for diffusers")
        with torch.device("meta"):
            return kinds[target](**arguments)
    from nemo_vfm.explain.step_report import load_training

    job, _, _ = load_training(run_of(source), trust, allow_host)
    with torch.device("meta"):
        model = job.model()
    if not isinstance(model, DiT):
        raise UserError(f"{source} trained a {type(model).__name__}; only video models can be written for diffusers")
    return model
