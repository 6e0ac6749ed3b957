"""Converts a foreign file or checkpoint to safetensors and JSON in a process of its own, which `convert` starts.

Limits on memory, time and file size are set before anything heavy is imported. A file that asks for too much ends
this process only.
"""

import argparse
import math
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_vfm.core.errors import DataError, NemoVfmError
from nemo_vfm.core.process import lower_limits

if TYPE_CHECKING:
    from nemo_vfm.models.convert.foreign import ForeignTensors

GB = 1 << 30
MODEL, CONFIG, ABOUT = "model.safetensors", "config.json", "convert.json"


def limit(size: int) -> None:
    """Bound this process by the file's size, in bytes.

    RLIMIT_DATA and not RLIMIT_AS: torch maps gigabytes of libraries that take no memory.
    """
    lower_limits({
        resource.RLIMIT_DATA: 4 * GB + 12 * size,  # the file, its tensors one by one, and their copies
        resource.RLIMIT_CPU: 60 + 60 * (size // GB + 1),
        resource.RLIMIT_FSIZE: 5 * size + (64 << 20),
        resource.RLIMIT_CORE: 0,
    })  # fmt: skip


def convert(
    source: Path, target: Path, *, key: str | None, leave_out: bool, stretch: Sequence[float] | None = None,
    heads: int | None = None,
) -> str:  # fmt: skip
    """Write what a file or a distributed checkpoint holds into the folder `target`; sentences about it."""
    from nemo_vfm.cli.conversion.video_model import wan_of
    from nemo_vfm.core.errors import UserError
    from nemo_vfm.models.convert.foreign import opened_tensors
    from nemo_vfm.models.convert.video.native_weights import is_cosmos
    from nemo_vfm.models.convert.video.wan_native import WanWeights, is_wan
    from nemo_vfm.models.convert.video.wan_parts import is_part

    with opened_tensors(source, leave_out=leave_out) as given:
        if given is not None and is_cosmos(given.tensors):
            from nemo_vfm.cli.conversion.model_folder import INGREDIENT, write_in
            from nemo_vfm.models.convert.video.native_weights import NativeWeights

            weights = NativeWeights(source, given, key=key, stretch=stretch)
            told = write_in(weights, target, weights.arguments, "NVIDIA's names", source.name)
            network = weights.prefix.rstrip(".") or "its only network"
            left = f"\nleft: {_some(weights.unused_names(), 6)}" if weights.unused_names() else ""
            note = f"\n{weights.note}" if weights.note else ""
            return f"{network}, a Cosmos: {weights.num_values():,} parameters, {INGREDIENT}\n{told}{note}{left}"
        if given is not None and is_wan(given.tensors):
            return wan_of(WanWeights(source, given.tensors, given.others, key=key, heads=heads), target)
        if given is not None and is_part(given.tensors):
            return _part(source, given, target)
        if heads is not None:
            raise UserError("--heads is for a Wan under its own or ComfyUI's names, which this is not")
        if stretch is not None:
            raise UserError("--rope-scale is for a Cosmos as NVIDIA's programs write it, which this is not")
        if given is not None and given.format == "distcp":
            return _checkpoint(source, given, target, key)
    return _file(source, target, key, leave_out)


def _part(source: Path, given: "ForeignTensors", target: Path) -> str:
    """Write Wan's autoencoder or text encoder as a folder of diffusers or transformers."""
    from nemo_vfm.core.storage.files import sha256_file, write_json
    from nemo_vfm.models.convert.tensor_source import LazyTensors
    from nemo_vfm.models.convert.video.wan_native import unscale
    from nemo_vfm.models.convert.video.wan_parts import part_of
    from nemo_vfm.parallel.checkpoint import checkpoint_one_file

    wide, scales = unscale(given.tensors)
    tensors = {name: stored for name, stored in wide.items() if name != "spiece_model"}
    part = part_of({name: stored.shape for name, stored in tensors.items()})
    weights = LazyTensors({here: tensors[there] for here, there in part.names.items()})
    digest = checkpoint_one_file.write(target / part.file, weights, {})
    others = [*sorted(set(given.tensors) - set(tensors) - set(scales.values())), *given.others]
    write_json(target / CONFIG, part.config)
    _write_about(target, source, given.format, sha256_file(source), digest["sha256"], others)
    use = "task.codec.folder" if part.file != MODEL else "task.text_encoder.folder, with its own tokenizer"
    numbers = sum(math.prod(stored.shape) for stored in tensors.values())
    return f"{part.what}, for {use}: {_count_sentence(len(tensors), numbers, others)}"


def _checkpoint(source: Path, given: "ForeignTensors", target: Path, key: str | None) -> str:
    """The tensors of a distributed checkpoint under the names that they have there, or below `key`."""
    from nemo_vfm.core.errors import UserError
    from nemo_vfm.core.storage.files import sha256_folder
    from nemo_vfm.models.convert.tensor_source import LazyTensors
    from nemo_vfm.parallel.checkpoint import checkpoint_one_file, tensor_file

    known = list(given.tensors)
    if key is None:  # all but an optimizer's
        names = {name: name for name in known if not name.startswith("optim")}
    else:
        names = {name.removeprefix(f"{key}."): name for name in known if name.startswith(f"{key}.")}
    if not names:
        words = ", ".join(sorted({name.partition(".")[0] for name in known})[:12])
        raise UserError(f"there are no weights{f' below {key}' if key else ''}; it has {words or 'no tensors'}")
    others = [*sorted(set(given.tensors) - set(names.values())), *given.others]
    weights = LazyTensors({here: given.tensors[there] for here, there in names.items()})
    digest = checkpoint_one_file.write(target / MODEL, weights, {})
    _write_about(target, source, given.format, sha256_folder(source), digest["sha256"], others)
    shapes = tensor_file.read_header(target / MODEL).shapes
    return _count_sentence(len(names), sum(math.prod(shape) for shape in shapes.values()), others)


def _write_about(
    target: Path, source: Path, form: str, source_sha256: str, model_sha256: str, others: Sequence[str]
) -> None:
    from nemo_vfm.core.storage.files import write_json

    about = {"name": source.name, "format": form, "sha256": source_sha256}
    write_json(target / ABOUT, {"schema": "nemo_vfm.convert/1", "source": about, "model_sha256": model_sha256,
                                "not_carried_over": list(others)})  # fmt: skip


def _count_sentence(count: int, numbers: int, others: Sequence[str]) -> str:
    left = f"; not carried over: {_some(others, 8)}" if others else ""
    return f"{count} tensor{'s' * (count != 1)}, {numbers:,} numbers{left}"


def _some(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _file(source: Path, target: Path, key: str | None, leave_out: bool) -> str:
    from nemo_vfm.config import read_values
    from nemo_vfm.core.storage.files import sha256_file, write_json
    from nemo_vfm.models.convert.foreign import read_foreign
    from nemo_vfm.parallel.checkpoint.tensor_file import pack, write

    found = read_foreign(source, key=key, leave_out=leave_out)
    config = found.values if found.config is None else read_values(found.config, "model_config.yaml")
    try:
        digest = write(target / MODEL, pack(found.weights, {}))
        write_json(target / CONFIG, config)
    except (KeyError, ValueError) as error:  # a dtype it does not know, half a character in a name, NaN in a setting
        raise DataError(f"safetensors and JSON cannot hold its content ({error})") from error
    _write_about(target, source, found.format, sha256_file(source), digest["sha256"], found.others)
    return _count_sentence(len(found.weights), sum(tensor.numel() for tensor in found.weights.values()), found.others)


def main() -> int:
    """Convert as the arguments say; a reason on standard error where it cannot be done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--key")
    parser.add_argument("--leave-out", action="store_true")
    parser.add_argument("--rope-scale", type=float, nargs=3)
    parser.add_argument("--heads", type=int)
    given = parser.parse_args()
    files = [given.source] if given.source.is_file() else [path for path in given.source.rglob("*") if path.is_file()]
    limit(sum(path.stat().st_size for path in files))
    try:
        said = convert(given.source, given.target, key=given.key, leave_out=given.leave_out, stretch=given.rope_scale,
                       heads=given.heads)  # fmt: skip
        sys.stdout.write(f"{said}\n")
    except (NemoVfmError, OSError, MemoryError) as error:
        reason = "it needs more memory than a file of its size may use" if isinstance(error, MemoryError) else error
        sys.stderr.write(f"{given.source}: {reason}\n")
        return 2
    return 0
