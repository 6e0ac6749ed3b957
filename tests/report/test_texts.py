"""Tests what the page shows of right and damaged samples/step-*.json."""

import json
from pathlib import Path

from nemo_vfm.report.page import render


def written(folder: Path, *steps: int) -> None:
    """Two beginnings at each of these steps; a run that says it trained."""
    (folder / "samples").mkdir(exist_ok=True)
    (folder / "status.json").write_text('{"state": "done"}')
    for step in steps:
        texts = [{"prompt": prompt, "text": f"{prompt} of <b>{step}</b>"} for prompt in ("Ada", "")]
        (folder / f"samples/step-{step:08d}.json").write_text(json.dumps({"step": step, "texts": texts}))


def test_each_beginning_stands_once_with_what_the_first_a_middle_and_the_last_step_made_of_it(tmp_path: Path) -> None:
    written(tmp_path, 10, 20, 30, 40, 50)
    page = render(tmp_path)
    assert page.count("<h3>Ada</h3>") == page.count("<h3>(no prompt)</h3>") == 1
    assert "Ada of &lt;b&gt;10&lt;/b&gt;" in page and "Ada of &lt;b&gt;50&lt;/b&gt;" in page
    assert page.count("Ada of") == 3


def test_a_damaged_file_costs_its_texts_alone(tmp_path: Path) -> None:
    written(tmp_path, 10, 20)
    (tmp_path / "samples/step-00000010.json").write_text('{"texts": [3, {"prompt": 1}]}')
    (tmp_path / "samples/step-xyz.json").write_text("[")
    assert "Ada of &lt;b&gt;20&lt;/b&gt;" in render(tmp_path)
