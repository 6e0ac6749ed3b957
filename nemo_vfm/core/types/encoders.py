"""Declares codecs, tokenizers, encoders of texts and images, pipelines that have them, and families of pipelines.

Shape letters: B batch, C channels, T frames, H height, W width, L text tokens, D width of a text token.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


#: Families of pretrained pipelines, which are file names of `conf/pipeline/`.
Family = Literal[
    "wan21_t2v", "wan21_i2v", "wan22_t2v", "wan22_i2v", "wan22_ti2v", "cosmos1_text", "cosmos1_video",
    "cosmos2_image", "cosmos2_video", "cosmos25",
]  # fmt: skip


@runtime_checkable
class Codec(Protocol):
    """Pixels to latents and back."""

    def encode(self, video_BCTHW: "Tensor") -> "Tensor":
        """Pixels in [-1, 1], float, to latents (B, C', T', H', W')."""
        ...

    def decode(self, latents_BCTHW: "Tensor") -> "Tensor":
        """Latents to pixels in [-1, 1]."""
        ...

    def latent_shape(self, num_frames: int, height: int, width: int) -> tuple[int, int, int, int]:
        """(C', T', H', W') for a video of this size; ValueError where the size does not fit, with sizes that do."""
        ...

    def fingerprint(self) -> str:
        """Changes whenever the same pixels would give other latents."""
        ...


@runtime_checkable
class Tokenizer(Protocol):
    """Texts to the numbers of their tokens and back."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text; none is added at either end."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of these tokens; special ones say nothing."""
        ...

    def vocab_size(self) -> int:
        """How many tokens there are, special ones among them."""
        ...

    def end(self) -> int:
        """The token after a document's last."""
        ...

    def fingerprint(self) -> str:
        """Changes whenever the same text would give other tokens."""
        ...


@runtime_checkable
class TokenizesBytes(Protocol):
    """A tokenizer that knows the bytes of each token, which may be a part of a letter."""

    def token_bytes(self) -> Sequence[bytes | None]:
        """Of each token by its number; None for one that says nothing, such as a special one."""
        ...


@runtime_checkable
class TextEncoder(Protocol):
    """Captions to embeddings."""

    def encode(self, captions: Sequence[str]) -> "tuple[Tensor, Tensor]":
        """Embeddings (B, L, D), float32, and a mask (B, L), True at real tokens. The empty text is legal."""
        ...

    def text_shape(self) -> tuple[int, int]:
        """(L, D)."""
        ...

    def fingerprint(self) -> str:
        """Changes whenever the same caption would give another embedding."""
        ...


@runtime_checkable
class CutsTexts(Protocol):
    """A text encoder that keeps so many tokens of a text and no more."""

    def num_cut(self, captions: Sequence[str]) -> int:
        """How many of the captions are longer."""
        ...


@runtime_checkable
class ImageTokens(Protocol):
    """Encodes an image to the tokens that a network attends to."""

    def image_tokens(self, image_CTHW: "Tensor") -> "Tensor":
        """Tokens (L, D) of a one-frame video in [-1, 1], float."""
        ...

    def fingerprint(self) -> str:
        """Changes whenever the same image would give different tokens."""
        ...


@runtime_checkable
class VideoPipeline(Protocol):
    """A pipeline such as `TextToVideo`: objective, codec, text encoder and frame conditioning, and how it samples.

    The parts are no members here: a pipeline may read its folder when the first one is used.
    """

    def is_guided(self) -> bool:
        """Return whether sampling needs the unconditional estimate."""
        ...

    def is_for_another(self, family: str) -> bool:
        """Return whether these settings are for another pretrained family."""
        ...


@runtime_checkable
class DrawsVideos(Protocol):
    """A job or callback that draws videos of one size with a pipeline."""

    pipeline: VideoPipeline
    num_frames: int
    height_px: int
    width_px: int


@runtime_checkable
class Offloadable(Protocol):
    """A codec or an encoder whose weights can wait in host memory."""

    def offload(self) -> None:
        """Leave the device's memory, where there is anything to leave; the next use comes back to it."""
        ...
