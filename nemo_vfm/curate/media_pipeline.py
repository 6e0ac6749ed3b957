"""Runs the passes over the media: probes and examines the source's files, then encodes the clips that are kept.

Several workers examine a long video, each a stretch of it. The shots follow from all glances in order. A shot that a
worker guessed wrong, since it began in the middle, is examined again. A video that cannot be read to its end is
examined again as a whole.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from nemo_vfm.core import progress
from nemo_vfm.core.errors import NemoVfmError
from nemo_vfm.core.log import bar, info, warn, warn_once
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.media_types import Span
from nemo_vfm.curate.examine.examine_file import (
    Examine,
    ProbeFile,
    mark_exact_duplicates,
    read_probed,
    round_scores,
    state_of,
)
from nemo_vfm.curate.examine.findings import Cache, Findings, MissingFindings
from nemo_vfm.curate.examine.sandbox import ChildLimits, ChildReply, MediaWork, keep_last
from nemo_vfm.curate.execute.work_units import Executor, LostItem, ProgressWatch, Step, StepThroughput, Worker, WorkItem
from nemo_vfm.curate.output.transcode import Encode, EncodedMedia, Transcode
from nemo_vfm.curate.record.ledger import ClipRecord, FileRecord, MediaInfo, SourceFile
from nemo_vfm.curate.record.stage import LearnedStage, Ready, Stage
from nemo_vfm.curate.split.shot_lengths import SplitsByGlances, spans_of
from nemo_vfm.data.video.codecs import COSTS, NVDEC_CODECS, Decoding, check_decoding, encoder_of, nvdec_why_not, why_not
from nemo_vfm.data.video.image_file import said_of_deep

STRETCH_S, MAX_STRETCHES = 60.0, 32  # a container is read from end to end for each
SEGMENT_S, MAX_SEGMENTS = 30.0, 32  # of a film whose clips one worker encodes
Replies = list[ChildReply] | LostItem
PROBED = 2  #: changed when a probe finds out something else about the same file
#: Ray hides GPUs from a worker that requests none. So each worker that decodes or encodes there requests a slice, and a
#: model beside eight of them requests the rest: a whole GPU would never be free.
GPU_SLICE, GPU_REST = 1 / 32, 3 / 4


@dataclass(frozen=True, slots=True)
class JudgeWork:
    """The second step of examination: the learned stages judge the frames that they asked for."""

    stages: Mapping[str, LearnedStage]  #: the learned ones, by name

    def start(self, *, isolated: bool = True) -> Worker:
        """Load every model; nothing here may crash, so nothing is isolated."""
        for stage in self.stages.values():
            stage.load()
        return self

    def do(self, item: object) -> Iterator[object]:
        """The same reply with the findings of the learned stages instead of their frames."""
        if not isinstance(item, ChildReply):
            yield item  # how far the decoding is
            return
        found: dict[str, Json] = {}
        for name, frames_THWC in item.arrays.items():
            try:
                (finding,) = self.stages[name].judge([frames_THWC])
                vector = {} if finding.vector is None else {"vector": finding.vector}
                found[name] = {"scores": round_scores(finding.scores), **vector}
            except NemoVfmError:
                raise  # weights or a package are missing: no other clip would fare better
            except ValueError as error:
                found[name] = {"message": str(error)}
        yield ChildReply({**item.fact, "found": item.fact["found"] | found}) if found else item

    def stop(self) -> None:
        """Models go with the process."""


@dataclass(slots=True)
class Film:
    """One file under examination."""

    file: FileRecord  #: of the ledger
    info: MediaInfo  #: what its container reports
    missing: MissingFindings  #: what has yet to be found out
    splitter: object  #: of the recipe
    open_jobs: int = 0  #: pieces that are not done yet
    glances: dict[int, str] = field(default_factory=dict)  #: of each stretch, by its first frame
    holes: Sequence[int] = ()  #: see `VideoInfo.holes`
    looks: dict[Span, ChildReply] = field(default_factory=dict)  #: of each span that was looked at
    end: Json = None  #: how far it could be read
    broken: bool = False  #: a stretch could not be read


@dataclass(frozen=True, slots=True)
class ExamineJob:
    """A piece of work on a film."""

    film: Film  #: all of it
    stretch: Span | None  #: its frames; None for the whole film in one piece
    spans: Sequence[Sequence[int]] | None  #: shots that are known

    @property
    def num_frames(self) -> int:
        """For the bar."""
        info, spans_s = self.film.info, self.film.file.found.spans_s
        if spans_s is not None:
            asked_s = sum(max(0.0, min(end, info.num_frames / info.fps) - start) for start, end in spans_s)
            return min(info.num_frames, round(asked_s * info.fps))
        return info.num_frames if self.stretch is None else self.stretch[1] - self.stretch[0]

    def item(self) -> WorkItem:
        """What a worker is asked."""
        file, info = self.film.file, self.film.info
        # The spans that a table asks for; None as an end is that of the video, since JSON knows no infinity.
        asked_s = [[start, None if end == inf else end] for start, end in file.found.spans_s or ()] or None
        request = {
            "path": str(file.found.path.absolute()), "name": file.found.name, "source_id": file.source_id,
            "state": file.state, "spans": self.spans, "stages": self.film.missing.stages,
            "stretch": self.stretch, "fps": info.fps, "image": file.found.is_image, "spans_s": asked_s,
        }  # fmt: skip
        # A stretch begins a little earlier, and ends with the shot that goes on behind it.
        frames = info.num_frames if self.stretch is None else 2 * self.num_frames
        return WorkItem(request, megapixels(frames, info.width, info.height), file.found.here)

    def finish(self, replies: Replies) -> "tuple[Replies | None, list[ExamineJob]]":
        """The video's replies once they are complete, and the jobs to run again for missing ones."""
        if self.stretch is None:
            return replies, []
        film = self.film
        film.open_jobs -= 1
        if isinstance(replies, LostItem) or "failed" in replies[-1].fact:
            film.broken = True
        else:
            *looks, end = replies
            if self.spans is None:
                film.glances[self.stretch[0]], film.holes = end.fact["glances"], end.fact["holes"]
                if self.stretch[1] == film.info.num_frames:
                    film.end = end.fact["end"]
            wanted = None if self.spans is None else {tuple(span) for span in self.spans}
            for reply in looks:
                seen = (reply.fact["span"][0], reply.fact["span"][1])
                if wanted is None or seen in wanted:
                    film.looks[seen] = reply
        if film.open_jobs:
            return None, []
        if film.broken:
            return None, [ExamineJob(film, None, None)]
        assert isinstance(film.splitter, SplitsByGlances)
        glances = [film.glances[first] for first in sorted(film.glances)]
        spans = spans_of(glances, film.splitter, film.info.fps, film.holes)
        absent: dict[int, list[Span]] = {}
        for span in spans:
            if span not in film.looks:
                absent.setdefault(int(span[0] / (STRETCH_S * film.info.fps)), []).append(span)
        if absent:
            jobs = [ExamineJob(film, (group[0][0], group[-1][1]), group) for group in absent.values()]
            film.open_jobs = len(jobs)
            return None, jobs
        return [*(film.looks[span] for span in spans), ChildReply({"end": film.end})], []


