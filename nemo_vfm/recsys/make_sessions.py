"""Makes a log of sessions, measures it, and writes it as a feature table, and if asked as plain shards.

Shape letter: B samples.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from nemo_vfm.core.bounds import require_between
from nemo_vfm.core.log import Bar, bar, warn
from nemo_vfm.core.storage.files import read_json, write_json
from nemo_vfm.core.types.job import Outcome, Run, makes
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.feature_table.row_order import held_out
from nemo_vfm.recsys.feature_table.table_manifest import NAME
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.recsys.feature_table.table_writer import FeatureTableWriter
from nemo_vfm.recsys.logistic_regression import LabelledSamples, LogisticRegression
from nemo_vfm.recsys.sessions.random_stream import RandomStream
from nemo_vfm.recsys.sessions.session_log import SessionLog
from nemo_vfm.recsys.sessions.teacher import ScoreRanks
from nemo_vfm.sparse.jagged import run_begins
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.row_deduplication import row_changes

_MEASURED_SAMPLES = 1 << 22  # bounds the memory of an AUC
#: Whether the session of each sample is held out: bool, (B,).
_HeldOut: TypeAlias = Callable[[Tensor], Tensor]
_PLAN, _RESULT, _TABLE, _LOGISTIC = "plan.json", "sessions.json", "table", "logistic.safetensors"


@makes("table", "logistic.safetensors", "sessions.json", "ledger.json")
class MakeSessions:
    """Writes `table/`, clustered by session and ordered by time, `ledger.json`, and at last `sessions.json`.

    `sessions.json` has the settings and what was measured: S, d of each group, the teacher's AUC (of all samples and of
    both sides of `val_fraction`). A killed run resumes after the last finished part, and comes to the same bytes.

    Args:
        log: the log to make.
        val_fraction: share of the sessions that `FeatureTableData` will hold out, where its seed is that of this run.
            They are in the table, too.
        shards: how many plain logs to write to `shards/`, too: in the order of time, without groups; 0 writes none.
        shard_by: which shard a sample goes to: that of its session, or any.
        logistic: fits logistic regression on what is not held out, and keeps what scores best on what is, in
            `logistic.safetensors`; None fits none.
        rows_per_group: samples of a row group.
        rows_per_part: samples of a file, a multiple of `rows_per_group`.
        zstd_level: of all columns.
    """

    def __init__(
        self,
        *,
        log: SessionLog,
        val_fraction: float = 0.0,
        shards: int = 0,
        shard_by: Literal["session", "random"] = "session",
        logistic: LogisticRegression | None = None,
        rows_per_group: int = 1 << 16,
        rows_per_part: int = 1 << 20,
        zstd_level: int = 3,
    ) -> None:
        require_between(0, 0.999, val_fraction=val_fraction)
        require_between(0, 10_000, shards=shards)
        require_between(1, 22, zstd_level=zstd_level)
        if rows_per_group < 1 or rows_per_part < 1 or rows_per_part % rows_per_group:
            raise ValueError(f"rows_per_part {rows_per_part} must be a multiple of rows_per_group {rows_per_group}")
        if logistic is not None and (log.teacher is None or not val_fraction):
            raise ValueError("logistic needs labels and samples to compare on; give log.teacher and val_fraction")
        self.log, self.val_fraction, self.shards, self.shard_by = log, val_fraction, shards, shard_by
        self.logistic, self.rows_per_group, self.rows_per_part = logistic, rows_per_group, rows_per_part
        self.zstd_level = zstd_level

    def run(self, run: Run) -> Outcome:
        """Write what is missing; the second time it does nothing."""
        log, folder = self.log.with_seed(run.seed), run.folder
        plan = {**_settings(self), "log": _settings(log), "seed": run.seed}  # all that the result follows from
        before = read_json(folder / _PLAN) if (folder / _PLAN).is_file() else None
        if before == plan and (folder / _RESULT).is_file():
            return _outcome(read_json(folder / _RESULT), did_nothing=True)
        if before not in (None, plan):
            warn(f"{folder} holds a log made with other settings; it is made again")
            for name in ("table", "shards"):
                shutil.rmtree(folder / name, ignore_errors=True)
            for name in (_RESULT, _LOGISTIC, "ledger.json"):
                (folder / name).unlink(missing_ok=True)
        write_json(folder / _PLAN, plan)
        count, held = log.num_samples, partial(held_out, seed=run.seed, fraction=self.val_fraction)
        with bar("make sessions", count * (1 + (self.shards > 0))) as line:
            measured = self._table(folder / _TABLE, log, held, line)
            result = {"settings": plan, "samples": count, "measured": measured.json()}
            if self.shards:
                self._shards(folder / "shards", log, line)
        if self.logistic is not None:
            result["logistic"] = _best_regression(self.logistic, folder, log.rows(), held)
        write_json(folder / "ledger.json", {"rows": {"in": count, "kept": count, "dropped": {}, "failed": {}}})
        write_json(folder / _RESULT, result)
        return _outcome(result, did_nothing=False)

    def _table(self, folder: Path, log: SessionLog, held: _HeldOut, line: Bar) -> "LogStatistics":
        """Write the table, and measure its first samples, on resuming, too."""
        writer = self._writer(folder, log, log.schema(), clustered=True)
        end, step = log.num_samples, log.chunk_samples
        written = end if writer is None else writer.resume()
        measured = LogStatistics({name: [*group.features] for name, group in log.groups.items()})
        for at in range(0, end, step):
            last = min(at + step, end)
            if at < _MEASURED_SAMPLES or last > written:
                chunk = log.samples(at, last, clustered=True)
            if at < _MEASURED_SAMPLES:
                measured.add(chunk, held(chunk.session_B))
            if writer is not None and last > written:
                writer.add(chunk.rows(max(written - at, 0), len(chunk)))
            line.advance(last - at)
        if writer is not None:
            writer.finish()
        return measured

    def _shards(self, folder: Path, log: SessionLog, line: Bar) -> None:
        """Every sample into its shard; on resuming, those that are in whole parts are made again and left out."""
        schema = TableSchema(log.dense, log.schema().labels, log.schema().features)
        writers = [
            self._writer(folder / f"{number:05d}", log, schema, clustered=False) for number in range(self.shards)
        ]
        written = [0 if writer is None else writer.resume() for writer in writers]
        for chunk in log.log_chunks():
            line.advance(len(chunk))
            keys_B = chunk.session_B if self.shard_by == "session" else chunk.ids_B
            shard_B = (RandomStream(log.seed, "shards").uniform(keys_B) * self.shards).to(torch.int64)
            for number in torch.unique(shard_B).tolist():
                rows = chunk.select((shard_B == number).nonzero()[:, 0])
                writer, done = writers[number], min(written[number], len(rows))
                written[number] -= done
                if writer is not None and len(rows) > done:
                    writer.add(rows.rows(done, len(rows)))
        for writer in filter(None, writers):
            writer.finish()

    def _writer(
        self, folder: Path, log: SessionLog, schema: TableSchema, *, clustered: bool
    ) -> FeatureTableWriter | None:
        """None where the table is finished."""
        if (folder / NAME).is_file():
            return None
        return FeatureTableWriter(
            folder, schema, rows_per_part=self.rows_per_part, rows_per_group=self.rows_per_group,
            zstd_level=self.zstd_level, clustered=clustered, table_rows=log.rows(),
        )  # fmt: skip


class LogStatistics:
    """Counts over samples that come session by session, in chunks of any size."""

    def __init__(self, groups: Mapping[str, Sequence[str]]) -> None:
        self._groups = groups
        self._samples = self._sessions = 0
        self._changes = dict.fromkeys(groups, 0)
        self._last: LogChunk | None = None
        self._labels: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, chunk: LogChunk, is_held_out_B: Tensor) -> None:
        """Count the next samples, at least one."""
        begins_B = run_begins(chunk.session_B)
        if self._last is not None:
            begins_B[0] = chunk.session_B[0] != self._last.session_B[0]
        for group, names in self._groups.items():
            # Whether a row differs from the one before; the first of all counts as one that does.
            both = chunk if self._last is None else LogChunk.cat([self._last, chunk])
            changed_B = row_changes([both.features[name] for name in names])[len(both) - len(chunk) :]
            self._changes[group] += int((changed_B & ~begins_B).sum())
        self._samples, self._sessions = self._samples + len(chunk), self._sessions + int(begins_B.sum())
        if "teacher" in chunk.labels:
            self._labels.append((chunk.labels["teacher"], chunk.labels["click"], is_held_out_B))
        self._last = chunk.rows(len(chunk) - 1, len(chunk))

    def json(self) -> Json:
        """S, d of each group, and of all samples, those trained on and those held out the teacher's AUC and rate.

        d is None where no session has two samples. A side is left out where an AUC has no meaning.
        """
        sides, teacher = dict[str, Tensor](), dict[str, Json]()
        if self._labels:
            teacher_B, click_B, is_held_out_B = map(torch.cat, zip(*self._labels, strict=True))
            sides["all"] = torch.ones_like(is_held_out_B)
            if bool(is_held_out_B.any()):
                sides |= {"train": ~is_held_out_B, "held_out": is_held_out_B}
        for name, of in sides.items():
            if (samples := int(of.sum())) > 1:
                auc = ScoreRanks(teacher_B[of]).expected_auc(teacher_B[of])
                rate, click_rate = float(teacher_B[of].double().mean()), float(click_B[of].double().mean())
                teacher[name] = {"samples": samples, "auc": auc, "rate": rate, "click_rate": click_rate}
        pairs = self._samples - self._sessions
        unchanged = {group: 1 - changes / pairs if pairs else None for group, changes in self._changes.items()}
        return {
            "samples": self._samples, "sessions": self._sessions,
            "samples_per_session": self._samples / self._sessions, "unchanged": unchanged, "teacher": teacher,
        }  # fmt: skip


def _best_regression(logistic: LogisticRegression, folder: Path, rows: Mapping[str, int], held: _HeldOut) -> Json:
    """Write the fit of the ridge that is best for it: the comparison is to be fair to logistic regression.

    AUCs of both sides are expected under the teacher's probabilities, which is less noisy than of the clicks.
    """
    table = FeatureTable(folder / _TABLE)
    parts = (chunk.select((~held(chunk.session_B)).nonzero()[:, 0]) for chunk in table.log_chunks())
    trained = (LabelledSamples(one.features, one.dense_BF, one.labels["click"]) for one in parts)
    models = dict(logistic.fits(trained, rows))
    scores: dict[float, list[Tensor]] = {ridge: [] for ridge in models}
    teacher, sides = list[Tensor](), list[Tensor]()
    for chunk in table.log_chunks():
        teacher.append(chunk.labels["teacher"])
        sides.append(held(chunk.session_B))
        for ridge, model in models.items():
            scores[ridge].append(model.score(chunk.features, chunk.dense_BF))
    teacher_B, is_held_out_B = torch.cat(teacher), torch.cat(sides)
    of = {"train": ~is_held_out_B, "held_out": is_held_out_B}
    aucs: dict[float, dict[str, float]] = {}
    for ridge, found in scores.items():
        score_B = torch.cat(found)
        aucs[ridge] = {side: ScoreRanks(score_B[of_B]).expected_auc(teacher_B[of_B]) for side, of_B in of.items()}
    best = max(models, key=lambda ridge: aucs[ridge]["held_out"])
    models[best].save(folder / _LOGISTIC)
    return {"ridge": best, "auc": aucs[best]}


def _settings(value: object) -> Json:
    """What a component was built from, by name."""
    if isinstance(value, dict):
        return {name: _settings(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_settings(one) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    return {"class": type(value).__name__} | {
        name: _settings(one) for name, one in vars(value).items() if not name.startswith("_")
    }


def _outcome(result: Json, *, did_nothing: bool) -> Outcome:
    measured = result["measured"]
    figures = {"rows": result["samples"], "samples_per_session": measured["samples_per_session"]}
    text = f"{result['samples']:,} samples, {measured['samples_per_session']:.2f} a session"
    if teacher := measured["teacher"].get("held_out") or measured["teacher"].get("all"):
        figures["teacher_auc"] = teacher["auc"]
        text += f"; AUC of the teacher {teacher['auc']:.4f}"
    if "logistic" in result:
        figures["logistic_auc"] = result["logistic"]["auc"]["held_out"]
        text += f", of logistic regression {figures['logistic_auc']:.4f}"
    return Outcome(text, figures, did_nothing)
