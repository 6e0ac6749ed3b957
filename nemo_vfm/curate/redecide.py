"""Applies other rules to a finished curation without video: decisions, their ledger and shards of the kept clips."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from nemo_vfm.core.errors import DataError, NothingKept, UserError
from nemo_vfm.core.log import info, warn
from nemo_vfm.core.optional import computes_nothing
from nemo_vfm.core.storage.files import atomic_path, read_json, sha256_file, write_bytes, write_json, write_text
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.balance import RULE, Balance, BalanceResult
from nemo_vfm.curate.decide.rule import (
    NEAREST_PAIRS,
    Rule,
    above,
    check_columns,
    drop_duplicates,
    first_broken,
    nearest_pairs,
    reads_captions,
    survival,
)
from nemo_vfm.curate.decide.score_table import Labels, Table, read_table
from nemo_vfm.curate.examine.findings import fingerprint
from nemo_vfm.curate.output.write_outputs import copy_files, read_marker, read_vectors, replaced_folder
from nemo_vfm.curate.record.ledger import NO_CLIP_KEPT, NO_FRAMES, TRANSITION, ClipRecord, Ledger, kind_of
from nemo_vfm.curate.record.stage import Compares
from nemo_vfm.data.shards.clip_id import Clip
from nemo_vfm.data.shards.shard_files import ShardSet, ShardWriter

Fate = tuple[str, str]  # kept, dropped or failed; and the rule or the message
_READ = ("scores.parquet", "files.json", "vectors.parquet", "shards/shards.json")
_FILE_KEYS = {"file", "source_id", "decision", "reason", "seconds", "clips"}


@dataclass(frozen=True, slots=True)
class FinishedCuration:
    """A finished curation."""

    table: Table  #: the scores
    #: the columns of scores.parquet that are not scores, such as `clip_id`, as lists
    others: Mapping[str, list[object]]
    files: Sequence[Json]  #: files.json
    vectors: Mapping[str, Mapping[str, str]]  #: for every compared column, clip id -> what is stored about it

    def text_column(self, name: str) -> list[str]:
        """A column that no clip lacks."""
        return cast(list[str], self.others[name])


@dataclass(slots=True)
class Fates:
    """The fates of clips."""

    rules: list[str | None]  #: the rule that drops each clip; None where it is kept or failed
    duplicate_of: list[str | None]  #: the kept clip that it duplicates
    balanced: BalanceResult | None = field(default=None)  #: the result of the balance; None without one


def decide_again(
    curated: FinishedCuration, rules: Mapping[str, Rule], stages: Mapping[str, Compares], balance: Balance | None
) -> Fates:
    """Decide as a curation with these rules would.

    Args:
        stages: the comparing stages of that curation.
        balance: thins out what is kept; None keeps all.
    """
    compared = {stage.columns()[0]: stage for stage in stages.values()}
    _check(curated, rules, compared, balance)
    late = {name: rule for name, rule in rules.items() if reads_captions(rule)}
    first = {name: rule for name, rule in rules.items() if name not in late}
    single = {name: rule for name, rule in first.items() if rule.uses()[0].name not in compared}
    fates = Fates(first_broken(curated.table, single), [None] * len(curated.table))
    for name in (name for name in first if name not in single):
        column, kept = rules[name].uses()[0].name, _kept_clips(curated, fates)
        records = _records(curated, kept, column)
        drop_duplicates(records, name, above(rules[name], curated.table), column, compared[column])
        for place, record in zip(kept, records, strict=True):
            fates.rules[place], fates.duplicate_of[place] = record.rule, record.duplicate_of
        # A keeper of an earlier comparison may have gone now: follow it to the one that stayed.
        gone = {record.clip.id: record.duplicate_of for record in records if record.rule}
        fates.duplicate_of = [gone.get(keeper, keeper) if keeper else None for keeper in fates.duplicate_of]
    if balance is not None:
        kept = _kept_clips(curated, fates)
        ids, sources = curated.text_column("clip_id"), curated.text_column("source")
        groups = balance.groups(curated.table.take(kept), [sources[place] for place in kept])
        fates.balanced = balance.weigh(groups, [ids[place] for place in kept])
        for place in kept:
            if not fates.balanced.weights[ids[place]]:
                fates.rules[place] = RULE
    fates.rules = [rule or other for rule, other in zip(fates.rules, first_broken(curated.table, late), strict=True)]
    return fates


def _check(
    curated: FinishedCuration, rules: Mapping[str, Rule], compared: Mapping[str, Compares], balance: Balance | None
) -> None:
    known: dict[str, Sequence[str] | None] = {
        name: () if isinstance(column, Labels) else None for name, column in curated.table.columns.items()
    }
    try:
        check_columns(known, rules)
        if balance is not None:
            balance.check(known)
    except ValueError as error:
        raise UserError(f"{error}\nThese rules are applied to the scores of an earlier curation") from error
    for name, rule in rules.items():
        column = rule.uses()[0].name
        if column in curated.vectors and column not in compared:
            raise UserError(f"rule {name!r} reads {column!r}, which compares clips: add its stage to comparisons")
        if column in compared and column not in curated.vectors:
            raise UserError(
                f"rule {name!r} compares clips by {column!r}, but that curation stored nothing for it: no "
                f"vectors.parquet has that column. Run the curation again, or remove the rule (~rules.{name})"
            )


def _kept_clips(curated: FinishedCuration, fates: Fates) -> list[int]:
    """The indices of the clips that are kept."""
    alive = curated.table.alive.tolist()
    return [place for place, rule in enumerate(fates.rules) if rule is None and alive[place]]


def _records(curated: FinishedCuration, places: Sequence[int], column: str) -> list[ClipRecord]:
    """Kept clips as a comparison needs them; the column stands for the stage's name."""
    sources = {str(file["file"]): str(file["source_id"]) for file in curated.files}
    numbers = {name: c.tolist() for name, c in curated.table.columns.items() if not isinstance(c, Labels)}
    microseconds, found = curated.table.microseconds.tolist(), []
    first, last = curated.others["first_frame"], curated.others["last_frame"]
    for place in places:
        source, clip_id = curated.text_column("source")[place], curated.text_column("clip_id")[place]
        span = (cast(int, first[place]), cast(int, last[place]))
        clip = Clip(sources.get(source, ""), *span, 0, 0, Fraction(1))
        if clip.id != clip_id:
            raise DataError(f"clip {clip_id} does not match the file in files.json; run the curation again")
        scores = {name: values[place] for name, values in numbers.items() if values[place] == values[place]}
        vector = curated.vectors[column].get(clip_id)
        shape = (scores.get("fps", 1.0), int(scores["width"]), int(scores["height"]), microseconds[place])
        found.append(ClipRecord(clip, source, (), *shape, scores=scores, vectors={column: vector} if vector else {}))
        found[-1].is_image = bool(curated.table.images[place])
    return found


