"""Tests that `check` reports a wrong column name at its line, before anything is measured."""

import pytest

from nemo_vfm.cli.main import main
from nemo_vfm.core.types.component import PartRefused
from nemo_vfm.curate.caption.caption_types import check_captions
from nemo_vfm.curate.caption.conditioned import ScoreConditioned
from tests.support.repository import ROOT

FULL, CLIPS = (f"{ROOT}/recipes/curation/{name}.yaml" for name in ("full_cpu", "clips"))
RECIPE = """defaults:
  - {{split: union}}
  - {{stages: standard}}
  - {{rules: standard}}
  - {{captions: conditioned}}
_target_: nemo_vfm.curate.job.Curate
source: {{_target_: nemo_vfm.curate.sources.video_source.Folder, path: {path}}}
transcode: {{_target_: nemo_vfm.curate.output.transcode.Transcode}}
captions:
  scores:
    facts:
      motion score: motion
      sharpness score: sharpnes
"""


@pytest.mark.parametrize("path", ["films", "'???'"])
def test_a_wrong_column_is_told_at_its_line_also_while_the_folder_is_still_to_be_given(tmp_path, capsys, path):
    file = tmp_path / "mine.yaml"
    file.write_text(RECIPE.format(path=path))
    assert main(["check", str(file)]) == 2
    said = "".join(capsys.readouterr())
    assert f"{file}:13:7  captions.scores.facts.sharpness score" in said and "did you mean 'sharpness'?" in said
    file.write_text(RECIPE.format(path=path).replace("sharpnes\n", "duration_s\n"))
    assert main(["check", str(file)]) == 0, "what is known of every clip can be told, too"


def test_a_rule_on_a_wrong_column_is_told_at_the_rule(capsys):
    assert main(["check", FULL, "rules.static.score=motoin"]) == 2
    said = "".join(capsys.readouterr())
    assert "conf/rules/full.yaml:" in said and "  rules.static" in said and "did you mean 'motion'?" in said


def test_a_balance_by_a_wrong_column_is_told_at_its_name(tmp_path, capsys):
    balance = "balance={_target_: nemo_vfm.curate.balance.Balance, by: camra, caps: {static: 1}}"
    assert main(["check", FULL, f"source.path={tmp_path}", balance]) == 2
    said = "".join(capsys.readouterr())
    assert "  balance.by" in said and "did you mean 'camera'?" in said


def test_what_stands_in_for_a_missing_value_is_never_a_problem_itself(capsys):
    assert main(["check", CLIPS, "captions=endpoint"]) == 0
    assert "captions.vlm.chat.endpoint=" in capsys.readouterr().out


def test_a_column_like_no_other_is_told_with_those_there_are():
    captions = {"scores": ScoreConditioned(facts={"beauty": "aesthetic.mean"})}
    with pytest.raises(PartRefused, match=r"no stage gives; add its stage.*There are fps, motion") as error:
        check_captions(captions, {"motion", "fps"})
    assert error.value.address == ("captions", "scores", "facts", "beauty")
