"""Tests that a made log written with raw ids is read back by the import as it was made, day by day."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from nemo_vfm.core.types.job import Run
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.recsys.import_log import ImportLog
from nemo_vfm.recsys.log_import.frequent_ids import FrequentIds, read_vocabulary
from nemo_vfm.recsys.make_raw_log import MakeRawLog
from nemo_vfm.recsys.sessions.id_feature import IdFeature
from nemo_vfm.recsys.sessions.session_log import SessionGroup, SessionLog
from nemo_vfm.recsys.sessions.teacher import Teacher
from nemo_vfm.recsys.sources.parquet_log import ParquetLog
from nemo_vfm.sparse.log_chunk import LogChunk
from nemo_vfm.sparse.row_fingerprint import mix64_


def log(**changes: int) -> SessionLog:
    history = IdFeature(rows=40, length=5, shortest=0, history=True)
    return SessionLog(
        num_samples=2_000, days=2, new_ids=0.2, chunk_samples=300, samples_per_session=4.0, dense=["age"],
        groups={"user": SessionGroup(unchanged=0.6, features={"seen": history})}, features={"item": IdFeature(rows=50)},
        teacher=Teacher(single=["item"], dense=["age"], pairs_share=0.0), **changes,
    )  # fmt: skip


def test_the_import_of_a_day_gives_back_what_was_made(tmp_path: Path):
    MakeRawLog(log=log()).run(Run(tmp_path, seed=5))
    source = ParquetLog(paths=[tmp_path / "day-2.parquet"], session="session", time="time",
                        labels=["click", "teacher"], features=["seen", "item"], dense=["age"])  # fmt: skip
    ImportLog(source=source, ids=FrequentIds(num_rows=1_000, min_count=1)).run(Run(tmp_path / "run"))
    found = FeatureTable(tmp_path / "run/table").read(0, 1_000)
    found = found.select(found.ids_B.argsort())
    made = LogChunk.cat(list(log(seed=5).day_chunks(1)))
    assert torch.equal(found.session_B, made.session_B) and torch.equal(found.time_B, made.time_B)
    for ours, theirs in ((found.dense, made.dense), (found.labels, made.labels)):
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    for name, ids in read_vocabulary(tmp_path / "run/vocabulary.safetensors").ids.items():
        raw_N = torch.from_numpy(ids)[found.features[name].values_N - 1]
        assert torch.equal(raw_N, mix64_(made.features[name].values_N.clone()))
        assert torch.equal(found.features[name].lengths_B, made.features[name].lengths_B)


class KilledError(Exception):
    """Stands for a kill."""


def test_a_killed_run_keeps_whole_days_and_comes_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    MakeRawLog(log=log()).run(Run(tmp_path / "whole"))
    write, calls = pq.ParquetWriter.write_table, iter(range(6))

    def killed(self: pq.ParquetWriter, *given: object) -> None:
        if next(calls, None) is None:
            raise KilledError
        write(self, *given)

    with monkeypatch.context() as patched, pytest.raises(KilledError):
        patched.setattr(pq.ParquetWriter, "write_table", killed)
        MakeRawLog(log=log()).run(Run(tmp_path / "killed"))
    first = tmp_path / "killed/day-1.parquet"
    written = first.stat().st_mtime_ns
    assert not (tmp_path / "killed/day-2.parquet").exists()
    assert not MakeRawLog(log=log()).run(Run(tmp_path / "killed", resume=True)).did_nothing
    assert first.stat().st_mtime_ns == written
    days = [[path.read_bytes() for path in sorted(folder.glob("*.parquet"))] for folder in tmp_path.iterdir()]
    assert days[0] == days[1] and len(days[0]) == 2
    assert MakeRawLog(log=log()).run(Run(tmp_path / "killed")).did_nothing
    assert not MakeRawLog(log=log()).run(Run(tmp_path / "killed", seed=1)).did_nothing
    assert first.read_bytes() != days[0][0]


def test_a_feature_with_the_name_of_another_column_is_refused():
    with pytest.raises(ValueError, match="click is already a column of a raw log"):
        MakeRawLog(log=SessionLog(num_samples=9, features={"click": IdFeature(rows=5)}))