def jobs_of(file: FileRecord, missing: MissingFindings, examine: Examine) -> list[ExamineJob]:
    """One job a file, or several of which each takes a stretch."""
    assert file.info is not None
    film, count = Film(file, file.info, missing, examine.splitter), file.info.num_frames
    # A damaged file may have less than a frame a minute.
    length = max(1, round(max(STRETCH_S * film.info.fps, count / MAX_STRETCHES)))
    known = missing.spans is not None or file.found.spans_s is not None
    if known or count < 2 * length or not isinstance(examine.splitter, SplitsByGlances):
        return [ExamineJob(film, None, missing.spans)]
    starts = list(range(0, count - length + 1, length))
    jobs = [ExamineJob(film, stretch, None) for stretch in zip(starts, [*starts[1:], count], strict=True)]
    film.open_jobs = len(jobs)
    return jobs


@dataclass(frozen=True, slots=True)
class WorkContext:
    """The executor, its limits, and the record of its throughput."""

    executor: Executor  #: does the steps
    limits: ChildLimits  #: of children that touch media
    throughput: list[StepThroughput]  #: what each step did, in order; the report shows it

    def work(
        self, title: str, total: int, steps: Sequence[Step], items: Sequence[WorkItem], *, note: bool = False
    ) -> Iterator[tuple[int, list[ChildReply] | LostItem]]:
        """Each item's number and replies, once it is finished; shows a bar of frames, or else of items."""
        if not items:
            return
        start = time.perf_counter()
        with bar(title, total or len(items), unit="frames" if total else "") as line:
            done = 0

            def advance(frames: int) -> None:
                nonlocal done
                if total:  # else the bar counts items
                    done += frames  # what is done again after a worker died counts once more
                    progress.frames(title, min(done, total), total)
                    line.advance(frames)

            if total:
                progress.frames(title, 0, total)
            watch = ProgressWatch(advance)
            for number, parts in self.executor.run(steps, items, watch):
                yield number, parts if isinstance(parts, LostItem) else keep_last(parts)
                if not total:
                    line.advance(note=str(items[number].request["name"]) if note else None)
        for step in watch.steps:
            step.wall_s = time.perf_counter() - start
        self.throughput.extend(watch.steps)


