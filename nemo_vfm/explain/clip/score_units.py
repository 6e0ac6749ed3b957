"""Gives the unit of a column of scores.parquet, as in docs/reference/scores.md."""

_PER_SECOND = "% of the diagonal/s"
_UNITS = {
    "motion": _PER_SECOND,
    "motion_peak": _PER_SECOND,
    "motion.global_mean": "of (width + height) per frame",
    "motion.patch_min": "of (width + height) per frame",
    "camera.pan_x": "% of the width/s",
    "camera.pan_y": "% of the height/s",
    "camera.zoom": "growth/s",
    "camera.roll": "degrees/s",
    "camera.residual": "0 to 1",
    "camera.shake": "% of the sides/s",
    "luma_mean": "0 to 255",
    "luma_std": "0 to 255",
    "black_ratio": "of its frames",
    "freeze_ratio": "of its frames",
    "quality.dark": "of the pixels",
    "quality.bright": "of the pixels",
    "letterbox.ratio": "of the picture",
    "text.area": "of the picture",
    "similarity": "0 to 1",
}
_FAMILIES = {
    "quality.contrast.": "0 to 127.5", "quality.noise.": "luma steps", "quality.entropy.": "bits",
}  # fmt: skip
_ENDINGS = {"_s": "s", "_px": "pixels", "_fps": "frames/s"}


def unit(column: str) -> str:
    """The unit; empty where a number has none, or nobody says."""
    if column in _UNITS:
        return _UNITS[column]
    for family, found in _FAMILIES.items():
        if column.startswith(family):
            return found
    return next((found for ending, found in _ENDINGS.items() if column.endswith(ending)), "")
