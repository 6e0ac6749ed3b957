# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests which models `serve` loads: runs, checkpoints, converted folders and folders of transformers."""

from pathlib import Path

import pytest
import torch

from nemo_vfm.cli.serving.load_served import ServedSource, load_served
from nemo_vfm.core.errors import UserError

transformers = pytest.importorskip("transformers", reason="needs the extra transformers")
from tests.cli.test_convert_language_model import trained  # noqa: E402
from tests.support.language_models import scores, words  # noqa: E402


def test_a_run_a_checkpoint_and_what_was_converted_are_one_model(kitchen, monkeypatch) -> None:
    monkeypatch.chdir(kitchen.folder)
    expected = scores(trained(kitchen), words())
    assert kitchen.main("convert", "run", "ours") == 0
    assert kitchen.main("convert", "run", "theirs", "--to", "transformers") == 0
    assert kitchen.main("convert", "theirs", "back") == 0
    for folder in ("run", "run/checkpoints", "theirs", "back"):
        served = load_served(ServedSource(Path(folder), precision="fp32"))
        assert torch.equal(scores(served.model, words()), expected), folder
        assert (served.name, served.context) == (Path(folder).name, 64)
        assert served.stop == {served.tokenizer.end()} and served.revision


def test_what_files_do_not_say_is_an_argument(kitchen, monkeypatch) -> None:
    monkeypatch.chdir(kitchen.folder)
    half = trained(kitchen)
    for parameter in half.parameters():
        parameter.data /= 2
    served = load_served(ServedSource(Path("run"), name="mine", weights="model", context=16, precision="fp32"))
    assert torch.equal(scores(served.model, words()), scores(half, words()))
    assert (served.name, served.context) == ("mine", 16)
    assert kitchen.main("convert", "run", "theirs", "--to", "transformers") == 0
    for path in Path("theirs").glob("token*"):
        path.unlink()
    with pytest.raises(UserError, match="no tokenizer in it"):
        load_served(ServedSource(Path("theirs"), precision="fp32"))
    assert load_served(ServedSource(Path("theirs"), tokenizer=Path("tokenizer"), precision="fp32")).stop


def test_what_is_no_model_is_a_sentence(kitchen, capsys) -> None:
    (kitchen.folder / "empty").mkdir()
    for folder, said in (("empty", "is not a run folder"), ("absent", "is not a run folder")):
        assert kitchen.main("serve", folder) == 2
        assert said in capsys.readouterr().err
