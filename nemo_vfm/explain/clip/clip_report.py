"""Collects all that the run folder of a curation knows about one clip."""

from dataclasses import asdict, dataclass

import numpy as np

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.decide.score_table import Labels
from nemo_vfm.curate.record.ledger import FACTS
from nemo_vfm.explain.clip.clip_locations import Bytes, EncodedClip, OpenedShards, encodings, opened_in
from nemo_vfm.explain.clip.curation_folder import Curation
from nemo_vfm.explain.clip.rule_verdicts import RuleVerdict, value_of, verdicts

_UNITS = {
    **dict.fromkeys(("motion", "motion_peak"), "% of the diagonal/s"),
    **dict.fromkeys(("motion.global_mean", "motion.patch_min"), "of (width + height) per frame"),
    "camera.pan_x": "% of the width/s", "camera.pan_y": "% of the height/s", "camera.zoom": "growth/s",
    "camera.roll": "degrees/s", "camera.residual": "0 to 1", "camera.shake": "% of the sides/s",
    **dict.fromkeys(("luma_mean", "luma_std"), "0 to 255"), "similarity": "0 to 1",
    **dict.fromkeys(("black_ratio", "freeze_ratio"), "of its frames"),
    **dict.fromkeys(("quality.dark", "quality.bright"), "of the pixels"),
    **dict.fromkeys(("letterbox.ratio", "text.area"), "of the picture"),
}  # fmt: skip
_FAMILIES = {
    "quality.contrast.": "0 to 127.5", "quality.noise.": "luma steps", "quality.entropy.": "bits",
}  # fmt: skip
_ENDINGS = {"_s": "s", "_px": "pixels", "_fps": "frames/s"}


@dataclass(frozen=True, slots=True)
class RuleResult:
    """One score of the clip among those of all clips that did not fail."""

    name: str
    value: float | str | None  #: None where it has none
    unit: str  #: empty if there is none, or it is unknown
    among: int  #: clips that have this score
    lower: int | None  #: how many of them have less; of words, None
    equal: int  #: how many have the same, itself among them

    @property
    def percentile(self) -> float | None:
        """Percent of the clips that have less."""
        return None if self.lower is None or not self.among else 100 * self.lower / self.among


@dataclass(frozen=True, slots=True)
class SimilarClip:
    """A duplicate, and the similarity that was measured; None if unknown."""

    clip_id: str
    source: str
    first_frame: int
    last_frame: int
    likeness: float | None


@dataclass(slots=True)
class ClipReport:
    """One clip."""

    clip_id: str
    folder: str  #: of the curation
    clips: int  #: that it decided about
    source: str
    first_frame: int
    last_frame: int  #: the one after the clip's last
    start_s: float  #: of its first frame, at the file's mean frame rate
    duration_s: float
    fps: float
    width: int
    height: int
    decision: str
    rule: str | None  #: that dropped it; None where it is kept or failed
    message: str | None  #: why it failed; None where it did not
    scores: list[RuleResult]
    rules: list[RuleVerdict]
    duplicate_of: SimilarClip | None  #: the kept clip that it duplicates
    duplicates: list[SimilarClip]  #: clips that were dropped as duplicates of this one
    restored: Json  #: who mended it, and what they found; empty where nothing was mended
    caption: str
    caption_by: str  #: who wrote the caption; empty where its shard does not say
    caption_facts: Json  #: how it came to be, by names that begin with `caption_`
    bucket: str  #: its name, or why it is in none; empty where nothing says
    bytes: Bytes | None  #: where the encoded clip lies; None where there is none
    encodings: list[EncodedClip]  #: what encode steps of the same run made of it

    def to_json(self) -> Json:
        """For machines."""
        scores = [{**asdict(score), "percentile": score.percentile} for score in self.scores]
        return {**asdict(self), "scores": scores}


