"""Tests that with `offload` text encoder, network and codec are on the device one at a time."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from nemo_vfm.diffusion.generated_videos import VideoRequest
from nemo_vfm.diffusion.guidance import ClassifierFree
from nemo_vfm.diffusion.objective import FlowMatching
from nemo_vfm.diffusion.sampler import Euler
from nemo_vfm.diffusion.video_pipeline import TextToVideo
from nemo_vfm.models.codec import WaveletCodec
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.noise_experts import NoiseExperts
from nemo_vfm.models.text_encoder import HashedNgrams

HERE = torch.device("cpu")  # on every machine; only the order of moves matters, and the string "cpu" means offloading


class Residents:
    """Records which parts are on the device, and which were there together."""

    def __init__(self) -> None:
        self.now: set[str] = set()
        self.used: list[str] = []
        self.together: set[frozenset[str]] = set()

    def use(self, name: str) -> None:
        self.now.add(name)
        self.together.add(frozenset(self.now))
        if self.used[-1:] != [name]:
            self.used.append(name)


class Codec(WaveletCodec):
    seen: Residents

    def decode(self, latents_BCTHW: Tensor) -> Tensor:
        self.seen.use("codec")
        return super().decode(latents_BCTHW)

    def offload(self) -> None:
        self.seen.now.discard("codec")


class Words(HashedNgrams):
    seen: Residents

    def encode(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        self.seen.use("text")
        return super().encode(captions)

    def offload(self) -> None:
        self.seen.now.discard("text")


class Network(DiT):
    """Records its use and its moves: `to(device)` loads it, `to("cpu")` offloads it."""

    name = "network"
    seen: Residents

    def forward(self, **inputs: Any) -> Tensor:
        self.seen.use(self.name)
        return super().forward(**inputs)

    def to(self, where: Any) -> "Network":  # type: ignore[override]
        """Only noted."""
        (self.seen.now.discard if where == "cpu" else self.seen.now.add)(self.name)
        return self


def network(seen: Residents, name: str = "network") -> Network:
    made = Network(in_channels=96, text_dim=32, width=24, depth=1, heads=2).eval()
    made.seen, made.name = seen, name
    return made


def generated(seen: Residents, model: Any, *, offload: bool) -> Tensor:
    codec, text_encoder = Codec(levels_space=2, levels_time=1), Words(dim=32, max_tokens=8)
    codec.seen = text_encoder.seen = seen
    pipeline = TextToVideo(codec=codec, text_encoder=text_encoder, objective=FlowMatching(), sampler=Euler(steps=4),
                           guidance=ClassifierFree(scale=2.0), offload=offload)  # fmt: skip
    request = VideoRequest(prompts=["a", "b"], num_frames=3, height=16, width=16, fps=8.0, seed=1)
    batches = [pipeline.make(model, request, device=HERE) for _ in range(2)]
    assert batches[1] is not None
    return batches[1].pixels_BTHWC


@pytest.mark.parametrize("offload", [True, False])
def test_parts_share_the_device_only_without_offload(offload: bool) -> None:
    seen = Residents()
    generated(seen, network(seen), offload=offload)
    assert seen.used == ["text", "network", "codec"] * 2
    assert max(map(len, seen.together)) == (1 if offload else 3)


def test_only_one_of_two_experts_is_on_the_device_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Residents()
    experts = NoiseExperts(high=network(seen, "high"), low=network(seen, "low"), boundary=0.5)
    experts.one_on_device = True
    monkeypatch.setattr(NoiseExperts, "to", lambda self, where: [one.to(where) for one in self.networks()])
    generated(seen, experts, offload=True)
    assert seen.used == ["text", "high", "low", "codec"] * 2
    assert max(map(len, seen.together)) == 1


def test_offload_changes_no_pixel() -> None:
    torch.manual_seed(2)
    seen = Residents()
    model = network(seen)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    assert torch.equal(generated(seen, model, offload=True), generated(seen, model, offload=False))
