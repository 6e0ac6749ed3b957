"""Tests that a recipe can be tried with a tiny random pipeline, and that a mistyped base writes nothing."""

import os
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.encoders import Family
from nemo_vfm.models.convert.video.random_pipeline import prepare_base, write_random_pipeline
from tests.support import preloaded
from tests.support.repository import ROOT

diffusers = pytest.importorskip("diffusers", reason="needs the extra diffusers")


def test_every_pipeline_in_conf_has_a_random_counterpart() -> None:
    assert {*get_args(Family), "auto"} == {path.stem for path in (ROOT / "conf/pipeline").glob("*.yaml")}


def test_diffusers_loads_the_pipeline_and_the_callers_random_state_is_unchanged(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    write_random_pipeline(tmp_path / "base", "wan22_i2v")
    assert torch.equal(torch.rand(1), expected)
    whole = diffusers.WanImageToVideoPipeline.from_pretrained(tmp_path / "base")
    assert whole.config.boundary_ratio == 0.9 and whole.transformer.config.in_channels == 12
    one, other = (part.patch_embedding.weight for part in (whole.transformer, whole.transformer_2))
    assert not torch.equal(one, other), "the two networks must differ"
    write_random_pipeline(tmp_path / "base", "wan22_i2v")  # as a later rank does
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


@pytest.mark.slow
def test_libraries_say_nothing_while_a_pipeline_is_written_and_read(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from nemo_vfm.core.optional import require\n"
        "from nemo_vfm.models.convert.video.random_pipeline import write_random_pipeline\n"
        "write_random_pipeline(Path('base'), 'wan21_t2v')\n"
        "require('diffusers', purpose='A test').WanPipeline.from_pretrained('base')\n"
    )
    done = preloaded.run([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("family", [None, "wan21_t2v"])
def test_no_pipeline_is_written_outside_the_run_folder(tmp_path: Path, family: Family | None) -> None:
    with pytest.raises(UserError, match="models is not a folder; set base=FOLDER to a pretrained diffusers pipeline"):
        prepare_base(tmp_path / "models", family, tmp_path / "run")
    assert not list(tmp_path.iterdir())
