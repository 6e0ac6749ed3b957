"""Reads a shard's entry into tensors, caption and rate: from cached latents, or from media.

Shape letters: C channels, T frames, H height, W width, L text tokens, D width of a text token.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

import cv2
import numpy as np
import torch

from nemo_vfm.core.bounds import is_frame_rate
from nemo_vfm.core.errors import DataError, NemoVfmError, StoreError, UserError
from nemo_vfm.core.log import info, warn
from nemo_vfm.core.storage.uri import Place
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.media_types import Decoder
from nemo_vfm.data.batching.bucket import Bucket, Buckets
from nemo_vfm.data.batching.faults import Fault, ShardChanged
from nemo_vfm.data.shards.read_in_place import ReaderInPlace, ReadsInPlace, Rows
from nemo_vfm.data.shards.safetensors_views import TensorView, stored_tensors
from nemo_vfm.data.shards.sample_members import (
    LATENTS,
    NOTHING_ASKED,
    TEXT,
    AskedMembers,
    caption_in,
    is_image,
    json_among,
    media_among,
    texts_among,
)
from nemo_vfm.data.shards.shard_files import Entry
from nemo_vfm.data.video.decode import open_video
from nemo_vfm.data.video.fit_to_bucket import image_size, image_to_bucket, video_to_bucket
from nemo_vfm.data.video.image_file import is_deep, said_of_deep

_MAX_KINDS = 8
_PNG_HEAD_BYTES = 32
_MAX_TEXT_BYTES = 1 << 20  # a caption; and what a .json says of one sample: a million keys took 1.5 s to parse

#: What a batch of a group is made of: tensor's name -> dtype and shape of one sample.
Layout = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class LoadedSample:
    """One sample, read."""

    tensors: Mapping[str, TensorView]  #: by name: latents, text and mask, or video; and members that were asked for
    caption: str  #: empty where it has none
    fps: float  #: of what was read
    labels: Mapping[str, float | str] = field(default_factory=dict)  #: the numbers and words of its index and json


class Samples(Protocol):
    """Samples that are listed, wherever they lie."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """One a sample."""
        ...

    @property
    def folder(self) -> Place | str:
        """What messages call the whole."""
        ...

    def read(self, entry: Entry, extension: str) -> bytes:
        """The bytes of one member. DataError where they are not there or not what was listed."""
        ...

    def read_all(self, entry: Entry, extensions: Sequence[str]) -> list[bytes]:
        """Several members of one sample."""
        ...


@runtime_checkable
class _Files(Protocol):
    """Samples whose members are files: a film on the disk is not read whole."""

    def path(self, entry: Entry, extension: str) -> Path:
        """Where a member lies. DataError where it is not what was listed."""
        ...


class CachedLatents:
    """Latents and, where all samples have them, text embeddings, as curation's encode step left them.

    Args:
        shards: the opened folder.
        buckets: where a bucket's own batch size is looked up; None takes the data module's for all.
        asked: members that are read besides.
    """

    is_light = True  #: see `SampleReader.is_light`

    def __init__(self, shards: Samples, buckets: Buckets | None, asked: AskedMembers = NOTHING_ASKED) -> None:
        self._shards, self._buckets, self._asked = shards, buckets, asked
        self._with_text = _have_text(shards)
        own = (LATENTS, TEXT) if self._with_text else (LATENTS,)
        self._names = tuple(sorted((*own, *asked)))  # as they lie in our tars, so that they are read in place
        self._in_place = ReaderInPlace(shards, self._names) if isinstance(shards, ReadsInPlace) else None
        self._dtypes = _first_layout(shards, latents=True, text=self._with_text)

    def group_of(self, entry: Entry) -> tuple[str | None, str]:
        """The group's name, or None and the reason why the entry cannot be trained on: by bucket and latent shape."""
        if LATENTS not in entry.members:
            return None, f"no {LATENTS}"
        if not is_frame_rate(entry.index.get("fps", 1.0)):
            return None, "impossible frame rate"
        try:
            shape = self._shape_of(entry)
        except DataError:
            return None, "damaged latents"
        return f"{entry.index.get('bucket', '')}/{'x'.join(map(str, shape))}", ""

    def batch_size_of(self, group: str) -> int | None:
        """Samples a global batch of this group; None where the data module says."""
        bucket = self._buckets.buckets.get(group.rpartition("/")[0]) if self._buckets else None
        return bucket.batch_size if bucket else None

    def layout(self, entry: Entry) -> Layout:
        """What every sample of this entry's group must look like."""
        return {**self._dtypes, "latents": (self._dtypes["latents"][0], self._shape_of(entry))}

    def load(self, entries: Sequence[Entry], rows: Rows) -> list[LoadedSample | Fault]:
        """Read samples of one group, or say what is wrong with them; some tensors perhaps straight into the rows.

        Raises:
            StoreError, Changed: the samples are well and cannot be had; going on would train on other batches.
        """
        found = self._in_place.read(entries, rows) if self._in_place else [None] * len(entries)
        return [
            _attempt(entry, partial(self._sample, entry, tensors, rows))
            for entry, tensors in zip(entries, found, strict=True)
        ]

    def _sample(self, entry: Entry, found: Mapping[str, TensorView] | Exception | None, rows: Rows) -> LoadedSample:
        if isinstance(found, Exception):
            raise found
        fps = facts_of(self._shards, entry)["fps"]
        if not is_frame_rate(fps):
            raise DataError(f"its frame rate is {fps!r}, expected a finite number above 0; encode its clip again")
        if found is None:
            contents = self._shards.read_all(entry, self._names)
            found = _tensors(dict(zip(self._names, contents, strict=True)), self._asked)
            if self._in_place:
                self._in_place.learn(entry, contents, rows)
        return LoadedSample(found, caption_of(self._shards, entry), float(fps))

    def _shape_of(self, entry: Entry) -> tuple[int, ...]:
        known = entry.index.get("latent_shape")
        if isinstance(known, list) and len(known) == 4 and all(type(n) is int and n > 0 for n in known):
            return tuple(known)
        return _latents(stored_tensors(self._shards.read(entry, LATENTS))).shape


