"""Derives the identifiers of sources and clips, from bytes and spans of frames, for curation and training."""

import hashlib
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from nemo_vfm.core.storage.files import sha256_file

CLIP_SCHEMA = "nemo_vfm.clip/1"
_KEY = re.compile(r"[A-Za-z0-9_-]{1,90}")
_ODD = re.compile(r"[^A-Za-z0-9_-]+")


def source_id(source: Path | bytes) -> str:
    """The sha256 of a source's bytes in hexadecimal: identical files are one source, whatever their names."""
    return hashlib.sha256(source).hexdigest() if isinstance(source, bytes) else sha256_file(source)


def is_key(text: str) -> bool:
    """Whether a text can name a sample: no dot (it would end the key in a tar), no slash, at most 90 characters."""
    return _KEY.fullmatch(text) is not None


def key_of(name: str, identity: str) -> str:
    """A key by which a sample's name is recognised; samples of other identities have other keys."""
    return f"{_ODD.sub('-', name)[-60:]}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class Clip:
    """A span of one source, named without reference to file names or decoders."""

    source_id: str  #: sha256 of the source's bytes, hexadecimal
    first_frame: int  #: index of the first frame, in presentation order
    last_frame: int  #: index after the last frame
    pts_start: int  #: presentation time stamp of the first frame, in units of `time_base`
    pts_end: int  #: time stamp at which the last frame ends
    time_base: Fraction  #: seconds a unit of pts

    def __post_init__(self) -> None:
        if not 0 <= self.first_frame < self.last_frame:
            raise ValueError(f"a clip needs at least one frame, got frames {self.first_frame} to {self.last_frame}")

    @property
    def id(self) -> str:
        """32 hexadecimal digits, a hash of source and span: the same clip has the same id on every machine."""
        return hashlib.sha256(f"{self.source_id}:{self.first_frame}:{self.last_frame}".encode()).hexdigest()[:32]

    @property
    def num_frames(self) -> int:
        """How many frames the span has."""
        return self.last_frame - self.first_frame

    @property
    def duration_s(self) -> float:
        """How long the span lasts."""
        return float((self.pts_end - self.pts_start) * self.time_base)
