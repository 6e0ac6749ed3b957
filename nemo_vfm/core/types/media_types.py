"""Names frames, spans of them, what they mean and what reads them; tells videos and images by their names' ends.

Shape letters: T frames, H height, W width, C channels.
"""

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Frame = NDArray[np.uint8]  #: (H, W, C), RGB
    Frames = NDArray[np.uint8]  #: (T, H, W, C), RGB
    Luma = NDArray[np.uint8]  #: (H, W)
    Plane = NDArray[np.float32]  #: (H, W)
else:  # said for readers and mypy alone: core is imported where there is no numpy
    Frame = Frames = Luma = Plane = Any
Span = tuple[int, int]  #: first frame, last frame exclusive
Decoder = Literal["auto", "pyav", "decord", "torchcodec"]  #: what reads videos
Transfer = Literal["sdr", "pq", "hlg"]  #: what the values of a frame mean; PQ and HLG are HDR

#: What is taken for a video in a folder.
VIDEO_SUFFIXES = frozenset(
    {".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".m2ts", ".mts"}
    | {".mxf", ".wmv", ".flv", ".ogv", ".3gp", ".y4m"}
)
#: What training reads as an image; shards hold no other.
TRAINED_IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png"})
#: What is taken for an image in a folder that is curated.
IMAGE_SUFFIXES = TRAINED_IMAGE_SUFFIXES | {".webp"}
