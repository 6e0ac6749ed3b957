"""Tests the section of linears in FP8: who is shown first, what was named, and files that somebody damaged."""

import json
from pathlib import Path
from typing import Any

from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.sections import fp8_layers
from tests.report.conftest import read_page


def operand(**values: float) -> dict[str, float]:
    return {"amax": 2.5, "outlier": 3.0, "channel": 7, "saturated": 0, "flushed": 0, "values": 1000} | values


def shown(folder: Path, *looks: Any) -> tuple[Any, str]:
    (folder / "fp8.jsonl").write_text("".join(json.dumps(look) + "\n" for look in looks))
    run = RunFolder.open(folder)
    found = list(fp8_layers.sections(run, SectionMedia(run, 0)))
    return (found[0] if found else None), "" if not found else read_page(str(found[0].body)).text


def look(step: int, problems: Any = (), **layers: Any) -> dict[str, Any]:
    return {"step": step, "layers": layers, "ages": {name: [3, 1, 2] for name in layers}, "problems": list(problems)}


def layer(**of_input: float) -> dict[str, Any]:
    return {"input": operand(**of_input), "weight": operand(amax=0.5), "gradient": operand(flushed=20)}


def test_layers_that_were_named_come_first_then_those_that_lose_most(tmp_path: Path):
    problem = {"layer": "good", "problem": "has a growing input", "to_bf16": True}
    section, said = shown(tmp_path, look(10, [problem], good=layer()), look(20, bad=layer(saturated=500), good=layer()))
    assert not section.folded and "2 linear layers compute in FP8; values are from step 20" in section.lead
    assert said.index("has a growing input; now computed in BF16 10") < said.index("amax of input")
    assert "good 2.5 0.5 2.5 3 0 2 % 3" in said and "bad 2.5 0.5 2.5 3 50 % 2 % 3" in said
    assert said.rindex("good") < said.index("bad")


def test_nothing_named_is_folded_and_nothing_watched_is_not_shown(tmp_path: Path):
    assert shown(tmp_path, look(5, one=layer()))[0].folded
    assert shown(tmp_path, look(5))[0] is None
    assert shown(tmp_path)[0] is None


def test_a_damaged_file_is_read_as_far_as_it_goes(tmp_path: Path):
    _, said = shown(tmp_path, look(5, [None, {"layer": 3}], one={"input": None, "weight": 4, "gradient": operand()}))
    assert "one – – 2.5 – 0 0 3" in said
