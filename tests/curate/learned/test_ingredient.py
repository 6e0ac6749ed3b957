"""Tests that conf/stages/learned.yaml checks, and scores clips of a real curation in any process."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from nemo_vfm.cli.main import main
from tests.support.encoders import tiny_clip, tiny_head
from tests.support.films import pan, write_film

RECIPE = """
defaults:
  - {split: adaptive}
  - {stages: standard}
  - {stages: learned}
  - {rules: standard}
_target_: nemo_vfm.curate.job.Curate
captions: {}
source: {_target_: nemo_vfm.curate.sources.video_source.Folder, path: "???"}
transcode: {_target_: nemo_vfm.curate.output.transcode.Transcode, preset: veryfast}
"""


def words(folder: Path, *more: str) -> list[str]:
    (folder / "recipe.yaml").write_text(RECIPE)
    clip, head = tiny_clip(folder / "clip"), tiny_head(folder / "head.safetensors", 12, 1024, 128, 64, 16, 1)
    given = {
        "source.path": folder / "videos", "stages.aesthetic.model.folder": clip, "stages.aesthetic.model.head": head,
        "stages.learned_duplicate.model.folder": clip, "run_dir": folder / "run",
    }  # fmt: skip
    return ["run", str(folder / "recipe.yaml"), *(f"{name}={value}" for name, value in given.items()), *more]


@pytest.mark.slow  # a whole curation with models
def test_a_curation_with_models_scores_its_clips(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "videos").mkdir()
    for seed in range(2):
        write_film(tmp_path / f"videos/{seed}.mp4", pan(seed))
    assert main(words(tmp_path)) == 0, capsys.readouterr().err[-2000:]
    rows = pq.read_table(tmp_path / "run/scores.parquet").to_pylist()
    assert len(rows) == 2
    assert all(row["aesthetic.min"] <= row["aesthetic.p10"] <= row["aesthetic.mean"] for row in rows)
    assert len({row["aesthetic.mean"] for row in rows}) == 2
    assert all(0 < row["learned_similarity"] <= 1 for row in rows)
    assert main(words(tmp_path)) == 0
    assert "Nothing to do" in capsys.readouterr().out


def test_a_missing_folder_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "videos").mkdir()
    write_film(tmp_path / "videos/0.mp4", pan(0))
    assert main(words(tmp_path, f"stages.aesthetic.model.folder={tmp_path / 'absent'}")) == 2
    assert "give the folder of a model as Hugging Face lays it out" in " ".join(capsys.readouterr().err.split())
