"""Stores the step cache's figures next to each video, so that a resumed run can report them."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from nemo_vfm.core.storage.files import read_json, write_json
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.diffusion.generated_videos import GeneratedVideos

_MOST_BYTES = 1 << 16


def write_cache(video: Path, batch: GeneratedVideos, index: int) -> None:
    """Write the record of one video of a batch.

    Args:
        video: file of the video.
        batch: generated batch.
        index: of the video in the batch.
    """
    record: dict[str, Json] = {"blocks": batch.num_blocks, "skipped": batch.num_skipped}
    if batch.errors:
        error = batch.errors[index]
        exact = error.psnr_db == float("inf")
        record |= {"latent_error": error.latents, "psnr_db": None if exact else error.psnr_db}
    write_json(_record(video), record)


def read_cache(video: Path) -> Json:
    """Read the record of a video; None if it was sampled without a cache."""
    return read_json(_record(video), _MOST_BYTES) if _record(video).is_file() else None


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


def _record(video: Path) -> Path:
    return video.with_suffix(".cache.json")
