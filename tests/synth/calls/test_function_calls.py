"""Tests conversations with calls: which are kept, and that a chat template can write them."""

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nemo_vfm.cli.main import main
from nemo_vfm.config import build, compose
from nemo_vfm.core.errors import NemoVfmError, UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.data.chat.chat_format import ChatFormat
from nemo_vfm.data.tokenizers.folder_tokenizer import FolderTokenizer
from nemo_vfm.synth.calls.function_calls import FunctionCalls
from nemo_vfm.synth.calls.tool_source import GivenTools, MadeTools
from nemo_vfm.synth.checks.answer_data import NoJson, json_in
from nemo_vfm.synth.checks.call_schema import check_call, check_tools
from nemo_vfm.synth.pipelines.text_bank import TextBank
from nemo_vfm.synth.programs.synthesize import Synthesize
from tests.support.chat_tokenizer import write_tokenizer
from tests.support.repository import ROOT
from tests.support.told_models import ToldModel, ledger_of, ran

pytest.importorskip("jsonschema")
PLAY = {"type": "function", "function": {"name": "play", "description": "Plays.", "parameters": {
    "type": "object", "properties": {"song": {"type": "string"}, "times": {"type": "integer"}}, "required": ["song"],
}}}  # fmt: skip
RIGHT = {"name": "play", "arguments": {"song": "Ö", "times": 2}}
WORDS = {"tools": "an assistant could call", "call": "You can call", "result": "the system behind them",
         "reply": "They returned",
         "decline": "None of them serves"}  # fmt: skip
TEMPLATE = (
    "{% for tool in tools %}<tool>{{ tool | tojson }}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% generation %}{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }}"
    "{% for name, value in call.function.arguments | items %} {{ name }}={{ value }}{% endfor %}</tool_call>"
    "{% endfor %}{% endgeneration %}<|im_end|>\n{% endfor %}"
)


def writer(**answers: Json) -> ToldModel:
    """A generator that answers a prompt as is given; the rest is right."""
    every = {
        "tools": [PLAY],
        "call": [RIGHT],
        "result": {"ok": True},
        "reply": "Done.",
        "decline": "I cannot.",
    } | answers

    def tell(messages: Sequence[Json]) -> str | None:
        asked = str(messages[-1]["content"])
        found = [every[name] for name, words in WORDS.items() if words in asked]
        if found and "Sing of" in asked and "call" not in answers and "You can call" in asked:
            return "None."
        return None if not found else found[0] if isinstance(found[0], str) else json.dumps(found[0])

    return ToldModel(tell)


def test_calls_fit_their_schema_and_where_no_tool_serves_none_is_called(tmp_path: Path) -> None:
    rows = ran(tmp_path, "functions", "rows=60", "min_yield=0.8")
    for row in rows:
        assert check_tools(row["tools"]) == [] and row["parents"]["area"]
        roles = [message["role"] for message in row["messages"]]
        if row["parents"]["served"]:
            (call,) = row["messages"][1]["tool_calls"]
            assert check_call(call, row["tools"]) == [] and isinstance(call["function"]["arguments"], str)
            assert (
                roles == ["user", "assistant", "tool", "assistant"]
                and row["verifier"] == "call_schema: 1 of 1 calls fit"
            )
            assert (
                row["messages"][2]["tool_call_id"] == call["id"] and json.loads(row["messages"][2]["content"])["found"]
            )
        else:
            assert roles == ["user", "assistant"] and row["verifier"].startswith("call_schema: no call")
    table = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert json.loads(table[0]["tools"]) == rows[0]["tools"] and len({row["parents"]["area"] for row in rows}) > 12
    served = [row["parents"]["served"] for row in rows]
    assert 5 < served.count(False) < 20


def test_of_all_requests_the_share_that_no_tool_serves_is_exact() -> None:
    made = FunctionCalls(tools=MadeTools(areas=TextBank(texts=["a"])), requests=7, none_share=0.3)
    served = [one for place in range(10) for one in made._served_requests(place)]
    assert served.count(False) == 21 and len({tuple(made._served_requests(place)) for place in range(10)}) > 3


