"""Tests that an autoencoder learns clips of moving squares, is measured, and becomes a codec."""

import itertools
import pickle
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nemo_vfm.core import log
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.precision import Precision, PrecisionName
from nemo_vfm.core.types.batch import Batch
from nemo_vfm.core.types.job import Run
from nemo_vfm.core.types.sample_batches import VideoBatch
from nemo_vfm.core.types.task import ModelInputs
from nemo_vfm.models.autoencoder import CausalAutoencoder, split
from nemo_vfm.models.trained_autoencoder import TrainedAutoencoder
from nemo_vfm.parallel.apply.local_shard import full_tensor
from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.train.callbacks.checkpointing import SaveCheckpoints
from nemo_vfm.train.ema import EMA
from nemo_vfm.train.job import Train, start
from nemo_vfm.train.loop import Loop
from nemo_vfm.train.reconstruct.latent_statistics import MeasureLatents
from nemo_vfm.train.reconstruct.loss_terms import Edges, Motion, Pixels, Scales, divergence
from nemo_vfm.train.reconstruct.reconstruction_quality import CompareReconstructions
from nemo_vfm.train.reconstruct.reconstruction_task import Reconstruct
from nemo_vfm.train.state.train_state import TrainState
from tests.support.ranks import on_ranks
from tests.support.toy import ToyData

TERMS = [Pixels(), Pixels(power=2), Edges(), Motion(), Scales(levels=2)]
tiny = partial(CausalAutoencoder, latent_channels=6, space=8, time=4, width=8, widest=16, blocks=1)


def squares(number: int) -> Tensor:
    """A bright square on grey that moves to the right, (3, 5, 16, 16), bytes."""
    clip = torch.full((3, 5, 16, 16), 90, dtype=torch.uint8)
    for frame in range(5):
        left = (number + frame) % 12
        clip[number % 3, frame, 4:9, left : left + 4] = 230
    return clip


class Clips(ToyData):
    """Four clips a batch, for ever; two batches are held out, or none."""

    def __init__(self, *, held_out: int = 2) -> None:
        super().__init__()
        self.held_out = held_out

    def train_dataloader(self) -> Iterator[Batch]:
        return (clips(number) for number in itertools.count(self._first))

    def val_dataloader(self) -> Iterable[Batch]:
        return [clips(1000 + number) for number in range(self.held_out)]


def clips(index: int) -> VideoBatch:
    """A batch; its last clip kept the place of a bad one and does not count."""
    keys = tuple(f"{4 * index + place}" for place in range(4))
    video = torch.stack([squares(4 * index + place) for place in range(4)])
    video[3] = 0
    weight = torch.tensor([1.0, 1, 1, 0])
    return VideoBatch(index, keys, weight, keys, torch.full((4,), 8.0), video_BCTHW=video)


def trained(
    folder: Path, steps: int, *, held_out: int = 2, model: partial[CausalAutoencoder] = tiny, **how: object
) -> TrainState:
    """A training with both callbacks at its end, and a checkpoint."""
    job = Train(
        model=model, data=Clips(held_out=held_out), task=Reconstruct(terms={"pixels": Pixels(), "edges": Edges()}),  # type: ignore[arg-type]
        optimizer=partial(torch.optim.AdamW, lr=3e-3), callbacks={"ema": EMA(decay=0.8)},  # type: ignore[arg-type]
        loop=Loop(duration=Duration(steps, "steps"), checkpoint=(saving := SaveCheckpoints(asynchronous=False))),
        **how,  # type: ignore[arg-type]
    )  # fmt: skip
    fit = start(job, Run(folder, seed=1))
    for batch in itertools.islice(job.data.train_dataloader(), steps):
        fit.advance(batch)
    for callback in (CompareReconstructions(every_steps=99, num_shown=2), MeasureLatents(every_steps=99), saving):
        callback.on_step(fit)
    return fit


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainState:
    return trained(tmp_path_factory.mktemp("autoencoder"), 60)


