"""Tests that a student's loss is the divergence from its teacher and the cross-entropy of its labels."""

from dataclasses import replace

import pytest
import torch

from nemo_vfm.language import distillation_task
from nemo_vfm.language.distillation_task import Distil
from nemo_vfm.language.next_token_task import IGNORED, NextToken
from nemo_vfm.models.gpt import GPT
from tests.language.test_next_token_task import WORDS, model, rows


@pytest.mark.parametrize(("weight", "temperature"), [(0.3, 2.0), (1.0, 1.0)])
def test_loss_and_gradients_are_those_of_the_formula(
    weight: float, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distillation_task, "_RUN", 5)  # runs end within rows
    torch.manual_seed(1)
    small = GPT(vocab=WORDS, width=16, depth=1, heads=2, mlp_hidden=16, init_std=0.7)
    student, same, teacher = model().double(), model().double(), small.double()
    batch = replace(rows(12, 3, 0), documents=((5, 7), (12,), (12,)))
    task = Distil(weight=weight, temperature=temperature)
    task.read_models({"teacher": torch.no_grad()(teacher)})
    prepared = task.prepare(batch, seed=0, training=True)
    found_B = task.losses(student(**prepared.inputs), prepared)
    (found_B * prepared.weight_B).sum().backward()

    expected = torch.zeros(3).double()
    for row, begin, end in ((0, 0, 5), (0, 5, 12), (1, 0, 12), (2, 0, 12)):  # each document alone
        tokens, labels = (of[row, begin:end] for of in (batch.tokens_BS, batch.labels_BS))
        own, theirs = same(tokens[None])[0], teacher(tokens[None])[0].detach()
        p, log_q = (theirs / temperature).softmax(1), (own / temperature).softmax(1).log()
        loss = weight * temperature**2 * (p * (p.log() - log_q)).sum(1)
        loss = loss - (1 - weight) * own.softmax(1).log().gather(1, labels.clamp_min(0)[:, None])[:, 0]
        expected = expected + torch.eye(3)[row] * loss[labels != IGNORED].sum()
    expected.sum().backward()
    assert prepared.weight_B.tolist() == [12, 3, 0] and found_B[2] == 0
    assert (found_B * prepared.weight_B).tolist() == pytest.approx(expected.tolist(), rel=1e-6)
    for mine, theirs in zip(student.parameters(), same.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-6, atol=1e-9)
    checked = task.prepare(batch, seed=0, training=False)
    assert torch.equal(
        task.losses(same(**checked.inputs), checked), NextToken().losses(same(**checked.inputs), checked)
    )
