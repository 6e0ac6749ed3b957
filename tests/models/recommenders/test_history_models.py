"""Tests that models over histories follow their definitions, item by item, and that padding is never seen."""

import math

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from nemo_vfm.core.errors import DataError, UserError
from nemo_vfm.models.blocks.layers import draw_weights
from nemo_vfm.models.recommenders.din import DIN, LocalActivation
from nemo_vfm.models.recommenders.history_transformer import HistoryEncoder, HistoryTransformer
from nemo_vfm.models.recommenders.hstu import HSTU, HstuLayers, time_buckets
from nemo_vfm.models.recommenders.ranker_layers import DropoutPlaces, first_weight
from nemo_vfm.sparse.jagged import Jagged
from nemo_vfm.sparse.tables.table_spec import TableSpec
from tests.support.session_batches import session_batch
from tests.support.small_recommenders import HISTORY, small

OTHER = {"categories": TableSpec(7, 8, ("categories", "category"), pooling="sequence")}
LENGTHS = [3, 0, 7, 1]
PLACES = DropoutPlaces(torch.arange(4), 0)


def drawn(model):
    """With every weight random, also those that begin as zeros or ones."""
    draw_weights(model, first_weight, 1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.double()


def histories():
    torch.manual_seed(2)
    times = torch.cat([torch.randint(0, 100_000, (one,)).sort().values for one in LENGTHS])
    return Jagged(torch.randn(sum(LENGTHS), 4, dtype=torch.float64), torch.tensor(LENGTHS)), times


def encoders():
    torch.manual_seed(3)
    plain = drawn(HistoryEncoder(width=4, depth=2, heads=2, hidden=6, longest=5, dropout=0.0))
    hstu = drawn(HstuLayers(width=4, depth=2, heads=2, longest=5, timed=True, dropout=0.0))
    return {
        "transformer": lambda rows, times: plain(rows, PLACES),
        "hstu": lambda rows, times: hstu(rows, PLACES, Jagged(times, rows.lengths_B)),
    }


@pytest.mark.parametrize("kind", ["transformer", "hstu"])
def test_a_history_alone_gives_what_it_gives_in_a_batch_and_an_empty_one_zeros(kind):
    (rows, times), encode = histories(), encoders()[kind]
    together = encode(rows, times)
    for row, length in enumerate(LENGTHS):
        begin, end = rows.offsets[row : row + 2].tolist()
        alone = encode(rows.rows(row, row + 1), times[begin:end])
        torch.testing.assert_close(together[row : row + 1], alone)
        assert bool(together[row].any()) == (length > 0)


@pytest.mark.parametrize("kind", ["transformer", "hstu"])
def test_an_encoder_says_what_it_costs(kind):
    rows = Jagged(torch.randn(15, 4, dtype=torch.float64), torch.tensor([5, 5, 5]))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        encoders()[kind](rows, torch.arange(15))
    made = {"transformer": HistoryEncoder(width=4, depth=2, heads=2, hidden=6, longest=5, dropout=0.0),
            "hstu": HstuLayers(width=4, depth=2, heads=2, longest=5, timed=True, dropout=0.0)}  # fmt: skip
    assert sum(op.flops for op in made[kind].ops(3, 15)) == counter.get_total_flops()


@pytest.mark.parametrize("kind", ["transformer", "hstu"])
def test_of_a_long_history_the_last_items_are_read(kind):
    (rows, times), encode = histories(), encoders()[kind]
    whole = encode(rows, times)[2]
    changed = Jagged(rows.values_N.clone(), rows.lengths_B)
    changed.values_N[3:5, 0] += 1  # the first two of seven, where five are kept
    assert torch.equal(encode(changed, times)[2], whole)
    changed.values_N[5, 0] += 1
    assert not torch.equal(encode(changed, times)[2], whole)


def test_hstus_layer_is_the_papers_equation_item_by_item():
    rows, times = histories()
    torch.manual_seed(4)
    model = drawn(HstuLayers(width=4, depth=1, heads=2, longest=8, timed=True, dropout=0.0))
    layer, x, t = model.layers[0], rows.values_N[3:10], times[3:10]
    u, v, q, k = F.silu(layer.uvqk(layer.input_norm(x))).split(4, dim=1)
    out = torch.zeros(7, 4, dtype=torch.float64)
    for i in range(7):
        for j in range(i + 1):
            bucket = min(63, math.floor(math.log(max(1, abs(int(t[i] - t[j])))) / 0.301))
            bias = layer.place_bias[i - j] + layer.time_bias[bucket]
            for own in (slice(0, 2), slice(2, 4)):
                out[i, own] += F.silu(q[i, own] @ k[j, own] + bias) / 8 * v[j, own]
    expected = x + layer.out(layer.output_norm(out) * u)
    found = model(rows, PLACES, Jagged(times, rows.lengths_B))[2]
    torch.testing.assert_close(found, expected[-1])


def test_time_buckets_grow_and_end():
    assert time_buckets(torch.tensor([[0, 1, 2, 10**12]]))[0, 0].tolist() == [0, 0, 2, 63]


def test_the_transformer_is_torchs_own_with_the_same_weights():
    torch.manual_seed(5)
    rows, _ = histories()
    model = drawn(HistoryEncoder(width=4, depth=1, heads=2, hidden=6, longest=8, dropout=0.0))
    block = model.blocks[0]
    peer = torch.nn.TransformerEncoderLayer(4, 2, 6, 0.0, lambda x: F.gelu(x, approximate="tanh"), norm_first=True,
                                            batch_first=True, dtype=torch.float64)  # fmt: skip
    pairs = {peer.self_attn.in_proj_weight: block.qkv.weight, peer.self_attn.in_proj_bias: block.qkv.bias}
    mine = (block.out, block.mlp.up, block.mlp.down, block.attention_norm, block.mlp_norm)
    theirs = (peer.self_attn.out_proj, peer.linear1, peer.linear2, peer.norm1, peer.norm2)
    for own, other in zip(mine, theirs, strict=True):
        pairs |= {other.weight: own.weight, other.bias: own.bias}
    with torch.no_grad():
        for other, own in pairs.items():
            other.copy_(own)
    x = rows.values_N[3:10] + model.age[torch.arange(6, -1, -1)]
    torch.testing.assert_close(model(rows, PLACES)[2], model.norm(peer(x[None])[0]).mean(0))


def test_dins_activation_is_a_weighted_sum_without_a_softmax():
    rows, _ = histories()
    model, candidates = drawn(LocalActivation(4, [5])), torch.randn(4, 4, dtype=torch.float64)
    found = model(rows, candidates)
    for row in range(4):
        total = torch.zeros(4, dtype=torch.float64)
        for item in rows.rows(row, row + 1).values_N:
            x = torch.cat([item, candidates[row], item - candidates[row], item * candidates[row]])
            hidden = model.layers[0](x)
            total += model.layers[1](torch.where(hidden > 0, hidden, model.slopes[0] * hidden)) * item
        torch.testing.assert_close(found[row], total)


def plain_dice(s, slope, mean, variance):
    p = 1 / (1 + torch.exp(-(s - mean) / torch.sqrt(variance + 1e-8)))
    return p * s + (1 - p) * slope * s


def test_dice_turns_by_the_items_of_the_batch_in_training_and_by_running_averages_after_it():
    (rows, _), model = histories(), drawn(LocalActivation(4, [5], "dice"))
    candidates = torch.randn(4, 4, dtype=torch.float64)
    other = torch.repeat_interleave(candidates, rows.lengths_B, dim=0)
    s = model.layers[0](torch.cat([rows.values_N, other, rows.values_N - other, rows.values_N * other], dim=1))
    mean, variance = s.mean(0), s.var(0, correction=0)
    running = (0.1 * mean, 0.9 + 0.1 * s.var(0))
    for training, statistics in ((True, (mean, variance)), (False, running)):
        found = model.train(training)(rows, candidates)
        weighted = model.layers[1](plain_dice(s, model.slopes[0], *statistics)) * rows.values_N
        torch.testing.assert_close(found, torch.stack([part.sum(0) for part in weighted.split(LENGTHS)]))


def test_a_batch_of_fewer_than_two_items_leaves_dices_averages_alone():
    model = drawn(LocalActivation(4, [5], "dice"))
    for items in (0, 1):
        rows = Jagged(torch.ones(items, 4, dtype=torch.float64), torch.tensor([items]))
        assert model(rows, torch.ones(1, 4, dtype=torch.float64)).isfinite().all()
    assert torch.equal(model.norms[0].running_mean, torch.zeros(5, dtype=torch.float64))


def test_dice_is_refused_in_training_on_several_ranks(monkeypatch):
    (rows, _), model = histories(), drawn(LocalActivation(4, [5], "dice"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    model.eval()(rows, torch.zeros(4, 4, dtype=torch.float64))
    with pytest.raises(UserError, match="use prelu or one rank"):
        model.train()(rows, torch.zeros(4, 4, dtype=torch.float64))


@pytest.mark.parametrize("kind", [HistoryTransformer, HSTU])
def test_the_top_reads_all_else_the_candidate_the_user_and_their_product(kind, monkeypatch):
    model, batch, read = small(kind), session_batch().expand(), []
    monkeypatch.setattr(model.top, "forward", lambda x: (read.append(x), x)[1])
    monkeypatch.setattr(model.encoder, "forward", lambda rows, *_: torch.full((len(rows.lengths_B), 8), 2.0))
    model(batch)
    vectors = model.tables.lookup({name: batch.features[name] for name in ("item", "category", "country", "device")})
    candidate, user = vectors["item"] + vectors["category"], torch.full((len(batch), 8), 2.0)
    rest = [batch.dense_BF, vectors["country"], vectors["device"]]
    torch.testing.assert_close(read[0], torch.cat([*rest, candidate, user, candidate * user], dim=1))


def test_the_ops_of_attention_count_unique_rows_only_where_they_are_attended():
    shapes = {"dense_BF": (20, 3), "history.values": (30,), "history.lengths": (5,)}
    per_item = 2 * (64 * 6 + 6 * 5 + 5)
    for stage, items in (("attend", 30), ("pool", 120)):
        model = small(DIN, deduplicated={"user": stage}, allow=["foreign_features"])
        assert model.ops(shapes)[-1].flops == per_item * items


@pytest.mark.parametrize("kind", [DIN, HistoryTransformer, HSTU])
def test_an_order_of_samples_gives_the_same_logits_in_that_order(kind):
    model, batch = small(kind, deduplicated={"user": "lookup"}), session_batch()
    parts = torch.cat([model(part) for part in batch.cut(3)])
    torch.testing.assert_close(parts, model(batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [DIN, HistoryTransformer, HSTU])
def test_a_batch_without_any_item_of_a_history_has_logits_and_gradients(kind):
    model, batch = small(kind), session_batch().expand()
    empty = torch.zeros(len(batch), dtype=torch.int64)
    for name in (*HISTORY, "times"):
        batch.features[name] = Jagged(torch.zeros(0, dtype=torch.int64), empty)
    logits = model(batch)
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(one.grad is None or one.grad.isfinite().all() for one in model.parameters())


def test_lengths_that_differ_within_a_history_are_refused():
    batch = session_batch().expand()
    batch.features["categories"] = batch.features["device"]
    with pytest.raises(DataError, match="history and categories are features of one history, and their lengths differ"):
        small(HistoryTransformer)(batch)


@pytest.mark.parametrize(("given", "words"), [
    ({"history": {}}, "history is empty"),
    ({"history": {"history": "items"}}, "history shares no table with items"),
    ({"tables": {"items": TableSpec(9, 8, ("history", "item")), **OTHER}}, "table items pools the history history"),
    ({"tables": {"items": TableSpec(9, 4, ("history", "item")), **OTHER}}, "table items has width 4, .* of 8"),
    ({"heads": 3}, "not divisible by 3 heads"),
    ({"dropout": 1.0}, "below 1"),
    ({"longest": 0}, "longest_history must be at least 1"),
])  # fmt: skip
@pytest.mark.parametrize("kind", [HistoryTransformer, HSTU])
def test_what_does_not_fit_together_is_refused(kind, given, words):
    with pytest.raises(ValueError, match=words):
        small(kind, **given)
