# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Reads and writes adapters: our own file, and the styles of PEFT, diffusers, ComfyUI and Cosmos.

Our file is safetensors; its header says method, ranks, alphas, linears and the base.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.storage.files import atomic_path, write_json
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.models.adapters.matrices import Matrices, opened_adapter, require_pairs
from nemo_vfm.models.adapters.styles import native_names, peft_keys
from nemo_vfm.models.convert.weight_files import read_mapping

Style = Literal["ours", "peft", "diffusers", "comfyui", "cosmos"]
SCHEMA, HEADER = "nemo_vfm.adapter/1", "nemo_vfm.adapter"
FILE, PEFT_FILE, PEFT_CONFIG = "adapter.safetensors", "adapter_model.safetensors", "adapter_config.json"
DIFFUSERS_FILE, DIFFUSERS_HEADER = "pytorch_lora_weights.safetensors", "lora_adapter_metadata"
_PEFT, _DIFFUSERS, _COMFYUI, _COSMOS = "base_model.model.", "transformer.", "diffusion_model.", "net."


@dataclass(frozen=True, slots=True)
class Adapter:
    """What a file holds.

    Args:
        style: of the file.
        matrices: by linear: in our style as they are named here, else as diffusers names them.
        base: fingerprint of the weights that it was trained on; empty where the style does not say it.
    """

    style: Style
    matrices: dict[str, Matrices]
    base: str = ""


def read_adapter(path: Path, model: nn.Module, *, alpha: float | None = None) -> Adapter:
    """What a file or a folder holds; its style is known by its keys.

    Args:
        path: of a file of safetensors, or of a folder with one.
        model: that it is for, since names in some styles depend on it.
        alpha: of every linear, for styles that do not keep it.

    Raises:
        UserError: there is no such file, or alpha is asked for.
        DataError: it is damaged, or holds something else.
    """
    file = _file_of(path)
    with opened_adapter(file) as opened:
        tensors, header = {key: opened.get_tensor(key) for key in opened.keys()}, opened.metadata()  # noqa: SIM118
    style = _style(file, tensors, header)
    found = _READ[style](file, tensors, header, model, alpha)
    require_pairs(file.name, found.matrices)
    return found


def write_adapter(
    folder: Path, style: Style, matrices: Mapping[str, Matrices], model: nn.Module, *, base: str = ""
) -> Path:
    """Write an adapter into a folder; the file.

    Args:
        folder: that exists.
        style: how.
        matrices: by linear, see `Adapter`.
        model: that they are of.
        base: fingerprint of its weights; our own style keeps it.

    Raises:
        DataError: the style has no name for a linear.
    """
    from safetensors.torch import save_file

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
        header[HEADER] = json.dumps({"schema": SCHEMA, "base": "", **_renamed(config, model)})
    tensors = _tensors(style, matrices, model)
    with atomic_path(folder / names.get(style, FILE)) as temporary:
        save_file({key: tensor.contiguous().cpu() for key, tensor in tensors.items()}, temporary, metadata=header)
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
        raise UserError(f"{path} is no file and holds {'several adapters' if found else 'no adapter'}; name a file of "
                        f"safetensors, or a folder with {FILE}, {PEFT_FILE} or {DIFFUSERS_FILE}")  # fmt: skip
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
    raise DataError(f"{file.name} is no adapter that is read: its first key is {first[:100]!r}, and known ones begin "
                    f"with {', '.join((*styles, _COSMOS))}")  # fmt: skip


def _ours(file: Path, tensors: dict[str, Tensor], header: Mapping[str, str], model: nn.Module, alpha: Any) -> Adapter:
    said = _header(file, header[HEADER])
    if said.get("schema") != SCHEMA or not isinstance(said.get("base"), str):
        raise DataError(f"{file.name} is of the schema {str(said.get('schema'))[:60]!r}; this version reads {SCHEMA}")
    return Adapter("ours", peft_keys.read_keys(file.name, tensors, "", said), said["base"])


