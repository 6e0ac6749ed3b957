# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps what the step cache did beside each video, so that a resumed run still knows it."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from nemo_vfm.core.storage.files import read_json, write_json
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.diffusion.generated_videos import GeneratedVideos

_MOST_BYTES = 1 << 16


def write_cache(video: Path, made: GeneratedVideos, place: int) -> None:
    """Write the record of one video of a batch.

    Args:
        video: its file.
        made: the batch.
        place: of the video in it.
    """
    record: dict[str, Json] = {"blocks": made.num_blocks, "skipped": made.num_skipped}
    if made.errors:
        error = made.errors[place]
        exact = error.psnr_db == float("inf")
        record |= {"latent_error": error.latents, "psnr_db": None if exact else error.psnr_db}
    write_json(_record(video), record)


def read_cache(video: Path) -> Json:
    """The record of a video; None where it was drawn without a cache."""
    return read_json(_record(video), _MOST_BYTES) if _record(video).is_file() else None


def cache_figures(videos: Sequence[Path]) -> dict[str, float]:
    """The share of blocks that was left out and, where it was measured, the mean error and the worst PSNR."""
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
