# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""A folder of videos in; clip shards, a table of scores, rules and a ledger that adds up out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nemo_vfm.core.errors import DataError, NothingKept, StoreDenied
from nemo_vfm.core.files import read_json, sha256_text, write_json
from nemo_vfm.core.log import bar, info, warn
from nemo_vfm.core.place import Address
from nemo_vfm.core.types import Json, Outcome, Run
from nemo_vfm.curate.cache import Cache, fingerprint
from nemo_vfm.curate.decide.check import check_rules
from nemo_vfm.curate.decide.fate import add_likeness, decide
from nemo_vfm.curate.decide.rule import Rule
from nemo_vfm.curate.examine import Examiner, num_frames_walked, to_record
from nemo_vfm.curate.execute import ordered
from nemo_vfm.curate.ledger import FileRecord, Ledger, count
from nemo_vfm.curate.probe import mark_exact_duplicates, probe, reason_of
from nemo_vfm.curate.stage import Captioner, ClipRecord, Fetching, Source, Splitter, Stage
from nemo_vfm.curate.transcode import Transcode
from nemo_vfm.curate.write import remove_others, remove_unfinished, replace_folder, write_scores, write_shards
from nemo_vfm.data.shard_upload import upload_shards


class Curate:
    """Cuts videos into clips, scores all of them, keeps those that no rule drops, and says what became of each.

    Order of work: probe, split, score, decide, transcode what is kept, caption, write. Work on a file is kept in
    `work/` and used again after a kill, and when only rules or captions change.

    Args:
        source: where the videos come from.
        split: cuts a video into shots.
        stages: what is measured of every clip, by name.
        rules: what is dropped, by name; the first broken rule, in this order, is the one that is named.
        captions: who says what a clip shows, by name; the first that has something to say is believed.
        transcode: how kept clips are encoded.
        samples_per_shard: clips a shard.
        max_frames: a longer file is refused, as a failure.
        workers: files at work at once; None takes one a core. Results do not depend on it.
        copy_to: folder of an object store where the finished clip shards go as well; None keeps them here alone.
    """

    def __init__(
        self,
        *,
        source: Source,
        split: Splitter,
        stages: Mapping[str, Stage],
        rules: Mapping[str, Rule],
        captions: Mapping[str, Captioner],
        transcode: Transcode,
        samples_per_shard: int = 512,
        max_frames: int = 2_000_000,
        workers: int | None = None,
        copy_to: Address | None = None,
    ) -> None:
        for name, value in (("samples_per_shard", samples_per_shard), ("workers", workers)):
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}, but it must be at least 1")
        check_rules(stages, rules)
        self.source, self.splitter, self.stages, self.rules = source, split, stages, rules
        self.captions, self.transcode = captions, transcode
        self.samples_per_shard = samples_per_shard
        self.max_frames, self.workers, self.copy_to = max_frames, workers, copy_to

    def run(self, run: Run) -> Outcome:
        """Do the work; the second time it does only what is missing.

        Raises:
            UserError: the source holds no video.
            NothingKept: every clip was dropped or failed; the tables and the ledger are written all the same.
        """
        places = _Places(run.folder)
        remove_unfinished(run.folder)
        if isinstance(self.source, Fetching):
            self.source.fetch_into(places.work / "fetched")
        files = self._probe()
        self._examine(files, places)
        records = [clip for file in files for clip in file.clips]
        add_likeness(records, self.stages)
        self._decide_and_transcode(files, records, places)
        self._caption(records)
        ledger = count(files)
        state = self._state(files, records)
        if places.finished(state):
            self._copy(places.shards)
            return Outcome(_summary(ledger), _figures(ledger), did_nothing=True)
        self._write(files, records, ledger, places)
        if not ledger.clips.kept:
            raise NothingKept(_why_nothing(ledger))
        self._copy(places.shards)
        write_json(places.done, state)
        return Outcome(_summary(ledger), _figures(ledger))

    def _copy(self, shards: Path) -> None:
        if self.copy_to is not None:
            upload_shards(shards, self.copy_to)

    def _probe(self) -> list[FileRecord]:
        found = self.source.files()
        files = []
        with bar("probe", len(found)) as line:
            for file in ordered(lambda item: probe(item, max_frames=self.max_frames), found, workers=self.workers):
                files.append(file)
                line.advance(note=file.found.name)
        mark_exact_duplicates(files)
        for file in files:
            if file.message is not None:
                warn(f"failed: {_named(file, file.message)}")
        return files

    def _examine(self, files: Sequence[FileRecord], places: "_Places") -> None:
        """Split and score every file that is new, and fill in the clips of all."""
        readable = [file for file in files if file.message is None and file.rule is None]
        cache = Cache(places.work, fingerprint(self.splitter, self.stages))
        paths = {file.source_id: [f.found.path for f in files if f.source_id == file.source_id] for file in readable}
        new = [file for file in readable if cache.get(file.source_id) is None]
        total = sum(num_frames_walked(file.info) for file in new if file.info is not None)
        with bar("split and score", total) as line:
            examiner = Examiner(self.splitter, self.stages, places.thumbnails, line.advance)

            def examine(file: FileRecord) -> None:
                try:
                    with file.found.here():
                        cache.put(file.source_id, examiner.examine(file))
                except (DataError, StoreDenied) as error:  # it has vanished from its store since it was probed
                    file.message = reason_of(error, file.found)
                    warn(f"failed: {_named(file, file.message)}")

            for _ in ordered(examine, new, workers=self.workers):
                pass
        for file in (file for file in readable if file.message is None):
            file.clips = [to_record(file, clip, tuple(paths[file.source_id])) for clip in cache.get(file.source_id)]
            for message in sorted({clip.message for clip in file.clips if clip.message is not None}):
                warn(f"failed in part: {_named(file, message)}")

    def _decide_and_transcode(
        self, files: Sequence[FileRecord], records: Sequence[ClipRecord], places: "_Places"
    ) -> None:
        """A clip that cannot be encoded fails, and its duplicates may come back: decide until nothing changes."""
        failed = -1
        while failed != (failed := sum(record.message is not None for record in records)):
            decide(records, self.stages, self.rules)
            work = [(f, [clip for clip in f.clips if clip.decision == "kept"]) for f in files]
            with bar("transcode", sum(clip.clip.num_frames for _, clips in work for clip in clips)) as line:

                def encode(item: tuple[FileRecord, list[ClipRecord]]) -> None:
                    self.transcode.encode(*item, places.media, line.advance)

                for _ in ordered(encode, [item for item in work if item[1]], workers=self.workers):
                    pass

    def _caption(self, records: Sequence[ClipRecord]) -> None:
        for record in records:
            said = (captioner.caption(record) for captioner in self.captions.values())
            record.caption, record.caption_by = next((text for text in said if text is not None), ("", "nobody"))

    def _state(self, files: Sequence[FileRecord], records: Sequence[ClipRecord]) -> Json:
        """All that the outputs are made of, in one hash."""
        facts = [
            fingerprint(self.splitter, self.stages, self.transcode, self.rules, self.samples_per_shard),
            [[file.found.name, file.source_id, *file.fate()] for file in files],
            [[r.clip.id, r.decision, r.rule, r.duplicate_of, r.caption, r.caption_by] for r in records],
        ]
        return {"made_of": sha256_text(repr(facts))}

    def _write(
        self, files: Sequence[FileRecord], records: Sequence[ClipRecord], ledger: Ledger, places: "_Places"
    ) -> None:
        places.done.unlink(missing_ok=True)
        kept = [record for record in records if record.decision == "kept"]
        info(f"writing {len(kept)} clips to {places.shards}")
        if kept:
            path_of = lambda record: self.transcode.path(places.media, record)  # noqa: E731
            write_shards(places.shards, kept, path_of, self.samples_per_shard)
        else:
            replace_folder(places.shards, lambda _: None)
        remove_others(places.thumbnails, {f"{record.clip.id}.jpg" for record in records})
        columns = [column for stage in self.stages.values() for column in stage.columns()]
        write_scores(places.folder / "scores.parquet", records, columns)
        write_json(places.folder / "rules.json", {name: rule.to_json() for name, rule in self.rules.items()})
        write_json(places.folder / "files.json", [_file_json(file) for file in files])
        write_json(places.folder / "ledger.json", ledger.to_json())


