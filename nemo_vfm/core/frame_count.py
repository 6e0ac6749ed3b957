"""Parses "5 pixel frames" and "2 latent frames" into two types that cannot be mixed up.

A latent frame holds several video frames. Reading one kind as the other would silently change the model's input.
"""

import re
from dataclasses import dataclass
from typing import ClassVar, Self

from nemo_vfm.core.errors import UserError

_TEXT = re.compile(r"(\d{1,6})\s+(pixel|latent)\s+frames?")


@dataclass(frozen=True, slots=True)
class _FrameCount:
    """A number of frames of one kind."""

    count: int  #: number of frames, 0 or more
    kind: ClassVar[str] = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the number and the kind of frames.

        Raises:
            UserError: the text is not a number of frames, or names the other kind.
        """
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise UserError(f"{text!r} is not a number of {cls.kind} frames; write '2 {cls.kind} frames'")
        if match[2] != cls.kind:
            raise UserError(f"{text!r} was given where {cls.kind} frames are expected; a latent frame holds several "
                            f"pixel frames, so write how many {cls.kind} frames you mean")  # fmt: skip
        return cls(int(match[1]))

    def __str__(self) -> str:
        return f"{self.count} {self.kind} frames"


@dataclass(frozen=True, slots=True)
class PixelFrames(_FrameCount):
    """Frames of a decoded video."""

    kind: ClassVar[str] = "pixel"


@dataclass(frozen=True, slots=True)
class LatentFrames(_FrameCount):
    """Frames of a codec's latents."""

    kind: ClassVar[str] = "latent"
