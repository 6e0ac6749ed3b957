"""Encodes every kept clip in `work/`, and marks those that cannot be as failed; tries the codecs first."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from nemo_vfm.core.device import gpus
from nemo_vfm.core.log import info, warn_once
from nemo_vfm.curate.examine.examine_pipeline import GPU_SLICE, WorkContext
from nemo_vfm.curate.examine.sandbox import MediaWork, Reply
from nemo_vfm.curate.execute.work_units import Item, Lost, Step, megapixels
from nemo_vfm.curate.output.transcode import Encode, Media, Transcode
from nemo_vfm.curate.record.ledger import FileRecord
from nemo_vfm.curate.record.stage import ClipRecord, Restorer
from nemo_vfm.data.video.codecs import COSTS, NVDEC_CODECS, Decoding, check_decoding, nvdec_why_not, usable, why_not

_SEGMENT_S, _MOST_SEGMENTS = 30.0, 32


class Deciding(Protocol):
    """What encoding asks of a curation."""

    transcode: Transcode
    restore: Mapping[str, Restorer]
    decode: Decoding

    def decide(self, records: Sequence[ClipRecord]) -> None:
        """Set the fate of every clip that has not failed."""
        ...

    def ready(self) -> None:
        """Asked before anything is encoded: what it raises ends the run."""
        ...


def encode_kept(
    files: Sequence[FileRecord], records: Sequence[ClipRecord], job: Deciding, media: Media, hands: WorkContext
) -> None:
    """A clip that cannot be encoded fails, and its duplicates may come back: decide until nothing changes."""
    failed = -1
    while failed != (failed := sum(record.message is not None for record in records)):
        job.decide(records)
        encode_missing(files, job, media, hands)
    for record in records:
        if record.decision == "kept":
            fact = media.fact_of(record)
            record.width, record.height = fact["width"], fact["height"]
            record.audio, record.audio_failure = fact["audio"], fact["audio_failure"]
            record.scores |= fact["facts"]
            record.restored = tuple(fact["restored"])


def encode_missing(files: Sequence[FileRecord], job: Deciding, media: Media, hands: WorkContext) -> None:
    """Encode what is kept of these files and not there; a clip that cannot be encoded gets its message."""
    work, items = [], []
    for file in files:
        absent = [clip for clip in file.clips if clip.decision == "kept" and media.fact_of(clip) is None]
        # One worker encodes the clips that begin in one stretch of the file, whatever else of it is encoded already. A
        # long film has few stretches, since a container is read from end to end before its first frame is decoded.
        info = file.info
        stretch = max(_SEGMENT_S * info.fps, info.num_frames / _MOST_SEGMENTS) if info else float("inf")
        by_stretch: dict[int, list[ClipRecord]] = {}
        for clip in absent:
            by_stretch.setdefault(int(clip.clip.first_frame / stretch), []).append(clip)
        for missing in by_stretch.values():
            clips = [
                {"id": r.clip.id, "span": [r.clip.first_frame, r.clip.last_frame], "fps": r.fps, "picture": r.picture}
                for r in missing
            ]
            request = {
                "path": str(file.found.path.absolute()), "name": file.found.name, "source_id": file.source_id,
                "state": file.state, "clips": clips, "image": file.found.is_image,
            }  # fmt: skip
            pixels = sum(megapixels(r.clip.num_frames, r.width, r.height) for r in missing)
            items.append(Item(request, pixels, file.found.here))
            work.append((file, missing))
    if work:
        job.ready()
    encode = Encode(job.transcode, job.restore, media, job.decode)
    gpus = GPU_SLICE if job.decode == "nvdec" or job.transcode.encoder == "nvenc" else 0.0
    steps = [Step("transcode", MediaWork(encode, hands.limits, task="its encoding"), gpus=gpus)]
    total = sum(record.clip.num_frames for _, missing in work for record in missing)
    for number, replies in hands.work("transcode", total, steps, items):
        _note(*work[number], replies, media)


def _note(file: FileRecord, missing: Sequence[ClipRecord], replies: list[Reply] | Lost, media: Media) -> None:
    """Write down why clips are not encoded: each its own reason, or the one that ended the work on the file."""
    name = file.found.name
    if isinstance(replies, Lost):
        why, messages = replies.message, {}
    else:
        why = next((str(reply.fact["failed"]) for reply in replies if "failed" in reply.fact), "it was not encoded")
        messages = {reply.fact["id"]: reply.fact["message"] for reply in replies if "id" in reply.fact}
    for record in missing:
        if media.fact_of(record) is None:
            record.message = messages.get(record.clip.id) or (why if name in why else f"{name}: {why}")


def say_what_codecs_lack(transcode: Transcode, decode: Decoding) -> None:
    """Say once what is slower than it could be."""
    usable(transcode.encoder)
    check_decoding(decode)
    if gpus() and transcode.encoder == "x264":
        reason = why_not("nvenc")
        info(f"nvenc does not work ({reason}): {COSTS['nvenc']}" if reason else "encoder=nvenc would encode on the GPU")
    if gpus() and decode == "cpu":
        reason = nvdec_why_not()
        info(f"nvdec does not work ({reason}): {COSTS['nvdec']}" if reason else "decode=nvdec would decode on the GPU")


def say_what_nvdec_leaves(files: Sequence[FileRecord], decode: Decoding) -> None:
    """Say once which of these files are decoded by the CPU although NVDEC was asked for."""
    if decode == "cpu":
        return
    videos = [file.info for file in files if file.info is not None and not file.found.is_image]
    left = [info.codec for info in videos if info.codec not in NVDEC_CODECS]
    if left:
        codecs = ", ".join(sorted(set(left)))
        warn_once(f"NVDEC does not decode {codecs}: {len(left)} of {len(files)} files are decoded by the CPU")
