"""Tests the way from videos in a bucket to a sampled video, every step reading from the store."""

import json
from pathlib import Path

import pytest

from nemo_vfm.cli.main import main
from tests.support.object_store import BUCKET, Bucket, has_moto
from tests.support.repository import ROOT


@pytest.mark.slow  # the quickstart through an object store
@pytest.mark.parametrize("bucket", ["moto_store" if has_moto() else "small_store"], indirect=True)
def test_raw_videos_in_a_bucket_become_a_sampled_video(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(recipe: str, name: str, *words: str) -> Path:
        folder = tmp_path / name
        command = [str(ROOT / "recipes" / recipe), "--overlay", "smoke", f"run_dir={folder}", *words]
        assert main(["run", *command]) == 0, capsys.readouterr().err[-3000:]
        return folder

    videos = run("synthetic/shapes.yaml", "videos")
    for path in (path for path in videos.iterdir() if path.name.startswith("film")):
        bucket.put(f"raw/{path.name}", path.read_bytes())
    run("curation/clips.yaml", "clips", f"source.path=s3://{BUCKET}/raw", f"copy_to=s3://{BUCKET}/clips")
    run("curation/encode.yaml", "encode", f"shards=s3://{BUCKET}/clips", f"copy_to=s3://{BUCKET}/latents")
    train = (f"data.shards=s3://{BUCKET}/latents", f"loop.checkpoint.copy_to=s3://{BUCKET}/run")
    one = run("diffusion/train_small.yaml", "train", *train)
    assert json.loads((one / "status.json").read_text())["figures"]["steps"] == 2
    assert "run/step-00000002/manifest.json" in bucket.names()
    capsys.readouterr()
    run("diffusion/train_small.yaml", "elsewhere", *train)  # the folder is gone, the copies are not
    assert "already trained for 2 steps" in capsys.readouterr().out
    drawn = run("diffusion/sample.yaml", "sample", f"checkpoint=s3://{BUCKET}/run")
    assert (drawn / "samples" / "000.mp4").stat().st_size > 500
    assert not list(tmp_path.rglob("s3:*")) and not Path("s3:").exists()


@pytest.mark.parametrize("address", ["s3://bucket/runs", "gs://bucket/runs", "s3://me:hunter2@bucket/runs"])
def test_a_run_folder_in_a_store_is_refused_with_what_to_do(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for more in ([], ["--sweep", "num_files=5,6"]):
        assert main(["run", str(ROOT / "recipes/synthetic/shapes.yaml"), f"run_dir={address}", *more]) == 2
        said = capsys.readouterr().err
        assert "copy_to" in said and "file system with locks" in said and "hunter2" not in said
    assert list(tmp_path.iterdir()) == []
