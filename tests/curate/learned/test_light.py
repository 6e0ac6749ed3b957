"""Tests that modules which decoding children import do not import torch."""

import subprocess
import sys

import pytest

LIGHT = [
    "nemo_vfm.curate.score.near_duplicate", "nemo_vfm.curate.score.semantic_duplicate",
    "nemo_vfm.curate.learned.aesthetic", "nemo_vfm.curate.learned.learned_duplicate",
    "nemo_vfm.curate.learned.video_type",
]  # fmt: skip


@pytest.mark.parametrize("module", LIGHT)
def test_a_stage_is_imported_without_torch(module: str):
    code = f"import sys, {module}; sys.exit(bool({{'torch', 'transformers', 'lightning'}} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
