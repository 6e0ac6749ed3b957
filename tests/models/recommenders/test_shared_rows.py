"""Tests that what samples of one row would share is refused unless named, and what it does when it is."""

import pytest
import torch
from torch import nn

from nemo_vfm.core.errors import DataError
from nemo_vfm.models.recommenders.din import DIN
from nemo_vfm.models.recommenders.feature_input import first_samples, require_shareable
from nemo_vfm.models.recommenders.history_transformer import HistoryTransformer
from nemo_vfm.models.recommenders.hstu import HSTU
from nemo_vfm.models.recommenders.ranker_layers import DropoutPlaces, SampleDropout
from tests.support.session_batches import session_batch
from tests.support.small_recommenders import small

ATTEND = {"user": "attend"}


@pytest.mark.parametrize(("part", "name"), [
    (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)), "dropout"), (SampleDropout(0.1, "x"), "dropout"),
    (nn.Sequential(nn.BatchNorm1d(2)), "batch_norm"),
])  # fmt: skip
def test_dropout_and_batch_norm_are_refused_where_a_group_is_attended(part, name):
    with pytest.raises(ValueError, match=rf"deduplicated.user is 'attend', .* allow: \[{name}\]"):
        require_shareable(part, ATTEND, ())
    require_shareable(part, ATTEND, (name,))
    require_shareable(part, {"user": "pool"}, ())
    require_shareable(nn.Dropout(0.0), ATTEND, ())


@pytest.mark.parametrize("kind", [HistoryTransformer, HSTU])
def test_a_model_with_dropout_says_so_when_it_is_made(kind):
    with pytest.raises(ValueError, match=r"allow: \[dropout\]"):
        small(kind, dropout=0.1, deduplicated=ATTEND)
    with pytest.raises(ValueError, match="allow names 'drop'; it can be dropout"):
        small(kind, allow=["drop"])
    small(kind, dropout=0.1, deduplicated={"user": "pool"})


def test_a_target_attention_is_refused_on_unique_rows():
    with pytest.raises(ValueError, match=r"'attend', but its attention reads the candidate, .*; use 'pool'"):
        small(DIN, deduplicated=ATTEND)


def test_dice_is_batch_norm_where_its_attention_runs_on_unique_rows():
    with pytest.raises(ValueError, match=r"the attention has batch_norm, .* allow: \[batch_norm\]"):
        small(DIN, rectifier="dice", deduplicated=ATTEND, allow=["foreign_features"])
    small(DIN, rectifier="dice", deduplicated=ATTEND, allow=["foreign_features", "batch_norm"])
    small(DIN, rectifier="dice", deduplicated={"user": "pool"})
    with pytest.raises(ValueError, match="rectifier 'relu': use prelu or dice"):
        small(DIN, rectifier="relu")


def test_a_foreign_candidate_that_is_allowed_is_that_of_the_first_sample_of_a_row():
    torch.manual_seed(1)
    shared = small(DIN, deduplicated=ATTEND, allow=["foreign_features"])
    torch.manual_seed(1)
    own, batch = small(DIN), session_batch()
    inverse = batch.groups["user"].inverse_B
    first = first_samples(inverse, 7)
    assert all(int(inverse[sample]) == row and row not in inverse[:sample] for row, sample in enumerate(first))
    found, exact = shared(batch), own(batch)
    torch.testing.assert_close(found[first], exact[first])
    assert not torch.allclose(found, exact)


@pytest.mark.parametrize("kind", [HistoryTransformer, HSTU])
def test_a_feature_of_the_history_from_outside_of_the_group_is_refused_or_that_of_the_first_sample(kind):
    batch = session_batch()
    user = batch.groups["user"]
    batch.features |= {"categories": user.features["categories"].select(user.inverse_B)}
    del user.features["categories"]
    with pytest.raises(DataError, match="rows of the group 'user', and its feature 'categories' is from outside"):
        small(kind, deduplicated=ATTEND)(batch)
    torch.manual_seed(1)
    allowed = small(kind, deduplicated=ATTEND, allow=["foreign_features"])(batch)
    torch.manual_seed(1)
    torch.testing.assert_close(allowed, small(kind)(batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [HistoryTransformer, HSTU])
def test_what_is_dropped_depends_on_seed_step_and_sample_alone(kind):
    torch.manual_seed(1)
    model, batch = small(kind, dropout=0.5), session_batch()
    whole = model(batch)
    parts = torch.cat([model(part) for part in batch.cut(3)])
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)
    batch.index += 1
    assert not torch.allclose(model(batch), whole)
    torch.manual_seed(1)
    torch.testing.assert_close(model.eval()(batch), small(kind)(batch), rtol=1e-4, atol=1e-5)


def test_dropout_keeps_its_share_and_the_mean():
    x = torch.ones(2000, 3, 5)
    found = SampleDropout(0.3, "x")(x, DropoutPlaces(torch.arange(2000), 7))
    torch.testing.assert_close(found.unique(), torch.tensor([0, 1 / 0.7]))
    assert float((found == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    assert float(found.mean()) == pytest.approx(1, abs=0.02)
    other = SampleDropout(0.3, "y")(x, DropoutPlaces(torch.arange(2000), 7))
    assert float(((found == 0) == (other == 0)).float().mean()) == pytest.approx(0.58, abs=0.02)
