"""Tests every number in the tables of docs/how-to/video/sampling.md."""

import math
import re

import pytest
import torch
import yaml

from nemo_vfm.config.locate import DEFAULT_TRUST, locate
from nemo_vfm.diffusion.objective import EDM, FlowMatching
from nemo_vfm.diffusion.shift import LinearShift, SqrtShift, tokens_of
from tests.support.mixture import Mixture
from tests.support.repository import ROOT

PAGE = (ROOT / "docs/how-to/video/sampling.md").read_text(encoding="utf-8")
EVALUATIONS = 36


def rows(first_column: str) -> list[list[str]]:
    """Cells of the table whose first column is called so, without the heading."""
    table = PAGE.partition(f"| {first_column} |")[2].partition("\n\n")[0]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def error(kind: str, steps: int, sigmas: torch.Tensor, *, flow: bool) -> float:
    denoise = Mixture(flow=flow)
    settings = yaml.safe_load((ROOT / f"conf/sampler/{kind}.yaml").read_text())
    sampler = locate(settings.pop("_target_"), DEFAULT_TRUST)(**settings | {"steps": steps})
    drawn = sampler.draw(denoise, denoise.at(float(sigmas[0])) / float(sigmas[0]), sigmas)
    return float((drawn.latents - denoise.at(float(sigmas[-1]))).abs().max())


FEW = [cell.strip(" `") for cell in PAGE.partition("| steps |")[2].partition("\n")[0].strip("|").split("|")]


@pytest.mark.parametrize("row", rows("`sampler`"), ids=lambda row: row[0])
def test_orders_and_errors_of_samplers_are_as_told(row):
    name, each, *told = row
    for flow, order, left in ((False, told[0], told[2]), (True, told[1], told[3])):
        steps = EVALUATIONS // int(each)
        whole = (FlowMatching(shift=1.0) if flow else EDM()).schedule(steps, (1, 1, 1))
        assert error(name, steps, whole, flow=flow) == pytest.approx(float(left), rel=0.05)
        coarse, fine = (
            torch.linspace(0.95, 0.05, n + 1).double() if flow else torch.logspace(1, -1, n + 1, dtype=torch.float64)
            for n in (128, 256)
        )
        slope = math.log2(error(name, 128, coarse, flow=flow) / error(name, 256, fine, flow=flow))
        assert slope == pytest.approx(float(order), abs=0.08)


@pytest.mark.parametrize("row", rows("steps"), ids=lambda row: f"{row[0]} steps")
def test_errors_of_few_steps_are_as_told(row):
    steps = int(row[0])
    for cell, told in zip(FEW, row[1:], strict=True):
        name, objective = cell.split("`, ")
        levels = (EDM() if objective == "EDM" else FlowMatching(shift=1.0)).schedule(steps, (1, 1, 1))
        assert error(name, steps, levels, flow=objective == "flow") == pytest.approx(float(told), rel=0.06), cell


@pytest.mark.parametrize(("steps", "told"), [(16, (1.0e-1, 1.2e-1)), (20, (8.5e-2, 9.7e-2))])
def test_a_shift_of_three_moves_the_crossing_as_told(steps, told):
    levels = FlowMatching(shift=3.0).schedule(steps, (1, 1, 1))
    assert [error(name, steps, levels, flow=True) for name in ("euler", "res_2ab")] == pytest.approx(told, rel=0.06)


def test_every_sampler_there_is_has_its_row():
    assert {row[0] for row in rows("`sampler`")} == {file.stem for file in (ROOT / "conf/sampler").glob("*.yaml")}


@pytest.mark.parametrize("row", rows("latents"), ids=lambda row: row[0])
def test_shifts_are_as_told(row):
    size = [int(side) for side in row[0].split(" x ")]
    assert f"{tokens_of(size, (1, 2, 2)):,}" == row[1]
    assert [f"{rule.factor(size):.2f}" for rule in (LinearShift(), SqrtShift())] == row[2:]


@pytest.mark.parametrize("row", rows("`model`"), ids=lambda row: row[0])
def test_parameters_of_sizes_are_as_told(row):
    names, depths, widths, counts = ([part.strip(" `") for part in cell.split(", ")] for cell in row)
    for name, depth, width, said in zip(names, depths, widths, counts, strict=True):
        settings = yaml.safe_load((ROOT / f"conf/model/{name}.yaml").read_text())
        kind = locate(settings.pop("_target_"), DEFAULT_TRUST)
        with torch.device("meta"):
            model = kind(**settings | {"in_channels": 16, "text_dim": 1024})
        number = sum(parameter.numel() for parameter in model.parameters())
        assert (model.depth, model.width) == (int(depth), int(width))
        assert said == (f"{number / 1e9:.2f} B" if number > 9.5e8 else f"{number / 1e6:.0f} M")


def test_every_dit_but_the_demos_has_its_row():
    told = {name.strip(" `") for row in rows("`model`") for name in row[0].split(", ")}
    files = {file.stem for file in (ROOT / "conf/model").glob("*.yaml")}
    assert told == {name for name in files if re.match(r"(st_)?dit_|cosmos_", name) and name != "dit_demo"}