def codec(folder: Path, **how: object) -> TrainedAutoencoder:
    return TrainedAutoencoder(model=tiny, trained=folder / "checkpoints", **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("term", TERMS, ids=lambda term: type(term).__name__)
def test_a_term_is_0_where_nothing_is_wrong_and_each_sample_has_its_own(term: Pixels) -> None:
    video = torch.rand(3, 3, 5, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert term.losses(video, video).tolist() == [0, 0, 0]
    made = video.clone()
    made[1, :, 2, 3:9, 3:9] += 0.5
    wrong = term.losses(made, video)
    assert (wrong[0], wrong[2]) == (0, 0)
    assert wrong[1] > 0
    doubled = type(term)(weight=2.0, **({"power": term.power} if isinstance(term, Pixels) else {}))
    if not isinstance(term, Scales):
        assert torch.allclose(doubled.losses(made, video), 2 * wrong)


def test_terms_are_what_their_formulas_say() -> None:
    video, made = torch.zeros(1, 1, 2, 4, 4), torch.zeros(1, 1, 2, 4, 4)
    made[0, 0, 1, 1, 1] = 1.0
    assert Pixels().losses(made, video).item() == pytest.approx(1 / 32)
    assert Pixels(power=2).losses(made * 2, video).item() == pytest.approx(4 / 32)
    assert Edges().losses(made, video).item() == pytest.approx(2 * 2 / 24)  # two edges a direction, of 2 x 3 x 4
    assert Motion().losses(made, video).item() == pytest.approx(1 / 16)
    assert Motion().losses(made[:, :, :1], video[:, :, :1]).item() == 0  # an image does not move
    assert Scales(levels=3).losses(made, video).item() == pytest.approx(1 / 4 / 8 + 1 / 16 / 2)
    assert divergence(torch.zeros(2, 5), torch.zeros(2, 5)).tolist() == [0, 0]
    assert divergence(torch.full((1, 5), 2.0), torch.zeros(1, 5)).item() == 2.0


def test_the_loss_is_the_sum_of_its_parts_and_latents_are_no_pixels() -> None:
    task, model = Reconstruct(terms={"a": Pixels(), "b": Edges(weight=0.3)}, kl=0.1), tiny(variational=True)
    prepared = task.prepare(clips(0), seed=1, training=True)
    output = model(**prepared.inputs)
    parts = task.parts(output, prepared)
    assert list(parts) == ["a", "b", "kl"]
    assert torch.allclose(task.losses(output, prepared), sum(parts.values()))  # type: ignore[arg-type]
    latents = VideoBatch(0, ("a",), torch.ones(1), ("",), torch.ones(1), latents_BCTHW=torch.zeros(1, 6, 2, 2, 2))
    with pytest.raises(UserError, match="trains on pixels, but these shards hold latents"):
        task.prepare(latents, seed=1, training=True)
    for wrong in ({"kl": -1.0}, {"terms": {}}):
        with pytest.raises(ValueError, match=r"kl must be|terms is empty"):
            Reconstruct(**wrong)  # type: ignore[arg-type]


def test_a_samples_noise_does_not_hang_on_its_companions() -> None:
    task, model = Reconstruct(kl=0.1), tiny(variational=True).eval()
    whole = task.prepare(clips(0), seed=1, training=True)
    halves = [task.prepare(piece, seed=1, training=True) for piece in clips(0).cut(2)]
    with torch.no_grad():
        apart = torch.cat([model(**half.inputs) for half in halves])
        assert torch.allclose(model(**whole.inputs), apart, atol=1e-5)
        other = task.prepare(clips(0), seed=2, training=True)
        assert not torch.allclose(model(**other.inputs), apart, atol=1e-3)


@pytest.mark.slow
def test_it_learns_and_says_how_well(run: TrainState, tmp_path: Path) -> None:
    first = trained(tmp_path, 1)
    assert run.metrics["val_psnr_db"] > first.metrics["val_psnr_db"] + 1
    assert run.metrics["val_ssim"] > first.metrics["val_ssim"]
    assert run.metrics["val_loss_of/pixels"] < first.metrics["val_loss_of/pixels"]
    assert (run.run.folder / "reconstructions" / "step-00000060.png").stat().st_size > 300


def test_latents_have_mean_0_and_deviation_1_for_the_weights_and_for_their_averages(run: TrainState) -> None:
    video = torch.cat([clips(1000 + number).video_BCTHW[:3] for number in range(2)]).float() / 127.5 - 1  # type: ignore[index]
    for weights in ("ema", "model"):
        latents = codec(run.run.folder, weights=weights).encode(video)
        assert latents.mean((0, 2, 3, 4)).abs().max() < 1e-4
        assert (latents.std((0, 2, 3, 4), correction=0) - 1).abs().max() < 1e-4
    assert int(run.model.latent_count) == 6 * 2 * 2 * 2  # type: ignore[arg-type]


def test_the_codec_gives_back_what_the_training_saw_whole_in_pieces_and_in_tiles(run: TrainState) -> None:
    (prepared,) = [Reconstruct().prepare(clips(1000), seed=1, training=False)]
    video = prepared.targets["video"]
    with torch.no_grad(), run.ema.apply_to(run.model):  # type: ignore[union-attr]
        made = split(run.model(**prepared.inputs), video)[0]
    whole = codec(run.run.folder)
    latents = whole.encode(video)
    assert tuple(latents.shape[1:]) == whole.latent_shape(5, 16, 16) == (6, 2, 2, 2)
    assert torch.allclose(whole.decode(latents), made, atol=1e-4)
    for how in ({"frames_at_once": 1}, {"tile": 1}, {"frames_at_once": None}):
        other = codec(run.run.folder, **how)
        assert torch.allclose(other.encode(video), latents, atol=1e-4)
        assert other.fingerprint() == whole.fingerprint()
    again = pickle.loads(pickle.dumps(whole))
    assert torch.equal(again.encode(video), latents)


def test_a_fingerprint_follows_the_weights(run: TrainState, tmp_path: Path) -> None:
    other = trained(tmp_path, 1)
    names = {codec(run.run.folder).fingerprint(), codec(run.run.folder, weights="model").fingerprint(),
             codec(other.run.folder).fingerprint()}  # fmt: skip
    assert len(names) == 3


def test_weights_that_were_never_measured_or_are_of_another_network_are_refused(
    run: TrainState, tmp_path: Path
) -> None:
    wider = TrainedAutoencoder(model=partial(tiny, width=16), trained=run.run.folder / "checkpoints")
    with pytest.raises(UserError, match=r"not of this autoencoder.*other shape"):
        wider.encode(torch.zeros(1, 3, 5, 16, 16))
    run.model.latent_count.zero_()  # type: ignore[operator, union-attr]
    folder = tmp_path / "checkpoints"
    checkpoint.save(folder, 1, {"model": dict(run.model.state_dict())}, {})
    with pytest.raises(UserError, match=r"were never measured.*MeasureLatents"):
        codec(tmp_path).encode(torch.zeros(1, 3, 5, 16, 16))
    with pytest.raises(ValueError, match="must be at least 1"):
        codec(tmp_path, frames_at_once=0)
    with pytest.raises(ValueError, match="tiling is impossible"):
        TrainedAutoencoder(model=partial(tiny, widest=32, width=32, attention="space_time"), trained=tmp_path, tile=4)


def test_where_nothing_is_held_out_it_is_said_and_the_scale_is_still_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(log, "warn_once", said.append)
    fit = trained(tmp_path, 1, held_out=0)
    assert "val_psnr_db" not in fit.metrics
    assert int(fit.model.latent_count) == 8 * 3 * 2 * 2 * 2  # type: ignore[arg-type]
    assert len(set(said)) == 2 and all(text.startswith("no clip is held out, so ") for text in said)
    fit.plan = ParallelPlan(replicate=2)
    with pytest.raises(UserError, match="on several devices latents are measured on those"):
        MeasureLatents().on_step(fit)


def measured(rank: int, folder: Path, plan: ParallelPlan, compute: PrecisionName) -> dict[str, Tensor]:
    """The latents' numbers, of the weights and of their averages, after two steps; each rank sees all clips."""
    fit = trained(folder, 2, parallel=plan, precision=Precision(compute))
    names = [name for name in fit.model.state_dict() if name.startswith("latent_")]
    averages = {} if fit.ema is None else fit.ema.weights
    return {f"{kind}/{name}": full_tensor(found[name]).clone() for kind, found in
            (("model", fit.model.state_dict()), ("ema", averages)) for name in names}  # fmt: skip


@pytest.mark.cluster  # several ranks
def test_latents_of_weights_that_two_devices_share_measure_the_same(tmp_path: Path) -> None:
    (alone,) = on_ranks(1, measured, tmp_path / "alone", ParallelPlan(), "fp32")
    assert len(alone) == 6 and not torch.equal(alone["model/latent_std"], alone["ema/latent_std"])
    for compute, tolerance in (("fp32", 1e-4), ("bf16", 0.05)):
        for found in on_ranks(2, measured, tmp_path / compute, ParallelPlan(shard=2), compute):
            for name, numbers in alone.items():
                torch.testing.assert_close(found[name], numbers, rtol=tolerance, atol=tolerance)


def test_another_training_has_no_reconstructions(run: TrainState) -> None:
    task, run.task = run.task, _NotOurs()
    try:
        with pytest.raises(UserError, match="measured only for an autoencoder trained with Reconstruct"):
            CompareReconstructions(every_steps=1).on_step(run)
    finally:
        run.task = task


class _NotOurs:
    def prepare(self, batch: Batch, *, seed: int, training: bool) -> ModelInputs:
        raise AssertionError

    def losses(self, output: Tensor, prepared: ModelInputs) -> Tensor:
        raise AssertionError
