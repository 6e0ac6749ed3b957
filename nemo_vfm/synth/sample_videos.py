"""Samples one mp4 per prompt with a trained model and writes a grid of all; a killed run resumes."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Literal, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import nn

from nemo_vfm.core import log
from nemo_vfm.core.bounds import MAX_FRAMES, MAX_SIDE_PX, frame_rate, require_between
from nemo_vfm.core.device import device
from nemo_vfm.core.errors import NemoVfmError, UserError
from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.core.frame_count import PixelFrames
from nemo_vfm.core.optional import GIVEN, needs_gpu, needs_packages
from nemo_vfm.core.seed import generator
from nemo_vfm.core.storage.files import atomic_path, read_json, write_json
from nemo_vfm.core.storage.uri import Place, place
from nemo_vfm.core.types.encoders import Family
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.held_weights import HELD, held_below
from nemo_vfm.core.types.job import DevicePlan, JobShard, Needs, Outcome, Run, makes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.video.decode import read_all
from nemo_vfm.data.video.encode import encode_mp4
from nemo_vfm.data.video.fit_to_bucket import given_frames
from nemo_vfm.data.video.video_grid import write_grid
from nemo_vfm.diffusion.generated_videos import GeneratedVideos, VideoRequest
from nemo_vfm.diffusion.video_pipeline import TextToVideo
from nemo_vfm.models.adapters.load_adapters import AdapterFile, AttachedAdapter, attach_adapters, fill_adapters
from nemo_vfm.models.convert.video.pretrained_video import load_pretrained
from nemo_vfm.models.convert.video.random_pipeline import prepare_base
from nemo_vfm.models.convert.video.transformer_folder import transformer_in
from nemo_vfm.models.noise_experts import NoiseExperts
from nemo_vfm.parallel.apply.local_shard import copy_own, full_tensor
from nemo_vfm.parallel.checkpoint.checkpoint import weights_of
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import ALONE, gather_group
from nemo_vfm.parallel.checkpoint.checkpoint_reader import fill
from nemo_vfm.parallel.checkpoint.checkpoint_store import open_checkpoint
from nemo_vfm.parallel.engine.inference_model import (
    SamplingRanks,
    build_for_inference,
    join_sampling,
    require_divisible,
)
from nemo_vfm.parallel.plan.adapter_split import set_apart
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sampling_plan import SamplingPlan
from nemo_vfm.parallel.plan.static_memory import on_meta, weight_bytes
from nemo_vfm.parallel.ranks.process_group import everyone_says
from nemo_vfm.synth.prompts import PromptList, Prompts, VideoPrompt

_MAX_BYTES = 1 << 16
_Video: TypeAlias = tuple[Path, VideoPrompt]  # where it is written, and what it shows
_RECORD = ".cache.json"  # ending of what is written beside a video that was sampled with a cache


@needs_gpu()
@needs_packages("diffusers", "transformers", where={"random_base": GIVEN})
@makes("samples", "samples.json", "grid.mp4", "grid.png")
class Sample:
    """Samples one video per prompt.

    Args:
        model: builds the model; the same node as in training.
        checkpoint: a checkpoint, or a folder of checkpoints (the newest complete one is used), local or in an object
            store; or a diffusers folder of a pretrained video model. None uses untrained weights from the run's seed,
            as a baseline. Matrices initialised to zero are then randomised, since an all-zero output would be a
            uniform grey and no useful baseline.
        weights: the moving average (ema) or the raw weights (model); a pretrained folder has only one set.
        pipeline: turns the model's outputs into pixels.
        prompts: what to generate; a list is of texts, as in a `PromptList`.
        num_frames: frames of a video.
        height_px: height of a video.
        width_px: width of a video.
        fps: frames per second.
        batch_size: videos sampled at once; changes the speed, not the videos.
        given_frames: number of frames, from the end of a prompt's clip, that the video continues; 1 for an image.
        base: folder of the pretrained pipeline, to which other keys of the recipe refer as ${base}.
        random_base: family of the tiny random pipeline that is written to `base` if that is inside the run folder, as
            under `--overlay smoke`, to try a recipe without weights.
        adapters: low-rank adapters under names that you choose; their contributions add up.
        parallel: number of devices and how they share the work.
        fp8: the network's large linears compute in FP8, with `attention` that, too; None leaves them.
    """

    def __init__(
        self, *, model: Factory[[], nn.Module], checkpoint: Place | None, weights: Literal["ema", "model"] = "ema",
        pipeline: TextToVideo, prompts: Prompts | Sequence[str], num_frames: int, height_px: int, width_px: int,
        fps: float, batch_size: int = 8, given_frames: PixelFrames = PixelFrames(1), base: Path | None = None,
        random_base: Family | None = None, adapters: Mapping[str, AdapterFile] | None = None,
        parallel: SamplingPlan = SamplingPlan(), fp8: Fp8 | None = None,
    ) -> None:  # fmt: skip
        require_between(1, MAX_FRAMES, num_frames=num_frames, batch_size=batch_size)
        require_between(1, MAX_SIDE_PX, height_px=height_px, width_px=width_px)
        require_between(1, num_frames, given_frames=given_frames.count)
        self.model, self.weights = model, weights
        self.checkpoint = None if checkpoint is None else place(checkpoint)
        self.pipeline, self.batch_size = pipeline, batch_size
        self.prompts = prompts if isinstance(prompts, Prompts) else PromptList(texts=prompts)
        self.num_frames, self.height_px, self.width_px, self.fps = num_frames, height_px, width_px, frame_rate(fps)
        self.given_frames, self.base, self.adapters = given_frames, base, dict(adapters or {})
        self.random_base: Family | None = random_base
        self.parallel, self.fp8 = parallel, fp8
        if fp8 is not None and fp8.recipe == "delayed":
            raise ValueError(
                "delayed scaling needs a history, which sampling does not have; use recipe: current or rowwise"
            )
        if fp8 is not None and fp8.attention and parallel.context > 1:
            raise ValueError("attention in FP8 is not computed over context ranks; set parallel.context to 1, or "
                             "fp8.attention to false")  # fmt: skip
        if parallel.guidance > 1 and not pipeline.is_guided():
            raise ValueError("parallel.guidance = 2 computes the unconditional estimate on a second device, but "
                             "guidance scale 1 does not use it; set parallel.guidance to 1")  # fmt: skip

    def run(self, run: Run) -> Outcome:
        """Sample the missing videos, then write the grid and the list."""
        prepare_base(self.base, self.random_base, run.folder)
        ranks = join_sampling(self.parallel)
        prompts, folder = self.prompts.prompts(), run.folder / "samples"
        folder.mkdir(parents=True, exist_ok=True)
        # Rank 0's list counts, since ranks may see a shared disk differently but must agree.
        files = [folder / f"{i:03d}.mp4" for i in range(len(prompts))]
        own = [i for i, file in enumerate(files) if not file.is_file()]
        missing: list[int] = json.loads(everyone_says(json.dumps(own))[0])
        if missing:
            self._sample([(files[i], prompts[i]) for i in missing], run.seed, ranks)
        everyone_says("sampled")
        if ranks.rank == 0:
            if unseen := [file for file in files if not file.is_file()]:
                raise UserError(f"rank 0 cannot see {unseen[0]}, which another rank wrote; run_dir must be on a disk "
                                f"that all ranks share")  # fmt: skip
            write_grid(run.folder / "grid", np.stack([read_all(file) for file in files]), self.fps)
            entries: list[Json] = []
            for i, (file, prompt) in enumerate(zip(files, prompts, strict=True)):
                entry = {"index": i, "prompt": prompt.text, "file": str(file.relative_to(run.folder)), "seed": run.seed,
                         "attributes": asdict(prompt)["attributes"]}  # fmt: skip
                entry |= {"given": str(prompt.given)} if prompt.given else {}
                entry |= {} if self.pipeline.step_cache is None else {"step_cache": read_cache(file)}
                entries.append(entry)
            write_json(run.folder / "samples.json", entries)
        summary = f"sampled {len(missing)} of {len(prompts)} videos into {folder}"
        figures = {} if self.pipeline.step_cache is None else cache_figures(files)
        return Outcome(summary, {"videos": len(prompts), **figures})

    def require(self, num_ranks: int) -> None:
        """See `MultiRankJob`."""
        self.parallel.require(num_ranks)

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        """See `HasNeeds`."""
        plan = None if num_gpus is None else sampling_plan_for(self.model, self.parallel, num_gpus)
        if plan is not None and not self.pipeline.offload:  # else they wait in host memory for the network's place
            held = held_below({"pipeline": self.pipeline})
            beside = {HELD: held.num_bytes} if held.weights else {}
            plan = replace(plan, state_bytes={**plan.state_bytes, **beside}, notes=(*plan.notes, *held.notes()))
        return Needs(ranks=self.parallel.world, degrees=self.parallel.layout().degrees(), rounds=1, plan=plan)

    def run_part(self, run: Run, part: JobShard) -> Outcome:
        """See `ShardedJob`: samples every `part.count`-th batch, since a video may depend on its batch.

        Raises:
            UserError: the recipe needs several devices, but a part is one process.
        """
        if self.parallel.world > 1:
            raise UserError(f"a part is one process, but parallel needs {self.parallel.world} devices "
                            f"({self.parallel}); run without --part, or set parallel: {{}}")  # fmt: skip
        prepare_base(self.base, self.random_base, run.folder)
        folder = run.folder / "samples"
        folder.mkdir(parents=True, exist_ok=True)
        every = [(folder / f"{i:03d}.mp4", prompt) for i, prompt in enumerate(self.prompts.prompts())]
        groups = list(_groups(every, self.batch_size))[part.number :: part.count]
        missing = [(file, prompt) for group in groups for file, prompt in group if not file.is_file()]
        if missing:
            self._sample(missing, run.seed, SamplingRanks())
        return Outcome(
            f"sampled {len(missing)} videos into {folder}", {"videos": len(missing)}, did_nothing=not missing
        )

    def _sample(self, missing: Sequence[_Video], seed: int, ranks: SamplingRanks) -> None:
        """Distribute batches round-robin over the data-parallel groups."""
        source = SamplingModel(self.model, self.checkpoint, self.weights, self.adapters, self.fp8)
        model = source.build(seed, ranks, offload=self.pipeline.offload)
        groups, group = list(_groups(missing, self.batch_size)), ranks.data_rank
        with log.bar("sampling", len(missing), unit="videos") as line:
            for first in range(0, len(groups), ranks.plan.data):
                together = groups[first : first + ranks.plan.data]
                if group < len(together):
                    self._write(together[group], self._generate(model, together[group], seed, ranks))
                elif ranks.plan.shard > 1:  # FSDP ranks must run forward equally often
                    self._generate(model, together[-1], seed, ranks)
                line.advance(sum(map(len, together)), together[-1][-1][1].text)

    def _generate(
        self, model: nn.Module, group: Sequence[_Video], seed: int, ranks: SamplingRanks
    ) -> GeneratedVideos | None:  # fmt: skip
        given = [None if prompt.given is None else torch.from_numpy(given_frames(
                     prompt.given, self.given_frames, width=self.width_px, height=self.height_px))
                 for _, prompt in group]  # fmt: skip
        request = VideoRequest(
            prompts=[prompt.text for _, prompt in group], num_frames=self.num_frames, height=self.height_px,
            width=self.width_px, fps=self.fps, seed=seed, given=given,
        )  # fmt: skip
        return self.pipeline.make(model, request, ranks, device())

    def _write(self, group: Sequence[_Video], videos: GeneratedVideos | None) -> None:
        if videos is None:
            return
        for number, ((file, _), video_THWC) in enumerate(zip(group, videos.pixels_BTHWC.numpy(), strict=True)):
            with atomic_path(file.with_suffix(".jpg")) as path:  # the report's poster
                Image.fromarray(video_THWC[len(video_THWC) // 2]).save(path, quality=90)
            if self.pipeline.step_cache is not None:
                record: dict[str, Json] = {"blocks": videos.num_blocks, "skipped": videos.num_skipped}
                if videos.errors:
                    error = videos.errors[number]
                    exact = error.psnr_db == float("inf")
                    record |= {"latent_error": error.latents, "psnr_db": None if exact else error.psnr_db}
                write_json(file.with_suffix(_RECORD), record)
            with atomic_path(file) as path:  # last: it marks the video as complete
                encode_mp4(path, video_THWC, self.fps, crf=10)


def _groups(items: Sequence[_Video], size: int) -> Iterator[Sequence[_Video]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def read_cache(video: Path) -> Json:
    """Read the record of a video; None if it was sampled without a cache."""
    record = video.with_suffix(_RECORD)
    return read_json(record, _MAX_BYTES) if record.is_file() else None


def cache_figures(videos: Sequence[Path]) -> dict[str, float]:
    """Compute the fraction of skipped blocks and, if measured, the mean error and the worst PSNR."""
    records = [record for video in videos if (record := read_cache(video)) is not None]
    if not records:
        return {}
    found = {"skipped_blocks": sum(one["skipped"] for one in records) / max(1, sum(one["blocks"] for one in records))}
    if errors := [one["latent_error"] for one in records if "latent_error" in one]:
        found["cache_latent_error"] = fmean(errors)
    if decibels := [one["psnr_db"] for one in records if one.get("psnr_db") is not None]:
        found["cache_psnr_db"] = min(decibels)
    return found


@dataclass(frozen=True, slots=True)
class SamplingModel:
    """A network and the source of its weights; see `Sample` for the arguments."""

    model: Factory[[], nn.Module]
    checkpoint: Place | None
    weights: Literal["ema", "model"]
    adapters: Mapping[str, AdapterFile]
    fp8: Fp8 | None = None

    def build(self, seed: int, ranks: SamplingRanks, *, offload: bool) -> nn.Module:
        """Build the network, on the device or, with `offload`, in host memory; every rank must call it.

        Raises:
            UserError, DataError: weights or adapters are missing, damaged or for another model, or the plan does not
                fit the model.
        """
        attached: list[AttachedAdapter] = []

        def attach(built: nn.Module) -> None:
            for name, file in self.adapters.items():
                if (objection := file.objection(to_two=isinstance(built, NoiseExperts))) is not None:
                    raise UserError(f"adapters.{name}: {objection}")
            attached.extend(attach_adapters(built, self.adapters))

        model = build_for_inference(
            self.model, seed, ranks, attach, init_weights=self.checkpoint is None, fp8=self.fp8,
        )  # fmt: skip
        with set_apart(model):
            if isinstance(self.checkpoint, Path) and transformer_in(self.checkpoint) is not None:
                load_pretrained(model, self.checkpoint)
            elif self.checkpoint is not None:
                with open_checkpoint(self.checkpoint, ALONE if ranks.mesh is None else gather_group()) as found:
                    fill(model.state_dict(), weights_of(found.saved, self.weights))
            else:
                # Replace zero matrices by noise, so that untrained outputs are not constant.
                for name, parameter in model.named_parameters():
                    if parameter.ndim > 1 and not full_tensor(parameter.detach()).any():
                        noise = torch.randn(parameter.shape, generator=generator(seed, "untrained", name))
                        copy_own(parameter, noise / parameter.shape[1] ** 0.5)
        fill_adapters(attached)
        if not offload:
            return model if ranks.mesh is not None else model.to(device())
        if not ranks.has_plain_weights:
            log.warn("pipeline.offload leaves the network on the device, because its weights are split over ranks; "
                     "text encoder and codec are offloaded")  # fmt: skip
        elif isinstance(model, NoiseExperts):
            model.one_on_device = True
        return model.to("cpu") if ranks.has_plain_weights else model


def sampling_plan_for(model: Factory[[], nn.Module], plan: SamplingPlan, num_gpus: int) -> DevicePlan:
    """Describe how sampling would use a number of GPUs, with the bytes of weights on each."""
    notes = []
    if (idle := num_gpus - plan.world) > 0:
        notes.append(f"this recipe samples on {plan}, so {idle} of {num_gpus} GPUs would be idle")
    elif idle < 0:
        notes.append(f"the plan is for {plan.world} devices ({plan}), but there are {num_gpus}, so it would not start")
    try:
        built = on_meta(model)
    except NemoVfmError:
        notes.append("the model's size is unknown, because the folder that describes it cannot be read yet")
        return DevicePlan(min(plan.world, num_gpus), 0, {}, tuple(notes))
    try:
        require_divisible(built, plan.layout())
    except UserError as error:
        notes.append(f"it would not start: {error}")
    count = sum(parameter.numel() for parameter in built.parameters())
    layout = plan.layout() if plan.is_sharded else ParallelPlan(tensor=plan.tensor, sequence=plan.sequence)
    return DevicePlan(min(plan.world, num_gpus), count, {"weights": weight_bytes(built, layout)}, tuple(notes))