def probe_all(found: Sequence[SourceFile], hands: WorkContext, *, max_frames: int, folder: Path) -> list[FileRecord]:
    """A record of each file; those that have not changed since they were probed last are not opened."""
    operation, known = ProbeFile(max_frames), Cache(folder)
    files = [FileRecord(one, state="" if one.identity else state_of(one.path)) for one in found]
    keys, new = {}, []
    for file in files:
        # The key of the results for this very state of a file; empty if its state is not known.
        state = file.found.identity or file.state
        key = sha256_text(f"{PROBED}\0{file.found.name}\0{state}\0{max_frames}")[:32] if state else ""
        keys[file.found.name], file.rule = key, file.found.passed_over
        if file.rule is None:
            try:
                read_probed(file, known.get(key))
            except (KeyError, TypeError, ValueError):  # never probed, or damaged
                new.append(file)
    requests = [
        {"path": str(file.found.path.absolute()), "name": file.found.name, "image": file.found.is_image} for file in new
    ]
    items = [WorkItem(request, 0.0, file.found.here) for request, file in zip(requests, new, strict=True)]
    steps = [Step("probe", MediaWork(operation, hands.limits))]
    for number, replies in hands.work("probe", 0, steps, items, note=True):
        file = new[number]
        fact = {"failed": replies.message} if isinstance(replies, LostItem) else replies[-1].fact
        read_probed(file, fact)
        if "failed" not in fact and keys[file.found.name]:
            known.put(keys[file.found.name], fact)
    mark_exact_duplicates(files)
    for file in files:
        if file.message is not None:
            warn(f"failed: {with_file_name(file, file.message)}")
    if deep := sum(file.info is not None and file.info.is_deep for file in files):
        warn(said_of_deep(deep))
    return files


def examine_all(
    files: Sequence[FileRecord], examine: Examine, findings: Findings, stages: Mapping[str, Stage], hands: WorkContext
) -> None:
    """Split and score the files that need it, and fill in the clips of all readable files."""
    readable = [file for file in files if file.message is None and file.rule is None]
    work = [(file, missing) for file in readable if not (missing := findings.missing(file)).nothing]
    if any(missing.spans is None for _, missing in work) and isinstance(examine.splitter, Ready):
        examine.splitter.ready()
    learned = {name: stage for name, stage in stages.items() if isinstance(stage, LearnedStage)}
    learned = {name: stage for name, stage in learned.items() if any(name in missing.stages for _, missing in work)}
    slices, rest = (GPU_SLICE, GPU_REST) if examine.decode == "nvdec" else (0.0, 1.0)
    steps = [Step("split and score", MediaWork(examine, hands.limits), gpus=slices)]
    if learned:
        steps.append(Step("judge", JudgeWork(learned), gpus=rest))
    jobs = [job for file, missing in work for job in jobs_of(file, missing, examine)]
    while jobs:
        items, following = [job.item() for job in jobs], list[ExamineJob]()
        total = sum(job.num_frames for job in jobs)
        for number, replies in hands.work("split and score", total, steps, items):
            film = jobs[number].film
            whole, more = jobs[number].finish(replies)
            following += more  # of videos that are examined in segments
            if whole is None:
                continue
            why: str | None
            if isinstance(whole, LostItem):
                why = f"{film.file.found.name}: {whole.message}"
            elif "failed" in whole[-1].fact:
                why = f"{film.file.found.name}: {whole[-1].fact['failed']}"
            else:
                why = findings.put(film.file, film.missing, whole)
            if why is not None:
                film.file.message = why
                warn(f"failed: {with_file_name(film.file, why)}")
        jobs = following
    paths: dict[str, tuple[Path, ...]] = {}  # of every file with the same bytes, by these
    for file in files:
        paths[file.source_id] = (*paths.get(file.source_id, ()), file.found.path)
    for file in (file for file in readable if file.message is None):
        findings.fill(file, paths[file.source_id])
        for message in sorted({clip.message for clip in file.clips if clip.message is not None}):
            warn(f"failed in part: {with_file_name(file, message)}")


def with_file_name(file: FileRecord, message: str) -> str:
    """The message with the file's name, once."""
    name = " ".join(file.found.name.split())  # as `reason_of` has it: a name must not begin a line of the log
    return message if name in message else f"{name}: {message}"


