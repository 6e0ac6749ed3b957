"""Curates a folder of videos, images or both into clip shards, a table of scores, rules and a ledger that adds up."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from nemo_vfm.core.bounds import MAX_FILE_FRAMES, MAX_SIDE_PX, require_between
from nemo_vfm.core.errors import NothingKept, UserError
from nemo_vfm.core.log import info
from nemo_vfm.core.optional import needs_gpu
from nemo_vfm.core.storage.files import sha256_text, write_json
from nemo_vfm.core.storage.uri import Address
from nemo_vfm.core.types.job import JobShard, Needs, Outcome, Run, makes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.balance import Balance, BalanceResult
from nemo_vfm.curate.caption.caption_types import CAPTION_COLUMNS, Editor, Viewer, check_captions
from nemo_vfm.curate.caption.caption_writer import write_captions
from nemo_vfm.curate.decide.rule import (
    NEAREST_PAIRS,
    Known,
    Rule,
    add_likeness,
    check_rules,
    comparisons,
    decide,
    first_broken,
    label_columns,
    nearest_pairs,
    reads_captions,
    survival,
)
from nemo_vfm.curate.decide.score_table import table_of
from nemo_vfm.curate.examine.examine_file import Examine
from nemo_vfm.curate.examine.findings import Findings, fingerprint, in_names
from nemo_vfm.curate.examine.sandbox import ChildLimits
from nemo_vfm.curate.execute.process_executor import Processes
from nemo_vfm.curate.execute.work_units import Executor
from nemo_vfm.curate.media_pipeline import (
    WorkContext,
    encode_kept,
    encode_missing,
    examine_all,
    probe_all,
    say_what_codecs_lack,
    say_what_nvdec_leaves,
)
from nemo_vfm.curate.output.transcode import Encode, EncodedMedia, Transcode
from nemo_vfm.curate.output.write_outputs import (
    copy_files,
    read_marker,
    remove_unfinished,
    replaced_folder,
    shape_of,
    write_scores,
    write_shards,
    write_vectors,
)
from nemo_vfm.curate.record.ledger import FACTS, ClipRecord, FileRecord, Ledger, SourceFile, count
from nemo_vfm.curate.record.stage import (
    AnyStage,
    Captioner,
    FetchesVideos,
    GivesScores,
    Ready,
    Restorer,
    Source,
    Splitter,
)
from nemo_vfm.data.batching.bucket import Buckets
from nemo_vfm.data.batching.bucket_count import buckets_line, count_buckets
from nemo_vfm.data.shards.shard_upload import upload_shards
from nemo_vfm.data.video.codecs import Decoding, check_decoding

WRITTEN = 1  #: raised when shards or tables get another form: they are then rewritten from stored results
_MAX_SAMPLES = 1 << 20  # in a shard


@needs_gpu({"decode": "nvdec"})
@makes(
    "shards", "scores.parquet", "vectors.parquet", "captions.json", "thumbnails", "restored", "survival.json",
    "rules.json", "nearest_pairs.json", "made_of.json", "buckets.json", "files.json", "restored.json",
    "throughput.json", "ledger.json",
)  # fmt: skip
class Curate:
    """Cuts videos into clips, scores all of them, keeps those that no rule drops, and records the fate of each.

    An image is a clip of one frame without duration or rate: it is not split, and its file is kept as it is.

    Order of work: probe, split and score, decide, transcode the kept clips, caption, write. Results are stored in
    `work/` under a fingerprint of what they depend on, so that after a kill, or with other settings, only missing
    work is done: with another threshold only the decisions, with another captioner only the captions.

    Args:
        source: where the videos come from.
        split: cuts a video into shots.
        stages: the measurements of every clip, by name.
        rules: conditions that drop clips, by name; a clip counts under the first rule, in this order, that it breaks.
        captions: sources of captions, by name; the first that has a caption for a clip is used.
        transcode: how kept clips are encoded.
        restore: repairs of clips that need them, by name, applied in this order.
        executor: runs the work, here or elsewhere. Results do not depend on it.
        limits: memory and time for decoding and encoding; a file that exceeds them fails.
        samples_per_shard: clips per shard.
        side_px: splitters and stages see frames whose short side is at most this.
        max_frames: a longer file is refused, as a failure.
        copy_to: folder of an object store to which the finished clip shards are copied; None copies nothing.
        balance: thins out groups of clips that the rules keep, under the rule `balance`; None keeps all.
        buckets: shapes that training will use: buckets.json counts the kept clips for each; None counts nothing. They
            do not affect decisions.
        decode: where videos are decoded for shots, scores and encoding: cpu, or nvdec, a GPU's decoder. NVDEC may give
            other pixels, so results of one are not reused for the other, and gives no motion vectors, so CodecMotion
            uses optical flow. If it does not work, it is refused at the start; codecs that it does not support are
            decoded by the CPU, with one message. It has not been run on a GPU yet.
        keep_clips: also keep a file of each clip in work/clips. Otherwise the shards hold the only copy, once every
            byte has been read back, and a run with other rules or captions takes clips from there.
    """

    def __init__(
        self,
        *,
        source: Source,
        split: Splitter,
        stages: Mapping[str, AnyStage],
        rules: Mapping[str, Rule],
        captions: Mapping[str, Captioner | Viewer | Editor],
        transcode: Transcode,
        restore: Mapping[str, Restorer] | None = None,
        executor: Executor = Processes(),
        limits: ChildLimits = ChildLimits(),
        samples_per_shard: int = 512,
        side_px: int = 256,
        max_frames: int = 2_000_000,
        copy_to: Address | None = None,
        balance: Balance | None = None,
        buckets: Buckets | None = None,
        decode: Decoding = "cpu",
        keep_clips: bool = False,
    ) -> None:
        require_between(1, _MAX_SAMPLES, samples_per_shard=samples_per_shard)
        require_between(32, MAX_SIDE_PX, side_px=side_px)
        require_between(1, MAX_FILE_FRAMES, max_frames=max_frames)
        restorers = restore or {}
        self.source, self.splitter, self.stages, self.rules = source, split, stages, rules
        self.captions, self.transcode, self.restore = captions, transcode, restorers
        self.executor, self.limits, self.side_px = executor, limits, side_px
        self.samples_per_shard, self.max_frames, self.copy_to = samples_per_shard, max_frames, copy_to
        self.balance, self.buckets = balance, buckets
        self.decode: Decoding = decode
        self.keep_clips = keep_clips
        if not isinstance(source, GivesScores):
            self._check_columns({})
        else:
            check_rules(stages, rules, None)
            if balance is not None:
                balance.check(self._columns({}), is_all=False)

    def run(self, run: Run) -> Outcome:
        """Do the work; a second run does only what is missing.

        Raises:
            UserError: the source holds nothing to curate.
            NothingKept: every clip was dropped or failed; tables and ledger are written all the same.
        """
        places = _StepPaths(run.folder)
        say_what_codecs_lack(self.transcode, self.decode)
        fingerprint(self.captions)  # a wrong model folder is reported now, not after hours of encoding
        if not places.done.is_file():  # a finished run has its captions and needs no key
            self.ready()
        remove_unfinished(run.folder)
        if isinstance(self.source, FetchesVideos):
            self.source.fetch_into(places.work / "fetched")
        hands = WorkContext(self.executor, self.limits, [])
        files = probe_all(self._find_files(), hands, max_frames=self.max_frames, folder=places.work / "probed")
        self._examine(files, hands, places)
        records = [clip for file in files for clip in file.clips]
        add_likeness(records, self.stages)
        encode = self._encode(places)
        media = encode.media
        encode_kept(files, records, encode, hands, decide=self.decide, ready=self.ready)
        caption_report = write_captions(records, self.captions, media.file_of, places.work / "captions")
        balanced = None if self.balance is None else self.balance.apply(records)
        # Rules that read captions come last; duplicates of a clip that they drop are not restored.
        chosen = {name: rule for name, rule in self.rules.items() if reads_captions(rule)}
        for record, broken in zip(records, first_broken(table_of(records), chosen), strict=True):
            if record.decision == "kept":
                record.rule = broken
        ledger = count(files)
        state = self._state(files, records)
        is_done = read_marker(places.done, state) is not None and (places.shards / "shards.json").is_file()
        if not is_done:
            write_json(places.folder / "captions.json", caption_report.to_json())
            write_json(places.folder / "throughput.json", [asdict(step) for step in hands.throughput])
            self._write(files, records, ledger, media, places, balanced)
            if not ledger.kept:
                raise NothingKept(_why_nothing(ledger))
        if self.copy_to is not None:
            upload_shards(places.shards, self.copy_to)
        if not is_done:
            write_json(places.done, {"made_of": state})
        if not self.keep_clips:
            media.drop([record for record in records if record.decision == "kept"])
        return _outcome(ledger, did_nothing=is_done)

    def needs(self, *, num_gpus: int | None = None, folder: Path | None = None) -> Needs:
        """See `HasNeeds`; in two rounds: files are examined, all is decided on together, then clips are encoded."""
        return Needs(rounds=2, ray=self.executor.needs_ray())

    def run_part(self, run: Run, part: JobShard) -> Outcome:
        """See `ShardedJob`: first the scores of this part's files, then media and captions of what is kept of them.

        In the second round every part decides on all clips by itself, from the scores of the first.
        """
        places, hands = _StepPaths(run.folder), WorkContext(self.executor, self.limits, [])
        check_decoding(self.decode)
        if isinstance(self.source, FetchesVideos):
            self.source.fetch_into(places.work / "fetched")
        found = self._find_files()
        own = {one.name for one in found if part.has(one.name)}
        wanted = found if part.round else [one for one in found if one.name in own]
        files = probe_all(wanted, hands, max_frames=self.max_frames, folder=places.work / "probed")
        self._examine(files, hands, places)
        mine = [file for file in files if file.found.name in own]
        if part.round:
            records = [clip for file in files for clip in file.clips]
            add_likeness(records, self.stages)
            self.decide(records)
            encode = self._encode(places)
            media = encode.media
            encode_missing(mine, encode, hands, self.ready)
            there = [clip for file in mine for clip in file.clips if media.fact_of(clip) is not None]
            write_captions(
                there, self.captions, media.file_of, places.work / "captions", f"part-{part.number}-of-{part.count}"
            )
        return Outcome(f"{len(mine)} of {len(found)} files {'encoded' if part.round else 'examined'}",
                       {"files": len(mine)})  # fmt: skip

    def ready(self) -> None:
        """Check that captioners can work, for example that their endpoint and key are valid."""
        for voice in self.captions.values():
            if isinstance(voice, Ready):
                voice.ready()

    def _encode(self, places: "_StepPaths") -> Encode:
        media = EncodedMedia.of(places.media, places.shards, self.transcode, self.restore, self.decode)
        return Encode(self.transcode, self.restore, media, self.decode)

    def _examine(self, files: Sequence[FileRecord], hands: WorkContext, places: "_StepPaths") -> None:
        thumbnails = (places.work / "thumbnails").absolute()
        findings = Findings(places.work / "findings", thumbnails, self.splitter, self.side_px, self.stages, self.decode)
        examine = Examine(self.splitter, self.stages, self.side_px, thumbnails, self.decode)
        say_what_nvdec_leaves(files, self.decode)
        examine_all(files, examine, findings, self.stages, hands)

    def decide(self, records: Sequence[ClipRecord]) -> None:
        """Set the fate of every clip that has not failed."""
        decide(records, self.stages, self.rules)
        if self.balance is not None:
            self.balance.apply(records)

    def _find_files(self) -> list[SourceFile]:
        """The files of the source, once the rules that read its scores have been checked.

        Raises:
            UserError: there are no files, or a rule or a captioner reads a score that no stage gives.
        """
        found = self.source.files()
        if isinstance(self.source, GivesScores):
            try:
                self._check_columns(self.source.score_columns())
            except ValueError as error:
                raise UserError(str(error)) from error
        return found

    def _check_columns(self, of_source: Mapping[str, type[float] | type[str]]) -> None:
        """Refuse rules, captioners and a balance that read what neither the stages nor the source give."""
        kinds: Known = {name: () if kind is str else None for name, kind in of_source.items()}
        check_rules(self.stages, self.rules, kinds)
        if self.balance is not None:
            self.balance.check(self._columns(kinds))
        parts = (*self.stages.values(), *self.restore.values())
        columns = (column for part in parts for column in part.columns())
        check_captions(self.captions, {*FACTS, *columns, *of_source})

    def _columns(self, of_source: Known) -> Known:
        """The columns by which a balance may group."""
        numbers = (column for stage in self.stages.values() for column in stage.columns())
        return dict.fromkeys([*FACTS, *numbers]) | label_columns(self.stages) | dict(of_source)

    def _state(self, files: Sequence[FileRecord], records: Sequence[ClipRecord]) -> str:
        """A hash of everything that the outputs depend on."""
        own = [WRITTEN, self.splitter, self.stages, self.side_px, self.transcode, list(self.restore.items())]
        own += [self.rules, self.samples_per_shard, self.balance, self.buckets, *in_names(self.decode)]
        of_files = [[file.found.name, file.source_id, *file.fate(), *file.found.rows] for file in files]
        of_clips = [
            [r.clip.id, r.decision, r.rule, r.duplicate_of, r.caption, r.caption_by, r.caption_facts] for r in records
        ]
        facts = [fingerprint(*own), of_files, of_clips]
        return sha256_text(repr(facts))

    def _write(
        self,
        files: Sequence[FileRecord],
        records: Sequence[ClipRecord],
        ledger: Ledger,
        media: EncodedMedia,
        places: "_StepPaths",
        balanced: BalanceResult | None,
    ) -> None:
        places.done.unlink(missing_ok=True)
        kept = [record for record in records if record.decision == "kept"]
        info(f"writing {len(kept)} samples to {places.shards}")
        weights: Mapping[str, int] = {} if balanced is None else balanced.weights  # how often each clip counts
        _write_or_remove(places.folder / "balance.json", None if balanced is None else balanced.plan)
        media.make_way(kept)
        if kept:
            write_shards(places.shards, kept, media.file_of, self.samples_per_shard, weights)
        else:
            with replaced_folder(places.shards):
                pass
        copy_files(
            places.work / "thumbnails", places.thumbnails, {f"{r.clip.id}.jpg": f"{r.clip.id}.jpg" for r in records}
        )
        of_source = self.source.score_columns() if isinstance(self.source, GivesScores) else {}
        columns = [column for part in (*self.stages.values(), *self.restore.values()) for column in part.columns()]
        words = [*label_columns(self.stages), *(name for name, kind in of_source.items() if kind is str)]
        words += [name for name, known in CAPTION_COLUMNS.items() if known is not None]
        write_scores(places.folder / "scores.parquet", records, [*columns, *of_source, *CAPTION_COLUMNS], words)
        write_vectors(places.folder / "vectors.parquet", records, self.stages)
        table = table_of(records)
        write_json(places.folder / "rules.json", {name: rule.to_json(table) for name, rule in self.rules.items()})
        survives = survival(table, self.rules, compared=comparisons(self.stages))
        write_json(places.folder / "survival.json", survives)
        write_json(places.folder / NEAREST_PAIRS, nearest_pairs(records, self.stages, self.rules, table))
        self._write_restored(kept, media, places.folder)
        write_json(places.folder / "files.json", [_file_json(file) for file in files])
        write_json(places.folder / "ledger.json", ledger.to_json())
        counted = None if self.buckets is None else count_buckets([shape_of(record) for record in kept], self.buckets)
        if counted is not None:
            info(buckets_line(counted))
        _write_or_remove(places.folder / "buckets.json", counted)

    def _write_restored(self, kept: Sequence[ClipRecord], media: EncodedMedia, folder: Path) -> None:
        """Write what was repaired, and a picture of each repaired clip before and after."""
        mended = [record for record in kept if record.restored]
        columns = [column for restorer in self.restore.values() for column in restorer.columns()]
        clips = {
            record.clip.id: {
                "source": record.source, "restored": list(record.restored),
                "facts": {column: record.scores[column] for column in columns if column in record.scores},
            }
            for record in mended
        }  # fmt: skip
        write_json(folder / "restored.json", {"restorers": list(self.restore), "clips": clips})
        names = {media.path(record.clip.id).with_suffix(".jpg").name: f"{record.clip.id}.jpg" for record in mended}
        copy_files(media.folder, folder / "restored", names)


@dataclass(frozen=True)
class _StepPaths:
    """The paths in the step's folder."""

    folder: Path

    work = property(lambda self: self.folder / "work")
    media = property(lambda self: self.folder / "work" / "clips")
    thumbnails = property(lambda self: self.folder / "thumbnails")
    shards = property(lambda self: self.folder / "shards")
    done = property(lambda self: self.folder / "made_of.json")


