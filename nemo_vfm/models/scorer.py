"""Predicts a few numbers per frame by an image encoder from a folder and a small head, as one module.

Shape letters: B batch, C channels, T frames, H height, W width, D width of a feature, K numbers a frame.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from nemo_vfm.core.errors import DataError
from nemo_vfm.core.optional import needs_packages
from nemo_vfm.core.types.component import component
from nemo_vfm.models.pretrained import files_sha256
from nemo_vfm.models.vision import ImageEncoder


@component
@needs_packages("transformers")
class Scorer(nn.Module):
    """`encoder` and `head`, named so in checkpoints.

    Args:
        folder: of the encoder, see `ImageEncoder`.
        outputs: K, numbers a frame; 0 gives the features themselves.
        hidden: widths of the head's inner layers; none is one linear layer.
        activation: between layers; linear is none, as in the public aesthetic head.
        normalise: whether features are scaled to length 1 before the head.
        train_encoder: False trains the head alone.
        head: a safetensors file with the head's weights, in any names that sort by layer; None draws them.
    """

    def __init__(
        self, *, folder: Path, outputs: int = 1, hidden: Sequence[int] = (),
        activation: Literal["linear", "gelu"] = "linear", normalise: bool = True, train_encoder: bool = False,
        head: Path | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if activation not in ("linear", "gelu"):
            raise ValueError(f"activation must be linear or gelu, got {activation!r}")
        if outputs < 0 or any(width < 1 for width in hidden):
            raise ValueError(f"outputs ({outputs}) cannot be negative and hidden widths {list(hidden)} must be above 0")
        self._made_of = f"outputs={outputs} hidden={list(hidden)} activation={activation} normalise={normalise}"
        self._is_whole = outputs == 0 or head is not None
        self._files = (folder, *([] if head is None else [head]))
        self.encoder = ImageEncoder(folder=folder).requires_grad_(train_encoder)
        self.normalise, self.train_encoder = normalise, train_encoder
        widths = [self.encoder.width, *hidden, outputs] if outputs else [self.encoder.width]
        layers: list[nn.Module] = []
        for place in range(len(widths) - 1):
            if place and activation == "gelu":
                layers.append(nn.GELU())
            layers.append(nn.Linear(widths[place], widths[place + 1]))
        self.head = nn.Sequential(*layers)
        if head is not None and torch.get_default_device().type != "meta":
            from safetensors.torch import load_file

            try:
                stored = load_file(head)
            except Exception as error:  # safetensors raises an error of its own making
                raise DataError(f"the head {head} cannot be read as safetensors: {error}") from error
            # Layer by layer in the order of the numbers in their names: other people's heads name theirs otherwise.
            linears = [layer for layer in self.head if isinstance(layer, nn.Linear)]
            wanted = [getattr(layer, what) for layer in linears for what in ("weight", "bias")]
            order = {name: ([int(part) for part in name.split(".") if part.isdigit()], name.endswith("bias"))
                     for name in stored}  # fmt: skip
            given = [stored[name] for name in sorted(stored, key=order.__getitem__)]
            shapes = [tuple(tensor.shape) for tensor in given], [tuple(parameter.shape) for parameter in wanted]
            if shapes[0] != shapes[1]:
                raise DataError(f"the head {head} has tensors of shapes {shapes[0]}, this one of {shapes[1]}; set "
                                f"hidden and outputs")  # fmt: skip
            with torch.no_grad():
                for parameter, tensor in zip(wanted, given, strict=True):
                    parameter.copy_(tensor)

    def forward(self, video_BCTHW: Tensor) -> Tensor:
        """(B, T, K), or the features (B, T, D) where outputs is 0."""
        with torch.set_grad_enabled(self.train_encoder and torch.is_grad_enabled()):
            features_BTD = self.encoder(video_BCTHW)
        if self.normalise:
            features_BTD = nn.functional.normalize(features_BTD.float(), dim=-1)
        result: Tensor = self.head(features_BTD)
        return result

    def fingerprint(self) -> str:
        """Changes whenever the weights it was made with, or its arithmetic, would; training since then does not count.

        It can be asked of a model on the meta device.
        """
        return f"scorer/1 {self._made_of} {' '.join(files_sha256(path) for path in self._files)}"

    def is_whole(self) -> bool:
        """Whether all weights it was made with came from files; a head that is drawn says nothing before training."""
        return self._is_whole
