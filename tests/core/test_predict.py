"""Tests that predictions are those of a model at rest, which is left as it came."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from nemo_vfm.core.types.predict import predictions
from nemo_vfm.core.types.task import ModelInputs


class _Doubles:
    """A task whose model gets the batch, and whose answer is twice the model's output."""

    def prepare(self, batch, *, seed, training):
        assert not training
        return ModelInputs({"input": batch.x}, {}, torch.ones(len(batch.x)))

    def predict(self, output, prepared):
        if len(prepared.weight_B) > 2:
            raise ValueError("more than two")
        return 2 * output


@pytest.mark.parametrize("training", [True, False])
def test_a_model_predicts_at_rest_and_is_left_in_its_mode_also_where_it_fails(training):
    model = nn.Dropout(0.9).train(training)
    x = torch.ones(2, 3, 4, dtype=torch.bfloat16, requires_grad=True)
    found = predictions(model, _Doubles(), SimpleNamespace(x=x))
    assert torch.equal(found, torch.full((2, 3, 4), 2.0)) and not found.requires_grad
    assert model.training is training
    with pytest.raises(ValueError, match="more than two"):
        predictions(model, _Doubles(), SimpleNamespace(x=torch.ones(3, 3, 4)))
    assert model.training is training