def _write_or_remove(path: Path, value: Json) -> None:
    if value is None:
        path.unlink(missing_ok=True)
    else:
        write_json(path, value)


def _file_json(file: FileRecord) -> Json:
    decision, reason = file.fate()
    kept = sum(clip.decision == "kept" for clip in file.clips)
    return {
        "file": file.found.name, "kind": "image" if file.found.is_image else "video",
        "source_id": file.source_id, "decision": decision, "reason": reason,
        "seconds": file.duration_us / 1e6, "seconds_trimmed": file.trimmed_us / 1e6,
        "seconds_without_frames": file.hole_us / 1e6,
        "clips": len(file.clips), "clips_kept": kept,
        "duplicate_of": file.duplicate_of, "failures": file.kinds(),
        "failed_in_part": next((clip.message for clip in file.clips if clip.message is not None), None),
    }  # fmt: skip


def _outcome(ledger: Ledger, *, did_nothing: bool = False) -> Outcome:
    clips, us, images = ledger.clips, ledger.microseconds, ledger.images
    kept = [f"{clips.kept} of {clips.total} clips ({us.kept / 1e6:.1f} of {us.total / 1e6:.1f} s)"]
    figures: dict[str, float] = {}
    if images.total:
        kept = [*(kept if clips.total else []), f"{images.kept} of {images.total} images"]
        figures = {"images": images.total, "images_kept": images.kept}
    figures |= {"files": ledger.files.total, "clips": clips.total, "clips_kept": clips.kept,
                "seconds_kept": us.kept / 1e6}  # fmt: skip
    summary = f"kept {' and '.join(kept)} from {ledger.files.kept} of {ledger.files.total} files"
    return Outcome(summary, figures, did_nothing=did_nothing)


def _why_nothing(ledger: Ledger) -> str:
    dropped = ledger.clips.dropped + ledger.images.dropped
    by_rule = [f"{number} by {rule}" for rule, number in dropped.most_common()]
    what = f"{ledger.clips.total} clips" + (f" and {ledger.images.total} images" if ledger.images.total else "")
    by_failure = [f"{number}: {message}" for message, number in ledger.files.failed.most_common()]
    # A threshold helps where a rule dropped something; what failed was never compared with any.
    advice = ["fix or leave out the files that failed (files.json has the message of each)"] if by_failure else []
    if by_rule or not by_failure:
        advice.append("look at scores.parquet, then change a threshold (rules.<name>.below or .above) or the input")
    return (
        f"none of the {what} from {ledger.files.total} files was kept. "
        f"Dropped: {', '.join(by_rule) or 'none'}. Files failed: {'; '.join(by_failure) or 'none'}. "
        f"To continue, {'; and '.join(advice)}"
    )
