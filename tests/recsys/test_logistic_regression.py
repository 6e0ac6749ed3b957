"""Tests that logistic regression finds the minimum of its loss, and reads rows of any length."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from nemo_vfm.recsys.logistic_regression import LabelledSamples, LogisticModel, LogisticRegression
from nemo_vfm.sparse.jagged import Jagged

ROWS = {"one": 12, "bag": 9, "two": 5}


def samples(count: int, seed: int) -> LabelledSamples:
    """Clicks of a logistic function of single ids, rows of none to three ids, and dense features."""
    numbers = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (count,), generator=numbers)
    bag = Jagged(torch.randint(0, 9, (int(lengths.sum()),), generator=numbers), lengths)
    single = {
        name: Jagged(torch.randint(0, ROWS[name], (count,), generator=numbers), torch.ones(count, dtype=torch.int64))
        for name in ("one", "two")
    }
    dense = torch.randn(count, 2, generator=numbers)
    features = {**single, "bag": bag}
    return LabelledSamples(features, dense, (torch.rand(count, generator=numbers) < truth(features, dense)).float())


def truth(features: dict[str, Jagged], dense: Tensor) -> Tensor:
    """The probabilities that the clicks follow."""
    weights = {name: torch.linspace(-1.5, 1.5, rows) for name, rows in ROWS.items()}
    return torch.sigmoid(LogisticModel(weights, torch.tensor([0.7, -0.4]), torch.tensor([0.3])).score(features, dense))


def fitted(parts: list[LabelledSamples], ridge: float) -> LogisticModel:
    return dict(LogisticRegression(ridges=[ridge], max_iterations=200).fits(parts, ROWS))[ridge]


def one_hot(part: LabelledSamples) -> Tensor:
    """The inputs of all weights, made sample by sample."""
    rows = []
    for at in range(len(part.label_B)):
        inputs = [1.0, *part.dense_BF[at].tolist()]
        for name, count in ROWS.items():
            ids = part.features[name].rows(at, at + 1).values_N
            inputs += (ids.bincount(minlength=count) / max(len(ids), 1)).tolist()
        rows.append(inputs)
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("ridge", [0.5, 20.0])
def test_the_gradient_is_zero_at_the_fit_and_scores_are_its_logits(ridge):
    part = samples(600, seed=0)
    cut = [LabelledSamples({n: f.rows(a, b) for n, f in part.features.items()}, part.dense_BF[a:b], part.label_B[a:b])
           for a, b in ((0, 1), (1, 250), (250, 600))]  # fmt: skip
    model = fitted(cut, ridge)
    weight = torch.cat([model.bias, model.dense_F, *(model.weights[name] for name in ROWS)]).double()
    inputs = one_hot(part)
    logit = inputs @ weight
    assert torch.allclose(model.score(part.features, part.dense_BF).double(), logit, atol=1e-5)
    penalty = ridge * weight.index_fill(0, torch.tensor([0]), 0.0)
    gradient = inputs.T @ (torch.sigmoid(logit) - part.label_B.double()) + penalty
    assert float(gradient.abs().max()) < 0.05 < float((inputs.T @ (0.5 - part.label_B.double())).abs().max()) / 100


def test_the_fit_nears_the_function_that_made_the_clicks():
    part, fresh = samples(30_000, seed=1), samples(2_000, seed=2)
    found = torch.sigmoid(fitted([part], 1.0).score(fresh.features, fresh.dense_BF))
    assert float((found - truth(fresh.features, fresh.dense_BF)).abs().max()) < 0.09


def test_a_saved_fit_scores_the_same(tmp_path: Path):
    part = samples(300, seed=3)
    model = fitted([part], 3.0)
    model.save(tmp_path / "logistic.safetensors")
    loaded = LogisticModel.load(tmp_path / "logistic.safetensors")
    assert torch.equal(loaded.score(part.features, part.dense_BF), model.score(part.features, part.dense_BF))


def test_no_samples_are_refused():
    with pytest.raises(ValueError, match="no samples to fit"):
        fitted([], 1.0)
