# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Reads and writes adapter files in our own format and in those of PEFT, diffusers, ComfyUI and Cosmos.

Our format is safetensors with the method, ranks, alphas, linears and the base's fingerprint in its header.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import atomic_path, write_json
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.adapters.matrices import Matrices, open_adapter, require_pairs
from nemo_vfm.models.adapters.styles import native_names, peft_keys
from nemo_vfm.models.convert.weight_files import read_mapping
from nemo_vfm.parallel.checkpoint.tensor_file import pack, write

Style = Literal["ours", "peft", "diffusers", "comfyui", "cosmos"]
SCHEMA, HEADER = "nemo_vfm.adapter/1", "nemo_vfm.adapter"
FILE, PEFT_FILE, PEFT_CONFIG = "adapter.safetensors", "adapter_model.safetensors", "adapter_config.json"
DIFFUSERS_FILE, DIFFUSERS_HEADER = "pytorch_lora_weights.safetensors", "lora_adapter_metadata"
_PEFT, _DIFFUSERS, _COMFYUI, _COSMOS = "base_model.model.", "transformer.", "diffusion_model.", "net."


@dataclass(frozen=True, slots=True)
class Adapter:
    """The content of an adapter file.

    Args:
        style: format of the file.
        matrices: by linear, under this package's names for `ours`, else under those of diffusers.
        base: fingerprint of the weights it was trained on; empty if the format has none.
    """

    style: Style
    matrices: dict[str, Matrices]
    base: str = ""


def read_adapter(path: Path, model: nn.Module, *, alpha: float | None = None) -> Adapter:
    """Read an adapter; its keys determine the format.

    Args:
        path: a safetensors file, or a folder that contains one.
        model: the model it is for; the names in some formats depend on it.
        alpha: alpha of every linear; None uses the file's, which not every format stores.

    Raises:
        UserError: the file does not exist, or alpha is missing.
        DataError: the file is damaged or not an adapter.
    """
    file = _file_of(path)
    with open_adapter(file) as file_tensors:
        tensors, header = {key: file_tensors.get_tensor(key) for key in file_tensors.keys()}, file_tensors.metadata()  # noqa: SIM118
    style = _style(file, tensors, header)
    found = _READ[style](file, tensors, header, model, alpha)
    require_pairs(file.name, found.matrices)
    if alpha is None:
        return found
    return replace(found, matrices={name: replace(one, alpha=alpha) for name, one in found.matrices.items()})


def write_adapter(
    folder: Path, style: Style, matrices: Mapping[str, Matrices], model: nn.Module, *, base: str = ""
) -> Path:
    """Write an adapter into a folder and return the file.

    Args:
        folder: an existing folder.
        style: format to write.
        matrices: by linear, see `Adapter`.
        model: the adapted model.
        base: fingerprint of its weights; only our format stores it.

    Raises:
        DataError: the format has no name for a linear.
    """
    config = peft_keys.config_of(matrices)
    names = {"ours": FILE, "peft": PEFT_FILE, "diffusers": DIFFUSERS_FILE}
    header: dict[str, str] = {"format": "pt"}
    if style == "ours":
        header[HEADER] = json.dumps({"schema": SCHEMA, "base": base, **config})
    if style == "diffusers":
        header[DIFFUSERS_HEADER] = json.dumps({f"{_DIFFUSERS}{key}": value for key, value in config.items()})
    if style == "peft":
        write_json(folder / PEFT_CONFIG, {"peft_type": "LORA", "base_model_name_or_path": None, **config})
    if style == "cosmos":
        header[HEADER] = json.dumps({"schema": SCHEMA, "base": "", **_with_native_names(config, model)})
    tensors = _tensors(style, matrices, model)
    with atomic_path(folder / names.get(style, FILE)) as temporary:
        # Not by safetensors, whose files only their owner may read.
        write(temporary, pack(tensors, header))
    return folder / names.get(style, FILE)


def _tensors(style: Style, matrices: Mapping[str, Matrices], model: nn.Module) -> dict[str, Tensor]:
    if style in ("ours", "peft", "diffusers"):
        return peft_keys.write_keys({"ours": "", "peft": _PEFT, "diffusers": _DIFFUSERS}[style], matrices)
    native = {native_names.to_native(model, name): one for name, one in matrices.items()}
    if style == "cosmos":
        return peft_keys.write_keys(_COSMOS, native)
    found: dict[str, Tensor] = {}
    for name, one in native.items():
        found |= {f"{_COMFYUI}{name}.lora_down.weight": one.a, f"{_COMFYUI}{name}.lora_up.weight": one.b}
        found[f"{_COMFYUI}{name}.alpha"] = torch.tensor(one.alpha)
        if one.magnitude is not None:
            found[f"{_COMFYUI}{name}.dora_scale"] = one.magnitude[:, None]
    return found


def _file_of(path: Path) -> Path:
    if path.is_file():
        return path
    found = [path / name for name in (FILE, PEFT_FILE, DIFFUSERS_FILE) if (path / name).is_file()]
    if len(found) != 1:
        raise UserError(f"{path} is not a file and contains {'several adapters' if found else 'no adapter'}; give a "
                        f"safetensors file, or a folder with {FILE}, {PEFT_FILE} or {DIFFUSERS_FILE}")  # fmt: skip
    return found[0]


