"""Builds the network for sampling, with weights from a checkpoint or pretrained folder, and adapters."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from nemo_vfm.core import log
from nemo_vfm.core.device import device
from nemo_vfm.core.errors import NemoVfmError, UserError
from nemo_vfm.core.fp8 import Fp8
from nemo_vfm.core.seed import generator
from nemo_vfm.core.storage.uri import Place
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import DevicePlan
from nemo_vfm.models.adapters.load_adapters import AdapterFile, AttachedAdapter, attach_adapters, fill_adapters
from nemo_vfm.models.convert.video.pretrained_video import load_pretrained
from nemo_vfm.models.convert.video.transformer_folder import transformer_in
from nemo_vfm.models.noise_experts import NoiseExperts
from nemo_vfm.parallel.apply.build_model import load_weights_into
from nemo_vfm.parallel.apply.local_shard import copy_own, whole
from nemo_vfm.parallel.checkpoint.checkpoint import weights_of
from nemo_vfm.parallel.checkpoint.checkpoint_ranks import ALONE, joined
from nemo_vfm.parallel.checkpoint.checkpoint_store import opened
from nemo_vfm.parallel.engine.inference_model import SamplingRanks, build_for_inference, require_divisible
from nemo_vfm.parallel.plan.adapter_split import set_apart
from nemo_vfm.parallel.plan.plan import ParallelPlan
from nemo_vfm.parallel.plan.sampling_plan import SamplingPlan
from nemo_vfm.parallel.plan.static_memory import on_meta, weight_bytes


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
        model = build_for_inference(
            self.model, seed, ranks, lambda built: attached.extend(self._attach(built)),
            init_weights=self.checkpoint is None, fp8=self.fp8,
        )  # fmt: skip
        with set_apart(model):
            self._load(model, seed, ranks)
        fill_adapters(attached)
        return self._place(model, ranks, offload=offload)

    def _attach(self, model: nn.Module) -> list[AttachedAdapter]:
        for name, file in self.adapters.items():
            if (objection := file.objection(to_two=isinstance(model, NoiseExperts))) is not None:
                raise UserError(f"adapters.{name}: {objection}")
        return attach_adapters(model, self.adapters)

    def _load(self, model: nn.Module, seed: int, ranks: SamplingRanks) -> None:
        if isinstance(self.checkpoint, Path) and transformer_in(self.checkpoint) is not None:
            load_pretrained(model, self.checkpoint)
        elif self.checkpoint is not None:
            with opened(self.checkpoint, ALONE if ranks.mesh is None else joined()) as found:
                load_weights_into(model, weights_of(found.saved, self.weights))
        else:
            _randomize_zeros(model, seed)

    def _place(self, model: nn.Module, ranks: SamplingRanks, *, offload: bool) -> nn.Module:
        if not offload:
            return model if ranks.mesh is not None else model.to(device())
        if not ranks.has_plain_weights:
            log.warn("pipeline.offload leaves the network on the device, because its weights are split over ranks; "
                     "text encoder and codec are offloaded")  # fmt: skip
        elif isinstance(model, NoiseExperts):
            model.keep_one_on_device()
        return model.to("cpu") if ranks.has_plain_weights else model


def _randomize_zeros(model: nn.Module, seed: int) -> None:
    """Replace zero matrices by noise, so that untrained outputs are not constant."""
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and not whole(parameter.detach()).any():
            noise = torch.randn(parameter.shape, generator=generator(seed, "untrained", name))
            copy_own(parameter, noise / parameter.shape[1] ** 0.5)


def sampling_plan_for(model: Factory[[], nn.Module], plan: SamplingPlan, num_gpus: int) -> DevicePlan:
    """Describe how sampling would use a number of GPUs, with the bytes of weights on each.

    Args:
        model: builds the network; its size is unknown if its folder is missing.
        plan: the parallel degrees.
        num_gpus: number of available GPUs.
    """
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
