"""Tests `nemo-vfm plan` with --serve, and what it says of a training in FP8."""

import json

import pytest

from tests.support.recipe_folder import ROOT


def test_the_command_says_what_fits_and_why_the_other_does_not(kitchen, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    recipe = str(ROOT / "recipes/llm/nemotron4_340b.yaml")
    assert kitchen.main("plan", recipe, "--gpus", "8", "--serve") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "fp8: it fits: weights 42.6 GB" in said
    assert "bf16: it does not fit: weights 85.3 GB" in said and "alone exceed it" in said
    assert "it would fit on 16 h100" in said
    assert kitchen.main("plan", recipe, "--gpus", "8", "--gpu", "a100", "--serve", "--json") == 2
    found = json.loads(capsys.readouterr().out)
    assert found["serving"]["fp8"] is None and found["serving"]["bf16"]["fits"] is False


@pytest.mark.slow
def test_a_plan_in_fp8_says_so_and_from_which_width_that_is_quicker(kitchen, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    recipe = str(ROOT / "recipes/diffusion/train_small.yaml")
    words = ("plan", recipe, "precision=fp8", "--gpus", "2", "--latents", "32,32,32")
    assert kitchen.main(*words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        " a step in fp8." in said
        and "FP8 is faster than bf16 from width 992 on h100" in said
        and "slower at this" in said
    )
    assert kitchen.main(*words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["precision"] == "fp8" and found["fp8"]["pays_from_width"] == 992
    assert found["gpu"]["fp8_tflops"] == 1978.9
    assert kitchen.main(*words, "--gpu", "a100") == 2
    assert "a100 has no products in FP8" in capsys.readouterr().err


def test_check_says_of_fp8_what_plan_says(kitchen, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    recipe = str(ROOT / "recipes/diffusion/train_small.yaml")
    assert kitchen.main("check", recipe, "precision=fp8", "data.shards=x", "--gpus", "1", "--latents", "32,32,32") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "FP8 is faster than bf16 from width 992 on h100" in said
    assert kitchen.main("check", recipe, "data.shards=x", "--gpus", "1", "--latents", "32,32,32") == 0
    assert "FP8" not in capsys.readouterr().out
