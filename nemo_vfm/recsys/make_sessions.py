"""Makes a log of sessions, measures it, and writes it as a feature table, and if asked as plain shards.

Shape letter: B samples.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from nemo_vfm.core.bounds import require_between
from nemo_vfm.core.log import Bar, bar, warn
from nemo_vfm.core.storage.files import read_json, write_json
from nemo_vfm.core.types.job import Outcome, Run
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.recsys.feature_table.row_order import held_out
from nemo_vfm.recsys.feature_table.table_manifest import NAME
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.recsys.feature_table.table_writer import FeatureTableWriter
from nemo_vfm.recsys.logistic_regression import LabelledSamples, LogisticModel, LogisticRegression
from nemo_vfm.recsys.sessions.random_stream import RandomStream
from nemo_vfm.recsys.sessions.session_log import SessionLog
from nemo_vfm.recsys.sessions.teacher import ScoreRanks
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.row_deduplication import row_changes

_MEASURED_SAMPLES = 1 << 22  # bounds the memory of an AUC
_PLAN, _RESULT, _TABLE, _LOGISTIC = "plan.json", "sessions.json", "table", "logistic.safetensors"


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
        work = _Making(self, self.log.seeded(run.seed), run)
        plan = {**_settings(self), "log": _settings(work.log), "seed": run.seed}  # all that the result follows from
        before = _read_or_none(run.folder / _PLAN)
        if before == plan and (result := _read_or_none(run.folder / _RESULT)) is not None:
            return _outcome(result, did_nothing=True)
        if before not in (None, plan):
            warn(f"{run.folder} holds a log made with other settings; it is made again")
            for name in ("table", "shards"):
                shutil.rmtree(run.folder / name, ignore_errors=True)
            for name in (_RESULT, _LOGISTIC, "ledger.json"):
                (run.folder / name).unlink(missing_ok=True)
        write_json(run.folder / _PLAN, plan)
        return _outcome(work.finish(plan), did_nothing=False)


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
        begins_B = torch.diff(chunk.session_B, prepend=chunk.session_B.new_tensor([-1])) != 0
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


class _Making:
    """One run of the job."""

    def __init__(self, job: MakeSessions, log: SessionLog, run: Run) -> None:
        self.job, self.log, self.folder, self.seed = job, log, run.folder, run.seed

    def finish(self, plan: Json) -> Json:
        """Write everything, and `sessions.json` last."""
        count = self.log.num_samples
        with bar("make sessions", count * (1 + (self.job.shards > 0))) as line:
            # The table, and what is measured of it: on resuming, too, of its first samples.
            writer = self._writer(self.folder / _TABLE, self.log.schema(), clustered=True)
            end, step = self.log.num_samples, self.log.chunk_samples
            written = end if writer is None else writer.resume()
            measured = LogStatistics({name: [*group.features] for name, group in self.log.groups.items()})
            for at in range(0, end, step):
                last = min(at + step, end)
                if at < _MEASURED_SAMPLES or last > written:
                    chunk = self.log.samples(at, last, clustered=True)
                if at < _MEASURED_SAMPLES:
                    measured.add(chunk, self._held_out(chunk))
                if writer is not None and last > written:
                    writer.add(chunk.rows(max(written - at, 0), len(chunk)))
                line.advance(last - at)
            if writer is not None:
                writer.finish()
            result = {"settings": plan, "samples": count, "measured": measured.json()}
            if self.job.shards:
                self._shards(line)
        if self.job.logistic is not None:
            # The fit of the ridge that is best for it: the comparison is to be fair to logistic regression.
            chunks = FeatureTable(self.folder / _TABLE).log_chunks()
            parts = (chunk.select((~self._held_out(chunk)).nonzero()[:, 0]) for chunk in chunks)
            trained = (LabelledSamples(one.features, one.dense_BF, one.labels["click"]) for one in parts)
            models = dict(self.job.logistic.fits(trained, self.log.rows()))
            aucs = self._aucs(models)
            best = max(models, key=lambda ridge: aucs[ridge]["held_out"])
            models[best].save(self.folder / _LOGISTIC)
            result["logistic"] = {"ridge": best, "auc": aucs[best]}
        write_json(self.folder / "ledger.json", {"rows": {"in": count, "kept": count, "dropped": {}, "failed": {}}})
        write_json(self.folder / _RESULT, result)
        return result

    def _shards(self, line: Bar) -> None:
        """Every sample into its shard; on resuming, those that are in whole parts are made again and left out."""
        schema = TableSchema(self.log.dense, self.log.schema().labels, self.log.schema().features)
        folders = [self.folder / "shards" / f"{number:05d}" for number in range(self.job.shards)]
        writers = [self._writer(folder, schema, clustered=False) for folder in folders]
        written = [0 if writer is None else writer.resume() for writer in writers]
        for chunk in self.log.log_chunks():
            line.advance(len(chunk))
            keys_B = chunk.session_B if self.job.shard_by == "session" else chunk.ids_B
            shard_B = (RandomStream(self.log.seed, "shards").uniform(keys_B) * self.job.shards).to(torch.int64)
            for number in torch.unique(shard_B).tolist():
                rows = chunk.select((shard_B == number).nonzero()[:, 0])
                writer, done = writers[number], min(written[number], len(rows))
                written[number] -= done
                if writer is not None and len(rows) > done:
                    writer.add(rows.rows(done, len(rows)))
        for writer in writers:
            if writer is not None:
                writer.finish()

    def _writer(self, folder: Path, schema: TableSchema, *, clustered: bool) -> FeatureTableWriter | None:
        """None where the table is finished."""
        if (folder / NAME).is_file():
            return None
        return FeatureTableWriter(
            folder, schema, rows_per_part=self.job.rows_per_part, rows_per_group=self.job.rows_per_group,
            zstd_level=self.job.zstd_level, clustered=clustered, table_rows=self.log.rows(),
        )  # fmt: skip

    def _aucs(self, models: Mapping[float, LogisticModel]) -> dict[float, dict[str, float]]:
        """Of each side, expected under the teacher's probabilities, which is less noisy than of the clicks."""
        scores: dict[float, list[Tensor]] = {ridge: [] for ridge in models}
        teacher, sides = list[Tensor](), list[Tensor]()
        for chunk in FeatureTable(self.folder / _TABLE).log_chunks():
            teacher.append(chunk.labels["teacher"])
            sides.append(self._held_out(chunk))
            for ridge, model in models.items():
                scores[ridge].append(model.score(chunk.features, chunk.dense_BF))
        teacher_B, is_held_out_B = torch.cat(teacher), torch.cat(sides)
        of = {"train": ~is_held_out_B, "held_out": is_held_out_B}
        score_B = {ridge: torch.cat(found) for ridge, found in scores.items()}
        return {
            ridge: {side: ScoreRanks(one_B[of_B]).expected_auc(teacher_B[of_B]) for side, of_B in of.items()}
            for ridge, one_B in score_B.items()
        }

    def _held_out(self, chunk: LogChunk) -> Tensor:
        return held_out(chunk.session_B, self.seed, self.job.val_fraction)


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


def _read_or_none(path: Path) -> Json:
    return read_json(path) if path.is_file() else None


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
