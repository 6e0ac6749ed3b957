"""Tests the section of a bench: its kinds, its figures, and a file that somebody damaged."""

import json
from pathlib import Path
from typing import Any

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.sections import step_times
from tests.report.conftest import read_page

MEASURED: dict[str, Any] = {
    "step_s": 0.5, "steps": 10, "devices": 2, "device": "H200", "peak": "989.4 TFLOP/s", "mfu": 0.3, "hfu": None,
    "kinds_s": {"products": 0.4, "norms_and_pointwise": 0.1}, "samples_per_s": 16, "peak_bytes": 1_234_567,
    "largest": [{"name": "nvjet_<b>", "kind": "products", "s": 0.25}], "start_parts_s": {"model": 2.0},
}  # fmt: skip


def shown(folder: Path, content: Any) -> tuple[Any, str]:
    (folder / "bench.json").write_text(json.dumps(content))
    run = RunFolder.open(folder)
    (section,) = step_times.sections(run, SectionMedia(run, 0))
    return section, read_page(str(section.body)).text


def test_kinds_largest_and_figures_are_shown_with_their_share(tmp_path: Path) -> None:
    section, said = shown(tmp_path, MEASURED)
    assert "10 steps on 2 x H200. MFU is over 989.4 TFLOP/s." in section.lead
    assert "products 0.4 80.0%" in said and "norms and pointwise 0.1 20.0%" in said
    assert "nvjet_<b> products 0.25 50.0%" in said and "<b>" not in str(section.body)
    assert "peak bytes of tensors 1,234,567" in said and "seconds of start: model 2" in said
    assert "repeated" not in said, "what is not known is left out"


def test_an_unprofiled_or_damaged_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    _, said = shown(tmp_path, {"step_s": 0.5, "largest": 3, "kinds_s": [], "samples_per_s": "many", "mfu": 0.25})
    assert said.split() == ["MFU", "0.25"]
    assert shown(tmp_path, [1])[1] == ""