def reckon(curated: FinishedCuration, fates: Fates) -> tuple[Ledger, list[Json]]:
    """The ledger, and files.json with the new fate of every file."""
    ledger, (kinds, sources, codes) = Ledger(), _kinds(curated, fates)
    is_clip = ~curated.table.images
    amounts = np.bincount(codes, weights=curated.table.microseconds, minlength=len(kinds))  # exact below 2^53
    numbers = np.bincount(codes[is_clip], minlength=len(kinds))
    for (side, rule_message), source, number, amount in zip(kinds, sources, numbers, amounts, strict=True):
        reason = kind_of(rule_message, source) if side == "failed" else rule_message
        if number:
            ledger.clips.book(side, reason, int(number))
            ledger.microseconds.book(side, reason, int(amount))
    ledger.clips.total = int(is_clip.sum())
    by_source: dict[str, Counter[Fate]] = {}
    for (source, code), number in Counter(zip(curated.text_column("source"), codes.tolist(), strict=True)).items():
        by_source.setdefault(source, Counter())[kinds[code]] += number
    files = []
    for file in curated.files:
        clips = by_source.get(str(file["file"]), Counter()) if file["clips"] else Counter[Fate]()
        # As `FileRecord.fate` says it, of a file whose clips are known by their fates.
        rules = sorted({reason for side, reason in clips if side == "dropped"})
        if not clips:
            decision, reason = str(file["decision"]), str(file["reason"])
        elif clips["kept", ""]:
            decision, reason = "kept", ""
        elif rules:
            decision, reason = "dropped", rules[0] if len(rules) == 1 else NO_CLIP_KEPT
        else:
            decision, reason = "failed", next(reason for side, reason in clips if side == "failed")
        us, trimmed_us, hole_us = (
            round(file.get(name, 0.0) * 1e6) for name in ("seconds", "seconds_trimmed", "seconds_without_frames")
        )
        between, is_image = {TRANSITION: trimmed_us, NO_FRAMES: hole_us}, file.get("kind") == "image"
        ledger.book_file(
            str(file["file"]), decision, reason, us, between, is_image=is_image, has_clips=bool(file["clips"])
        )
        files.append({**file, "decision": decision, "reason": reason, "clips_kept": clips["kept", ""]})
    assert all(account.adds_up() for account in (ledger.files, ledger.clips, ledger.images)), (
        "the ledger does not add up"
    )
    if not ledger.microseconds.adds_up():
        us = ledger.microseconds
        raise DataError(
            f"the seconds of files.json and of scores.parquet differ: {us.total / 1e6} s came in, and "
            f"{(us.kept + us.dropped.total() + us.failed.total()) / 1e6} s are accounted for; "
            f"the two files are not from one curation, so run it again"
        )
    return ledger, files