def _peft(file: Path, tensors: dict[str, Tensor], header: Mapping[str, str], model: nn.Module, alpha: Any) -> Adapter:
    config = read_mapping(file.with_name(PEFT_CONFIG))
    if config.get("peft_type") != "LORA":
        raise DataError(
            f"{file.parent.name}/{PEFT_CONFIG} is of the type {str(config.get('peft_type'))[:40]}; LORA is read"
        )
    return Adapter("peft", peft_keys.read_keys(file.name, tensors, _PEFT, config))


def _diffusers(
    file: Path, tensors: dict[str, Tensor], header: Mapping[str, str], model: nn.Module, alpha: float | None
) -> Adapter:
    config = None
    if DIFFUSERS_HEADER in header:
        said = _header(file, header[DIFFUSERS_HEADER])
        config = {key.removeprefix(_DIFFUSERS): value for key, value in said.items()}
    return Adapter("diffusers", _with(alpha, peft_keys.read_keys(file.name, tensors, _DIFFUSERS, config)))


def _cosmos(
    file: Path, tensors: dict[str, Tensor], header: Mapping[str, str], model: nn.Module, alpha: float | None
) -> Adapter:
    config = _header(file, header[HEADER]) if HEADER in header else None
    if config is None and alpha is None:
        raise UserError(f"{file.name} does not say its alpha, without which it would be used at another strength; give "
                        f"alpha, which the training that made it was given as lora_alpha")  # fmt: skip
    native = _with(alpha, peft_keys.read_keys(file.name, tensors, _COSMOS, config))
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
            raise DataError(f"{file.name} has {key[:200]!r}, which is no key of an adapter in the style of ComfyUI")
        name = key.removeprefix(_COMFYUI).removesuffix(f".{kind}")
        linears.setdefault(name, {})[kinds[kind]] = tensor
    found = {}
    for name, own in linears.items():
        if missing := {"a", "b"} - own.keys():
            raise DataError(f"{file.name} has no {'lora_down' if 'a' in missing else 'lora_up'} for {name}")
        if own["a"].ndim != 2 or ("alpha" in own and own["alpha"].numel() != 1):
            raise DataError(f"{file.name} has lora_down of {name} in the shape {tuple(own['a'].shape)}, or no single "
                            f"alpha; expected two dimensions, and one number")  # fmt: skip
        magnitude = own["magnitude"].flatten() if "magnitude" in own else None
        strength = float(own["alpha"]) if "alpha" in own else float(own["a"].shape[0])
        found[native_names.to_diffusers(model, name)] = Matrices(own["a"], own["b"], strength, magnitude)
    return Adapter("comfyui", _with(alpha, found))


def _with(alpha: float | None, given: dict[str, Matrices]) -> dict[str, Matrices]:
    if alpha is None:
        return given
    return {name: Matrices(one.a, one.b, alpha, one.magnitude) for name, one in given.items()}


def _header(file: Path, text: str) -> dict[str, Json]:
    try:
        said = json.loads(text)
        if not isinstance(said, dict):
            raise ValueError("it is no mapping")
    except (ValueError, RecursionError) as error:
        raise DataError(f"the header of {file.name} cannot be read: {error}") from error
    return said


def _renamed(config: Mapping[str, Json], model: nn.Module) -> dict[str, Json]:
    """The patterns of a configuration by native names."""
    native = {key: {native_names.to_native(model, name): value for name, value in config[key].items()}
              for key in ("rank_pattern", "alpha_pattern")}  # fmt: skip
    targets = [native_names.to_native(model, name) for name in config["target_modules"]]
    return {**config, **native, "target_modules": targets}


_READ: dict[Style, Callable[..., Adapter]] = {
    "ours": _ours, "peft": _peft, "diffusers": _diffusers, "comfyui": _comfyui, "cosmos": _cosmos,
}  # fmt: skip
