"""Makes tools, requests for them, calls and results."""

import json
import re
from collections.abc import Sequence

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.embedded.answer_form import AnswerForm
from nemo_vfm.synth.embedded.word_draw import WordDraw

_TOOLS = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)
_REQUEST = re.compile(r"<request>\nFind (\d+) of (?:the )?(.*?), please\.\n</request>")


def _tool(draw: WordDraw, number: int) -> Json:
    kind, thing = draw.thing().split()
    properties = {
        "kind": {"type": "string", "description": f"Such as {kind}."},
        "count": {"type": "integer", "minimum": 1},
    }
    required = ["kind"] if draw.share() < 0.95 else ["kinds"]  # which no property is: a tool that is not valid
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {
        "name": f"find_{thing}_{number}", "description": f"Finds {thing}.", "parameters": parameters,
    }}  # fmt: skip


def _tools(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    return json.dumps([_tool(draw, number) for number in range(1, int(found[1]) + 1)])


def _requests(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    def one() -> str:
        return f"Find {1 + draw.number(9)} of the {draw.thing()}, please."

    return "\n".join(f"{number}. {one()}" for number in range(1, int(found[1]) + 1))


def _other_requests(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    return "\n".join(f"{number}. Sing of {draw.thing()}." for number in range(1, int(found[1]) + 1))


def _call(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    """A right one where the request is one of ours, most often; else none. Wrong ones have a wrong type or name."""
    tools, request, luck = _TOOLS.search(found.string), _REQUEST.search(found.string), draw.share()
    if tools is None or (request is None) != (luck < 0.04):
        return "none"
    name = json.loads(tools[1])[0]["function"]["name"]
    count, kind = (int(request[1]), request[2]) if request else (1, "any")
    arguments = {"kind": kind, "count": f"{count} or so" if 0.04 <= luck < 0.08 else count}
    call = {"name": f"{name}_now" if 0.08 <= luck < 0.1 else name, "arguments": arguments}
    return f"```json\n{json.dumps([call])}\n```"


def _result(found: re.Match[str], messages: Sequence[Json], draw: WordDraw) -> str:
    return json.dumps({"found": [draw.thing() for _ in range(1 + draw.number(3))], "total": draw.number(100)})


FORMS = (
    AnswerForm(re.compile(r"Make up (\d{1,2}) functions"), _tools),
    AnswerForm(re.compile(r"numbered list of (\d{1,3}) requests that users of this assistant"), _other_requests),
    AnswerForm(re.compile(r"numbered list of (\d{1,3}) requests that users could make"), _requests),
    AnswerForm(re.compile(r"You can call these functions"), _call),
    AnswerForm(re.compile(r"You are the system behind them"), _result),
)
