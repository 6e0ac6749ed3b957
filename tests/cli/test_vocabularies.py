"""Tests that `check` compares a model's vocabulary with the tokenizer that its workflow trains."""

import pytest

from nemo_vfm.cli.main import main

TOO_SMALL = (
    "the tokenizer from step tokenizer has up to 384 tokens, but the model has a vocabulary of 256; give vocab=384"
)


def checked(capsys: pytest.CaptureFixture[str], *changes: str) -> tuple[int, str]:
    status = main(["check", "llm/stories", *changes])
    return status, capsys.readouterr().out


def test_a_vocabulary_smaller_than_that_of_the_steps_own_tokenizer_is_refused_at_its_key(capsys):
    status, said = checked(capsys, "steps.train.model.vocab=256")
    assert status == 2 and "command line  steps.train.model.vocab\n" in said
    assert TOO_SMALL in said and said.rstrip().endswith("1 problem")


def test_the_tokens_that_a_step_makes_tell_it_where_the_training_names_no_tokenizer(capsys):
    changes = ("steps.train.data.tokenizer=null", "~steps.train.callbacks.preview", "steps.train.model.vocab=256",
               "~steps.write", "~steps.untrained", "~steps.judge")  # fmt: skip
    status, said = checked(capsys, *changes)
    assert status == 2 and TOO_SMALL in said


@pytest.mark.parametrize("changes", [(), ("steps.train.model.vocab=512",), ("steps.tokenizer.learner.vocab_size=300",)])
def test_one_that_is_large_enough_stands(capsys, changes):
    assert checked(capsys, *changes)[0] == 0


def test_a_tokenizer_of_somewhere_else_is_not_guessed_at(capsys):
    changes = ("steps.tokens.tokenizer.folder=elsewhere", "steps.train.model.vocab=256")
    assert checked(capsys, *changes)[0] == 0
