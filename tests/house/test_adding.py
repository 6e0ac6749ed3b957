"""Tests that the Python on docs/adding.md does what the page says."""

import ast
import math
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from nemo_vfm.curate.record.footage import ClipFrames
from nemo_vfm.curate.record.stage import Score
from nemo_vfm.diffusion.sampler import Sampler
from tests.support.repository import ROOT, tree

#: As it is installed, twice in one process, since each would pay some seconds for importing torch.
PROGRAM = """
import sys
from nemo_vfm.cli.main import main
print("ended with", main(sys.argv[1:]), main([*sys.argv[1:], "--trust", "colourful"]))
"""
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "adding.md").read_text(encoding="utf-8"), re.DOTALL)


def defined(name: str) -> type:
    """The class of that name, from whichever block defines it."""
    (block,) = [text for text in BLOCKS if f"class {name}" in text]
    space: dict[str, object] = {"__name__": "page"}
    exec(block, space)
    return space[name]


def test_each_block_names_its_file_in_a_room_that_exists():
    files = [re.match(r"# (nemo_vfm/(\w+)/(?:\w+/)*\w+\.py)\n", block) for block in BLOCKS]
    assert len(files) >= 2 and all(match and (ROOT / "nemo_vfm" / match[2]).is_dir() for match in files)


def test_our_classes_are_marked_as_the_page_shows():
    for block in BLOCKS[2:]:
        files = re.findall(r"^# (nemo_vfm/\S+\.py)$", block, re.MULTILINE)
        ours = {node.name: node for file in files for node in tree(ROOT / file).body if isinstance(node, ast.ClassDef)}
        for shown in (node for node in ast.parse(block).body if isinstance(node, ast.ClassDef)):
            marks, own = (set(map(ast.unparse, node.decorator_list)) for node in (shown, ours[shown.name]))
            assert marks and marks <= own, shown.name


def test_the_pages_filter_is_a_stage_that_tells_grey_from_colour():
    stage = defined("Colourfulness")()
    grey = np.full((2, 8, 8, 3), 90, np.uint8)
    colour = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    assert isinstance(stage, Score)
    assert stage.measure(ClipFrames.of(grey, 24.0)) == {"colourfulness": 0.0}
    assert stage.measure(ClipFrames.of(colour, 24.0))["colourfulness"] > 50


def end_of(steps: int) -> float:
    """Where the page's sampler ends on data that is 1 or -1 with equal chance: D(x; sigma) = tanh(x / sigma^2)."""
    levels = np.linspace(4.0, 0.5, steps + 1)
    sampler = defined("Midpoint")(steps=steps)
    return float(sampler.draw(lambda x, s: torch.tanh(x / s**2), torch.full((1,), 0.3), levels.tolist()).latents)


def test_the_pages_sampler_is_of_second_order():
    assert isinstance(defined("Midpoint")(steps=4), Sampler)
    limit = end_of(3000)
    assert math.log2(abs(end_of(80) - limit) / abs(end_of(160) - limit)) == pytest.approx(2, abs=0.2)


@pytest.mark.slow  # it installs
@pytest.mark.parametrize("place", [".", "src"])
def test_a_class_in_the_working_directory_is_found_as_the_page_says(tmp_path, place):
    (block,) = [text for text in BLOCKS if "class Colourfulness" in text]
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / "colourful.py").write_text(block)
    (tmp_path / "yaml.py").write_text("raise SystemExit('a file beside it was taken for a package')\n")
    words = ("check", "curation/clips", "stages.colourful={_target_: colourful.Colourfulness}")
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, *words], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert "is not trusted" in done.stdout + done.stderr and done.stdout.endswith("ended with 2 0\n"), done
