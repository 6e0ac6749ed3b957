"""Finds networks that begin with an image where nothing gives them one: data, previews, prompts."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nemo_vfm.runtime.checks.built_networks import Address
from nemo_vfm.runtime.checks.job_kinds import samples

if TYPE_CHECKING:
    from nemo_vfm.train.job import Train

Misfit = tuple[Address, str]


def without_pixels(job: "Train", sources: Iterator[tuple[Any, Address]]) -> Iterator[Misfit]:
    """Sources of latents alone, where the network's given frames are encoded from pixels."""
    from nemo_vfm.diffusion.conditioning.in_channels import GivenInChannels

    if isinstance(getattr(job.task, "frame_conditioning", None), GivenInChannels):
        from nemo_vfm.data.sources.cached_latents import gives_latents

        if (at := next((at for data, at in sources if gives_latents(data)), None)) is not None:
            yield at, ("this network encodes given frames from pixels, but this data yields cached latents; "
                           "use videos (data=folder), or shards of clips with buckets")  # fmt: skip


def without_image(user: Any, at: Address) -> Iterator[Misfit]:
    """Of a job or callback that draws videos: none where its network needs an image, or one that it cannot take.

    A network whose frames are given in time can draw without them. A training that always gives some does not learn to.
    """
    from nemo_vfm.diffusion.conditioning.in_channels import GivenInChannels
    from nemo_vfm.diffusion.conditioning.in_time import GivenInTime

    if not hasattr(user, "pipeline"):
        return
    conditioning, source, key = user.pipeline.frame_conditioning, user, "given"
    if samples(user):
        source, key = user.prompts, "prompts.given"
    given, address = getattr(source, "given", ()), (*at, key.partition(".")[0])
    if given and conditioning is None:
        yield address, "first frames are given, but this pipeline's network takes none; set its frame_conditioning"
    if given or getattr(conditioning, "none_given", 1) > 0 or not type(source).__module__.startswith("nemo_vfm."):
        return
    if isinstance(conditioning, GivenInChannels):
        yield address, (f"this network starts from an image, but the samples have none; set {key} to an "
                        f"image or clip for each prompt, or to one for all")  # fmt: skip
    if isinstance(conditioning, GivenInTime) and conditioning.least.count and not samples(user) and user.num_frames > 1:
        yield address, (f"every training sample starts with given frames, but the samples here have none, which the "
                        f"model does not learn; set {key} to an image or clip for each prompt, or to one for all. "
                        f"To learn from text alone, too, name the pipeline, task.pipeline={user.pipeline.family}, and "
                        f"set its frame_conditioning.none_given above 0")  # fmt: skip