class Media:
    """Video and image files, decoded and cut to their bucket on the way; and their text embeddings, if any."""

    is_light = False

    def __init__(
        self, shards: Samples, buckets: Buckets, decoder: Decoder = "auto", asked: AskedMembers = NOTHING_ASKED
    ) -> None:
        self._shards, self._buckets, self._decoder, self._asked = shards, buckets, decoder, asked
        self._text = _first_layout(shards, latents=False, text=_have_text(shards))

    def group_of(self, entry: Entry) -> tuple[str | None, str]:
        """By bucket."""
        if media_among(entry.members) is None:
            return None, "no video or image"
        try:
            facts = facts_of(self._shards, entry)
            numbers = [float(facts[name]) for name in ("width", "height", "num_frames", "fps")]
        except (DataError, KeyError, TypeError, ValueError):
            return None, "damaged video or image"
        if not all(0 < number < 1e9 for number in numbers):
            return None, "impossible size or rate"
        return self._buckets.assign(int(numbers[0]), int(numbers[1]), int(numbers[2]), numbers[3])

    def batch_size_of(self, group: str) -> int | None:
        """See `CachedLatents.batch_size_of`."""
        return self._buckets.buckets[group].batch_size

    def layout(self, entry: Entry) -> Layout:
        """See `CachedLatents.layout`."""
        bucket = self._bucket_of(entry)
        return {**self._text, "video": (torch.uint8, (3, bucket.num_frames, bucket.height, bucket.width))}

    def load(self, entries: Sequence[Entry], rows: Rows) -> list[LoadedSample | Fault]:
        """See `CachedLatents.load`."""
        return [_attempt(entry, partial(self._sample, entry)) for entry in entries]

    def _sample(self, entry: Entry) -> LoadedSample:
        bucket, extension = self._bucket_of(entry), media_among(entry.members) or ""
        if is_image(extension):
            frames_THWC, fps = image_to_bucket(self._shards.read(entry, extension), bucket)
        else:
            read = self._shards.path if isinstance(self._shards, _Files) else self._shards.read
            frames_THWC, fps = video_to_bucket(read(entry, extension), bucket, self._decoder)
        frames_CTHW = np.ascontiguousarray(frames_THWC.transpose(3, 0, 1, 2))
        video = TensorView(torch.uint8, frames_CTHW.shape, frames_CTHW.reshape(-1))
        text = stored_tensors(self._shards.read(entry, TEXT)) if self._text else {}
        if self._asked:
            asked = self._shards.read_all(entry, tuple(self._asked))
            text |= _tensors(dict(zip(self._asked, asked, strict=True)), self._asked)
        caption, labels = caption_of(self._shards, entry), labels_of(self._shards, entry)
        return LoadedSample({**text, "video": video}, caption, fps, labels)

    def _bucket_of(self, entry: Entry) -> Bucket:
        name, reason = self.group_of(entry)
        if name is None:
            raise DataError(f"it fits no bucket: {reason}")
        return self._buckets.buckets[name]


