"""Compares a recipe's sampling pipelines with the folder of the pretrained model that it names."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_vfm.config import BoundFactory
from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.core.types.encoders import VideoPipeline
from nemo_vfm.core.types.job import Job
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.runtime.checks.built_networks import Address
from nemo_vfm.runtime.checks.job_kinds import trains
from nemo_vfm.workflow import jobs_in

if TYPE_CHECKING:
    from nemo_vfm.diffusion.noise_schedule import NoiseSchedule
    from nemo_vfm.diffusion.video_pipeline import TextToVideo
    from nemo_vfm.train.job import Train

_KARRAS = ("EDMEulerScheduler", "FlowMatchEulerDiscreteScheduler", "UniPCMultistepScheduler")


def of_another_family(job: Job) -> Iterator[tuple[Address, str]]:
    """Yield each pipeline that is for another family than the folder's, or whose folder names none."""
    for at, pipeline in _pipelines(job):
        # After the others, since it needs torch.
        from nemo_vfm.models.convert.video.pretrained_video import TWO_NETWORKS, pretrained_video_model

        base = _base(job, pipeline)
        try:
            ours, theirs = pipeline.family, _family(base)
        except (UserError, DataError) as error:
            if base is not None and base.exists():
                yield at, str(error)
            continue
        if theirs is not None and pipeline.is_for_another(theirs):
            yield at, (f"this pipeline is for {ours}, but {base} holds a {theirs}; choose auto, which takes the "
                       f"folder's, or {theirs}")  # fmt: skip
        elif theirs in TWO_NETWORKS and trains(job):
            yield from _of_training(job, at, pipeline)
        elif theirs in TWO_NETWORKS:
            model = getattr(job, "model", None)
            if isinstance(model, BoundFactory) and model.call.target is pretrained_video_model:
                yield ("model",), ("the folder has two networks, for high and for low noise levels, but this is only "
                                   "one; use model=pretrained_experts")  # fmt: skip


def are_known(job: Job) -> bool:
    """Return whether the parts of every pipeline are known, which a folder that is not there yet may have to say."""
    try:
        return all(pipeline.objective is not None for _, pipeline in _pipelines(job))
    except (UserError, DataError):
        return False


def schedulers_that_differ(whole: Job) -> Iterator[str]:
    """Yield a sentence for each pipeline or objective that is another than the folder's own."""
    for _, job in jobs_in(whole):
        found = dict.fromkeys(_other_objective(job))
        for at, pipeline in _pipelines(job):
            base = _base(job, pipeline)
            try:
                if (theirs := _family(base)) is None or pipeline.is_for_another(theirs):
                    continue  # not there, or refused already
                from nemo_vfm.models.convert.video.pretrained_video import scheduler_in

                texts = _differences(pipeline.noise_schedule, {} if base is None else scheduler_in(base))
                found |= {f"{'.'.join(at)}: {text}": None for text in texts}
            except (UserError, DataError, OSError):
                continue
        yield from found


def _other_objective(job: Job) -> Iterator[str]:
    """Of a training that begins with the weights of a folder."""
    if not trains(job) or job.weights.start_from is None or not isinstance(path := job.weights.start_from.path, Path):
        return
    from nemo_vfm.diffusion.objective import EDM, FlowMatching

    try:
        family, objective = _family(path), getattr(job.task, "objective", None)
    except (UserError, DataError):  # refused where it is used
        return
    if family is None or not isinstance(objective, EDM | FlowMatching):
        return
    theirs: type = EDM if family.startswith("cosmos1") else FlowMatching
    if not isinstance(objective, theirs):
        yield (f"task.objective: the network of {path}, a {family}, was trained with {theirs.__name__}, but this "
               f"training has {type(objective).__name__}")  # fmt: skip


def _pipelines(job: Job) -> "list[tuple[Address, TextToVideo]]":
    """Return each pipeline of a job once, with the first address where it is used."""
    owners: list[tuple[Address, object]] = [((), job), (("task",), getattr(job, "task", None))]
    owners += [(("callbacks", name), one) for name, one in getattr(job, "callbacks", {}).items()]
    found: dict[int, tuple[Address, TextToVideo]] = {}
    for at, owner in owners:
        if isinstance(pipeline := getattr(owner, "pipeline", None), VideoPipeline):  # any other need not wait for torch
            from nemo_vfm.diffusion import video_pipeline

            if isinstance(pipeline, video_pipeline.TextToVideo):  # ours, with all its parts
                found.setdefault(id(pipeline), ((*at, "pipeline"), pipeline))
    return list(found.values())


def _base(job: Job, pipeline: "TextToVideo") -> Path | None:
    found = getattr(job, "base", None) or getattr(pipeline, "folder", None)
    return found if isinstance(found, Path) else None


def _family(base: Path | None) -> str | None:
    from nemo_vfm.models.convert.video.pretrained_video import family_in

    return None if base is None else family_in(base)


def _of_training(job: "Train", at: Address, pipeline: "TextToVideo") -> Iterator[tuple[Address, str]]:
    """Yield what is wrong with a training of one network of two; it must learn the noise levels of that network."""
    base, network = _base(job, pipeline), getattr(pipeline, "network", None)
    path = None if job.weights.start_from is None else job.weights.start_from.path
    if base is None or not hasattr(pipeline, "network"):
        return
    if network is None:
        yield at, (f"{base} has two networks, which are trained separately; add network=transformer for high noise "
                   f"levels, or network=transformer_2 with model.folder={base}/transformer_2 and "
                   f"weights.start_from={base}/transformer_2 for low ones")  # fmt: skip
    elif path in ([base, base / "transformer"] if network == "transformer_2" else [base / "transformer_2"]):
        yield ("weights", "start_from"), (f"the training is for {network} and starts from {path}; give "
                                f"weights.start_from={base / network}, and model.folder, too")  # fmt: skip


def _differences(schedule: "NoiseSchedule | None", config: Mapping[str, Json]) -> Iterator[str]:
    from nemo_vfm.diffusion.noise_schedule import FlowMatchEulerSigmas, UniPCFlowSigmas

    kind = str(config.get("_class_name"))
    if not config or schedule is None:
        return
    wanted = {UniPCFlowSigmas: ("UniPCMultistepScheduler",), FlowMatchEulerSigmas: ("FlowMatchEulerDiscreteScheduler",)}
    if kind not in wanted.get(type(schedule), _KARRAS):
        yield (f"the folder samples with {kind[:60]}, but this pipeline with {type(schedule).__name__}; another "
               f"noise_schedule and sampler may be closer")  # fmt: skip
        return
    key = "flow_shift" if isinstance(schedule, UniPCFlowSigmas) else "shift"
    theirs, ours = config.get(key), getattr(schedule, "shift", None)
    if isinstance(ours, int | float) and isinstance(theirs, int | float) and ours != theirs:
        yield (f"the folder's scheduler has {key} {theirs}, but this pipeline a shift of {ours}; set "
               f"noise_schedule.shift={theirs}, and objective.shift for training, to follow it")  # fmt: skip
