"""Tests that modules which decoding children import do not import torch."""

import subprocess
import sys

from tests.support.repository import ROOT

LIGHT = [
    "nemo_vfm.curate.examine.sandbox", "nemo_vfm.curate.output.transcode", "nemo_vfm.curate.examine.examine_file",
    "nemo_vfm.curate.media_pipeline", "nemo_vfm.curate.split.union", "nemo_vfm.curate.score.near_duplicate",
    "nemo_vfm.curate.score.semantic_duplicate", "nemo_vfm.curate.learned.aesthetic",
    "nemo_vfm.curate.learned.learned_duplicate", "nemo_vfm.curate.learned.video_type",
]  # fmt: skip
CODE = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    if heavy := {"torch", "transformers", "lightning"} & sys.modules.keys():
        sys.exit(f"{name} imports {heavy}")
"""


def test_a_stage_and_what_starts_it_are_imported_without_torch():
    done = subprocess.run([sys.executable, "-c", CODE, *LIGHT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
