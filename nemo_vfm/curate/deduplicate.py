"""Deduplicates folders of clip shards; writes shards without copies, a table, threshold curves and a ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from nemo_vfm.core.bounds import is_frame_rate
from nemo_vfm.core.errors import DataError, NothingKept, UserError
from nemo_vfm.core.log import bar, info, warn
from nemo_vfm.core.storage.files import sha256_text, write_bytes, write_json
from nemo_vfm.core.storage.uri import Place, places
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.core.types.media_types import Frames
from nemo_vfm.curate.decide.rule import NEAREST_PAIRS, Rule, add_likeness, by_kind, decide, nearest_pairs
from nemo_vfm.curate.decide.score_table import table_of
from nemo_vfm.curate.examine.examine_file import thumbnail
from nemo_vfm.curate.examine.findings import Cache, fingerprint
from nemo_vfm.curate.execute.ordered import map_in_order
from nemo_vfm.curate.output.write_outputs import read_marker, remove_unfinished, replaced_folder, write_scores
from nemo_vfm.curate.record.ledger import EXACT_DUPLICATE, ClipRecord, LedgerColumn
from nemo_vfm.curate.record.stage import Compares, Comparison, LearnedStage
from nemo_vfm.curate.sources.shard_clips import ShardClip, footage_of, open_all
from nemo_vfm.data.shards.clip_id import source_id
from nemo_vfm.data.shards.sample_members import is_image
from nemo_vfm.data.shards.shard_files import ShardWriter
from nemo_vfm.data.shards.shard_folder import read_shards_json
from nemo_vfm.dedup.epsilon import curve, histogram, propose

_UNKNOWN = {"num_frames": 1, "fps": 1.0, "width": 0, "height": 0}


@dataclass(frozen=True, slots=True)
class ClipReader:
    """Decodes clips, and stores what the comparing stages need of each."""

    stages: Mapping[str, Compares]  #: compare clips, by name
    work: Path  #: folder of earlier results
    thumbnails: Path  #: folder for `<key>.jpg`
    workers: int | None  #: clips at once; None takes one a core

    def records(self, clips: Sequence[ShardClip]) -> tuple[list[ClipRecord], list[str]]:
        """A record of each clip and its media's sha256, in order. One that cannot be decoded fails, with the reason."""
        caches = {name: Cache(self.work / fingerprint(stage)) for name, stage in self.stages.items()}
        records, hashes = [], []
        with bar("look", len(clips), unit="clips") as line:
            decoded = map_in_order(partial(self._decode, caches), clips, workers=self.workers)
            for clip, seen in zip(clips, decoded, strict=True):
                facts = seen.facts
                if not facts:  # of a clip that could not be decoded, as far as its index tells them
                    measured = {name: clip.entry.index[name] for name in _UNKNOWN if name in clip.entry.index}
                    if not is_frame_rate(measured.get("fps", 1.0)):
                        del measured["fps"]
                    facts = {**_UNKNOWN, **measured}
                record = clip.record(facts)
                record.message, record.vectors = seen.message, dict(seen.vectors)
                for column in (column for stage in self.stages.values() for column in stage.columns()):
                    record.scores.pop(column, None)  # of an earlier curation, among other clips
                for name, frames in seen.frames.items():  # models judge here, in one thread
                    stage = self.stages[name]
                    assert isinstance(stage, LearnedStage)
                    stage.load()
                    (finding,) = stage.judge([frames])
                    if finding.vector is not None:
                        record.vectors[name] = finding.vector
                        caches[name].put(seen.key, {"vector": finding.vector, "facts": seen.facts})
                records.append(record)
                hashes.append(seen.key)
                line.advance(note=clip.key)
        return records, hashes

    def _decode(self, caches: Mapping[str, Cache], clip: ShardClip) -> "_SeenClips":
        """What stages without weights store about a clip, and the frames that models need; run in threads."""
        seen, picture = _SeenClips("", None, {}, {}), self.thumbnails / f"{clip.key}.jpg"
        try:
            data = clip.read()
            seen.key = source_id(data)
            known = {name: cache.get(seen.key) for name, cache in caches.items()}
            if all(value is not None for value in known.values()) and picture.is_file():
                seen.vectors = {name: value["vector"] for name, value in known.items()}
                seen.facts = next(iter(known.values()))["facts"]
                return seen
            with footage_of(data, is_image(clip.media())) as (footage, seen.facts):
                for name, stage in self.stages.items():
                    if isinstance(stage, Comparison):
                        seen.vectors[name] = stage.remember(footage)
                        caches[name].put(seen.key, {"vector": seen.vectors[name], "facts": seen.facts})
                    elif isinstance(stage, LearnedStage):
                        wanted = stage.frame_indices(footage.num_frames, footage.fps)
                        seen.frames[name] = np.asarray(footage.frames(wanted), dtype=np.uint8)
                write_bytes(picture, thumbnail(footage))
        except UserError:
            raise  # a store that does not answer, or a missing package: no other clip would succeed
        except (DataError, ValueError) as error:
            seen.message = str(error)
            warn(f"failed: {clip.entry.key} in {clip.entry.shard}: {error}")
        return seen


