"""Makes requests that a language model cannot fulfil, and kind answers that say so (2406.11704, 3.2.5)."""

import re
from collections.abc import Iterable, Mapping, Sequence

from nemo_vfm.core.network.permission import SentText
from nemo_vfm.synth.programs.judgement import says_yes
from nemo_vfm.synth.programs.list_questions import LIST_PROMPTS, in_turn, lists_of
from nemo_vfm.synth.programs.row_program import Ask, Draft, DroppedRow, Program, RowFailed, RowProgram, say, texts_of

#: What the judge is asked (the prompt), and the rule that a no breaks.
_JUDGED = {
    "impossible": "the request can be fulfilled", "declines": "the reply does not refuse, or pretends",
    "offers": "the reply offers no help",
}  # fmt: skip
_LABEL = re.compile(r"\A\W*(?:reply|assistant|answer)\W*:\s*", re.IGNORECASE)


class Incapable:
    """Requests of several kinds, and refusals. A judge confirms of each row that the request cannot be fulfilled, that
    the reply says so and does not pretend, and that it offers other help; a no drops the row.

    Args:
        limits: what a model cannot do, in words, such as "act outside of the conversation: book, buy, call".
        requests: of each limit in one list.
        lists: of each limit; each is another answer to the same question.
    """

    def __init__(self, *, limits: Sequence[SentText], requests: int = 10, lists: int = 1) -> None:
        if not limits or not all(limit.strip() for limit in limits) or min(requests, lists) < 1:
            raise ValueError(f"limits {list(limits)} must have at least one text, and requests {requests} and lists "
                             f"{lists} at least 1")  # fmt: skip
        self.limits, self.requests, self.lists = tuple(limits), requests, lists

    def prompts(self) -> Mapping[str, frozenset[str]]:
        """See `Pipeline`."""
        ours = {"requests": frozenset({"count", "limit"}), "refuse": frozenset({"limit", "request"})}
        return LIST_PROMPTS | ours | {name: frozenset({"request", "reply"}) for name in _JUDGED}

    def roles(self) -> Sequence[str]:
        return ["judge"]

    def max_rows(self) -> int:
        return len(self.limits) * self.requests * self.lists

    def candidates(self) -> Program[Iterable[RowProgram]]:
        """Each request once; one of each limit, then another."""
        places = [(limit, number) for number in range(self.lists) for limit in self.limits]
        asks = [
            Ask("requests", {"count": str(self.requests), "limit": limit}, sample=number) for limit, number in places
        ]
        found = yield from lists_of(asks, self.requests)
        every = in_turn(found, [limit for limit, _ in places], "requests")
        return (self.row(request, limit) for request, limit in every.items())

    def row(self, request: str, limit: str) -> RowProgram:
        """A request that cannot be fulfilled for a limit, and a reply that the judge finds right."""
        (text,) = texts_of((yield [Ask("refuse", {"limit": limit, "request": request})]))
        if not (reply := _LABEL.sub("", text.strip())):
            raise RowFailed("the reply is empty")
        values = {"request": request, "reply": reply}
        verdicts = texts_of((yield [Ask(name, values, model="judge") for name in _JUDGED]))
        for verdict, rule in zip(verdicts, _JUDGED.values(), strict=True):
            if not says_yes(verdict):
                return DroppedRow(rule)
        messages = [say("user", request), say("assistant", reply)]
        return Draft(messages, {"limit": limit, "request": request})
