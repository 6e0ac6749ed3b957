"""Tests that keys of earlier versions are answered with those of today, and read in recipes that runs have kept."""

from nemo_vfm.cli.main import main
from nemo_vfm.core.recipe_keys import with_new_keys
from tests.support.repository import ROOT


def test_an_old_bound_is_answered_with_its_new_name(capsys):
    assert main(["check", str(ROOT / "recipes/synthetic/upsampler.yaml"), "pipeline.most_share=0.4"]) == 2
    assert "it is now pipeline.max_share" in " ".join(capsys.readouterr().out.split())


def test_what_runs_have_kept_is_read_under_new_keys_and_classes_of_others_as_they_are():
    kept = {
        "_target_": "nemo_vfm.train.job.Train",
        "duration": "3 steps",
        "ema": None,
        "data": [{"_target_": "nemo_vfm.synth.filters.near_copies.NearCopies", "most_gb": 2.0, "threshold": 0.5}],
        "model": {"_target_": "mine.Model", "most_gb": 1, "duration": 2},
    }
    assert with_new_keys(kept) == {
        "_target_": "nemo_vfm.train.job.Train",
        "loop": {"duration": "3 steps"},
        "data": [{"_target_": "nemo_vfm.synth.filters.near_copies.NearCopies", "max_gb": 2.0, "threshold": 0.5}],
        "model": {"_target_": "mine.Model", "most_gb": 1, "duration": 2},
    }