def make_report(curation: Curation, place: int) -> tuple[ClipReport, OpenedShards | None, list[OpenedShards]]:
    """(report, the opened shard of the encoded clip, those of its latents)."""
    clip = curation.texts("clip_id")[place]
    in_shards = opened_in(curation.folder / "shards", lambda entry: entry.key == clip)
    opened = in_shards[0] if in_shards else None
    encoded, latents = encodings(curation, clip)
    record = opened.record() if opened else {}
    first, last = curation.span(place)
    fps = curation.number("fps", place) or 0.0
    ids, keepers = curation.texts("clip_id"), curation.others["duplicate_of"]
    keeper = curation.text("duplicate_of", place)
    mended = curation.read("restored.json").get("clips")
    found = mended.get(clip) if isinstance(mended, dict) else None
    facts = {str(name): value for name, value in record.items() if str(name).startswith("caption_")}
    # As its latents say it; else, of a clip that nearly fits one, what it lacks.
    bucket = str(latents[0].entry.index.get("bucket", "")) if latents else ""
    misses = curation.read("buckets.json").get("nearest_misses")
    for miss in misses if isinstance(misses, list) and not latents else ():
        if isinstance(miss, dict) and miss.get("clip_id") == clip:
            bucket = f"none: {miss.get('reason')}; {miss.get('bucket')} is nearest and needs {miss.get('needs')}"
            break
    scores = [_rule_result(curation, name, place) for name in curation.table.columns if name not in FACTS]
    scores.sort(key=lambda one: one.value is None)  # what it has no score of comes last
    report = ClipReport(
        clip_id=clip, folder=str(curation.folder), clips=len(curation.table), source=curation.texts("source")[place],
        first_frame=first, last_frame=last, start_s=first / fps if fps else 0.0,
        duration_s=curation.number("duration_s", place) or 0.0, fps=fps,
        width=int(curation.number("width", place) or 0), height=int(curation.number("height", place) or 0),
        decision=curation.texts("decision")[place], rule=curation.text("rule", place),
        message=curation.text("message", place), scores=scores, rules=verdicts(curation, place),
        duplicate_of=_similar_clip(curation, ids.index(keeper), place) if keeper in ids else None,
        duplicates=[_similar_clip(curation, gone, gone) for gone, kept in enumerate(keepers) if kept == clip],
        restored={name: found.get(name) for name in ("restored", "facts")} if isinstance(found, dict) else {},
        caption=curation.text("caption", place) or "",
        caption_by=str(record.get("caption_by") or ""), bucket=bucket,
        caption_facts={name: value for name, value in facts.items() if name != "caption_by"},
        bytes=opened.resolve() if opened else None, encodings=encoded,
    )  # fmt: skip
    return report, opened, latents


def _rule_result(curation: Curation, name: str, place: int) -> RuleResult:
    value, column, alive = value_of(curation, name, place), curation.table.columns[name], curation.table.alive
    if isinstance(column, Labels):
        codes = column.codes[alive]
        return RuleResult(name, value, "", int((codes >= 0).sum()), None, int((codes == column.codes[place]).sum()))
    unit = _UNITS.get(name, "") or next((one for family, one in _FAMILIES.items() if name.startswith(family)), "")
    unit = unit or next((one for ending, one in _ENDINGS.items() if name.endswith(ending)), "")
    numbers = column[alive]
    numbers = numbers[~np.isnan(numbers)]
    if not isinstance(value, float):
        return RuleResult(name, None, unit, len(numbers), None, 0)
    return RuleResult(name, value, unit, len(numbers), int((numbers < value).sum()), int((numbers == value).sum()))


def _similar_clip(curation: Curation, place: int, dropped: int) -> SimilarClip:
    """A clip as its fellow's report names it, with the likeness for which the dropped one of the two went."""
    decided = next((verdict for verdict in verdicts(curation, dropped) if verdict.decided), None)
    likeness = next(iter(decided.margins), None) if decided else None
    names = curation.texts("clip_id")[place], curation.texts("source")[place]
    return SimilarClip(*names, *curation.span(place), likeness.value if likeness else None)
