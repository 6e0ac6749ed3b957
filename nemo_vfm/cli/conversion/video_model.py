# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Converts a video model from a folder of diffusers to our weights and an ingredient, and back."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nemo_vfm.cli.conversion.language_model import run_of
from nemo_vfm.cli.conversion.model_folder import INGREDIENT, write_in

if TYPE_CHECKING:
    from nemo_vfm.models.dit import DiT

_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def convert_in(source: Path, target: Path) -> str:
    """Write what `start_from` takes and the model that fits; sentences about it.

    Args:
        source: a pipeline's folder of diffusers, or its transformer's.
        target: where `model.safetensors`, `convert.json` and the ingredient are to lie.

    Raises:
        UserError, DataError: see `TransformerFolder`; or the disk is too small.
    """
    from nemo_vfm.models.convert.video.transformer_folder import TransformerFolder

    with TransformerFolder(source) as weights:
        told = write_in(weights, target, weights.arguments, "diffusers", source.name)
        family, count = weights.config["_class_name"], weights.num_values()
    return f"a {family}: {count:,} parameters, {INGREDIENT}\n{told}"


def convert_out(
    source: Path, target: Path, *, key: str | None = None, pipeline: Path | None = None,
    replaces: str | None = None, trust: Sequence[str] = (), allow_host: Sequence[str] = (),
    dtype: Literal["fp32", "bf16"] | None = None,
) -> str:  # fmt: skip
    """Write a folder that diffusers loads; one sentence about it.

    Args:
        source: a run folder, a folder of checkpoints or a checkpoint below one, or what `convert_in` wrote.
        target: where the folder is to be.
        key: model or ema; None takes ema where there is one.
        pipeline: folder of the pipeline whose other parts are copied, so that the whole can be called; None writes
            the transformer's folder alone.
        replaces: which of a pipeline's two networks this one takes the place of; None where there is one.
        trust: see `--trust`.
        allow_host: see `--allow-host`.
        dtype: of the weights written; None leaves them as they are.

    Raises:
        UserError: there are no weights, or the pipeline is none.
        DataError: diffusers has no such network.
    """
    import torch

    from nemo_vfm.cli.conversion.adapter import merged, trained
    from nemo_vfm.models.adapters.low_rank_adapter import adapted_linears
    from nemo_vfm.models.convert.video.transformer_folder import copy_pipeline, replaced_part, write_transformer
    from nemo_vfm.parallel.apply.beside_linear import is_adapter
    from nemo_vfm.parallel.checkpoint import checkpoint

    model = _model(source, trust, allow_host)
    saved = checkpoint.found(source)
    group = key or ("ema" if "ema" in saved.groups else "model")
    adapted = bool(adapted_linears(model))
    weights = merged(trained(source, group, trust, allow_host)) if adapted else checkpoint.weights_of(saved, group)
    part = None if pipeline is None else replaced_part(pipeline, replaces)
    parts = [] if pipeline is None or part is None else copy_pipeline(pipeline, target, part)
    folder = target if part is None else target / part
    write_transformer(model, weights, folder,
                      dtype=None if dtype is None else getattr(torch, _DTYPES[dtype]))  # fmt: skip
    count = sum(parameter.numel() for name, parameter in model.named_parameters() if not is_adapter(name))
    beside = f"; beside it {', '.join(parts)} of {pipeline}" if pipeline else "; give --pipeline for a whole pipeline"
    whose = "weights with the adapter merged into them" if adapted else "weights"
    return f"the {group} {whose} of step {saved.step}: {count:,} parameters, for diffusers{beside}"


def _model(source: Path, trust: Sequence[str], allow_host: Sequence[str]) -> "DiT":
    """Without weights."""
    import torch

    from nemo_vfm.core.errors import UserError
    from nemo_vfm.models.convert.video.transformer_folder import FAMILIES, transformer_in
    from nemo_vfm.models.dit import DiT

    if transformer_in(source) is not None:
        raise UserError(f"{source} is a folder of diffusers already; without --to it becomes one of ours")
    if (source / INGREDIENT).is_file():
        from nemo_vfm.config import read_values

        told = dict(read_values((source / INGREDIENT).read_text(), INGREDIENT.name))
        target = told.pop("_target_")
        kinds = {f"{one.kind.__module__}.{one.kind.__qualname__}": one.kind for one in FAMILIES.values()}
        if target not in kinds:
            raise UserError(f"{source} is a {target}; diffusers has those of {', '.join(kinds)}")
        with torch.device("meta"):
            return kinds[target](**told)
    from nemo_vfm.explain.step_report import training

    job, _, _ = training(run_of(source), trust, allow_host)
    with torch.device("meta"):
        model = job.model()
    if not isinstance(model, DiT):
        raise UserError(f"{source} trained a {type(model).__name__}; folders of diffusers are of video models")
    return model
