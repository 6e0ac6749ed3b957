"""Makes conversations of an assistant with one purpose, with turns that lead away (CantTalkAboutThis, 2404.03820)."""

import random
from collections.abc import Iterable, Mapping, Sequence

from nemo_vfm.core.types.json_value import Json
from nemo_vfm.synth.programs.judgement import says_yes, transcript
from nemo_vfm.synth.programs.list_questions import LIST_PROMPTS, in_turn, lists_of, plain_words
from nemo_vfm.synth.programs.row_program import Ask, Draft, DroppedRow, Program, RowFailed, RowProgram, say, texts_of

#: What the judge is asked (the prompt) about a turn and its answer, and the rule that a no breaks.
_OF_DISTRACTORS = {"leads_away": "a distractor is on topic", "stays": "an answer follows a distractor"}
_OF_OTHERS = {"helps": "an answer does not help with what is on topic"}
_NOTHING_YET = "(nothing has been said yet)"


class OnTopic:
    """Conversations under a system prompt with a purpose and rules. At some of its turns the user leads away, and the
    answer stays. A judge confirms each turn; its no drops the row.

    A row's column `distractors` has the places in `messages` of the turns that lead away.

    Args:
        domains: of work; a list of this many is asked for.
        purposes: of each domain.
        turns: of the user.
        distractors: how many of them lead away; the first never does, and which do is drawn for each row.
    """

    def __init__(self, *, domains: int = 10, purposes: int = 6, turns: int = 5, distractors: int = 2) -> None:
        if min(domains, purposes) < 1 or not 0 < distractors < turns:
            raise ValueError(f"domains {domains} and purposes {purposes} must be at least 1, and distractors "
                             f"{distractors} from 1 to one fewer than turns {turns}")  # fmt: skip
        self.domains, self.purposes, self.turns, self.distractors = domains, purposes, turns, distractors

    def prompts(self) -> Mapping[str, frozenset[str]]:
        """See `Pipeline`."""
        ours = {
            "domains": ("count",), "purposes": ("count", "domain"), "rules": ("domain", "purpose"),
            "on_topic_turn": ("rules", "transcript"), "distractor": ("rules", "transcript"),
        }  # fmt: skip
        judged = dict.fromkeys((*_OF_DISTRACTORS, *_OF_OTHERS), ("rules", "transcript", "answer"))
        return LIST_PROMPTS | {name: frozenset(places) for name, places in (ours | judged).items()}

    def roles(self) -> Sequence[str]:
        return ["judge"]

    def max_rows(self) -> int:
        return self.domains * self.purposes

    def candidates(self) -> Program[Iterable[RowProgram]]:
        """Each purpose once; one of each domain, then another."""
        ((*domains,),) = yield from lists_of([Ask("domains", {"count": str(self.domains)})], self.domains)
        if not domains:
            raise RowFailed("none of the model's answers to requests for a list of domains was a list")
        asks = [Ask("purposes", {"count": str(self.purposes), "domain": domain}) for domain in domains]
        found = yield from lists_of(asks, self.purposes)
        every = in_turn(found, domains, "purposes")
        return (self.row(domain, purpose) for purpose, domain in every.items())

    def row(self, domain: str, purpose: str) -> RowProgram:
        """All turns with an assistant of one purpose, each confirmed before the next."""
        (rules,) = texts_of((yield [Ask("rules", {"domain": domain, "purpose": purpose})]))
        rng = random.Random(f"{domain}\n{purpose}")
        away = rng.sample(range(1, self.turns), self.distractors)
        messages: list[Mapping[str, Json]] = [say("system", rules)]
        for turn in range(self.turns):
            values = {"rules": rules.strip(), "transcript": transcript(messages[1:]) or _NOTHING_YET}
            (spoken,) = texts_of((yield [Ask("distractor" if turn in away else "on_topic_turn", values)]))
            if any(plain_words(spoken) == plain_words(str(one["content"])) for one in messages):
                return DroppedRow("a turn of the user repeats an earlier one")
            messages.append(say("user", spoken))
            (answer,) = texts_of((yield [Ask(None, before=tuple(messages))]))
            values |= {"transcript": transcript(messages[1:]), "answer": answer}
            messages.append(say("assistant", answer))
            judged = _OF_DISTRACTORS if turn in away else _OF_OTHERS
            verdicts = texts_of((yield [Ask(name, values, model="judge") for name in judged]))
            for verdict, rule in zip(verdicts, judged.values(), strict=True):
                if not says_yes(verdict):
                    return DroppedRow(rule)
        places: list[Json] = [2 * turn + 1 for turn in sorted(away)]
        parents: dict[str, Json] = {"domain": domain, "purpose": purpose}
        return Draft(messages, parents, more={"distractors": places})