@dataclass(frozen=True)
class _Places:
    """Where things lie in the step's folder."""

    folder: Path

    work = property(lambda self: self.folder / "work")
    media = property(lambda self: self.folder / "work" / "clips")
    thumbnails = property(lambda self: self.folder / "thumbnails")
    shards = property(lambda self: self.folder / "shards")
    done = property(lambda self: self.folder / "made_of.json")

    def finished(self, state: Json) -> bool:
        """Whether the outputs of this very state are there."""
        try:
            return bool(read_json(self.done) == state) and (self.shards / "shards.json").is_file()
        except (OSError, ValueError):
            return False


def _named(file: FileRecord, message: str) -> str:
    """The message with the file's name, once."""
    return message if file.found.name in message else f"{file.found.name}: {message}"


def _file_json(file: FileRecord) -> Json:
    decision, reason = file.fate()
    kept = sum(clip.decision == "kept" for clip in file.clips)
    return {
        "file": file.found.name, "source_id": file.source_id, "decision": decision, "reason": reason,
        "seconds": file.duration_us / 1e6, "clips": len(file.clips), "clips_kept": kept,
        "failed_in_part": next((clip.message for clip in file.clips if clip.message is not None), None),
    }  # fmt: skip


def _summary(ledger: Ledger) -> str:
    clips, us = ledger.clips, ledger.microseconds
    return (
        f"kept {clips.kept} of {clips.total} clips ({us.kept / 1e6:.1f} of {us.total / 1e6:.1f} s) "
        f"from {ledger.files.kept} of {ledger.files.total} files"
    )


def _figures(ledger: Ledger) -> dict[str, float]:
    return {
        "files": ledger.files.total, "clips": ledger.clips.total, "clips_kept": ledger.clips.kept,
        "seconds_kept": ledger.microseconds.kept / 1e6,
    }  # fmt: skip


def _why_nothing(ledger: Ledger) -> str:
    by_rule = [f"{number} by {rule}" for rule, number in ledger.clips.dropped.most_common()]
    by_failure = [f"{number}: {message}" for message, number in ledger.files.failed.most_common()]
    return (
        f"not one of {ledger.clips.total} clips from {ledger.files.total} files was kept. "
        f"Clips dropped: {', '.join(by_rule) or 'none'}. Files failed: {'; '.join(by_failure) or 'none'}. "
        "Look at scores.parquet, then change a threshold (rules.<name>.below or .above) or the input"
    )
