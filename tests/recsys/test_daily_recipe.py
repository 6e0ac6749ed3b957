"""Tests that recipes/recommendation/daily.yaml goes on from day to day with tables that grow, and gains by it."""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nemo_vfm.config import build, compose
from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.apply.build_model import build_model
from nemo_vfm.parallel.checkpoint import checkpoint
from nemo_vfm.recsys.feature_table.table_reader import FeatureTable
from nemo_vfm.recsys.log_import.frequent_ids import read_vocabulary
from nemo_vfm.train.job import Train
from nemo_vfm.train.warm_start import WarmStart
from tests.support import preloaded
from tests.support.repository import ROOT

pytestmark = pytest.mark.slow
RECIPE = str(ROOT / "recipes/recommendation/daily.yaml")
FEATURES = ("user", "segment", "item", "topic")


def words(folder: Path) -> list[str]:
    """What makes the recipe small enough for a test and large enough to learn.

    Still smaller tables would begin with large numbers, 1 / sqrt(rows), and take longer to learn.
    """
    sizes = {"groups.viewer.features.user": 500, "features.item": 500}
    return [
        f"run_dir={folder}", "steps.log.log.num_samples=150_000",
        *(f"steps.log.log.{name}.rows={rows}" for name, rows in sizes.items()),
        *(f"steps.{step}.data.batch_size=256" for step in ("train_1", "train_2")),
    ]  # fmt: skip


@dataclass(frozen=True)
class Days:
    """A run of the recipe, and what it said."""

    folder: Path
    said: str

    def train(self, day: int) -> Train:
        job = build(compose(RECIPE, words(self.folder))).steps[f"train_{day}"]
        assert isinstance(job, Train)
        return job

    def model(self, day: int) -> nn.Module:
        """As the seed gives it."""
        return build_model(self.train(day).model, 0)

    def saved(self, day: int) -> checkpoint.Checkpoint:
        return checkpoint.open_checkpoint(self.folder / f"train_{day}")

    def ids(self, day: int, feature: str) -> list[int]:
        vocabulary = read_vocabulary(self.folder / f"import_{day}/vocabulary.safetensors")
        return [int(one) for one in vocabulary.ids[feature]]

    def looked_up(self, day: int, feature: str) -> Tensor:
        table = FeatureTable(self.folder / f"import_{day}/table")
        return table.read(0, table.num_rows).features[feature].values_N.unique()


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Days:
    folder = tmp_path_factory.mktemp("days")
    done = preloaded.run([sys.executable, "-m", "nemo_vfm", "run", RECIPE, *words(folder)])
    assert done.returncode == 0, done.stderr[-2000:]
    return Days(folder, done.stdout + done.stderr)


def test_day_2_begins_with_the_bits_of_old_rows_and_their_state_and_with_the_seeds_in_new_ones(days: Days):
    saved, fresh, grown = days.saved(1), days.model(2), days.model(2)
    start = days.train(2).weights.start_from
    assert isinstance(start, WarmStart)
    start.load_into(grown)
    for name, old in saved.groups["model"].items():
        now, seeded = (model.state_dict()[name] for model in (grown, fresh))
        assert torch.equal(now[: len(old)], old), name
        assert torch.equal(now[len(old) :], seeded[len(old) :]), name
        assert len(now) > len(old) or not name.startswith("tables.")
    state = {f"tables.{name}": tensor for name, tensor in grown.tables.optimizer_state().items()}
    for name, old in saved.groups["tables"].items():
        assert torch.equal(state[name][: len(old)] if old.dim() else state[name], old), name
        assert not old.dim() or (float(old.sum()) > 0 and not state[name][len(old) :].any())
    assert grown.tables.step == saved.step > 100


def test_what_does_not_come_on_day_2_keeps_its_bits_through_the_training_and_what_comes_learns(days: Days):
    before, after, fresh = days.saved(1).groups["model"], days.saved(2).groups["model"], days.model(2).state_dict()
    for feature in FEATURES:
        name = f"tables.{feature}.weight"
        old = len(before[name])
        began = torch.cat([before[name], fresh[name][old:]])
        came = torch.zeros(len(began), dtype=torch.bool)
        came[days.looked_up(2, feature)] = True
        changed = (after[name] != began).any(1)
        assert torch.equal(changed, came), feature
        assert not came[1 : len(days.ids(1, feature)) + 1].all(), "some ids came on day 1 alone"


def test_the_counts_of_old_and_new_ids_and_rows_are_said(days: Days):
    for feature in FEATURES:
        known, all_of = (len(days.ids(day, feature)) for day in (1, 2))
        assert f"{feature}: {known:,} known ids, followed by {all_of - known:,} new ones" in days.said
        assert 0.1 < (all_of - known) / known < 0.4
        old, now = (len(days.saved(day).groups["model"][f"tables.{feature}.weight"]) for day in (1, 2))
        assert f"tables.{feature}: {old:,} rows continue, {now - old:,} are new" in days.said


def test_on_day_3_the_model_of_both_days_ranks_better_than_that_of_day_1_and_nearly_as_the_teacher(days: Days):
    measures = json.loads((days.folder / "compare/measures.json").read_text())["measures"]
    for name in ("auc", "gauc", "weighted_gauc"):
        one, both, teacher = (measures[who][name] - 0.5 for who in ("day_1", "day_1_and_2", "teacher"))
        assert 0.2 < teacher < 0.35
        assert one + 0.01 < both and 0.75 * teacher < both < teacher, measures
    assert re.search(r"teacher: auc 0\.\d+, gauc 0\.\d+", days.said)


def test_tables_do_not_shrink(days: Days):
    with pytest.raises(UserError, match="do not fit this model"):
        WarmStart(path=days.folder / "train_2").load_into(days.model(1))
