"""Compares the losses of 20 training steps with those kept in tests/train/golden, a file a model.

They change on purpose only, in a commit of their own: `python -m tests.train.test_golden_losses` writes them.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nemo_vfm.core.types.task import Task
from nemo_vfm.diffusion.denoising_task import Denoise
from nemo_vfm.diffusion.objective import FlowMatching
from nemo_vfm.language.next_token_task import NextToken
from nemo_vfm.models.codec import WaveletCodec
from nemo_vfm.models.dit import DiT
from nemo_vfm.models.gpt import GPT
from nemo_vfm.models.st_dit import STDiT
from nemo_vfm.models.text_encoder import HashedNgrams
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.verify.tiny_training import rehearsal_of

GOLDEN = Path(__file__).parent / "golden"
STEPS = 20
DIFFUSION: dict[str, Any] = {"in_channels": 4, "text_dim": 16, "width": 48, "depth": 2, "heads": 4}


def denoise() -> Task:
    return Denoise(objective=FlowMatching(), codec=WaveletCodec(), text_encoder=HashedNgrams(dim=16))


TRAININGS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Task]]] = {
    "dit": (partial(DiT, **DIFFUSION), denoise),
    "st_dit": (partial(STDiT, **DIFFUSION), denoise),
    "gpt": (partial(GPT, vocab=96, width=48, depth=2, heads=4, mlp_hidden=96), NextToken),
}


def losses(name: str) -> list[float]:
    """The training loss before each of 20 steps of AdamW in fp32 on one device, with fixed batches."""
    model, task = TRAININGS[name]
    training, _ = rehearsal_of(model, task(), partial(torch.optim.AdamW, lr=1e-3), seed=7)
    engine = training.start(ParallelPlan())
    return [engine.step([training.batch(index % 4)]).loss for index in range(STEPS)]


@pytest.mark.parametrize("name", TRAININGS)
def test_twenty_steps_have_the_losses_that_they_had(name: str) -> None:
    golden = [float(line) for line in (GOLDEN / f"{name}.txt").read_text().split()]
    assert len(golden) == STEPS and golden[-1] < golden[0]
    # Sums in another order, as other processors make them, differ by 1e-6; a change of the arithmetic by far more.
    assert losses(name) == pytest.approx(golden, rel=1e-4)


if __name__ == "__main__":
    for each in TRAININGS:
        (GOLDEN / f"{each}.txt").write_text("".join(f"{loss:.7g}\n" for loss in losses(each)))
