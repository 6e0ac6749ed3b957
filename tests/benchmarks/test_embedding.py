"""Tests the benchmark of embedding tables: every side takes its steps, and the figures are there."""

import copy
import json
from pathlib import Path

import pytest
import torch

from nemo_vfm.core.optional import available
from tests.support.benchmarks import module_of


@pytest.mark.slow
def test_a_small_run_gives_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    benchmark, file = module_of("embedding"), tmp_path / "figures.json"
    monkeypatch.setattr(benchmark, "ROWS", 50)
    monkeypatch.setattr(benchmark, "BATCH", 64)
    words = ["--quick", "--rounds", "1", "--tables", "2", "26", "--json", str(file)]
    monkeypatch.setattr("sys.argv", ["embedding.py", *words])
    benchmark.main()
    figures = json.loads(file.read_text())
    assert set(figures) - {"over_fbgemm_26"} == {
        "over_bags_2", "over_fused_bags_2", "over_bags_26", "over_fused_bags_26", "torch_over_bags_26", "loop_ratio",
    }  # fmt: skip
    assert all(figure > 0 for figure in figures.values())


def test_all_sides_have_the_same_inputs_in_every_run():
    benchmark = module_of("embedding")
    given, again = benchmark.inputs(3, 4), benchmark.inputs(3, 4)
    assert [len(ids) for ids in given.ids] == [40] * 3 and torch.equal(given.ids[1], again.ids[1])
    own = ["nemo_vfm", "nemo_vfm, torch"] if available("numba") else ["nemo_vfm"]
    assert list(benchmark.sides(1, 4, with_fbgemm=False)) == [
        *own, "bags, dense", "bags, sparse", "bags, dense, fused",
    ]  # fmt: skip


def test_train_and_the_bare_loop_end_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    loop, batch, steps, models = module_of("embedding").train_loop, 64, 3, []
    build = loop.model

    def begun_alike():
        if torch.empty(0).is_meta:  # Train asks a model without memory what it reads
            return build()
        if not models:
            first = build()
            models.extend([first, copy.deepcopy(first)])
            return models[0]
        return models[1]

    monkeypatch.setattr(loop, "model", begun_alike)
    loop.write_log(tmp_path / "log", batch * (loop.WARM + steps + 1))
    times = loop.LoopTimes()
    loop.by_train(tmp_path / "log", batch, steps, tmp_path / "run", times)
    loop.by_hand(loop.batches(tmp_path / "log", batch, steps + 1), times)
    ours, bare = (model.state_dict() for model in models)
    for name, expected in bare.items():
        torch.testing.assert_close(ours[name], expected, rtol=1e-3, atol=1e-4)
    assert len(times.wall_s) == 2 and min(times.wall_s) > 0
