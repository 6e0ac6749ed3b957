"""Describes one sample of shards: its texts, numbers, tensors and video."""

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import torch

from nemo_vfm.config.recipe_errors import did_you_mean, printable
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.shards.safetensors_views import Stored, stored_tensors
from nemo_vfm.data.shards.sample_members import VIDEOS
from nemo_vfm.data.shards.sample_reader import Samples, caption_of
from nemo_vfm.data.shards.shard_files import Entry
from nemo_vfm.data.video.decode import open_video


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a member; of numbers that are not finite only how many there are."""

    member: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    smallest: float
    largest: float
    mean: float
    deviation: float
    not_finite: int


@dataclass(slots=True)
class One:
    """A sample.

    Args:
        key: its own.
        shard: the tar's name.
        members: extension -> (offset in the tar, bytes).
        caption: empty where it has none.
        facts: the json member, or the index where there is none.
        tensors: of all safetensors and npy members.
        films: extension -> what it is, in words.
        damaged: extension -> why it cannot be read.
    """

    key: str
    shard: str
    members: dict[str, tuple[int, int]]
    caption: str
    facts: Json
    tensors: list[Tensor] = field(default_factory=list)
    films: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> Json:
        """For machines."""
        return asdict(self)


def entry_of(entries: Sequence[Entry], key: str) -> Entry:
    """The sample of that key, or the only one whose key begins like that.

    Raises:
        UserError: there is none, or several.
    """
    found = [entry for entry in entries if entry.key == key] or [e for e in entries if e.key.startswith(key)]
    if len(found) == 1:
        return found[0]
    shown = printable(key, 80)
    if found:
        raise UserError(f"{len(found)} samples begin with {shown}, such as {found[0].key} and {found[1].key}")
    raise UserError(
        f"there is no sample {shown} among {len(entries)}{did_you_mean(key, [entry.key for entry in entries])}"
    )


def describe(samples: Samples, entry: Entry) -> One:
    """Read all members of a sample; a damaged one is said and does not hide the others."""
    one = One(entry.key, entry.shard, dict(entry.members), "", dict(entry.index))
    for extension in entry.members:
        try:
            _look(one, samples, entry, extension)
        except (DataError, ValueError, EOFError) as error:
            one.damaged[extension] = str(error)
    try:
        one.caption = caption_of(samples, entry)
    except DataError as error:
        one.damaged["txt"] = str(error)
    return one


def _look(one: One, samples: Samples, entry: Entry, extension: str) -> None:
    kind = extension.rpartition(".")[2]
    if kind == "json":
        one.facts = json.loads(samples.read(entry, extension))
    elif kind == "safetensors":
        stored = stored_tensors(samples.read(entry, extension))
        one.tensors += [_tensor(extension, name, _torch(value)) for name, value in stored.items()]
    elif kind == "npy":
        array = np.load(io.BytesIO(samples.read(entry, extension)), allow_pickle=False)
        one.tensors.append(_tensor(extension, "", torch.from_numpy(np.atleast_1d(array))))
    elif kind in VIDEOS:
        with open_video(samples.read(entry, extension)) as reader:
            info = reader.info()
        one.films[extension] = (
            f"{info.codec}, {info.width}x{info.height}, {info.num_frames} frames at {info.fps:.4g} fps, "
            f"{info.duration_s:.2f} s"
        )


def _torch(stored: Stored) -> torch.Tensor:
    return torch.frombuffer(bytearray(stored.data), dtype=stored.dtype).reshape(stored.shape)


def _tensor(member: str, name: str, tensor: torch.Tensor) -> Tensor:
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    values = tensor.double().flatten()
    finite = values[torch.isfinite(values)]
    if not len(finite):
        return Tensor(member, name, dtype, shape, 0.0, 0.0, 0.0, 0.0, len(values))
    low, high, mean = float(finite.min()), float(finite.max()), float(finite.mean())
    return Tensor(
        member, name, dtype, shape, low, high, mean, float(finite.std(correction=0)), len(values) - len(finite)
    )
