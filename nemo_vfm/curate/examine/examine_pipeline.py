"""Probes and examines the source's files; yields a record of each, with its clips and all findings about them."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_vfm.core import progress
from nemo_vfm.core.log import Bar, bar, warn
from nemo_vfm.core.storage.files import sha256_text
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.examine.examine_file import Examine
from nemo_vfm.curate.examine.examine_job import ExamineJob, jobs_of
from nemo_vfm.curate.examine.findings import Findings, Missing
from nemo_vfm.curate.examine.findings_cache import Cache
from nemo_vfm.curate.examine.media_worker import MediaWork, valid
from nemo_vfm.curate.examine.model_worker import JudgeWork
from nemo_vfm.curate.examine.probe import Probe, mark_exact_duplicates, read_probed
from nemo_vfm.curate.examine.sandbox import Limits, Reply
from nemo_vfm.curate.execute.work_units import Executor, Item, Lost, Step, Throughput, Watch
from nemo_vfm.curate.record.ledger import FileRecord
from nemo_vfm.curate.record.source_guard import state_of
from nemo_vfm.curate.record.stage import Learned, Ready, SourceFile, Stage
from nemo_vfm.data.video.image_file import said_of_deep

PROBED = 2  #: changed when a probe finds out something else about the same file
#: Ray hides GPUs from a worker that asks for none. So each that decodes or encodes there asks for a slice, and a model
#: beside eight of them for the rest: a whole one would never be free.
GPU_SLICE, GPU_REST = 1 / 32, 3 / 4


@dataclass(frozen=True, slots=True)
class WorkContext:
    """Who works, within which limits, and what is written about it.

    Args:
        executor: does the steps.
        limits: of children that touch media.
        throughput: what each step did, in order; the report shows it.
    """

    executor: Executor
    limits: Limits
    throughput: list[Throughput]

    def work(
        self, title: str, total: int, steps: Sequence[Step], items: Sequence[Item], *, note: bool = False
    ) -> Iterator[tuple[int, list[Reply] | Lost]]:
        """Of each item, as it is finished, its number and its replies; and a bar of frames, else of items."""
        if not items:
            return
        start = time.perf_counter()
        with bar(title, total or len(items), unit="frames" if total else "") as line:
            watch = Watch(_Frames(title, total, line).advance) if total else Watch()
            for number, parts in self.executor.run(steps, items, watch):
                yield number, parts if isinstance(parts, Lost) else valid(parts)
                if not total:
                    line.advance(note=str(items[number].request["name"]) if note else None)
        for step in watch.steps:
            step.wall_s = time.perf_counter() - start
        self.throughput.extend(watch.steps)


class _Frames:
    """Tells a bar and the run's status how many frames are done; what is done again after a death counts once more.

    Args:
        title: what is done to them.
        total: frames there are.
        line: the bar.
    """

    def __init__(self, title: str, total: int, line: Bar) -> None:
        self._title, self._total, self._line, self._done = title, total, line, 0
        progress.frames(title, 0, total)

    def advance(self, frames: int) -> None:
        """So many more."""
        self._done += frames
        progress.frames(self._title, min(self._done, self._total), self._total)
        self._line.advance(frames)


def probe_all(found: Sequence[SourceFile], hands: WorkContext, *, max_frames: int, folder: Path) -> list[FileRecord]:
    """A record of each file; those that have not changed since they were probed last are not opened.

    Raises:
        StoreUnreachable: the store of the files does not answer.
    """
    operation, known = Probe(max_frames), Cache(folder)
    files = [FileRecord(one, state="" if one.identity else state_of(one.path)) for one in found]
    keys = {file.found.name: _probe_key(file, max_frames) for file in files}
    for file in files:
        file.rule = file.found.passed_over
    new = [file for file in files if file.rule is None and not _read(file, known.get(keys[file.found.name]))]
    items = [Item(_probing(file), 0.0, file.found.here) for file in new]
    steps = [Step("probe", MediaWork(operation, hands.limits))]
    for number, replies in hands.work("probe", 0, steps, items, note=True):
        file = new[number]
        fact = {"failed": replies.message} if isinstance(replies, Lost) else replies[-1].fact
        read_probed(file, fact)
        if "failed" not in fact and keys[file.found.name]:
            known.put(keys[file.found.name], fact)
    mark_exact_duplicates(files)
    for file in files:
        if file.message is not None:
            warn(f"failed: {named(file, file.message)}")
    if deep := sum(file.info is not None and file.info.is_deep for file in files):
        warn(said_of_deep(deep))
    return files


def _probing(file: FileRecord) -> Json:
    return {"path": str(file.found.path.absolute()), "name": file.found.name, "image": file.found.is_image}


def _probe_key(file: FileRecord, max_frames: int) -> str:
    """A name for what was found out about this very state of a file; empty where its state cannot be told."""
    identity = file.found.identity or file.state
    return sha256_text(f"{PROBED}\0{file.found.name}\0{identity}\0{max_frames}")[:32] if identity else ""


def _read(file: FileRecord, known: Json) -> bool:
    if known is None:
        return False
    try:
        read_probed(file, known)
    except (KeyError, TypeError, ValueError):
        return False
    return True


def examine_all(
    files: Sequence[FileRecord], examine: Examine, findings: Findings, stages: Mapping[str, Stage], hands: WorkContext
) -> None:
    """Split and score what is new, and fill in the clips of all readable files."""
    readable = [file for file in files if file.message is None and file.rule is None]
    work = [(file, missing) for file in readable if not (missing := findings.missing(file)).nothing]
    if any(missing.spans is None for _, missing in work) and isinstance(examine.splitter, Ready):
        examine.splitter.ready()
    learned = {name: stage for name, stage in stages.items() if isinstance(stage, Learned)}
    learned = {name: stage for name, stage in learned.items() if any(name in missing.stages for _, missing in work)}
    slices, rest = (GPU_SLICE, GPU_REST) if examine.decode == "nvdec" else (0.0, 1.0)
    steps = [Step("split and score", MediaWork(examine, hands.limits), gpus=slices)]
    if learned:
        steps.append(Step("judge", JudgeWork(learned), gpus=rest))
    jobs = [job for file, missing in work for job in jobs_of(file, missing, examine)]
    while jobs:
        jobs = _examined(jobs, steps, findings, hands)
    paths = _paths(files)
    for file in (file for file in readable if file.message is None):
        findings.fill(file, paths[file.source_id])
        for message in sorted({clip.message for clip in file.clips if clip.message is not None}):
            warn(f"failed in part: {named(file, message)}")


def _examined(
    jobs: Sequence[ExamineJob], steps: Sequence[Step], findings: Findings, hands: WorkContext
) -> list[ExamineJob]:
    """Run the jobs and store their results; return the follow-up jobs of videos that were examined in segments."""
    items, left = [job.item() for job in jobs], []
    for number, replies in hands.work("split and score", sum(job.num_frames for job in jobs), steps, items):
        whole, more = jobs[number].done(replies)
        left += more
        if whole is None:
            continue
        film = jobs[number].film
        message = _keep(film.file, film.missing, whole, findings)
        if message is not None:
            film.file.message = message
            warn(f"failed: {named(film.file, message)}")
    return left


def _keep(file: FileRecord, missing: Missing, replies: list[Reply] | Lost, findings: Findings) -> str | None:
    """Keep an examination; a sentence where it failed."""
    if isinstance(replies, Lost):
        return f"{file.found.name}: {replies.message}"
    if "failed" in replies[-1].fact:
        return f"{file.found.name}: {replies[-1].fact['failed']}"
    return findings.put(file, missing, replies)


def _paths(files: Sequence[FileRecord]) -> dict[str, tuple[Path, ...]]:
    """Every file with the same bytes, by these."""
    paths: dict[str, tuple[Path, ...]] = {}
    for file in files:
        paths[file.source_id] = (*paths.get(file.source_id, ()), file.found.path)
    return paths


def named(file: FileRecord, message: str) -> str:
    """The message with the file's name, once."""
    name = " ".join(file.found.name.split())  # as `reason_of` has it: a name must not begin a line of the log
    return message if name in message else f"{name}: {message}"