@dataclass(slots=True)
class _SeenClips:
    key: str
    facts: Mapping[str, Json] | None
    vectors: dict[str, str]
    frames: dict[str, Frames]
    message: str | None = None


@makes(
    "shards", "scores.parquet", "thumbnails", "rules.json", "similarity.json", "nearest_pairs.json", "made_of.json",
    "ledger.json",
)  # fmt: skip
class Deduplicate:
    """Finds copies among clips that are cut and encoded already, and writes those that stay, byte for byte.

    Samples of equal key (it names source and span) or media go first. Then each stage, in the order of the recipe,
    compares what is left. What was remembered of a clip is kept in `work/` and used again when only thresholds change.

    Args:
        shards: a folder of clip shards, or several, here or in an object store; of equal samples that of the first
            folder stays.
        stages: compare clips, by name.
        above: of each stage, the likeness above which a clip goes; null takes it from the histogram of likenesses
            (`similarity.json` says how).
        epsilon: 1 minus the threshold, for a histogram from which none can be read.
        samples_per_shard: clips per shard.
        workers: clips at once; None takes one a core. Results do not depend on it.
    """

    def __init__(
        self, *, shards: Place | Sequence[Place], stages: Mapping[str, Compares], above: Mapping[str, float | None],
        epsilon: float = 0.05, samples_per_shard: int = 512, workers: int | None = None,
    ) -> None:  # fmt: skip
        if not shards or not stages:
            raise ValueError("give at least one folder of shards and one stage")
        if set(above) != set(stages):
            raise ValueError(
                f"above must name the stages {sorted(stages)}, got {sorted(above)}; null is allowed as a value"
            )
        odd = {name: value for name, value in above.items() if value is not None and not 0 < value < 1}
        if odd or not 0 < epsilon < 1 or samples_per_shard < 1:
            raise ValueError(
                f"thresholds in above ({odd}) and epsilon ({epsilon}) must lie between 0 and 1, samples_per_shard "
                f"({samples_per_shard}) must be at least 1"
            )
        for name, stage in stages.items():
            if not isinstance(stage, Comparison | LearnedStage):
                raise ValueError(f"stage {name!r} is a {type(stage).__name__}, which does not compare clips")
        self.shards, self.stages, self.above = places(shards), stages, above
        self.epsilon, self.samples_per_shard, self.workers = epsilon, samples_per_shard, workers

    def run(self, run: Run) -> Outcome:
        """Do the work; a second run does nothing.

        Raises:
            UserError: a folder holds no shards.
            DataError: shards are damaged.
            NothingKept: not one clip could be read.
        """
        folder, done = run.folder, run.folder / "made_of.json"
        remove_unfinished(folder)
        if any(isinstance(place, Path) and place.resolve() == (folder / "shards").resolve() for place in self.shards):
            raise UserError(f"{folder / 'shards'} would be read and written at the same time; choose another run_dir")
        clips = open_all(self.shards)
        state = self._state(clips)
        known = read_marker(done, state)
        if known is not None and (folder / "shards/shards.json").is_file():
            return Outcome(known["summary"], known["figures"], did_nothing=True)
        done.unlink(missing_ok=True)
        exact = _first_of([clip.key for clip in clips])
        looked = [clip for place, clip in enumerate(clips) if place not in exact]
        reader = ClipReader(self.stages, folder / "work", folder / "thumbnails", self.workers)
        records, hashes = reader.records(looked)
        # Copies of a clip that cannot be decoded have failed with it, and are no duplicates.
        equal = {place: first for place, first in _first_of(hashes).items() if records[place].message is None}
        single = [record for place, record in enumerate(records) if place not in equal]
        add_likeness(single, self.stages)
        choices = {
            name: self._choice(name, stage, [record for record in single if name in record.vectors])
            for name, stage in self.stages.items()
        }
        decide(single, self.stages, {name: rule for name, (rule, _) in choices.items()})
        for place, first in equal.items():  # the first one may itself be dropped as a duplicate of another
            records[place].rule = EXACT_DUPLICATE
            records[place].duplicate_of = records[first].duplicate_of or records[first].clip.id
        # What came in is counted by the shards, what went out by the records. A sample that is there twice counts as a
        # clip, its seconds only once.
        by_clip, by_time = LedgerColumn(total=len(clips)), LedgerColumn()
        for record in records:
            why = record.message or record.rule or ""
            by_clip.book(record.decision, why, 1)
            by_time.book(record.decision, why, record.duration_us)
            by_time.total += record.duration_us
        if exact:
            by_clip.book("dropped", EXACT_DUPLICATE, len(exact))
        assert by_clip.adds_up() and by_time.adds_up(), f"the ledger does not add up: {by_clip}"
        ledger = {"clips": by_clip.to_json(), "seconds": by_time.to_json(unit=1_000_000)}
        self._write(folder, looked, records, choices, ledger)
        if not by_clip.kept:
            raise NothingKept(f"none of {len(clips)} clips could be read: {dict(by_clip.failed)}")
        dropped = ", ".join(f"{number} by {rule}" for rule, number in by_clip.dropped.most_common())
        summary = f"kept {by_clip.kept} of {len(clips)} clips; dropped {dropped or 'none'}"
        figures = {"clips": float(len(clips)), "clips_kept": float(by_clip.kept)}
        write_json(done, {"made_of": state, "summary": summary, "figures": figures})
        return Outcome(summary, figures)

    def _state(self, clips: Sequence[ShardClip]) -> str:
        """A fingerprint of everything that the outputs depend on."""
        prints = [fingerprint(stage) for stage in self.stages.values()]
        own = [prints, dict(self.above), list(self.stages), self.epsilon, self.samples_per_shard]
        stamps: list[Json] = []  # change with the bytes of each folder's shards; without an index, with sizes and times
        for folder in {id(clip.shards): clip.shards.folder for clip in clips}.values():
            if isinstance(folder, Path) and not (folder / "shards.json").is_file():
                tars = [(tar.name, tar.stat().st_size, tar.stat().st_mtime_ns) for tar in sorted(folder.glob("*.tar"))]
                stamps.append([str(folder), tars])
            else:
                stamps.append([str(folder), [shard["sha256"] for shard in read_shards_json(folder)]])
        return sha256_text(repr([own, stamps]))

    def _choice(self, name: str, stage: Compares, records: Sequence[ClipRecord]) -> tuple[Rule, Json]:
        """The stage's threshold as a rule, and its entry in similarity.json."""
        (column,) = stage.columns()
        likenesses = [float(record.scores[column]) for record in records]
        given = self.above[name]
        proposal = propose(likenesses, self.epsilon)
        threshold = 1 - proposal.epsilon if given is None else given

        def removed_share(above: float) -> float:
            """The share of clips that go, images compared with images."""
            parts = [(part, [record.vectors[name] for record in part]) for part in by_kind(records)]
            return sum(len(stage.duplicates(part, own, above)) for part, own in parts) / max(1, len(records))

        return Rule(score=column, above=threshold), {
            "column": column, "above": threshold, "how": proposal.how if given is None else "given",
            "proposed_epsilon": proposal.epsilon, "proposed_by": proposal.how,
            "histogram": histogram(likenesses), "removed": curve(removed_share),
        }  # fmt: skip

    def _write(
        self, folder: Path, clips: Sequence[ShardClip], records: Sequence[ClipRecord],
        choices: Mapping[str, tuple[Rule, Json]], ledger: Json,
    ) -> None:  # fmt: skip
        kept = [clip for clip, record in zip(clips, records, strict=True) if record.decision == "kept"]
        info(f"writing {len(kept)} of {len(clips)} clips to {folder / 'shards'}")

        with (
            replaced_folder(folder / "shards") as partial,
            ShardWriter(partial, samples_per_shard=self.samples_per_shard) as writer,
        ):
            for clip in kept:
                writer.write(clip.key, clip.members(), clip.entry.index)
        known = {f"{record.clip.id}.jpg" for record in records}
        for path in (folder / "thumbnails").glob("*.jpg"):  # of other folders, from earlier runs
            if path.name not in known:
                path.unlink()
        columns = sorted({column for record in records for column in record.scores})
        write_scores(folder / "scores.parquet", records, columns)
        rules = {name: rule for name, (rule, _) in choices.items()}
        write_json(folder / "rules.json", {name: rule.to_json() for name, rule in rules.items()})
        write_json(folder / NEAREST_PAIRS, nearest_pairs(records, self.stages, rules, table_of(records)))
        write_json(folder / "similarity.json", {name: facts for name, (_, facts) in choices.items()})
        write_json(folder / "ledger.json", ledger)


def _first_of(names: Sequence[str]) -> dict[int, int]:
    """`{index of a repeated name: index of its first occurrence}`; empty names are ignored."""
    first: dict[str, int] = {}
    return {place: first[name] for place, name in enumerate(names) if name and first.setdefault(name, place) != place}
