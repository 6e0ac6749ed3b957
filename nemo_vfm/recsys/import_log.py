"""Imports a log of somebody's into a feature table, in bounded memory and with every row accounted for."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from nemo_vfm.core.errors import NothingKept
from nemo_vfm.core.log import bar, warn
from nemo_vfm.core.storage.files import read_json, read_json_or_none, sha256_file, sha256_text, write_json, write_text
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.feature_table.clustering import SessionSort, without_first
from nemo_vfm.recsys.feature_table.table_manifest import NAME, read_manifest
from nemo_vfm.recsys.feature_table.table_writer import UNFINISHED, FeatureTableWriter
from nemo_vfm.recsys.log_import.frequent_ids import FrequentIds, Vocabulary, read_vocabulary
from nemo_vfm.recsys.log_import.hashed_ids import HashedIds, IdMap
from nemo_vfm.recsys.log_import.known_ids import VOCABULARY, KnownIds
from nemo_vfm.recsys.log_import.log_intake import (
    NEGATIVES,
    ImportCounts,
    IntakeState,
    KeepBy,
    OnBadRow,
    RowSampling,
    intake,
    state_of,
)
from nemo_vfm.recsys.sources.log_reading import ImportSource
from nemo_vfm.recsys.sources.text_blocks import sizes_of
from nemo_vfm.sparse.log_chunk import LogChunk

_MIN_MEMORY = 1 << 20


@makes("table", "vocabulary.safetensors", "bad_rows.jsonl", "ledger.json")
class ImportLog:
    """Writes the samples of a log to `table/`, a feature table (docs/how-to/recommenders/import_logs.md).

    A log with sessions is clustered by them, in order of time, by way of files in `spill/`, which take as much room as
    the samples; one without keeps its order. Killed at any moment and started again, it resumes and comes to the same
    bytes. `ledger.json` says in = kept + dropped + failed, in rows; `bad_rows.jsonl` has file, line and reason of the
    first 1,000 rows that are no samples.

    Args:
        source: the log.
        ids: which row of its table an id has; `FrequentIds` counts the ids of the whole log first, and leaves
            `vocabulary.safetensors`, which `KnownIds` takes for another log. None keeps the log's own ids.
        raw_features: whose numbers are no ids and stay as they are, such as the times of a history's items.
        groups: features that change together, by name; None takes the source's own.
        windows: features of groups whose rows shift; None takes the source's own.
        memory_bytes: that the samples may take while they are clustered; Python, the file that is being read and a row
            group of the table come on top, about 500 MB.
        keep_fraction: of the sessions or samples that stays in the table.
        keep_by: the unit that is drawn: whole sessions, or samples one by one.
        keep_negatives: of the samples without a label above 0 that stays in the table, drawn one by one. Each weighs
            1 / `keep_negatives` times as much, so that a training predicts the rate of the whole log.
        on_bad_row: stop at the first row that is no sample, or drop such rows and count them.
        rows_per_part: samples of a file of the table; after a kill, at most this many are written once more.
        rows_per_group: samples of a row group.
    """

    def __init__(
        self,
        *,
        source: ImportSource,
        ids: IdMap | FrequentIds | KnownIds | None,
        raw_features: Sequence[str] = (),
        groups: Mapping[str, Sequence[str]] | None = None,
        windows: Sequence[str] | None = None,
        memory_bytes: int = 256 << 20,
        keep_fraction: float = 1.0,
        keep_by: KeepBy = "session",
        keep_negatives: float = 1.0,
        on_bad_row: OnBadRow = "stop",
        rows_per_part: int = 1 << 20,
        rows_per_group: int = 1 << 16,
    ) -> None:
        if not 0 < keep_fraction <= 1 or not 0 < keep_negatives <= 1 or memory_bytes < _MIN_MEMORY:
            raise ValueError(
                f"keep_fraction ({keep_fraction}) and keep_negatives ({keep_negatives}) must be above 0 and at most 1, "
                f"and memory_bytes ({memory_bytes:,}) at least {_MIN_MEMORY:,}"
            )
        schema = source.schema()
        if keep_negatives < 1 and not schema.labels:
            raise ValueError("keep_negatives needs labels, but the source has none")
        if unknown := [name for name in raw_features if name not in schema.features]:
            raise ValueError(f"raw_features names {unknown[0]}, but the source has {', '.join(schema.features)}")
        self.source, self.ids, self.raw_features = source, ids, tuple(raw_features)
        self.memory_bytes = memory_bytes
        self.schema = replace(
            schema,
            groups=schema.groups if groups is None else groups,
            windows=schema.windows if windows is None else windows,
            weight=schema.weight or keep_negatives < 1,
        )
        self.keep_fraction, self.keep_by, self.on_bad_row = keep_fraction, keep_by, on_bad_row
        self.keep_negatives = keep_negatives
        self.rows_per_part, self.rows_per_group = rows_per_part, rows_per_group
        self._writer(Path())  # a wrong number of rows is refused here

    def run(self, run: Run) -> Outcome:
        """Import what is not imported yet; the second time it does nothing.

        Raises:
            UserError: a file is missing or of another kind, or a bucket of sessions does not fit into the memory.
            DataError: a file is damaged, or a row is bad and stops.
            NothingKept: no row is a sample that stays.
        """
        # All that the table follows from.
        settings = {name: value for name, value in run.settings.items() if name != "memory_bytes"}
        rules: list[Json] = [self.keep_fraction, self.keep_by, self.on_bad_row, self.rows_per_part, self.rows_per_group]
        rules += [self.keep_negatives, *self.raw_features]
        rules += [sha256_file(self.ids.file())] if isinstance(self.ids, KnownIds) else []
        paths = self.source.files()
        files = [[path.name, size] for path, size in zip(paths, sizes_of(paths), strict=True)]
        plan = {"made_of": sha256_text(json.dumps([settings, run.seed, asdict(self.schema), rules, files]))}
        places = _RunPaths(run.folder)
        before = read_json_or_none(places.plan)
        if before == plan and (places.table / NAME).is_file():
            places.remove_state()
            return self._outcome(places, did_nothing=True)
        if before != plan:
            if before is not None:
                warn(f"the log or the settings differ from those that {run.folder} was started with; it is imported "
                     "again")  # fmt: skip
            places.remove_state()
            places.vocabulary.unlink(missing_ok=True)
            shutil.rmtree(places.table, ignore_errors=True)
        places.sweep()
        write_json(places.plan, plan)
        ids = self._id_map(places)
        digest = ids.digest if isinstance(ids, Vocabulary) else ""  # of which ids have which rows
        if isinstance(ids, HashedIds):
            digest = sha256_text(f"hashed {ids.num_rows} {sorted(ids.num_rows_of.items())}")
        writer = self._writer(places.table, digest, self._table_rows(ids))
        sampling = None
        if min(self.keep_fraction, self.keep_negatives) < 1:
            sampling = RowSampling(self.keep_fraction, self.keep_by, run.seed, self.keep_negatives)
        write = self._in_order if self.source.sessions() == "none" else self._cluster
        counts = write(places, writer, ids, sampling)
        self._account(places, counts)
        writer.finish()
        places.remove_state()
        return self._outcome(places, did_nothing=False)

    def _writer(
        self, folder: Path, ids: str = "", table_rows: Mapping[str, int] | None = None
    ) -> FeatureTableWriter:  # fmt: skip
        return FeatureTableWriter(
            folder, self.schema, rows_per_part=self.rows_per_part, rows_per_group=self.rows_per_group, ids=ids,
            table_rows=table_rows,
        )  # fmt: skip

    def _table_rows(self, ids: IdMap | None) -> dict[str, int]:
        """Of features the rows of their tables, as far as the map says."""
        made = self.schema.ids_of
        names = [name for name in self.schema.features if name not in {*self.raw_features, *made}]
        if isinstance(ids, HashedIds):
            found = {name: ids.num_rows_of.get(name, ids.num_rows) for name in names}
        else:
            known = ids.ids if isinstance(ids, Vocabulary) else {}
            found = {name: len(known[name]) + 1 for name in names if name in known}
        return found | {name: found[of] for name, of in made.items() if of in found and name not in self.raw_features}

    def _id_map(self, places: "_RunPaths") -> IdMap | None:
        """Where ids are counted first, that is done once; killed before its end, it begins anew."""
        if not isinstance(self.ids, FrequentIds | KnownIds):
            return self.ids
        if not places.vocabulary.is_file():
            reading = self._read_from(IntakeState(), None, None, "count ids")
            chunks = (
                replace(chunk, features={n: ids for n, ids in chunk.features.items() if n not in self.raw_features})
                for chunk, _ in reading
            )
            self.ids.vocabulary(chunks).write(places.vocabulary)
        return read_vocabulary(places.vocabulary)

    def _in_order(
        self, places: "_RunPaths", writer: FeatureTableWriter, ids: IdMap | None, sampling: RowSampling | None
    ) -> ImportCounts:
        """Write samples as they are read. After each part, note a place to go on from that is before its end."""
        done, state = writer.resume(), state_of(read_json_or_none(places.progress))
        state = state if state.counts.kept <= done else IntakeState()
        for chunk, after in self._read_from(state, ids, sampling):
            skipped = done - state.counts.kept
            for unwritten in without_first([chunk], max(0, skipped)):
                writer.add(unwritten)
            if after.counts.kept // self.rows_per_part > state.counts.kept // self.rows_per_part:
                write_json(places.progress, state.json())
            state = after
        return state.counts

    def _cluster(
        self, places: "_RunPaths", writer: FeatureTableWriter, ids: IdMap | None, sampling: RowSampling | None
    ) -> ImportCounts:
        """Sort samples by way of the disk. Where the source cuts sessions, they are drawn after that."""
        cut, sort = self.source.sessions() == "cut", SessionSort(places.spill, self.memory_bytes)
        reading = self._read_from(state_of(sort.state()), ids, None if cut else sampling)
        sort.fill((chunk, state.json()) for chunk, state in reading)
        counts = state_of(sort.state()).counts
        skip = writer.resume()
        with bar("write", counts.kept, 0, "rows") as line:
            for chunk in sort.sorted_chunks():
                done = self.source.complete(chunk)
                done = done if sampling is None or not cut else sampling.sample_rows(done, counts.dropped)
                for unwritten in without_first([done], skip):
                    writer.add(unwritten)
                skip = max(0, skip - len(done))
                line.advance(len(chunk))
        return counts

    def _read_from(
        self, state: IntakeState, ids: IdMap | None, sampling: RowSampling | None, title: str = "read"
    ) -> Iterator[tuple[LogChunk, IntakeState]]:
        reading = intake(
            self.source, state, ids=ids, sampling=sampling, on_bad_row=self.on_bad_row, raw_features=self.raw_features
        )
        with bar(title, 100, round(100 * state.share), "%") as line:
            for chunk, after in reading:
                yield chunk, after
                line.advance(100 * (after.share - state.share), f"{after.counts.total:,} rows")
                state = after

    def _account(self, places: "_RunPaths", counts: ImportCounts) -> None:
        """The ledger is there before the table is whole."""
        write_json(places.ledger, {"rows": counts.column()})
        lines = [json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in counts.listed]
        write_text(places.bad_rows, "".join(lines))
        if self.keep_negatives < 1 and not counts.dropped.get(NEGATIVES):
            warn(
                f"keep_negatives={self.keep_negatives} dropped no sample: a negative has no label above 0, but a label "
                "that is a probability, such as a teacher's, is nearly always above 0; leave it out of the labels"
            )
        for reason, count in sorted(counts.failed.items()):
            warn(f"{count:,} of {counts.total:,} rows are not samples: {reason}; see bad_rows.jsonl")
        if not counts.kept:
            raise NothingKept(f"none of {counts.total:,} rows is in the table: {json.dumps(counts.column())}")

    def _outcome(self, places: "_RunPaths", *, did_nothing: bool) -> Outcome:
        manifest, rows = read_manifest(places.table), read_json(places.ledger)["rows"]
        dropped, failed = (sum(rows[side].values()) for side in ("dropped", "failed"))
        assert manifest.num_rows == rows["kept"] == rows["in"] - dropped - failed, f"rows do not add up: {rows}"
        figures = {"in": rows["in"], "kept": rows["kept"], "dropped": dropped, "failed": failed}
        sessions = f" of {manifest.sessions:,} sessions" if manifest.sessions < manifest.num_rows else ""
        text = f"{manifest.num_rows:,} samples{sessions} in {places.table}"
        said = f"{text}; {rows['in']:,} rows in, {dropped:,} dropped, {failed:,} failed"
        return Outcome(said, {**figures, "sessions": manifest.sessions}, did_nothing)


class _RunPaths:
    """Where everything is in a run folder."""

    def __init__(self, folder: Path) -> None:
        self.table, self.spill = folder / "table", folder / "spill"
        self.ledger, self.plan, self.progress = folder / "ledger.json", folder / "plan.json", folder / "progress.json"
        self.bad_rows, self.vocabulary = folder / "bad_rows.jsonl", folder / VOCABULARY

    def sweep(self) -> None:
        """Delete what a run that was killed left half-written; see core/storage/files.py."""
        ours = (self.ledger, self.plan, self.progress, self.bad_rows, self.vocabulary)
        found = [path for one in ours for path in one.parent.glob(f".{one.stem}.*.tmp{one.suffix}")]
        for path in [*found, *self.table.rglob(".*.tmp*")]:
            path.unlink(missing_ok=True)

    def remove_state(self) -> None:
        """Delete what only an unfinished import needs."""
        shutil.rmtree(self.spill, ignore_errors=True)
        for path in (self.progress, self.table / UNFINISHED):
            path.unlink(missing_ok=True)
