"""Tests that each labelled token counts alike, packed or not."""

import math
from dataclasses import replace

import pytest
import torch

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.sample_batches import TokenBatch, VideoBatch
from nemo_vfm.language.next_token_task import IGNORED, NextToken
from nemo_vfm.models.gpt import GPT
from nemo_vfm.parallel.layers import vocab_parallel_loss

WORDS, LENGTH = 64, 12


def rows(*labelled: int) -> TokenBatch:
    """Rows with so many labels each."""
    words = torch.randint(WORDS, (len(labelled), LENGTH + 1), generator=torch.Generator().manual_seed(1))
    labels = words[:, 1:].clone()
    for row, count in enumerate(labelled):
        labels[row, count:] = IGNORED
    weight = torch.ones(len(labelled))
    keys = tuple(map(str, range(len(labelled))))
    return TokenBatch(0, keys, weight, tokens_BS=words[:, :-1], labels_BS=labels)


def model() -> GPT:
    torch.manual_seed(0)
    return GPT(vocab=WORDS, width=32, depth=2, heads=2, mlp_hidden=48, init_std=0.5)


def mean(batch: TokenBatch) -> float:
    """Over a global batch, as an engine takes it."""
    prepared = NextToken().prepare(batch, seed=0, training=True)
    losses = NextToken().losses(model()(**prepared.inputs), prepared)
    return float((losses * prepared.weight_B).sum() / prepared.weight_B.sum())


def test_the_mean_is_that_of_all_labelled_tokens_of_all_rows() -> None:
    batch = rows(12, 3, 0)
    assert batch.tokens_BS is not None and batch.labels_BS is not None
    each = model()(batch.tokens_BS, batch.labels_BS)
    assert mean(batch) == pytest.approx(float(each.sum() / 15), rel=1e-6)
    assert mean(batch) != pytest.approx(float(each[:2].sum(1).div(torch.tensor([12.0, 3.0])).mean()), rel=1e-3)


def test_a_model_that_knows_nothing_has_the_perplexity_of_the_vocabulary() -> None:
    batch = rows(12, 12)
    prepared = NextToken().prepare(batch, seed=0, training=False)
    blank = model()
    torch.nn.init.zeros_(blank.head.weight)
    losses = NextToken().losses(blank(**prepared.inputs), prepared)
    assert losses.exp().tolist() == pytest.approx([WORDS] * 2, rel=1e-5)


def test_documents_in_one_row_have_the_mean_of_documents_in_rows_of_their_own() -> None:
    batch = rows(12)
    packed = replace(batch, documents=((5, 7),))
    parts = [(batch.tokens_BS[:, a:b], batch.labels_BS[:, a:b]) for a, b in ((0, 5), (5, 12))]
    apart = sum(float(model()(tokens, labels).sum()) for tokens, labels in parts) / 12
    assert mean(packed) == pytest.approx(apart, rel=1e-5)
    assert mean(batch) != pytest.approx(apart, rel=1e-4)


def test_rows_cut_into_microbatches_keep_their_documents() -> None:
    batch = replace(rows(12, 12), documents=((5, 7), (12,)))
    first, second = batch.cut(2)
    assert (first.documents, second.documents) == (((5, 7),), ((12,),))
    assert torch.equal(second.tokens_BS, batch.tokens_BS[1:])


def test_a_batch_of_videos_is_refused() -> None:
    batch = VideoBatch(0, ("a",), torch.ones(1), ("",), torch.ones(1), latents_BCTHW=torch.zeros(1, 4, 1, 2, 2))
    with pytest.raises(UserError, match="learns from tokens, but this data yields videos"):
        NextToken().prepare(batch, seed=0, training=True)


def test_a_row_without_labels_weighs_nothing_and_is_no_gap() -> None:
    prepared = NextToken().prepare(rows(0), seed=0, training=True)
    losses = NextToken().losses(model()(**prepared.inputs), prepared)
    assert prepared.weight_B.tolist() == [0.0] and losses.tolist() == [0.0]
    assert IGNORED == vocab_parallel_loss.IGNORED and math.isfinite(float(losses))
