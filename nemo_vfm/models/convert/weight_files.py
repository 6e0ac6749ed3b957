"""Opens the safetensors files that transformers or diffusers would take from a folder, and no others; and writes them.

This follows them: `model.safetensors` if it is there, else the files that `model.safetensors.index.json` names.
Other files (other shards, another program's `consolidated.safetensors`) are left out, and named once.
"""

import math
from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import CorruptCheckpoint, DataError
from nemo_vfm.core.log import warn
from nemo_vfm.core.storage.files import write_json
from nemo_vfm.models.convert.tensor_map import TensorMap, alias
from nemo_vfm.models.convert.tensor_source import UnreadTensor, mapped_tensors
from nemo_vfm.models.pretrained import read_mapping
from nemo_vfm.parallel.checkpoint import tensor_file
from nemo_vfm.parallel.checkpoint.checkpoint_reader import dtype_of
from nemo_vfm.parallel.checkpoint.tensor_file import MappedFile

#: A library's stem of the names of its files of weights: STEM.safetensors, or STEM-00001-of-00002.safetensors and so on
#: with STEM.safetensors.index.json, which says where each weight is.
TRANSFORMERS, DIFFUSERS = "model", "diffusion_pytorch_model"


def open_weights(folder: Path, stack: ExitStack, stem: str = TRANSFORMERS) -> dict[str, UnreadTensor]:
    """The weights by name; `stack` closes their files."""
    only, index = f"{stem}.safetensors", f"{stem}.safetensors.index.json"
    if (folder / "adapter_config.json").exists():
        raise DataError(f"{folder.name} holds an adapter (adapter_config.json), which changes the model; merge it into "
                        f"the weights first")  # fmt: skip
    places = None if (folder / only).is_file() else _places(folder, stem)
    taken = [only] if places is None else sorted(set(places.values()))
    others = sorted({path.name for path in folder.glob("*.safetensors")} - set(taken))
    if others:
        by = only if places is None else index
        warn(f"{folder.name}: the weights are those of {by}, as its own library takes them; not read: "
             f"{', '.join(others[:4])}{', ...' if len(others) > 4 else ''}")  # fmt: skip
    files = {name: mapped_tensors(stack.enter_context(closing(open_safetensors(folder / name)))) for name in taken}
    # A shard that holds more or less than the index says is one of another model, or of another time.
    for name, file in files.items():
        if places is None:
            break
        weights = set(file)
        listed = {weight for weight, place in places.items() if place == name}
        if missing := sorted(listed - weights):
            raise DataError(f"{folder.name}/{name} has no {missing[0]}, which {index} places there")
        if more := sorted(weights - listed):
            place = f"places in {places[more[0]]}" if more[0] in places else "does not name"
            raise DataError(f"{folder.name}/{name} holds {more[0]}, which {index} {place}; one of them is from "
                            f"another model")  # fmt: skip
    return {weight: stored for file in files.values() for weight, stored in file.items()}