def encode_kept(
    files: Sequence[FileRecord],
    records: Sequence[ClipRecord],
    encode: Encode,
    hands: WorkContext,
    *,
    decide: Callable[[Sequence[ClipRecord]], None],
    ready: Callable[[], None],
) -> None:
    """Encode every clip that is kept, in `work/clips`, and record its size and sound.

    A clip that cannot be encoded fails, so its duplicates may be kept instead: decide again until nothing changes.

    Args:
        decide: sets the fate of every clip that has not failed.
        ready: called before anything is encoded; what it raises ends the run.
    """
    failed = -1
    while failed != (failed := sum(record.message is not None for record in records)):
        decide(records)
        encode_missing(files, encode, hands, ready)
    for record in records:
        if record.decision == "kept":
            fact = encode.media.fact_of(record)
            record.width, record.height = fact["width"], fact["height"]
            record.audio, record.audio_failure = fact["audio"], fact["audio_failure"]
            record.scores |= fact["facts"]
            record.restored = tuple(fact["restored"])


def encode_missing(files: Sequence[FileRecord], encode: Encode, hands: WorkContext, ready: Callable[[], None]) -> None:
    """Encode the kept clips of these files that are not encoded yet; one that cannot be encoded fails."""
    work, items = [], []
    for file in files:
        absent = [clip for clip in file.clips if clip.decision == "kept" and encode.media.fact_of(clip) is None]
        # One worker encodes the clips that begin in one stretch of the file, whatever else of it is encoded already. A
        # long film has few stretches, since a container is read from end to end before its first frame is decoded.
        info = file.info
        stretch = max(SEGMENT_S * info.fps, info.num_frames / MAX_SEGMENTS) if info else float("inf")
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
            items.append(WorkItem(request, pixels, file.found.here))
            work.append((file, missing))
    if work:
        ready()
    on_gpu = encode.decode == "nvdec" or encode.transcode.encoder == "nvenc"
    gpu_share = GPU_SLICE if on_gpu else 0.0
    steps = [Step("transcode", MediaWork(encode, hands.limits, task="its encoding"), gpus=gpu_share)]
    total = sum(record.clip.num_frames for _, missing in work for record in missing)
    for number, replies in hands.work("transcode", total, steps, items):
        _note(*work[number], replies, encode.media)


def _note(
    file: FileRecord, missing: Sequence[ClipRecord], replies: list[ChildReply] | LostItem, media: EncodedMedia
) -> None:
    """Record why clips are not encoded: each clip's own reason, or the one that ended the work on the file."""
    name = file.found.name
    if isinstance(replies, LostItem):
        why, messages = replies.message, {}
    else:
        why = next((str(reply.fact["failed"]) for reply in replies if "failed" in reply.fact), "it was not encoded")
        messages = {reply.fact["id"]: reply.fact["message"] for reply in replies if "id" in reply.fact}
    for record in missing:
        if media.fact_of(record) is None:
            record.message = messages.get(record.clip.id) or (why if name in why else f"{name}: {why}")


def say_what_codecs_lack(transcode: Transcode, decode: Decoding) -> None:
    """Report once which codecs could be faster."""
    from nemo_vfm.core.device import gpus  # with torch, which the children that import this file do without

    encoder_of(transcode.encoder)
    check_decoding(decode)
    if gpus() and transcode.encoder == "x264":
        reason = why_not("nvenc")
        info(f"nvenc does not work ({reason}): {COSTS['nvenc']}" if reason else "encoder=nvenc would encode on the GPU")
    if gpus() and decode == "cpu":
        reason = nvdec_why_not()
        info(f"nvdec does not work ({reason}): {COSTS['nvdec']}" if reason else "decode=nvdec would decode on the GPU")


def say_what_nvdec_leaves(files: Sequence[FileRecord], decode: Decoding) -> None:
    """Report once which of these files the CPU decodes although NVDEC was requested."""
    if decode == "cpu":
        return
    videos = [file.info for file in files if file.info is not None and not file.found.is_image]
    left = [info.codec for info in videos if info.codec not in NVDEC_CODECS]
    if left:
        codecs = ", ".join(sorted(set(left)))
        warn_once(f"NVDEC does not decode {codecs}: {len(left)} of {len(files)} files are decoded by the CPU")


def megapixels(num_frames: int, width: int, height: int) -> float:
    """The amount of work in this many frames, in 10^6 pixels; a frame below 10^6 pixels counts as 10^6."""
    return num_frames * max(1.0, width * height / 1e6)
