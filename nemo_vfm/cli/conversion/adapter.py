"""Converts a low-rank adapter from a run or file to another library's format, or merges it into its model."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nemo_vfm.cli.conversion.model_folder import DTYPES
from nemo_vfm.cli.conversion.run_weights import run_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nemo_vfm.models.adapters.adapter_file import Style

_LOADED = "file"
_FILE_BYTES = 4 << 30


def convert_adapter(
    source: Path, target: Path, style: "Style", *, base: Path | None = None, alpha: float | None = None,
    key: str | None = None, trust: Sequence[str] = (), allow_host: Sequence[str] = (),
) -> str:  # fmt: skip
    """Write an adapter and return a summary.

    Args:
        source: a run that trained adapters or one of its checkpoints; with `base`, an adapter file or folder.
        base: folder of the pretrained model that an adapter file belongs to.
        alpha: see `read_adapter`.
        key: weights of a run, model or ema; None uses ema if present.
    """
    from nemo_vfm.models.adapters.adapter_file import read_adapter, write_adapter
    from nemo_vfm.models.adapters.load_adapters import AdapterFile, fingerprint, load_adapters
    from nemo_vfm.models.adapters.low_rank_adapter import TRAINED, adapted_linears
    from nemo_vfm.models.adapters.matrices import extract_adapter

    our_names = style == "ours"
    changes: Mapping[str, Tensor] = {}
    if base is not None:
        model = _load_base(base)
        changes = read_adapter(source, model).changes
        model_hash = fingerprint(dict(model.named_parameters()))
        load_adapters(model, {_LOADED: AdapterFile(path=source, alpha=alpha)})
        name, origin = _LOADED, f"{source.name} on {base}"
    else:
        model = load_trained(source, key, trust, allow_host)
        model_hash = fingerprint(dict(model.named_parameters()))
        name, origin = TRAINED, f"the run {run_of(source)}"
    matrices = extract_adapter(model, name, our_names=our_names)
    file = write_adapter(target, style, matrices, model, base=model_hash, changes=changes)
    linears = [one for _, one in adapted_linears(model) if name in one.adapters]
    count = sum(parameter.numel() for one in linears for parameter in one.adapters[name].parameters())
    return f"the adapter of {origin}: {len(linears)} linears, {count:,} parameters, as {file.name} in the style {style}"


def load_trained(source: Path, key: str | None, trust: Sequence[str], allow_host: Sequence[str]) -> "nn.Module":
    """Build a run's model and load its base weights and adapters.

    Raises:
        UserError: the run trained no adapters, or its base weights have changed.
    """
    import torch

    from nemo_vfm.core.errors import UserError
    from nemo_vfm.explain.step_report import load_training
    from nemo_vfm.parallel.apply.frozen_weights import learned_state
    from nemo_vfm.parallel.checkpoint import checkpoint

    job, _, _ = load_training(run_of(source), trust, allow_host)
    if job.weights.adapters is None:
        raise UserError(f"{source} trained no adapters; remove --adapter to convert its weights")
    model = job.model()
    assert job.weights.start_from is not None, "a run with adapters has weights.start_from"
    loaded = job.weights.start_from.load_into(model)
    saved = checkpoint.open_checkpoint(source)
    before = (saved.state.get("started_from") or {}).get("sha256")
    if loaded["sha256"] != before:
        raise UserError(f"the adapters were trained on weights with sha256 {str(before)[:12]}..., but {loaded['path']} "
                        f"now has {loaded['sha256'][:12]}...; restore the original weights")  # fmt: skip
    if difference := job.weights.adapters.differs_from(saved.state.get("adapters")):
        raise UserError(f"step {saved.step} was trained with other adapters than the run's recipe has now "
                        f"({difference}), so its matrices define a different function; convert a later checkpoint, "
                        f"or resume the run with the earlier values and --allow weights.adapters")  # fmt: skip
    weights = checkpoint.weights_of(saved, key or ("ema" if "ema" in saved.groups else "model"))
    with torch.no_grad():
        for name, tensor in learned_state(model).items():
            tensor.copy_(weights[name])
    return model


def merged_weights(model: "nn.Module") -> "dict[str, Tensor]":
    """Return a model's weights by name, with its adapters merged."""
    from nemo_vfm.models.adapters.low_rank import LowRank
    from nemo_vfm.models.adapters.low_rank_adapter import adapted_linears
    from nemo_vfm.parallel.plan.adapter_split import is_adapter

    found: dict[str, Tensor] = {
        name: parameter.detach() for name, parameter in model.named_parameters() if not is_adapter(name)
    }
    for place, linear in adapted_linears(model):
        for adapter in linear.adapters.values():
            assert isinstance(adapter, LowRank)
            found[f"{place}.weight"] = adapter.merge(linear, found[f"{place}.weight"])
    return found


def merge_adapter(
    source: Path, target: Path, base: Path, *, alpha: float | None = None,
    dtype: "Literal['fp32', 'bf16'] | None" = None,
) -> str:  # fmt: skip
    """Write a pretrained model with an adapter file merged into it, in the format of the base, and return a summary.

    Args:
        source: an adapter file or folder.
        base: folder of the pretrained model: a language model's of transformers, or a transformer's of diffusers.
        alpha: see `read_adapter`.
        dtype: dtype of the written weights; None keeps the base's.
    """
    import torch

    from nemo_vfm.models.adapters.load_adapters import AdapterFile, load_adapters
    from nemo_vfm.models.convert.gpt_source import GptFolder, is_language_model
    from nemo_vfm.models.convert.video.transformer_folder import TransformerFolder, write_transformer
    from nemo_vfm.models.dit import DiT

    model = _load_base(base)
    load_adapters(model, {_LOADED: AdapterFile(path=source, alpha=alpha)})
    weights = merged_weights(model)
    with GptFolder(base) if is_language_model(base) else TransformerFolder(base) as stored:
        kind = stored.dtype(next(iter(weights))) if dtype is None else getattr(torch, DTYPES[dtype])
    if isinstance(model, DiT):
        write_transformer(model, weights, target, dtype=kind)
    else:
        from nemo_vfm.core.storage.files import read_json, write_json
        from nemo_vfm.models.convert.gpt_weights import tensor_map
        from nemo_vfm.models.convert.weight_files import write_files
        from nemo_vfm.models.gpt import GPT

        assert isinstance(model, GPT)
        write_files(model, {name: tensor_map(name, model.sizes) for name in weights}, weights, target,
                    file_bytes=_FILE_BYTES, dtype=kind)  # fmt: skip
        for path in sorted(base.iterdir()):
            if path.suffix in (".json", ".jinja", ".model", ".txt") and not path.name.endswith(".index.json"):
                shutil.copyfile(path, target / path.name)
        config = read_json(base / "config.json")
        key = "dtype" if "dtype" in config else "torch_dtype"  # transformers 5 and before
        write_json(target / "config.json", config | {key: str(kind).rpartition(".")[2]})
    count = sum(tensor.numel() for tensor in weights.values())
    return f"{base} with {source.name} merged into it: {count:,} parameters"


def _load_base(base: Path) -> "nn.Module":
    from nemo_vfm.models.convert.gpt_folder import load_gpt
    from nemo_vfm.models.convert.gpt_source import is_language_model
    from nemo_vfm.models.convert.video.transformer_folder import load_video_model

    return load_gpt(base) if is_language_model(base) else load_video_model(base)
