# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that every request is sampled by the settings that it gave, whoever is beside it."""

from typing import Any

import pytest
import torch

from nemo_vfm.language.token_choice import Choice
from nemo_vfm.serve.continuous.token_scores import chosen
from nemo_vfm.serve.openai_api.request_fields import RequestFields
from nemo_vfm.serve.openai_api.sampling_fields import read_sampling

ALL = {"temperature": 1.0, "top_k": None, "top_p": 1.0, "min_p": 0.0}
OTHERS: list[dict[str, Any]] = [
    {"temperature": 0.2},
    {"temperature": 0.0},
    {"top_k": 2},
    {"top_p": 0.2},
    {"min_p": 0.6},
]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_a_text_is_drawn_by_its_own_settings_whatever_those_beside_it_have(other: dict[str, Any]) -> None:
    scores_NV = torch.randn(60, 40, generator=torch.Generator().manual_seed(0))
    chances = torch.rand(60, generator=torch.Generator().manual_seed(1)).tolist()
    own, theirs = Choice(**ALL), Choice(**ALL | other)
    alone, by_theirs = (chosen(scores_NV, [choice] * 60, chances) for choice in (own, theirs))
    assert sum(a != b for a, b in zip(alone, by_theirs, strict=True)) > 10, "the setting must matter"
    mixed = chosen(scores_NV, [own, theirs] * 30, chances)
    assert mixed[::2] == alone[::2] and mixed[1::2] == by_theirs[1::2]


@pytest.mark.parametrize(("sent", "expected"), [
    ({}, {}), ({"temperature": 0.3}, {"temperature": 0.3}), ({"temperature": 0}, {"temperature": 0.0}),
    ({"top_p": 0.4}, {"top_p": 0.4}), ({"top_p": 0}, {"temperature": 0.0}), ({"min_p": 0.1}, {"min_p": 0.1}),
    ({"top_k": 7}, {"top_k": 7}), ({"top_k": 0}, {}), ({"top_k": -1}, {}), ({"top_p": None, "temperature": None}, {}),
], ids=str)  # fmt: skip
def test_each_field_says_how_tokens_are_chosen_and_zero_means_what_clients_mean(
    sent: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert vars(read_sampling(RequestFields(sent)).choice) == ALL | expected
