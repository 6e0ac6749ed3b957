"""Applies other rules to a finished curation without video: decisions, their ledger and shards of the kept clips."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from nemo_vfm.core.errors import DataError, NothingKept, UserError
from nemo_vfm.core.log import info, warn
from nemo_vfm.core.optional import computes_nothing
from nemo_vfm.core.storage.files import atomic_path, read_json, sha256_file, write_bytes, write_json, write_text
from nemo_vfm.core.types.job import Outcome, Run
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.curate.balance import Balance
from nemo_vfm.curate.decide.nearest_pairs import NEAREST_PAIRS
from nemo_vfm.curate.decide.rule import Rule
from nemo_vfm.curate.decide.score_table import read_table
from nemo_vfm.curate.decide.survival import survival
from nemo_vfm.curate.decide.vectors import read_vectors
from nemo_vfm.curate.examine.findings_cache import fingerprint
from nemo_vfm.curate.output.write_outputs import copy_files, replace_folder
from nemo_vfm.curate.reapply_rules import Fates, FinishedCuration, decide_again, nearest_again, reckon
from nemo_vfm.curate.record.ledger import Ledger
from nemo_vfm.curate.record.stage import Compares
from nemo_vfm.data.shards.shard_files import ShardSet, ShardWriter

_READ = ("scores.parquet", "files.json", "vectors.parquet", "shards/shards.json")
_FILE_KEYS = {"file", "source_id", "decision", "reason", "seconds", "clips"}


@computes_nothing
class Redecide:
    """Decides again on what an earlier curation measured, and decodes nothing.

    It decides as a curation with these rules would. Clips that are kept now and were not before have no media yet:
    they are listed in `without_media.txt`, and the curation itself encodes them once it is run with these rules. The
    earlier folder is only read.

    Args:
        curated: the folder of that curation: where its scores.parquet lies.
        rules: conditions that drop clips, by name; a clip counts under the first rule, in this order, that it breaks.
        comparisons: the stages of that curation that compare clips, by name; rules on their columns need them.
        balance: thins groups of what the rules keep; None keeps all of it.
        with_shards: whether shards of the kept clips that have media, and thumbnails, are written, or decisions alone.
        samples_per_shard: clips a shard.
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
        """Do the work; the second time it does nothing.

        Raises:
            UserError: there is no finished curation, or a rule reads what it did not measure.
            DataError: its files are damaged or not of one curation.
            NothingKept: no clip is kept; the tables and the ledger are written all the same.
        """
        if run.folder.resolve() == self.curated.resolve():
            raise UserError(f"{run.folder} is the curation itself, which must not be written; choose another run_dir")
        state, done = self._state(), run.folder / "made_of.json"
        whole = not self.with_shards or (run.folder / "shards/shards.json").is_file()
        if whole and (known := _known(done)) is not None and known["made_of"] == state:
            return Outcome(known["summary"], known["figures"], did_nothing=True)
        done.unlink(missing_ok=True)
        curated = self._read()
        fates = decide_again(curated, self.rules, self.comparisons, self.balance)
        ledger, files = reckon(curated, fates)
        self._write_tables(run.folder, curated, fates, ledger, files)
        without = self._write_shards(run.folder, curated, fates)
        if not ledger.kept:
            dropped = dict(ledger.clips.dropped + ledger.images.dropped)
            raise NothingKept(f"none of {len(curated.table)} clips is kept: {dropped}")
        summary = _summary(curated, fates, ledger, without)
        figures = {"clips": ledger.clips.total, "clips_kept": ledger.clips.kept, "without_media": len(without)}
        write_json(done, {"made_of": state, "summary": summary, "figures": figures})
        return Outcome(summary, figures)

    def _state(self) -> str:
        """All that the outputs are made of."""
        found = [(name, sha256_file(self.curated / name)) for name in _READ if (self.curated / name).is_file()]
        parts = (self.rules, self.comparisons, self.balance, self.with_shards, self.samples_per_shard)
        return fingerprint(found, *parts)

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

    def _write_tables(
        self, folder: Path, curated: FinishedCuration, fates: Fates, ledger: Ledger, files: Sequence[Json]
    ) -> None:
        self._write_scores(folder / "scores.parquet", curated, fates)
        compared = [stage.columns()[0] for stage in self.comparisons.values()]
        write_json(folder / "rules.json", {name: rule.to_json(curated.table) for name, rule in self.rules.items()})
        write_json(folder / "survival.json", survival(curated.table, self.rules, compared=compared))
        write_json(folder / NEAREST_PAIRS, nearest_again(curated, fates, self.rules, self.comparisons))
        write_json(folder / "files.json", files)
        write_json(folder / "ledger.json", ledger.to_json())
        if (self.curated / "vectors.parquet").is_file():  # so that this decision can be decided again, too
            write_bytes(folder / "vectors.parquet", (self.curated / "vectors.parquet").read_bytes())
        if fates.balanced is not None:
            write_json(folder / "balance.json", fates.balanced.plan)

    def _write_scores(self, path: Path, curated: FinishedCuration, fates: Fates) -> None:
        """The table as it was, with other decisions."""
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
        """Shards of what has media; the ids of what has none."""
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

        def fill(partial: Path) -> None:
            with ShardWriter(partial, samples_per_shard=self.samples_per_shard) as writer:
                for key in (clip for clip in kept if clip in entries):
                    assert shards is not None
                    entry, names = entries[key], list(entries[key].members)
                    index = {name: value for name, value in entry.index.items() if name != "weight"}
                    index |= _weight(fates, key)
                    writer.write(key, dict(zip(names, shards.read_all(entry, names), strict=True)), index)

        replace_folder(folder / "shards", fill)
        return without


def _weight(fates: Fates, clip: str) -> dict[str, Json]:
    return {} if fates.balanced is None else {"weight": fates.balanced.weights[clip]}


def _known(path: Path) -> dict[str, Json] | None:
    """The stored summary of a finished run."""
    try:
        known = read_json(path)
    except (OSError, ValueError):
        return None
    return known if isinstance(known, dict) and known.keys() == {"made_of", "summary", "figures"} else None


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
