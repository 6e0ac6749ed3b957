"""Counts what training will not see of samples: missing captions, members that nothing reads, depths beyond 8 bits."""

from collections import Counter
from typing import Protocol, runtime_checkable

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.log import info, warn
from nemo_vfm.data.shards.sample_members import is_image, media_among, unread_among
from nemo_vfm.data.shards.sample_reader import Samples, caption_of
from nemo_vfm.data.shards.shard_index import Entry
from nemo_vfm.data.video.image_file import is_deep, said_of_deep

_MAX_KINDS = 8
_PNG_HEAD_BYTES = 32


@runtime_checkable
class _Spanned(Protocol):
    """Samples of which a part can be read."""

    def read_span(self, entry: Entry, offset: int, size: int) -> bytes:
        """See `ShardSet.read_span`."""
        ...


class Census:
    """Looks at samples one by one. What their index says is believed, so that those in a store cost no request."""

    def __init__(self) -> None:
        self._samples, self._without_caption, self._deep = 0, 0, 0
        self._unread: Counter[str] = Counter()
        self._kinds: dict[tuple[str, ...], tuple[str | None, list[str]]] = {}  # samples of a tar are much alike

    def add(self, samples: Samples, entry: Entry) -> None:
        """Count one."""
        names = tuple(entry.members)
        if names not in self._kinds:
            self._kinds[names] = media_among(names), unread_among(names)
        media, unread = self._kinds[names]
        self._samples += 1
        self._without_caption += not _has_caption(samples, entry)
        for name in unread:
            self._unread[name] += 1
        if media is not None and is_image(media):
            self._deep += bool(entry.index.get("is_deep")) if "fps" in entry.index else _is_deep(samples, entry, media)

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


def _has_caption(samples: Samples, entry: Entry) -> bool:
    try:
        return bool(caption_of(samples, entry))
    except DataError:
        return False


def _is_deep(samples: Samples, entry: Entry, extension: str) -> bool:
    offset, size = entry.members[extension]
    try:
        if isinstance(samples, _Spanned):
            return is_deep(samples.read_span(entry, offset, min(size, _PNG_HEAD_BYTES)))
        return is_deep(samples.read(entry, extension))
    except DataError:
        return False