def _kinds(curated: FinishedCuration, fates: Fates) -> tuple[list[Fate], list[str], NDArray[np.int64]]:
    """All fates in order of first occurrence, the file of each failure, and the index of each clip's fate."""
    messages = cast("list[str | None]", curated.others["message"])
    found = [
        (message, rule, "" if message is None else source)
        for message, rule, source in zip(messages, fates.rules, curated.text_column("source"), strict=True)
    ]
    places = {one: place for place, one in enumerate(dict.fromkeys(found))}
    codes = np.fromiter((places[one] for one in found), np.int64, len(found))
    kinds: list[Fate] = [
        ("failed", message) if message is not None else ("kept", "") if rule is None else ("dropped", rule)
        for message, rule, _ in places
    ]
    return kinds, [source for *_, source in places], codes


@computes_nothing
@makes(
    "shards", "scores.parquet", "vectors.parquet", "captions.json", "thumbnails", "survival.json", "rules.json",
    "nearest_pairs.json", "made_of.json", "buckets.json", "files.json", "without_media.txt", "ledger.json",
)  # fmt: skip
class Redecide:
    """Decides again from the scores of an earlier curation, and decodes nothing.

    It decides as a curation with these rules would. Newly kept clips have no media yet: they are listed in
    `without_media.txt`, and the curation itself encodes them when it is run with these rules. The earlier folder is
    only read.

    Args:
        curated: the folder of that curation, which holds its scores.parquet.
        rules: conditions that drop clips, by name; a clip counts under the first rule, in this order, that it breaks.
        comparisons: the stages of that curation that compare clips, by name; rules on their columns need them.
        balance: thins out groups of clips that the rules keep; None keeps all.
        with_shards: whether to write shards of the kept clips that have media, and thumbnails, or only decisions.
        samples_per_shard: clips per shard.
    """

    def __init__(
        self,
        *,
        curated: Path,
        rules: Mapping[str, Rule],
        comparisons: Mapping[str, Compares] | None = None,
        balance: Balance | None = None,
        with_shards: bool = True,
        samples_per_shard: int = 512,
    ) -> None:
        if samples_per_shard < 1:
            raise ValueError(f"samples_per_shard is {samples_per_shard}, but it must be at least 1")
        self.curated, self.rules, self.comparisons, self.balance = curated, rules, comparisons or {}, balance
        self.with_shards, self.samples_per_shard = with_shards, samples_per_shard

    def run(self, run: Run) -> Outcome:
        """Do the work; a second run does nothing.

        Raises:
            UserError: there is no finished curation, or a rule reads what it did not measure.
            DataError: its files are damaged or not of one curation.
            NothingKept: no clip is kept; the tables and the ledger are written all the same.
        """
        if run.folder.resolve() == self.curated.resolve():
            raise UserError(f"{run.folder} is the curation itself, which must not be written; choose another run_dir")
        made_of = [(name, sha256_file(self.curated / name)) for name in _READ if (self.curated / name).is_file()]
        state = fingerprint(
            made_of, self.rules, self.comparisons, self.balance, self.with_shards, self.samples_per_shard
        )
        done = run.folder / "made_of.json"
        whole = not self.with_shards or (run.folder / "shards/shards.json").is_file()
        if whole and (known := read_marker(done, state)) is not None:
            return Outcome(known["summary"], known["figures"], did_nothing=True)
        done.unlink(missing_ok=True)
        curated = self._read()
        fates = decide_again(curated, self.rules, self.comparisons, self.balance)
        ledger, files = reckon(curated, fates)
        self._write_scores(run.folder / "scores.parquet", curated, fates)
        compared = [stage.columns()[0] for stage in self.comparisons.values()]
        write_json(run.folder / "rules.json", {name: rule.to_json(curated.table) for name, rule in self.rules.items()})
        write_json(run.folder / "survival.json", survival(curated.table, self.rules, compared=compared))
        found: dict[str, Json] = {}
        for name, stage in self.comparisons.items():
            (column,) = stage.columns()
            if column in curated.vectors:
                records = _records(curated, _kept_clips(curated, fates), column)
                found[name] = nearest_pairs(records, {column: stage}, self.rules, curated.table)[column]
        write_json(run.folder / NEAREST_PAIRS, found)
        write_json(run.folder / "files.json", files)
        write_json(run.folder / "ledger.json", ledger.to_json())
        if (self.curated / "vectors.parquet").is_file():  # so that one can decide again from this folder, too
            write_bytes(run.folder / "vectors.parquet", (self.curated / "vectors.parquet").read_bytes())
        if fates.balanced is not None:
            write_json(run.folder / "balance.json", fates.balanced.plan)
        without = self._write_shards(run.folder, curated, fates)
        if not ledger.kept:
            dropped = dict(ledger.clips.dropped + ledger.images.dropped)
            raise NothingKept(f"none of {len(curated.table)} clips is kept: {dropped}")
        summary = _summary(curated, fates, ledger, without)
        figures = {"clips": ledger.clips.total, "clips_kept": ledger.clips.kept, "without_media": len(without)}
        write_json(done, {"made_of": state, "summary": summary, "figures": figures})
        return Outcome(summary, figures)

    def _read(self) -> FinishedCuration:
        table, others = read_table(self.curated / "scores.parquet")
        try:
            files = read_json(self.curated / "files.json")
        except (OSError, ValueError) as error:
            raise DataError(
                f"{self.curated / 'files.json'} cannot be read ({error}); run the curation again"
            ) from error
        if not isinstance(files, list) or not all(isinstance(f, dict) and f.keys() >= _FILE_KEYS for f in files):
            raise DataError(f"{self.curated / 'files.json'} is not a curation's list of files; run the curation again")
        return FinishedCuration(table, others, files, read_vectors(self.curated / "vectors.parquet"))

    def _write_scores(self, path: Path, curated: FinishedCuration, fates: Fates) -> None:
        """Write the earlier table with the new decisions."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        decisions = ["failed" if message is not None else "kept" if rule is None else "dropped"
                     for message, rule in zip(curated.others["message"], fates.rules, strict=True)]  # fmt: skip
        new = {"decision": decisions, "rule": fates.rules, "duplicate_of": fates.duplicate_of}
        table = pq.read_table(self.curated / "scores.parquet")
        for name, values in new.items():
            place = table.column_names.index(name)
            table = table.set_column(place, name, pa.array(values, pa.string()))
        with atomic_path(path) as temporary:
            pq.write_table(table, temporary)

    def _write_shards(self, folder: Path, curated: FinishedCuration, fates: Fates) -> list[str]:
        """Write shards of the kept clips that have media; returns the ids of those that have none."""
        alive, ids = curated.table.alive.tolist(), curated.text_column("clip_id")
        kept = [ids[place] for place, rule in enumerate(fates.rules) if rule is None and alive[place]]
        there = self.curated / "shards"
        shards = ShardSet(there) if (there / "shards.json").is_file() else None
        entries = {} if shards is None else {entry.key: entry for entry in shards.entries}
        without = [clip for clip in kept if clip not in entries]
        write_text(folder / "without_media.txt", "".join(f"{clip}\n" for clip in without))
        if not self.with_shards:
            return without
        pictures = {f"{clip}.jpg": f"{clip}.jpg" for clip in ids}
        copy_files(self.curated / "thumbnails", folder / "thumbnails", pictures)
        info(f"writing {len(kept) - len(without)} clips to {folder / 'shards'}")

        with (
            replaced_folder(folder / "shards") as partial,
            ShardWriter(partial, samples_per_shard=self.samples_per_shard) as writer,
        ):
            for key in (clip for clip in kept if clip in entries):
                assert shards is not None
                entry, names = entries[key], list(entries[key].members)
                index = {name: value for name, value in entry.index.items() if name != "weight"}
                index |= {} if fates.balanced is None else {"weight": fates.balanced.weights[key]}
                writer.write(key, dict(zip(names, shards.read_all(entry, names), strict=True)), index)
        return without


def _summary(curated: FinishedCuration, fates: Fates, ledger: Ledger, without: Sequence[str]) -> str:
    before = [decision == "kept" for decision in cast(list[str], curated.others["decision"])]
    alive = curated.table.alive.tolist()
    now = [rule is None and ok for rule, ok in zip(fates.rules, alive, strict=True)]
    more = sum(new and not old for old, new in zip(before, now, strict=True))
    fewer = sum(old and not new for old, new in zip(before, now, strict=True))
    if without:
        warn(
            f"{len(without)} newly kept clips have no video yet (without_media.txt): run the curation itself with "
            f"these rules to encode only them"
        )
    return (
        f"kept {ledger.clips.kept} of {ledger.clips.total} clips "
        f"({ledger.microseconds.kept / 1e6:.1f} of {ledger.microseconds.total / 1e6:.1f} s): {more} more than before, "
        f"{fewer} fewer; {len(without)} of them without video"
    )
