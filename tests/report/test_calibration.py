"""Tests the section of ranked samples on what validation writes, on damage, and the curves beside it."""

import json
import math
from pathlib import Path
from typing import Any

import torch

from nemo_vfm.metrics.ranking import ScoreCounts
from nemo_vfm.recsys.click import Click
from nemo_vfm.report.parts.media import SectionMedia
from nemo_vfm.report.parts.run_values import RunFolder
from nemo_vfm.report.parts.section import Section
from nemo_vfm.report.sections import calibration, curves
from tests.report.conftest import read_page


def shown(folder: Path, value: Any) -> tuple[list[Section], str]:
    (folder / "validation.json").write_text(json.dumps(value))
    run = RunFolder.open(folder)
    found = list(calibration.sections(run, SectionMedia(run, 0)))
    return found, " ".join(read_page(f"<div>{one.body}</div>").text for one in found)


def test_what_validation_writes_is_tabulated_and_plotted_by_label(tmp_path: Path) -> None:
    logit_N, rng = torch.linspace(-3, 1, 400), torch.Generator().manual_seed(0)
    label_N = (torch.rand(400, generator=rng) < logit_N.sigmoid()).float()
    counts = ScoreCounts.of(logit_N, label_N)
    sums = {f"{name}/{part}": one for name in ("click", "add_to_cart")
            for part, one in (("score", counts.score_K), ("sums", counts.sums_K4))}  # fmt: skip
    details = Click(labels={"click": 1.0, "add_to_cart": 1.0}).validation_metrics(sums).details
    (section,), text = shown(tmp_path, {"step": 1200, **details})
    assert "after step 1,200" in section.lead and not section.folded
    for word in ("add to cart", "400", f"{counts.auc():.4f}", f"{counts.normalised_entropy():.4f}", "as predicted"):
        assert word in text, word
    assert str(section.body).count("<circle") == 2 * 10
    assert [(card.label, card.value) for card in section.cards] == [("AUC of click", f"{counts.auc():.4f}")]


def test_damage_and_undefined_measures_leave_gaps_and_stop_nothing(tmp_path: Path) -> None:
    for value in ({}, {"labels": []}, {"labels": {}}, []):
        assert shown(tmp_path, value)[0] == []
    bins = [{"predicted": 0.5, "observed": "much"}, 3, {"predicted": math.inf, "observed": 1}]
    damaged = {"a": {"auc": "high", "weight": 3, "reliability": bins}, "b": 7, "<i>": {"reliability": {}}}
    (section,), text = shown(tmp_path, {"step": None, "labels": damaged})
    assert not section.cards and "<circle" not in str(section.body) and "a 3 – – – – –" in text and "<i> –" in text


def test_curves_of_a_measure_stand_together_and_not_among_the_others(tmp_path: Path) -> None:
    line = {"step": 4, "loss": 0.5, "val_loss": 0.6, "val_auc_click": 0.7, "val_auc_like": 0.8, "val_calibration": 1.1}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    run = RunFolder.open(tmp_path)
    found = list(curves.sections(run, SectionMedia(run, 0)))
    text = read_page(f"<div>{found[0].body}</div>").text
    assert len(found) == 1 and text.count("AUC of held-out samples") == 1 and "click like" in text
    assert "Calibration of held-out samples" in text
