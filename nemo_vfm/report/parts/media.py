"""Embeds small pictures and videos as data URIs within a budget of bytes, and says what did not fit."""

import base64
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from markupsafe import Markup

from nemo_vfm.report.parts.run_values import RunFolder

Kind = Literal["image", "video"]
_JPEG: tuple[Kind, str] = ("image", "image/jpeg")
_MP4: tuple[Kind, str] = ("video", "video/mp4")


@dataclass(frozen=True, slots=True)
class Medium:
    """One picture or video, ready for `src`."""

    uri: Markup
    kind: Kind
    poster: Markup | None = None  #: of a video: a picture that stands in its place until it plays, or where it may not


@dataclass(slots=True)
class SectionMedia:
    """Embeds the media of one section."""

    run: RunFolder  #: the run folder, which all paths must stay inside
    budget_bytes: int  #: what all media of the section may weigh, before base64 adds a third
    used_bytes: int = 0
    _left_out: Counter[str] = field(default_factory=Counter)

    def embed(self, path: Path) -> Medium | None:
        """The file as a data URI; None where it is missing, of another kind, or over the budget."""
        if reason := self._refusal(path):
            self._left_out[reason] += 1
            return None
        data = self.run.read_bytes(path) or b""
        if (sniffed := _sniff(data)) is None:
            self._left_out["neither JPEG, PNG, WebP nor MP4"] += 1
            return None
        self.used_bytes += len(data)
        kind, mime = sniffed
        poster, picture = None, path.with_suffix(".jpg")  # of the same name, where there is one and room for it
        if kind == "video" and not self._refusal(picture):
            still = self.run.read_bytes(picture)
            if still is not None and _sniff(still) == _JPEG:
                self.used_bytes += len(still)
                poster = _uri("image/jpeg", still)
        return Medium(_uri(mime, data), kind, poster)

    def embed_member(self, tar: Path, offset: int, size: int) -> Medium | None:
        """A video inside a tar; None where it does not fit into what is left of the budget, or is no MP4."""
        if not tar.is_file() or not 0 < size <= self.budget_bytes - self.used_bytes or offset < 0:
            return None
        data = self.run.read_bytes(tar, span=(offset, size)) or b""
        if _sniff(data) != _MP4:
            return None
        self.used_bytes += len(data)
        return Medium(_uri("video/mp4", data), "video")

    def _refusal(self, path: Path) -> str:
        if not path.is_file():
            return "missing"
        if not path.resolve().is_relative_to(self.run.root):
            return "outside the run folder"
        if self.used_bytes + path.stat().st_size > self.budget_bytes:
            return f"over this section's limit of {self.budget_bytes / 1e6:.1f} MB"
        return ""

    def note(self) -> str:
        """One sentence on what was left out, or the empty text."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in self._left_out.items())
        return f"{self._left_out.total()} pictures or videos were left out: {reasons}." if reasons else ""


def _uri(mime: str, data: bytes) -> Markup:
    """Base64 has no character that HTML reads, so the text may be marked as safe."""
    return Markup(f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}")  # noqa: S704


def _sniff(data: bytes) -> tuple[Kind, str] | None:
    """The kind by the first bytes; names and suffixes are not believed."""
    if data.startswith(b"\xff\xd8\xff"):
        return _JPEG
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image", "image/png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image", "image/webp"
    return _MP4 if data[4:8] == b"ftyp" else None