def _attempt(entry: Entry, load: Callable[[], LoadedSample]) -> LoadedSample | Fault:
    try:
        return load()
    except (StoreError, ShardChanged):
        raise
    except (NemoVfmError, OSError, ValueError, KeyError, TypeError, cv2.error) as error:
        return Fault(entry.key, entry.shard, str(error))


#: Knows one kind of shard: which samples may share a batch, and how one is read.
Loading = CachedLatents | Media


def choose_loading(
    shards: Samples, buckets: Buckets | None, decoder: Decoder, asked: AskedMembers = NOTHING_ASKED
) -> Loading:
    """The loading that fits a folder: cached latents where there are any, else media. UserError if there is neither."""
    if not shards.entries:
        raise UserError(f"{shards.folder} holds no samples; see what the previous step dropped, and why")
    if any(LATENTS in entry.members for entry in shards.entries):
        return CachedLatents(shards, buckets, asked)
    if buckets is None:
        raise UserError(f"{shards.folder} holds no latents; give `buckets` to train from its videos and images")
    return Media(shards, buckets, decoder, asked)


def _have_text(shards: Samples) -> bool:
    """Whether all samples have text embeddings."""
    found = {TEXT in entry.members for entry in shards.entries}
    if len(found) > 1:
        raise UserError(f"only some samples in {shards.folder} have a {TEXT}; encode the captions of all, or of none")
    return True in found


def _first_layout(shards: Samples, *, latents: bool, text: bool) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Dtypes, and the text's shape, of the first sample that can be read; all others must agree."""
    reason = "there are no samples"
    for entry in shards.entries[:100]:
        try:
            found: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
            if latents:
                found["latents"] = (_latents(stored_tensors(shards.read(entry, LATENTS))).dtype, ())
            if text:
                tensors = stored_tensors(shards.read(entry, TEXT))
                found |= {name: (tensors[name].dtype, tensors[name].shape) for name in ("text", "mask")}
            return found
        except (DataError, KeyError) as error:
            reason = str(error)
    what, remedy = ("latents", "run the encode step again") if latents else (TEXT, "embed the captions again")
    raise DataError(f"no {what} can be read from {shards.folder}: {reason}; {remedy}")


def asked_layout(shards: Samples, entries: Sequence[Entry], asked: AskedMembers) -> Layout:
    """Dtype and shape of the members that are asked for, in the first of these samples that can be read.

    All others of their group must agree.

    Raises:
        DataError: none can be read.
    """
    reason = "there are no samples"
    for entry in entries:
        try:
            contents = dict(zip(asked, shards.read_all(entry, tuple(asked)), strict=True))
            return {name: (one.dtype, one.shape) for name, one in _tensors(contents, asked).items()}
        except DataError as error:
            reason = str(error)
    raise DataError(
        f"no {' and '.join(asked)} can be read from {shards.folder}, of {len(entries)} samples of a shape: {reason}; "
        f"write these members again, or leave them out of `members`"
    )


def _tensors(contents: Mapping[str, bytes], asked: AskedMembers) -> dict[str, TensorView]:
    """The tensors of a sample's members by name; a member that was asked for has one, of its own name."""
    own, found = dict[str, TensorView](), dict[str, TensorView]()
    for file, data in contents.items():
        tensors = stored_tensors(data)
        name = asked.get(file)
        if name is None:
            own |= tensors
            continue
        if tensors.keys() != {name} or not math.prod(tensors[name].shape):
            held = ", ".join(f"{one} {stored.shape}" for one, stored in tensors.items()) or "nothing"
            raise DataError(f"its {file} must hold one tensor called {name} of at least one number, but holds {held}")
        found |= tensors
    return own | found  # what was asked for is not hidden by a tensor of that name beside the latents


def caption_of(shards: Samples, entry: Entry) -> str:
    """From the index, else of the first text beside the media that has one, else empty; damaged texts have none."""
    known = entry.index.get("caption")
    if isinstance(known, str):
        return known
    for name in texts_among(entry.members):
        try:
            text = caption_in(name, _text(shards, entry, name))
        except (ValueError, RecursionError):
            continue
        if text:
            return text
    return ""


