"""Tests which networks of a recipe are built before a run, to find numbers that do not fit."""

import torch

from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import Outcome, Run
from tests.support.recipe_folder import Kitchen


class Net(torch.nn.Module):
    """Has a width from the recipe, and takes what its owner gives it by position."""

    def __init__(self, inputs: int, width: int = 4) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(inputs, width)


class Owner:
    """Makes its network of numbers that it alone knows."""

    def __init__(self, *, net: Factory[[int], Net]) -> None:
        self.net = net

    def run(self, run: Run) -> Outcome:
        return Outcome(f"{self.net(3).layer.in_features} inputs")


def test_a_network_that_takes_arguments_of_its_owner_is_built_by_the_owner_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    kitchen = Kitchen(tmp_path)
    kitchen.write("r.yaml", f"_target_: {__name__}.Owner\nnet: {{_target_: {__name__}.Net, width: 8}}\n")
    assert kitchen.main("run", "r.yaml", "--trust", __name__) == 0, capsys.readouterr().err
    assert "3 inputs" in "".join(capsys.readouterr())
