"""Makes conversations with calls of functions that fit their schema, and with requests that no function serves."""

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from nemo_vfm.core.optional import needs_packages
from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.calls.tool_source import Toolset, ToolSource
from nemo_vfm.synth.checks.answer_data import NoJson, json_in
from nemo_vfm.synth.checks.call_schema import check_call
from nemo_vfm.synth.programs.list_questions import LIST_PROMPTS, lists_of
from nemo_vfm.synth.programs.row_program import Ask, Draft, Dropped, Program, RowFailed, answered, said

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
        most_calls: for one request.
    """

    def __init__(self, *, tools: ToolSource, requests: int = 6, none_share: float = 0.2, most_calls: int = 3) -> None:
        if min(requests, most_calls) < 1 or not 0 <= none_share <= 1:
            raise ValueError(f"requests {requests} and most_calls {most_calls} must be at least 1, and none_share "
                             f"{none_share} from 0 to 1")  # fmt: skip
        self.tools, self.requests, self.none_share, self.most_calls = tools, requests, none_share, most_calls

    def prompts(self) -> Mapping[str, frozenset[str]]:
        """See `Pipeline`."""
        return {
            **LIST_PROMPTS,
            **self.tools.prompts(),
            **{name: frozenset(places) for name, places in _PROMPTS.items()},
        }

    def roles(self) -> Sequence[str]:
        """See `Pipeline`."""
        return self.tools.roles()

    def most_rows(self) -> int | None:
        """See `Pipeline`."""
        sets = self.tools.most_sets()
        return None if sets is None else sets * self.requests

    def candidates(self) -> Program[Sequence["FunctionRequest"]]:
        """Requests, one of each set of tools, then another."""
        sets = yield from self.tools.toolsets()
        served = [self._served(place) for place in range(len(sets))]
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
                found += [FunctionRequest(one, text, which, self.most_calls)
                          for text in islice(texts[place, which], 1)]  # fmt: skip
        if not found:
            raise RowFailed("none of the model's answers to requests for lists of requests was a list")
        return found

    def _served(self, place: int) -> list[bool]:
        """Of each request of a set, whether a tool serves it; the share is exact over all sets."""
        none = int((place + 1) * self.requests * self.none_share) - int(place * self.requests * self.none_share)
        served = [True] * (self.requests - none) + [False] * none
        random.Random(f"{place}").shuffle(served)
        return served


@dataclass(frozen=True, slots=True)
class FunctionRequest:
    """One request."""

    toolset: Toolset  #: what may be called
    request: str  #: what the user says
    served: bool  #: whether a tool serves it
    most_calls: int

    def row(self) -> Program[Draft | Dropped]:
        """Calls, their results, and the answer."""
        values = {"tools": _json(self.toolset.tools), "request": self.request}
        (answer,) = answered((yield [Ask("call", values)]))
        try:
            found: Json = [] if _NONE.fullmatch(answer) else json_in(answer)
        except NoJson:
            raise RowFailed("the model wrote neither calls nor none") from None
        calls: list[Json] = found if isinstance(found, list) else [found]
        if bool(calls) != self.served:
            return Dropped("no call although a tool fits" if self.served else "a call although no tool fits")
        if len(calls) > self.most_calls:
            return Dropped("too many calls")
        if any(check_call(one, self.toolset.tools) for one in calls):
            return Dropped("a call that does not fit its schema")
        if not self.served:
            (reply,) = answered((yield [Ask("decline", values)]))
            return self._draft([said("assistant", reply)], "call_schema: no call, and none is needed")
        asks = [Ask("result", {"tools": values["tools"], "call": _json(call)}) for call in calls]
        try:
            results = [_json(json_in(answer)) for answer in answered((yield asks))]
        except NoJson:
            raise RowFailed("the model gave a result that is not JSON") from None
        texts = {"calls": _json(calls), "results": "\n".join(results), "request": self.request}
        (reply,) = answered((yield [Ask("reply", texts)]))
        answers = [
            {"role": "tool", "tool_call_id": _id(number), "content": text} for number, text in enumerate(results)
        ]
        called = [
            {"id": _id(number), "type": "function",
             "function": {"name": one["name"], "arguments": _as_text(one["arguments"])}}
            for number, one in enumerate(call.get("function", call) for call in calls)
        ]  # fmt: skip
        calling = {"role": "assistant", "content": "", "tool_calls": called}
        turns: list[Json] = [calling, *answers, said("assistant", reply)]
        return self._draft(turns, f"call_schema: {len(calls)} of {len(calls)} calls fit")

    def _draft(self, turns: Sequence[Mapping[str, Json]], verifier: str) -> Draft:
        parents = {**self.toolset.parents, "request": self.request, "served": self.served}
        messages = [said("user", self.request), *turns]
        return Draft(messages, parents, verifier=verifier, more={"tools": list(self.toolset.tools)})


def _as_text(arguments: Json) -> str:
    """OpenAI's form: JSON as a text."""
    return _json(json.loads(arguments) if isinstance(arguments, str) else arguments)


def _id(number: int) -> str:
    return f"call{number:05}"  # nine letters and digits, as templates of Mistral demand


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)