def test_the_rows_pass_our_chat_format_with_a_template_that_has_tools(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    rows = ran(tmp_path / "run", "functions", "rows=8", generator=writer(reply="I <|im_end|> played it."))
    write_tokenizer(tmp_path, TEMPLATE)
    chat = ChatFormat(tokenizer=FolderTokenizer(folder=tmp_path))
    again = pq.read_table(tmp_path / "run/rows.parquet").to_pylist()
    for row, column in zip(rows, again, strict=True):
        found = chat.encode_with_mask(row["messages"], tools=row["tools"])
        assert found == chat.encode_with_mask(column["messages"], tools=json.loads(column["tools"])) and any(
            found.assistant
        )
        calls = [{**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
                 for call in row["messages"][1].get("tool_calls", [])]  # fmt: skip
        mapped = [row["messages"][0], {**row["messages"][1], "tool_calls": calls}, *row["messages"][2:]]
        assert chat.tokens(mapped, tools=row["tools"]) == found.tokens


@pytest.mark.parametrize(("answers", "rule"), [
    ({"call": {"name": "play", "arguments": {"song": 1}}}, "a call that does not fit its schema"),
    ({"call": [{"name": "pause", "arguments": {}}]}, "a call that does not fit its schema"),
    ({"call": [{"name": "play", "arguments": {"song": "a", "loud": True}}]}, "a call that does not fit its schema"),
    ({"call": [RIGHT, "play"]}, "a call that does not fit its schema"),
    ({"call": "None."}, "no call although a tool fits"),
    ({"call": [RIGHT] * 4}, "too many calls"),
])  # fmt: skip
def test_what_is_called_wrongly_is_dropped_by_its_rule(tmp_path: Path, answers: dict[str, Json], rule: str) -> None:
    with pytest.raises(NemoVfmError, match=f"Most often: {rule}"):
        ran(tmp_path, "functions", "rows=4", "pipeline.none_share=0", generator=writer(**answers))
    assert ledger_of(tmp_path)["dropped"] == {rule: 96}


def test_a_call_where_no_tool_serves_is_dropped_and_prose_fails_the_row(tmp_path: Path) -> None:
    ends = [
        ("pipeline.none_share=1", {"call": [RIGHT]}, "a call although no tool fits"),
        ("pipeline.none_share=0", {"call": "I would call play."}, "the model wrote neither calls nor none"),
        ("pipeline.none_share=0", {"result": "It worked."}, "the model gave a result that is not JSON"),
        ("pipeline.none_share=0", {"tools": [{**PLAY, "type": "tool"}]}, "contains a valid tool"),
        ("pipeline.none_share=0", {"tools": "None come to mind."}, "contains a valid tool"),
    ]
    for place, (share, answers, said) in enumerate(ends):
        (tmp_path / f"{place}").mkdir()
        with pytest.raises(NemoVfmError, match=said):
            ran(tmp_path / f"{place}", "functions", "rows=4", share, generator=writer(**answers))


def test_several_calls_each_get_their_result_and_are_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [{"function": {"name": "play", "arguments": '{"song": "a"}'}}, RIGHT]
    (row,) = ran(tmp_path, "functions", "rows=1", "pipeline.none_share=0", generator=writer(call=texts))
    _, calling, *results, reply = row["messages"]
    assert [call["function"]["arguments"] for call in calling["tool_calls"]] == [
        '{"song": "a"}',
        '{"song": "Ö", "times": 2}',
    ]
    assert (
        [one["tool_call_id"] for one in results]
        == [call["id"] for call in calling["tool_calls"]]
        == ["call00000", "call00001"]
    )
    assert reply == {"role": "assistant", "content": "Done."} and len(row["asked"]) == 4
    assert main(["explain", str(tmp_path), row["id"]]) == 0
    shown = capsys.readouterr().out
    assert 'calls play {"song": "a"}' in shown and "verified: call_schema: 2 of 2 calls fit" in shown


def test_the_order_of_answers_decides_nothing(tmp_path: Path) -> None:
    def late(messages: Sequence[Json]) -> None:
        time.sleep(random.random() / 300)

    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        ran(tmp_path / name, "functions", "rows=20", generator=ToldModel(late))
    assert (tmp_path / "one/rows.jsonl").read_bytes() == (tmp_path / "other/rows.jsonl").read_bytes()


def test_tools_of_a_file_are_used_and_wrong_ones_are_refused_by_their_place(tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    made = build(compose(str(ROOT / "recipes/synthetic/functions.yaml")))
    job = Synthesize(pipeline=FunctionCalls(tools=GivenTools(file=file), none_share=0), prompts=made.prompts,
                     generator=writer(), rows=2)  # fmt: skip
    file.write_text(json.dumps([[PLAY], [PLAY]]))
    job.run(Run(tmp_path))
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["parents"]["set"] for row in rows] == [0, 1] and rows[0]["tools"] == [PLAY]
    wrong = {"[": "as JSON", "[[]]": "set 1 of tools", '{"a": 1}': "expected a list", "\xff": "as JSON",
             json.dumps([PLAY, PLAY]): "two functions are called 'play'"}  # fmt: skip
    for text, said in wrong.items():
        file.write_text(text, encoding="latin-1")
        with pytest.raises(UserError, match=said):
            job.run(Run(tmp_path))


@pytest.mark.parametrize(("answer", "found"), [
    ('[{"a": 1}]', [{"a": 1}]), ('Sure [1]: {"a": [1]} ok', [1]), ('```json\n{"a": 1}\n```', {"a": 1}), ("3", 3),
    ('so {it is} {"a": 2}', {"a": 2}),
])  # fmt: skip
def test_json_is_found_in_an_answer(answer: str, found: Json) -> None:
    assert json_in(answer) == found


@pytest.mark.parametrize(
    "answer", ["", "no", "{'a': 1}", '{"a": NaN}', "[" * 50_000, "[1, 2", '"a" and "b"', "3 apples"]
)
def test_an_answer_without_json_has_none(answer: str) -> None:
    with pytest.raises(NoJson):
        json_in(answer)


@pytest.mark.parametrize("more", [{"requests": 0}, {"max_calls": 0}, {"none_share": 2}])
def test_settings_that_cannot_be_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        FunctionCalls(tools=MadeTools(areas=TextBank(texts=["a"])), **more)
    with pytest.raises(ValueError, match="at least 1"):
        MadeTools(areas=TextBank(texts=["a"]), tools=0)
