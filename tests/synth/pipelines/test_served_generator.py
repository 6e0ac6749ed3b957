# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that a recipe runs on a model behind our own server, and that a model which follows nothing is counted so."""

import json
from pathlib import Path

import pytest

from nemo_vfm.config import build, compose
from nemo_vfm.core.errors import NemoVfmError
from nemo_vfm.core.network.chat import Chat
from nemo_vfm.core.network.endpoint import Endpoint
from nemo_vfm.core.types.job import Run
from tests.support.chat_server import allowed
from tests.support.repository import ROOT
from tests.support.served_http import NAME, model_folder, running


def test_a_random_model_behind_our_server_makes_no_row_and_all_is_counted(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    model_folder(tmp_path / "model")
    made = build(compose(str(ROOT / "recipes/synthetic/open_qa.yaml"), ["rows=5"]))
    with running(tmp_path / "model") as server:
        url = server.address
        made.generator = Chat(endpoint=Endpoint(url=url, permissions=allowed(url)), model=NAME, max_tokens=30)
        with pytest.raises(NemoVfmError, match="none of its answers was a list"):
            made.run(Run(tmp_path / "run"))
    told = json.loads((tmp_path / "run/ledger.json").read_text())
    assert told["requests"] == {"in": 4, "kept": 4, "dropped": {}, "failed": {}} and told["rows"]["kept"] == 0
    answers = [json.loads(line) for line in (tmp_path / "run/answers.jsonl").read_text().splitlines()]
    assert len(answers) == 4 and all(one["value"]["ending"] == "truncated" for one in answers)