def _places(folder: Path, stem: str) -> dict[str, str]:
    """Weight -> name of its file, by the index."""
    index = f"{stem}.safetensors.index.json"
    if not (folder / index).is_file():
        hint = ""  # for weights of another name, such as *.fp16.safetensors
        if found := sorted(path.name for path in folder.glob(f"{stem}.*.safetensors*")):
            rest = found[0].replace(f"{stem}.", "").partition(".safetensors")[0]
            kept = rest.removesuffix(".index").split("-")[0]
            hint = f"; it has the variant {kept[:20]}: load and save it without `variant`, or rename its files"
        raise DataError(f"{folder.name} has neither {stem}.safetensors nor {index}, which say where the weights "
                        f"are; other safetensors are not taken for them{hint}")  # fmt: skip
    places = read_mapping(folder / index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise DataError(f"{folder.name}/{index} has no weight_map that says which file holds which weight")
    there = {path.name for path in folder.iterdir() if path.is_file()}  # a name that leads elsewhere is not among them
    for weight, name in places.items():
        if not isinstance(name, str) or name not in there or not name.endswith(".safetensors"):
            raise DataError(f"{folder.name}/{index} places {weight[:80]} in {str(name)[:80]!r}; there is no such "
                            f"safetensors file in the folder")  # fmt: skip
    return places


def open_safetensors(path: Path) -> MappedFile:
    """A file of safetensors of which every claim in the header has been compared with its size."""
    from safetensors import SafetensorError

    try:
        tensor_file.read_header(path)  # strict where the library is not: a name twice, a header of 100 MB
        return MappedFile(path)
    except (SafetensorError, CorruptCheckpoint, OSError) as error:
        raise DataError(f"{path.parent.name}/{path.name} is damaged: {error}") from error


def write_files(
    model: nn.Module, maps: Mapping[str, TensorMap], weights: Mapping[str, Tensor], folder: Path, *,
    file_bytes: float, dtype: torch.dtype | None = None, stem: str = TRANSFORMERS,
    tables: Mapping[str, Tensor] = MappingProxyType({}),
) -> torch.dtype:  # fmt: skip
    """Write weights as files of at most so many bytes, with an index where there are several; the first one's dtype.

    Tensors pass one by one: it takes the memory of the largest parameter.

    Args:
        model: with the parameters' sizes; its own numbers are not asked for.
        maps: of its parameters, by our names.
        weights: by our names; each is asked for once.
        folder: where the files are to lie.
        file_bytes: of a file, unless one parameter has more.
        dtype: of the weights written; None leaves them as they are.
        stem: of the files' names.
        tables: further tensors by their names there, fp32, which come last.
    """
    kinds = {own: dtype or dtype_of(weights, own) for own in maps} | dict.fromkeys(tables, torch.float32)
    maps, weights = {**maps, **{name: alias(name) for name in tables}}, ChainMap({**tables}, weights)  # type: ignore[arg-type]
    sizes = {own: tables[own] if own in tables else model.get_parameter(own) for own in maps}
    groups = list(_groups(sizes, kinds, file_bytes))
    places: dict[str, str] = {}
    total = 0
    for number, group in enumerate(groups, 1):
        path = folder / f"{stem}{f'-{number:05d}-of-{len(groups):05d}' if len(groups) > 1 else ''}.safetensors"
        shapes = {
            target: (tensor_file.dtype_name(kinds[own]), tuple(part.shape))
            for own in group
            for target, part in _parts(maps[own], sizes[own].to("meta"))
        }
        head, _ = tensor_file.header(shapes, {"format": "pt"}, by_name=False)
        bodies = (part.to(kinds[own]) for own in group for _, part in _parts(maps[own], weights[own].detach()))
        tensor_file.write_unhashed(path, chain([head], map(tensor_file.bytes_of, bodies)))
        places |= dict.fromkeys(shapes, path.name)
        total += sum(math.prod(shape) * tensor_file.DTYPES[kind].itemsize for kind, shape in shapes.values())
    if len(groups) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        write_json(folder / f"{stem}.safetensors.index.json", index)
    return next(iter(kinds.values()))


def _groups(
    sizes: Mapping[str, Tensor], kinds: Mapping[str, torch.dtype], file_bytes: float
) -> Iterator[list[str]]:  # fmt: skip
    """Parameters of one file after another; in a file by dtype, in the order in which its header has them."""
    order = list(tensor_file.DTYPES)
    group: list[str] = []
    size = 0
    for own, kind in kinds.items():
        added = sizes[own].numel() * kind.itemsize
        if group and size + added > file_bytes:
            yield sorted(group, key=lambda name: order.index(tensor_file.dtype_name(kinds[name])))
            group, size = [], 0
        group, size = [*group, own], size + added
    yield sorted(group, key=lambda name: order.index(tensor_file.dtype_name(kinds[name])))


def _parts(found: TensorMap, whole: Tensor) -> Iterator[tuple[str, Tensor]]:
    return zip(found.names, found.split(whole), strict=True)
