"""Tests the section of a table's columns on a table that was written, on many columns, and on damage."""

import json
from pathlib import Path
from typing import Any

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Section
from nemo_vfm.report.sections import column_bytes
from tests.report.conftest import Seen, read_page


def written(folder: Path, manifest: Any) -> tuple[Section | None, Seen]:
    (folder / "table").mkdir(exist_ok=True)
    (folder / "table/manifest.json").write_text(json.dumps(manifest))
    run = RunFolder.open(folder)
    found = next(column_bytes.sections(run, SectionMedia(run, 0)), None)
    return found, read_page(f"<div>{found.body if found else ''}</div>")


def test_the_columns_of_a_table_add_up_and_the_largest_stands_first(tmp_path: Path) -> None:
    values = {"a": {"plain": 900, "stored": 30}}
    sizes = {"": {"time": 250}, "user": {"feature/a": 750}}
    section, page = written(tmp_path, {"rows": 7, "values": values, "column_bytes": sizes})
    assert section is not None and section.cards[0].value == "1 kB" and "7 samples in 1 kB" in section.lead
    assert "feature/a group user 900 30 750 75.0 % time samples 250 25.0 %" in page.text


def test_many_columns_are_cut_and_the_others_stand_in_one_row(tmp_path: Path) -> None:
    sizes = {f"dense/c{n}": 10 + n for n in range(column_bytes.MAX_COLUMNS + 5)}
    _, page = written(tmp_path, {"column_bytes": {"": sizes}})
    assert len(page.all("tr")) == 1 + column_bytes.MAX_COLUMNS + 1
    assert f"5 others {sum(range(10, 15))} " in page.text


def test_a_damaged_manifest_and_one_without_bytes_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    for manifest in ([], {}, {"column_bytes": 3}, {"column_bytes": {"": {"time": "x", "b": -1}}}):
        assert written(tmp_path, manifest)[0] is None
    _, page = written(tmp_path, {"values": 3, "column_bytes": {"<g>": {"feature/<b>": 4}, "x": None}})
    assert "feature/<b> group <g> 4 100.0 %" in page.text
