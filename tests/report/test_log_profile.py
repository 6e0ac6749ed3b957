"""Tests the section of a log's profile: figures with their intervals, curves, and files that somebody damaged."""

import json
from pathlib import Path
from typing import Any

from nemo_vfm.core.types.job import Run
from nemo_vfm.recsys.profile import Profile
from nemo_vfm.recsys.profiling.table_rows import TableRows
from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.sections import log_profile
from tests.report.conftest import Seen, read_page
from tests.support.session_log import LogInMemory, session_log


def shown(folder: Path) -> tuple[Any, Seen]:
    run = RunFolder.open(folder)
    found = list(log_profile.sections(run, SectionMedia(run, 0)))
    return (found[0], read_page(str(found[0].body))) if found else (None, Seen())


def profiled(folder: Path, fraction: float) -> Any:
    tables = {"item": TableRows(97, "modulo"), "user": TableRows(400)}
    Profile(source=LogInMemory(session_log(200, 1)), fraction=fraction, tables=tables, batch_size=64).run(Run(folder))
    return json.loads((folder / "profile.json").read_text())


def test_a_figure_stands_with_half_of_its_interval_where_it_has_one(tmp_path: Path):
    for fraction, sign in ((0.5, True), (1.0, False)):
        found = profiled(tmp_path, fraction)
        section, page = shown(tmp_path)
        assert f"Measured on {found['samples']:,} of {found['data']['samples']:,} samples" in section.lead
        assert f"{found['groups']['user']['measured']['value']:.2f}" in page.text
        assert ("± 0." in page.text) == sign and section.cards[1].note == "group user"


def test_a_table_has_a_curve_and_the_rows_that_hold_half_of_its_lookups(tmp_path: Path):
    rows = profiled(tmp_path, 0.5)["tables"]["item"]["icdf"]["value"]
    _, page = shown(tmp_path)
    assert len(page.charts) == 2 and "item, 97 rows" in page.text
    assert f" {rows[50]} {rows[90]} {rows[99]} " in page.text
    alts = [svg["aria-label"] for svg in page.charts]
    assert any(f"rows that hold this share from {rows[1]} to {rows[100]}" in alt for alt in alts)


def test_a_damaged_profile_is_shown_as_far_as_it_goes(tmp_path: Path):
    (tmp_path / "profile.json").write_text(json.dumps({"features": {"<b>": None}, "tables": {"item": {"icdf": 3}}}))
    section, page = shown(tmp_path)
    assert "<b> – – – – – –" in page.text and not page.charts
    assert section.cards[0].value == "–"
    (tmp_path / "profile.json").write_text("{}")
    assert shown(tmp_path)[0] is None


def test_a_log_of_many_features_is_cut_and_says_so(tmp_path: Path):
    (tmp_path / "profile.json").write_text(
        json.dumps({"features": {f"f{n}": {} for n in range(log_profile.MAX_ROWS + 1)}})
    )
    run = RunFolder.open(tmp_path)
    assert list(log_profile.sections(run, SectionMedia(run, 0)))
    assert f"Only the first {log_profile.MAX_ROWS} of {log_profile.MAX_ROWS + 1} rows" in run.take_notes()[0]


def test_drift_stands_beside_what_it_would_be_at_random_and_a_table_beside_its_formula(tmp_path: Path):
    icdf = {"value": [*range(50), 7, *range(39), 8, *range(8), 9]}
    after = {"occupied": 80.4, "expected_occupied": 79.6, "collided": 3}
    drift = {"distance": [0.5, 0.25], "hot_set_stays": [0.75], "at_random": {"distance": [0.125], "hot_set_stays": []}}
    table = {"rows": 97, "icdf": icdf, "after": after, "drift": drift, "reuse": {"mean": {"value": 2}}}
    (tmp_path / "profile.json").write_text(json.dumps({"features": {"f": {}}, "tables": {"item": table}}))
    _, page = shown(tmp_path)
    assert "item 97 80 80 3 7 8 9 2" in page.text
    assert "distance at random hot set stays at random item 0.25 to 0.50 0.12 0.75 –" in page.text