def _style(file: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> Style:
    first = next(iter(tensors), "")
    if first.startswith(_COSMOS):
        return "cosmos"
    if HEADER in header:
        return "ours"
    styles: dict[str, Style] = {_PEFT: "peft", _DIFFUSERS: "diffusers", _COMFYUI: "comfyui"}
    for prefix, style in styles.items():
        if first.startswith(prefix):
            return style
    raise DataError(f"{file.name} is not a known kind of adapter: its first key is {first[:100]!r}, expected a prefix "
                    f"among {', '.join((*styles, _COSMOS))}")  # fmt: skip


def _ours(file: Path, tensors: dict[str, Tensor], header: Mapping[str, str], model: nn.Module, alpha: Any) -> Adapter:
    config = _header(file, header[HEADER])
    if config.get("schema") != SCHEMA or not isinstance(config.get("base"), str):
        raise DataError(f"{file.name} has schema {str(config.get('schema'))[:60]!r}; this version reads {SCHEMA}")
    return Adapter("ours", peft_keys.read_keys(file.name, tensors, "", config), config["base"])


def _peft(file: Path, tensors: dict[str, Tensor], header: Mapping[str, str], model: nn.Module, alpha: Any) -> Adapter:
    config = read_mapping(file.with_name(PEFT_CONFIG))
    if config.get("peft_type") != "LORA":
        raise DataError(f"{file.parent.name}/{PEFT_CONFIG}: peft_type {str(config.get('peft_type'))[:40]} is not LORA")
    return Adapter("peft", peft_keys.read_keys(file.name, tensors, _PEFT, config))


def _diffusers(
    file: Path, tensors: dict[str, Tensor], header: Mapping[str, str], model: nn.Module, alpha: float | None
) -> Adapter:
    config = None
    if DIFFUSERS_HEADER in header:
        prefixed = _header(file, header[DIFFUSERS_HEADER])
        config = {key.removeprefix(_DIFFUSERS): value for key, value in prefixed.items()}
    return Adapter("diffusers", peft_keys.read_keys(file.name, tensors, _DIFFUSERS, config))


def _cosmos(
    file: Path, tensors: dict[str, Tensor], header: Mapping[str, str], model: nn.Module, alpha: float | None
) -> Adapter:
    config = _header(file, header[HEADER]) if HEADER in header else None
    if config is None and alpha is None:
        raise UserError(f"{file.name} stores no alpha, without which its strength is unknown; give alpha, "
                        f"which its training calls lora_alpha")  # fmt: skip
    native = peft_keys.read_keys(file.name, tensors, _COSMOS, config)
    return Adapter("cosmos", {native_names.to_diffusers(model, name): one for name, one in native.items()})


def _comfyui(
    file: Path, tensors: dict[str, Tensor], header: Mapping[str, str], model: nn.Module, alpha: float | None
) -> Adapter:
    kinds = {"lora_down.weight": "a", "lora_A.weight": "a", "lora_up.weight": "b", "lora_B.weight": "b",
             "alpha": "alpha", "dora_scale": "magnitude"}  # fmt: skip
    linears: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        kind = next((kind for kind in kinds if key.endswith(f".{kind}")), None)
        if kind is None or not key.startswith(_COMFYUI):
            raise DataError(f"{file.name} has {key[:200]!r}, which is not a key of a ComfyUI adapter")
        name = key.removeprefix(_COMFYUI).removesuffix(f".{kind}")
        linears.setdefault(name, {})[kinds[kind]] = tensor
    found = {}
    for name, given in linears.items():
        if missing := {"a", "b"} - given.keys():
            raise DataError(f"{file.name} has no {'lora_down' if 'a' in missing else 'lora_up'} for {name}")
        if given["a"].ndim != 2 or ("alpha" in given and given["alpha"].numel() != 1):
            raise DataError(f"{file.name} has lora_down of {name} with shape {tuple(given['a'].shape)}, or an alpha "
                            f"that is not a scalar; expected two dimensions and a single number")  # fmt: skip
        magnitude = given["magnitude"].flatten() if "magnitude" in given else None
        strength = float(given["alpha"]) if "alpha" in given else float(given["a"].shape[0])
        found[native_names.to_diffusers(model, name)] = Matrices(given["a"], given["b"], strength, magnitude)
    return Adapter("comfyui", found)


def _header(file: Path, text: str) -> dict[str, Json]:
    try:
        config = json.loads(text)
        if not isinstance(config, dict):
            raise ValueError("it is not a mapping")
    except (ValueError, RecursionError) as error:
        raise DataError(f"the header of {file.name} cannot be read: {error}") from error
    return config


def _with_native_names(config: Mapping[str, Json], model: nn.Module) -> dict[str, Json]:
    """Replace the linears' names in a configuration by native ones."""
    native = {key: {native_names.to_native(model, name): value for name, value in config[key].items()}
              for key in ("rank_pattern", "alpha_pattern")}  # fmt: skip
    targets = [native_names.to_native(model, name) for name in config["target_modules"]]
    return {**config, **native, "target_modules": targets}


_READ: dict[Style, Callable[..., Adapter]] = {
    "ours": _ours, "peft": _peft, "diffusers": _diffusers, "comfyui": _comfyui, "cosmos": _cosmos,
}  # fmt: skip
