"""Makes conversations with calls of functions that fit their schema, and with requests that no function serves."""

import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from nemo_vfm.core.optional import needs_packages
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.calls.tool_source import Toolset, ToolSource
from nemo_vfm.synth.checks.answer_data import NoJson, json_in
from nemo_vfm.synth.checks.call_schema import check_call
from nemo_vfm.synth.programs.list_questions import LIST_PROMPTS, lists_of
from nemo_vfm.synth.programs.row_program import Ask, Draft, DroppedRow, Program, RowFailed, RowProgram, say, texts_of

_NONE = re.compile(r"\W*none\W*", re.IGNORECASE)
_PROMPTS = {
    "requests": ("tools", "count"), "other_requests": ("tools", "count"), "call": ("tools", "request"),
    "result": ("tools", "call"), "reply": ("request", "calls", "results"), "decline": ("tools", "request"),
}  # fmt: skip


@needs_packages("jsonschema")
class FunctionCalls:
    """Requests of users, calls by the assistant, results that the model makes up, and answers.

    Args:
        tools: that may be called.
        requests: for each set of tools.
        none_share: of them that no tool serves: there the assistant calls none, and says so.
        max_calls: for one request.
    """

    def __init__(self, *, tools: ToolSource, requests: int = 6, none_share: float = 0.2, max_calls: int = 3) -> None:
        if min(requests, max_calls) < 1 or not 0 <= none_share <= 1:
            raise ValueError(f"requests {requests} and max_calls {max_calls} must be at least 1, and none_share "
                             f"{none_share} from 0 to 1")  # fmt: skip
        self.tools, self.requests, self.none_share, self.max_calls = tools, requests, none_share, max_calls

    def prompts(self) -> Mapping[str, frozenset[str]]:
        """See `Pipeline`."""
        return {
            **LIST_PROMPTS,
            **self.tools.prompts(),
            **{name: frozenset(places) for name, places in _PROMPTS.items()},
        }

    def roles(self) -> Sequence[str]:
        return self.tools.roles()

    def max_rows(self) -> int | None:
        sets = self.tools.max_sets()
        return None if sets is None else sets * self.requests

    def candidates(self) -> Program[Iterable[RowProgram]]:
        """Requests, one of each set of tools, then another."""
        sets = yield from self.tools.toolsets()
        served = [self._served_requests(place) for place in range(len(sets))]
        plans = [(place, which) for place in range(len(sets)) for which in (True, False) if which in served[place]]
        asks = [Ask("requests" if which else "other_requests",
                    {"tools": _json(sets[place].tools), "count": str(served[place].count(which))})
                for place, which in plans]  # fmt: skip
        lists = yield from lists_of(asks, self.requests)
        texts = {plan: iter(items) for plan, items in zip(plans, lists, strict=True)}
        found = []
        for number in range(self.requests):
            for place, one in enumerate(sets):
                which = served[place][number]
                found += [self.row(one, text, which)
                          for text in islice(texts[place, which], 1)]  # fmt: skip
        if not found:
            raise RowFailed("none of the model's answers to requests for lists of requests was a list")
        return found

    def _served_requests(self, place: int) -> list[bool]:
        """Of each request of a set, whether a tool serves it; the share is exact over all sets."""
        none = int((place + 1) * self.requests * self.none_share) - int(place * self.requests * self.none_share)
        served = [True] * (self.requests - none) + [False] * none
        random.Random(f"{place}").shuffle(served)
        return served

    def row(self, toolset: Toolset, request: str, served: bool) -> RowProgram:
        """A request with calls, their results, and the answer.

        Args:
            served: whether a tool serves it.
        """
        values, more = {"tools": _json(toolset.tools), "request": request}, {"tools": list(toolset.tools)}
        parents = {**toolset.parents, "request": request, "served": served}
        (answer,) = texts_of((yield [Ask("call", values)]))
        try:
            found: Json = [] if _NONE.fullmatch(answer) else json_in(answer)
        except NoJson:
            raise RowFailed("the model wrote neither calls nor none") from None
        calls: list[Json] = found if isinstance(found, list) else [found]
        if bool(calls) != served:
            return DroppedRow("no call although a tool fits" if served else "a call although no tool fits")
        if len(calls) > self.max_calls:
            return DroppedRow("too many calls")
        if any(check_call(one, toolset.tools) for one in calls):
            return DroppedRow("a call that does not fit its schema")
        if not served:
            (reply,) = texts_of((yield [Ask("decline", values)]))
            verifier = "call_schema: no call, and none is needed"
            return Draft([say("user", request), say("assistant", reply)], parents, verifier=verifier, more=more)
        asks = [Ask("result", {"tools": values["tools"], "call": _json(call)}) for call in calls]
        try:
            results = [_json(json_in(answer)) for answer in texts_of((yield asks))]
        except NoJson:
            raise RowFailed("the model gave a result that is not JSON") from None
        texts = {"calls": _json(calls), "results": "\n".join(results), "request": request}
        (reply,) = texts_of((yield [Ask("reply", texts)]))
        answers, called = list[Json](), list[Json]()
        for number, (call, result) in enumerate(zip(calls, results, strict=True)):
            call_id = f"call{number:05}"  # nine letters and digits, as templates of Mistral demand
            answers.append({"role": "tool", "tool_call_id": call_id, "content": result})
            function = call.get("function", call)
            given = function["arguments"]
            given = _json(json.loads(given) if isinstance(given, str) else given)  # OpenAI's form: JSON as a text
            called.append(
                {"id": call_id, "type": "function", "function": {"name": function["name"], "arguments": given}}
            )
        calling = {"role": "assistant", "content": "", "tool_calls": called}
        messages: list[Json] = [say("user", request), calling, *answers, say("assistant", reply)]
        return Draft(messages, parents, verifier=f"call_schema: {len(calls)} of {len(calls)} calls fit", more=more)


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)
