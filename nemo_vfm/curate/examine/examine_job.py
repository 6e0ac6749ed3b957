"""Divides the examination of a long video among several workers, and merges what they find.

Each examines a stretch of it. The shots follow from all glances in order. A shot that a worker guessed wrong, since
it began in the middle, is examined again. A video that cannot be read to its end is examined again as a whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.media_types import Span
from nemo_vfm.curate.examine.examine_file import Examine
from nemo_vfm.curate.examine.findings import Missing
from nemo_vfm.curate.examine.sandbox import Reply
from nemo_vfm.curate.execute.work_units import Item, Lost, megapixels
from nemo_vfm.curate.record.ledger import FileRecord
from nemo_vfm.curate.record.stage import MediaInfo
from nemo_vfm.curate.split.split_segments import SplitsByGlances, spans_of

STRETCH_S, MOST_STRETCHES = 60.0, 32  # a container is read from end to end for each
Replies = list[Reply] | Lost


@dataclass(slots=True)
class Film:
    """One file under examination.

    Args:
        file: of the ledger.
        missing: what is to be found out.
        splitter: of the recipe.
        open_jobs: pieces that are not done.
        glances: of each stretch, by its first frame.
        holes: see `VideoInfo.holes`.
        looks: of each span that was looked at.
        end: how far it could be read.
        broken: a stretch could not be read.
    """

    file: FileRecord
    missing: Missing
    splitter: object
    open_jobs: int = 0
    glances: dict[int, str] = field(default_factory=dict)
    holes: Sequence[int] = ()
    looks: dict[Span, Reply] = field(default_factory=dict)
    end: Json = None
    broken: bool = False

    @property
    def info(self) -> MediaInfo:
        """What its container says."""
        assert self.file.info is not None
        return self.file.info


@dataclass(frozen=True, slots=True)
class ExamineJob:
    """A piece of work on a film.

    Args:
        film: all of it.
        stretch: its frames; None for the whole film in one piece.
        spans: shots that are known.
    """

    film: Film
    stretch: Span | None
    spans: Sequence[Sequence[int]] | None

    @property
    def num_frames(self) -> int:
        """For the bar."""
        info, spans_s = self.film.info, self.film.file.found.spans_s
        if spans_s is not None:
            asked_s = sum(max(0.0, min(end, info.num_frames / info.fps) - start) for start, end in spans_s)
            return min(info.num_frames, round(asked_s * info.fps))
        return info.num_frames if self.stretch is None else self.stretch[1] - self.stretch[0]

    def item(self) -> Item:
        """What a worker is asked."""
        file, info = self.film.file, self.film.info
        request = {
            "path": str(file.found.path.absolute()), "name": file.found.name, "source_id": file.source_id,
            "state": file.state, "spans": self.spans, "stages": self.film.missing.stages,
            "stretch": self.stretch, "fps": info.fps, "image": file.found.is_image, "spans_s": _of_table(file),
        }  # fmt: skip
        # A stretch begins a little earlier, and ends with the shot that goes on behind it.
        frames = info.num_frames if self.stretch is None else 2 * self.num_frames
        return Item(request, megapixels(frames, info.width, info.height), file.found.here)

    def done(self, replies: Replies) -> "tuple[Replies | None, list[ExamineJob]]":
        """The video's replies once they are complete, and the jobs to run again for missing ones."""
        if self.stretch is None:
            return replies, []
        film = self.film
        film.open_jobs -= 1
        if isinstance(replies, Lost) or "failed" in replies[-1].fact:
            film.broken = True
        else:
            self._note(replies)
        if film.open_jobs:
            return None, []
        if film.broken:
            return None, [ExamineJob(film, None, None)]
        return _together(film)

    def _note(self, replies: list[Reply]) -> None:
        assert self.stretch is not None
        *looks, end = replies
        if self.spans is None:
            self.film.glances[self.stretch[0]], self.film.holes = end.fact["glances"], end.fact["holes"]
            if self.stretch[1] == self.film.info.num_frames:
                self.film.end = end.fact["end"]
        wanted = None if self.spans is None else {tuple(span) for span in self.spans}
        for reply in looks:
            span = (reply.fact["span"][0], reply.fact["span"][1])
            if wanted is None or span in wanted:
                self.film.looks[span] = reply


def jobs_of(file: FileRecord, missing: Missing, examine: Examine) -> list[ExamineJob]:
    """One job a file, or several of which each takes a stretch."""
    film = Film(file, missing, examine.splitter)
    count = film.info.num_frames
    # A damaged file may have less than a frame a minute.
    length = max(1, round(max(STRETCH_S * film.info.fps, count / MOST_STRETCHES)))
    known = missing.spans is not None or file.found.spans_s is not None
    if known or count < 2 * length or not isinstance(examine.splitter, SplitsByGlances):
        return [ExamineJob(film, None, missing.spans)]
    starts = list(range(0, count - length + 1, length))
    jobs = [ExamineJob(film, stretch, None) for stretch in zip(starts, [*starts[1:], count], strict=True)]
    film.open_jobs = len(jobs)
    return jobs


def _of_table(file: FileRecord) -> Json:
    """The spans that a table asks for; None as an end is that of the video, since JSON knows no infinity."""
    spans_s = file.found.spans_s
    return spans_s and [[start, None if end == inf else end] for start, end in spans_s]


def _together(film: Film) -> tuple[Replies | None, list[ExamineJob]]:
    """All replies in order, or jobs for the shots that nobody looked at."""
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
    return [*(film.looks[span] for span in spans), Reply({"end": film.end})], []
