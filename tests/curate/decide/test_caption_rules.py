"""Tests rules that read captions: they run once clips have theirs, and have a line of their own in the ledger."""

import json
from itertools import count

import pytest
import yaml

from nemo_vfm.cli.main import main
from nemo_vfm.core.types.component import PartRefused
from nemo_vfm.core.types.job import Run
from nemo_vfm.curate.balance import Balance
from nemo_vfm.curate.decide.rule import Rule, check_rules
from nemo_vfm.curate.execute.inline_executor import Inline
from nemo_vfm.curate.score.near_duplicate import NearDuplicate
from nemo_vfm.data.shards.shard_files import ShardSet
from tests.curate.caption.test_job import RECIPE, endpoint
from tests.curate.test_redecide import again, same_tables
from tests.support.chat_server import answer, chat_server, status
from tests.support.films import job, pan, write_film
from tests.support.repository import ROOT

HERE = Inline(isolated=False)


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    for seed in range(6):
        write_film(folder / f"{seed}.mp4", pan(seed))
    return folder


def told(folder):
    shards = ShardSet(folder / "shards")
    return [json.loads(shards.read(entry, "json")) for entry in shards.entries]


def test_no_clip_of_the_shards_bears_a_stand_in_where_every_third_answer_is_a_400(videos, tmp_path, monkeypatch):
    monkeypatch.setenv("CANARY_API_KEY", "key")
    numbers = count(1)

    def every_third(handler, body):
        status(400, b"no")(handler, body) if next(numbers) % 3 == 0 else handler.send(200, answer("a cat walks"))

    with chat_server() as server:
        server.always = every_third
        words = [f"run_dir={tmp_path}", f"source.path={videos}", "rules=captioned", "~rules.near_duplicate",
                 "executor=inline", "executor.isolated=false", *endpoint(server)]  # fmt: skip
        assert main(["run", RECIPE, *words]) == 0
        assert [facts["caption_by"] for facts in told(tmp_path)] == ["endpoint"] * 4
        ledger = json.loads((tmp_path / "ledger.json").read_text())
        assert ledger["clips"]["kept"] == 4 and ledger["clips"]["dropped"] == {"stand_in": 2}
    assert all("caption_words" not in facts["scores"] for facts in told(tmp_path))


def test_captions_are_columns_of_the_table_and_deciding_again_gives_the_same(videos, tmp_path, capfd):
    for number in range(6):
        (videos / f"{number}.txt").write_text("word " * number)
    rules = {
        "short": Rule(score="caption_words", below=3), "stand_in": Rule(drop='caption_by == "description"'),
        "bare": Rule(keep='caption_status == "success"'), "alike": Rule(score="similarity", above=0.9),
    }  # fmt: skip
    balance = Balance(by="source", caps={"5.mp4": 0})
    whole = job(videos, rules=rules, stages={"near_duplicate": NearDuplicate()}, balance=balance, executor=HERE)
    whole.run(Run(tmp_path / "one"))
    ledger = json.loads((tmp_path / "one/ledger.json").read_text())
    assert ledger["clips"]["dropped"] == {"short": 2, "stand_in": 1, "balance": 1}
    again(tmp_path / "one", tmp_path / "two", rules, balance=balance)
    same_tables(tmp_path / "one", tmp_path / "two")
    capfd.readouterr()
    assert whole.run(Run(tmp_path / "one")).did_nothing
    assert "transcode" not in capfd.readouterr().err, "what a caption dropped stays encoded"


def test_the_rules_of_captions_are_those_of_standard_and_two_more_and_none_are_none():
    standard, captioned, none = (
        yaml.safe_load((ROOT / f"conf/rules/{name}.yaml").read_text()) for name in ("standard", "captioned", "none")
    )
    assert captioned.keys() - standard.keys() == {"stand_in", "uncaptioned"} and none == {}
    assert {name: captioned[name] for name in standard} == standard


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (Rule(drop="caption_by > 3"), "uses 'caption_by' as a number, but it holds words"),
        (Rule(drop='caption_status == "good"'), "'caption_status' is never 'good'; there are success, truncated"),
        (Rule(drop='caption_words == "few"'), "compares 'caption_words' with a word"),
        (Rule(score="caption_word", below=3), "did you mean 'caption_words'"),
    ],
)  # fmt: skip
def test_a_rule_that_misreads_a_caption_is_refused(rule, words):
    with pytest.raises(PartRefused, match=words):
        check_rules({}, {"odd": rule})
