"""Tests the job: what it refuses and warns of, what it does a second time, and profiles of other data."""

import inspect
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nemo_vfm.core import log
from nemo_vfm.core.errors import DataError, NothingKept, UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.recsys.feature_table.table_schema import TableSchema
from nemo_vfm.recsys.feature_table.table_writer import FeatureTableWriter
from nemo_vfm.recsys.profile import Profile
from nemo_vfm.recsys.profiling.profile_file import load_profile
from nemo_vfm.recsys.profiling.table_rows import TableRows
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.log_chunk import LogChunk
from tests.support.session_log import LogInMemory, session_log

LOG = session_log(200, 1)
#: One id of one sample differs.
OTHER = replace(
    LOG,
    features=LOG.features
    | {
        "item": replace(
            LOG.features["item"],
            values_N=LOG.features["item"].values_N ^ (torch.arange(len(LOG.features["item"].values_N)) == 99),
        )
    },
)


def job(chunk: LogChunk = LOG, **settings) -> Profile:
    return Profile(**{"source": LogInMemory(chunk), "fraction": 0.5, "batch_size": 32} | settings)


def test_a_second_run_does_nothing_until_data_seed_or_settings_differ(tmp_path: Path):
    assert not job().run(Run(tmp_path)).did_nothing
    before = (tmp_path / "profile.json").read_bytes()
    assert job().run(Run(tmp_path)).did_nothing
    changes: dict[str, Any] = {
        "fraction": 0.6, "tables": {"item": TableRows(9, "modulo")}, "other_tables": TableRows(9, "modulo"),
        "batch_size": 64, "windows": 2, "confidence": 0.9, "min_factor": 2.0, "hot_share": 0.7, "max_ids": 99,
        "max_values": 999,
    }  # fmt: skip
    assert changes.keys() | {"source"} == inspect.signature(Profile).parameters.keys()
    changed = [job(replace(LOG, time_B=LOG.time_B + 1)), *(job(**{name: one}) for name, one in changes.items())]
    for run, seed in [*((one, 0) for one in changed), (job(), 1)]:
        (tmp_path / "profile.json").write_bytes(before)
        assert not run.run(Run(tmp_path, seed=seed)).did_nothing
    assert not job().run(Run(tmp_path)).did_nothing and (tmp_path / "profile.json").read_bytes() == before


def test_a_profile_of_other_data_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "profile.json"
    job().run(Run(tmp_path))
    assert load_profile(path, of=LogInMemory(LOG, 7))["data"]["samples"] == len(LOG)
    for other in (LOG.rows(0, len(LOG) - 1), replace(LOG, session_B=LOG.session_B + 1), replace(LOG, labels={}), OTHER):
        with pytest.raises(UserError, match=f"{path} is the profile of another log, of {len(LOG):,} samples"):
            load_profile(path, of=LogInMemory(other))


def test_what_is_no_profile_is_refused(tmp_path: Path):
    path = tmp_path / "profile.json"
    with pytest.raises(UserError, match="there is no profile"):
        load_profile(path)
    for text in ("", "[]", '{"data": {"hash": "x"}}', json.dumps({"format": "?", "data": {"hash": "", "samples": 1}})):
        path.write_text(text)
        with pytest.raises(DataError, match="make it again"):
            load_profile(path)
    assert not job().run(Run(tmp_path)).did_nothing, "a damaged one is made again"


def test_what_cannot_be_profiled_is_said(tmp_path: Path):
    short = replace(LOG, features={"item": Jagged(torch.ones(3).long(), torch.ones(2).long())})
    cases: list[tuple[Profile, type[Exception], str]] = [
        (job(LOG.rows(0, 0)), NothingKept, "no samples"),
        (job(fraction=1e-9), NothingKept, "holds none of the sessions"),
        (job(tables={"price": TableRows(9)}), UserError, "no feature price; it has user, history, item, rare"),
        (
            job(tables={"item": TableRows(9)}),
            DataError,
            "item: the id .* is not in its table, which has the rows 0 to 8",
        ),
        (job(short), DataError, "item"),
        (job(max_values=3), DataError, "raise max_values"),
    ]
    for wrong, error, said in cases:
        with pytest.raises(error, match=said):
            wrong.run(Run(tmp_path))
    assert not list(tmp_path.iterdir())
    for settings in ({"fraction": 0.0}, {"fraction": 1.1}, {"confidence": 1.0}, {"batch_size": 0}, {"max_ids": 2}):
        with pytest.raises(ValueError, match=f"{next(iter(settings))} {next(iter(settings.values()))}"):
            job(**settings)


def test_features_without_a_table_of_their_own_get_the_other(tmp_path: Path):
    job(tables={"item": TableRows(9, "modulo")}, other_tables=TableRows(7, "mix64")).run(Run(tmp_path))
    tables = load_profile(tmp_path / "profile.json")["tables"]
    assert {name: table["rows"] for name, table in tables.items()} == {"user": 7, "history": 7, "item": 9, "rare": 7}


def test_a_feature_table_gives_the_figures_of_the_log_it_holds_and_is_known_by_its_manifest(tmp_path: Path):
    schema = TableSchema(labels=["click"], features=list(LOG.features), groups={"user": ["user", "history"]})
    for name, chunk in (("one", LOG), ("other", OTHER)):
        writer = FeatureTableWriter(tmp_path / name, schema, rows_per_group=256, rows_per_part=512)
        writer.add(chunk)
        writer.finish()
    table = FeatureTable(tmp_path / "one")
    job(source=table).run(Run(tmp_path))
    found = load_profile(tmp_path / "profile.json", of=FeatureTable(tmp_path / "one"))
    with pytest.raises(UserError, match="is the profile of another log"):
        load_profile(tmp_path / "profile.json", of=FeatureTable(tmp_path / "other"))
    job().run(Run(tmp_path))
    of_log = load_profile(tmp_path / "profile.json")
    assert {**found, "data": None} == {**of_log, "data": None} and found["data"]["hash"] == table.digest


def test_a_log_that_is_not_clustered_or_too_large_to_keep_is_warned_of(tmp_path: Path, caplog):
    logger = log.logger()
    logger.propagate = True
    try:
        with caplog.at_level(logging.WARNING):
            job().run(Run(tmp_path))
            assert not caplog.text
            shuffled = torch.randperm(len(LOG), generator=torch.Generator().manual_seed(0))
            job(LOG.select(shuffled), max_values=2_000).run(Run(tmp_path))
    finally:
        logger.propagate = False
    assert "the log is not clustered: 1" in caplog.text and "since max_values is 2,000" in caplog.text


def test_one_session_or_one_sample_gives_a_profile_without_intervals_where_there_are_none(tmp_path: Path):
    for rows in (1, int((LOG.session_B == LOG.session_B[0]).sum())):
        job(LOG.rows(0, rows), fraction=1).run(Run(tmp_path))
        assert load_profile(tmp_path / "profile.json")["samples"] == rows
    tables = {"rare": TableRows(400)}
    empty = replace(LOG, features={"rare": Jagged(torch.zeros(0).long(), torch.zeros(len(LOG)).long())})
    job(empty, tables=tables).run(Run(tmp_path))
    table = load_profile(tmp_path / "profile.json")["tables"]["rare"]
    assert table["accesses"] == 0 and table["reuse"]["mean"]["value"] is None and table["drift"]["distance"][0] is None