def facts_of(shards: Samples, entry: Entry) -> Mapping[str, Json]:
    """Width, height, num_frames and fps: of the index, else of the .json, else of the media. DataError without any."""
    if "fps" in entry.index:
        return entry.index
    if (name := json_among(entry.members)) is not None:
        try:
            content = json.loads(_text(shards, entry, name))
        except (ValueError, RecursionError) as error:
            raise DataError(f"the json of {entry.key} is damaged: {error}") from error
        if isinstance(content, dict) and "fps" in content:
            return content
    extension = media_among(entry.members)
    if extension is None:
        raise DataError(f"sample {entry.key} has its fps neither in the index nor in a .json")
    data = shards.read(entry, extension)
    if is_image(extension):
        width, height = image_size(data)
        return {"width": width, "height": height, "num_frames": 1, "fps": 1.0}
    with open_video(data) as reader:
        info = reader.info()
    first, stop = info.longest_part()
    return {"width": info.width, "height": info.height, "num_frames": stop - first, "fps": info.fps}


def labels_of(shards: Samples, entry: Entry) -> dict[str, float | str]:
    """The index's numbers and words, then the json's, then those among the json's scores; a damaged json gives none."""
    content: Json = None
    if (name := json_among(entry.members)) is not None:
        try:
            content = json.loads(_text(shards, entry, name))
        except (ValueError, RecursionError):
            content = None
    content = content if isinstance(content, dict) else {}
    scores = content.get("scores")
    found = {**entry.index, **content, **(scores if isinstance(scores, dict) else {})}
    return {name: value for name, value in found.items() if type(value) in (int, float, str)}


def _text(shards: Samples, entry: Entry, extension: str) -> bytes:
    size = entry.members[extension][1]
    if size > _MAX_TEXT_BYTES:
        raise DataError(f"the {extension} of {entry.key} has {size:,} bytes, but at most {_MAX_TEXT_BYTES:,} are read")
    return shards.read(entry, extension)


def _latents(tensors: Mapping[str, TensorView]) -> TensorView:
    stored = tensors.get("latents")
    if stored is None or len(stored.shape) != 4 or not stored.dtype.is_floating_point:
        raise DataError(f"{LATENTS} must hold floating 'latents' of shape (C, T, H, W)")
    return stored


@runtime_checkable
class _ReadsParts(Protocol):
    """Samples of which a part can be read."""

    def read_span(self, entry: Entry, offset: int, size: int) -> bytes:
        """See `ShardSet.read_span`."""
        ...


@dataclass(slots=True)
class Census:
    """Counts what training will not see of samples: captions, members that nothing reads, depths beyond 8 bits.

    What their index says is believed, so that those in a store cost no request.
    """

    asked: AskedMembers = field(default_factory=dict)  #: members that are read because the data was asked for them
    _samples: int = 0
    _without_caption: int = 0
    _deep: int = 0
    _unread: Counter[str] = field(default_factory=Counter)
    #: by their members, of which samples of a tar have much the same
    _kinds: dict[tuple[str, ...], tuple[str | None, list[str]]] = field(default_factory=dict)

    def add(self, samples: Samples, entry: Entry) -> None:
        """Count one."""
        names = tuple(entry.members)
        if names not in self._kinds:
            # Nothing reads others, such as seg.png.
            read = {media_among(names), *texts_among(names), LATENTS, TEXT, *self.asked}
            self._kinds[names] = media_among(names), [name for name in names if name not in read]
        media, unread = self._kinds[names]
        self._samples += 1
        self._unread.update(unread)
        try:
            has_caption = bool(caption_of(samples, entry))
        except DataError:
            has_caption = False
        self._without_caption += not has_caption
        if media is None or not is_image(media):
            return
        if "fps" in entry.index:
            self._deep += bool(entry.index.get("is_deep"))
            return
        offset, size = entry.members[media]
        with suppress(DataError):
            if isinstance(samples, _ReadsParts):
                self._deep += is_deep(samples.read_span(entry, offset, min(size, _PNG_HEAD_BYTES)))
            else:
                self._deep += is_deep(samples.read(entry, media))

    def tell(self, where: str) -> None:
        """Say it, of the samples in `where`; nothing where there are none."""
        if not self._samples:
            return
        say = warn if self._without_caption else info
        say(f"{self._without_caption:,} of {self._samples:,} samples in {where} have no caption")
        if self._unread:
            kinds = [f"{count:,} .{name}" for name, count in self._unread.most_common(_MAX_KINDS)]
            more = len(self._unread) - len(kinds)
            others = f" and {more:,} other kinds" if more else ""
            warn(f"members in {where} that are not read: {', '.join(kinds)}{others}")
        if self._deep:
            warn(said_of_deep(self._deep))
