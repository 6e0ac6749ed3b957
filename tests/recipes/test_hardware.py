"""Tests that a recipe fits the GPUs that its header names, by the launcher's planner."""

import contextlib
import io
import re
from functools import cache

import pytest

from nemo_vfm.cli.main import main
from tests.recipes.test_paper_recipes import RECIPES
from tests.support.repository import ROOT, yaml_files

_HARDWARE = re.compile(r"^# Hardware: (?:([\d, then]+) machines of )?(\d+) x ([A-Z]+\d+) 80 GB", re.MULTILINE)


def named() -> list[tuple[str, int, str]]:
    """(recipe, GPUs, their name) of every header; one that grows names several numbers of machines."""
    found = []
    for path in yaml_files("recipes"):
        if hardware := _HARDWARE.search(path.read_text()):
            machines, each, gpu = hardware.groups()
            counts = map(int, re.findall(r"\d+", machines or "1"))
            found += [(str(path.relative_to(ROOT)), count * int(each), gpu.lower()) for count in counts]
    return found


@cache
def said(recipe: str, gpus: int, gpu: str) -> str:
    """What `check` says of a recipe, on one line: two tests ask for it, and a plan takes a second."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setenv("COLUMNS", "400")
        assert main(["check", str(ROOT / recipe), "--gpus", str(gpus), "--gpu", gpu]) == 0
    return " ".join(out.getvalue().split())


def test_every_header_with_a_gpu_by_name_is_read():
    written = [path for path in yaml_files("recipes") if re.search(r"^# Hardware: .*H\d00", path.read_text(), re.M)]
    assert len(written) >= 12 and len({recipe for recipe, _, _ in named()}) == len(written)


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "gpus", "gpu"), named())
def test_a_recipe_fits_the_gpus_that_its_header_names(recipe, gpus, gpu):
    told = said(recipe, gpus, gpu)
    planned = "megatron" not in recipe  # only layouts of our own engine are
    expected = f"that one {gpu} has to fill: it fits" if planned else "this recipe uses MegatronEngine"
    assert expected in told and "idle" not in told


@pytest.mark.slow
@pytest.mark.parametrize(("name", "gpus", "tokens"), RECIPES)
def test_a_recipe_of_the_paper_is_for_so_many_gpus_and_check_compares_its_memory(name, gpus, tokens):
    path = f"recipes/diffusion/{name}.yaml"
    told, text = said(path, gpus, "h100"), (ROOT / path).read_text()
    assert f"{gpus} GPUs: " in told and not re.search("idle|not start|cannot be divided", told)
    assert re.search(r"the fullest GPU needs \d+\.\d GiB at .* of the 73\.6 GiB that one h100 has to fill: it ", told)
    assert f"--gpus {gpus}" in text
    t, h, w = map(int, re.findall(r"latents of (\d+) x (\d+) x (\d+)", text)[0])
    assert t * (h // 2) * (w // 2) == tokens and f"{tokens:,} tokens" in text


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "model", "gpu"), [
    ("lora", "wan21_t2v_1_3b", "a100_40"), ("lora", "wan21_t2v_14b", "h100"), ("full", "wan21_t2v_1_3b", "h100"),
])  # fmt: skip
def test_a_recipe_for_pretrained_models_fits_one_gpu(recipe, model, gpu, monkeypatch, capsys):
    """The network alone: its folder, with the codec and the text encoder, is not there."""
    monkeypatch.setenv("COLUMNS", "400")
    given = [f"model={model}", "base=models/none", "data.path=clips"]
    assert main(["check", str(ROOT / f"recipes/world_model/{recipe}.yaml"), *given, "--gpus", "1", "--gpu", gpu]) == 0
    assert f"that one {gpu} has to fill: it fits" in " ".join(capsys.readouterr().out.split())
