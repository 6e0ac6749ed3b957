"""Writes and reads a batch of features as one safetensors file.

A file holds `plain/FEATURE/values` and `/lengths` of features with one row a sample, and of features whose rows are
stored once `GROUP/FEATURE/values` and `/lengths` of the unique rows, and `GROUP/inverse`: each sample's row. Features
with weights have `/weights`, too. Further tensors of samples are below `samples/`: `dense`, `label/NAME`, `ids`, ...
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.storage.files import atomic_path
from nemo_vfm.sparse.deduped_group import DedupedGroup
from nemo_vfm.sparse.jagged import Jagged

_PLAIN, SAMPLES = "plain", "samples"
_PARTS = ("values", "lengths", "weights")


def write_features(
    path: Path, features: Mapping[str, Jagged], groups: Mapping[str, DedupedGroup],
    samples: Mapping[str, Tensor] | None = None,
) -> None:  # fmt: skip
    """Write a file atomically.

    Args:
        samples: other tensors of the samples, by their names below `samples/`.

    Raises:
        ValueError: the name of a group is empty, `plain` or `samples`, or has a slash.
    """
    from safetensors.torch import save_file

    if wrong := [name for name in groups if name in ("", _PLAIN, SAMPLES) or "/" in name]:
        raise ValueError(
            f"a group cannot be called {wrong[0]!r}: its name becomes a folder of the file, beside 'plain' and "
            "'samples'"
        )
    tensors = _tensors(_PLAIN, features) | {f"{SAMPLES}/{name}": tensor for name, tensor in (samples or {}).items()}
    for name, group in groups.items():
        tensors |= {**_tensors(name, group.features), f"{name}/inverse": group.inverse_B}
    with atomic_path(path) as temporary:
        # Copies: rows of a larger tensor share its memory, which the format refuses.
        save_file({name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}, temporary)


def read_features(path: Path) -> tuple[dict[str, Jagged], dict[str, DedupedGroup]]:
    """(plain features, groups), sorted by name, without what is below `samples/`.

    Raises:
        DataError: the file is no complete safetensors file, a tensor is missing or unknown, or rows are not valid.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = {name: tensor for name, tensor in load_file(path).items() if not name.startswith(f"{SAMPLES}/")}
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} is not a complete safetensors file ({error}). Write it again.") from error
    try:
        features, groups = _features(tensors, _PLAIN), {}
        for name in sorted({name.split("/")[0] for name in tensors} - {_PLAIN}):
            groups[name] = DedupedGroup(_features(tensors, name), _take(tensors, f"{name}/inverse"))
            groups[name].require_valid()
        for name, feature in features.items():
            feature.require_valid(feature=name)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    if tensors:
        raise DataError(f"{path} holds {', '.join(sorted(tensors))}, which is not a part of a feature or a group.")
    return features, groups


def _tensors(folder: str, features: Mapping[str, Jagged]) -> dict[str, Tensor]:
    """The tensors of a folder's features, by their names in the file."""
    parts = {
        f"{folder}/{name}/{part}": tensor
        for name, rows in features.items()
        for part, tensor in zip(_PARTS, (rows.values_N, rows.lengths_B, rows.weights_N), strict=True)
    }
    return {name: tensor for name, tensor in parts.items() if tensor is not None}


def _features(tensors: dict[str, Tensor], folder: str) -> dict[str, Jagged]:
    """The features in a folder of the file; their tensors are removed from `tensors`."""
    found = {}
    for name in [name for name in sorted(tensors) if name.startswith(f"{folder}/") and name.endswith("/values")]:
        stem = name.removesuffix("/values")
        rows = Jagged(_take(tensors, name), _take(tensors, f"{stem}/lengths"), tensors.pop(f"{stem}/weights", None))
        found[stem.removeprefix(f"{folder}/")] = rows
    return found


def _take(tensors: dict[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise DataError(f"{name} is missing.")
    return tensors.pop(name)
