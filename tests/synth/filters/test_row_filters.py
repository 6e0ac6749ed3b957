"""Tests which rows each filter drops, and that the ledger counts them by rule."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from nemo_vfm.core.errors import UserError
from nemo_vfm.core.types.job import Run
from nemo_vfm.dedup.texts.near_texts import near_duplicates
from nemo_vfm.dedup.texts.shingles import Shingles
from nemo_vfm.models.text_encoder import HashedNgrams
from nemo_vfm.synth.filters.evaluation_overlap import EvaluationOverlap
from nemo_vfm.synth.filters.exact_copies import ExactCopies
from nemo_vfm.synth.filters.guarded_rows import GuardedRows, unsafe_categories
from nemo_vfm.synth.filters.kept_languages import KeptLanguages
from nemo_vfm.synth.filters.near_copies import NearCopies
from nemo_vfm.synth.filters.similar_rows import SimilarRows
from nemo_vfm.synth.filters.text_length import TextLength
from nemo_vfm.synth.filters.turn_texts import turns_of
from nemo_vfm.synth.programs.prompt_template import Prompt
from nemo_vfm.synth.programs.row_program import Draft, Program, RowFailed, RowProgram, ended_row, say
from nemo_vfm.synth.programs.synthesize import Synthesize
from nemo_vfm.text.documents import Documents
from tests.dedup.texts.made_texts import changed, sentences
from tests.support.told_models import ToldModel, ledger_of
from tests.synth.filters.language_texts import TEXTS

MADE = [
    changed(text, number, seed=9 * place + number)
    for place, text in enumerate(sentences(20, seed=4))
    for number in (0, 1, 3)
]
ENGLISH = "The bridge that we have seen from the hill was built by two of the brothers"


def draft(asked: str = "Why?", answer: str = "Because.", **more: Any) -> Draft:
    return Draft([say("user", asked), say("assistant", answer)], more=more)


class GivenRows:
    def __init__(self, drafts: Sequence[Draft]) -> None:
        self._drafts = drafts

    def prompts(self) -> Mapping[str, frozenset[str]]:
        return {}

    def roles(self) -> Sequence[str]:
        return ()

    def max_rows(self) -> int:
        return len(self._drafts)

    def candidates(self) -> Program[Iterator[RowProgram]]:
        yield []
        return map(ended_row, self._drafts)


def kept(rule: Any, drafts: Sequence[Draft]) -> list[str | None]:
    opened = rule.make_rule()
    return [opened(one) for one in drafts]


def test_the_ledger_counts_the_rows_that_each_filter_drops(tmp_path: Path) -> None:
    (tmp_path / "quiz.jsonl").write_text(
        '{"question": "Which of the nine old towers beside the sea was built before the great fire came?"}\n'
    )
    leaked = "Tell me: which of the nine old towers beside the sea was built before the great fire came, and why?"
    drafts = [
        draft(ENGLISH),
        draft(f" {ENGLISH.upper()}"),
        draft(f"{ENGLISH}!"),
        draft("Seen from the hill, the bridge of two brothers"),
        draft("the bridge seen from the hill of the two brothers"),
        draft(TEXTS["de"][0]),
        draft("Short", "No"),
        draft(leaked),
        draft("How do I do something cruel to the cat of an old neighbour?"),
        draft("Where is that?", "Prose, please."),
        draft("How does one bake bread that is good for a week?"),
    ]
    guard = ToldModel(
        lambda messages: "unsafe\nS1" if "cruel" in str(messages) else "Prose!" if "Prose" in str(messages) else "safe"
    )
    job = Synthesize(
        pipeline=GivenRows(drafts),
        prompts={"guard": Prompt(text="{transcript}")},
        generator=ToldModel(),
        rows=len(drafts),
        tries=1,
        models={"guard": guard},
        min_yield=0.1,
        filters=[
            TextLength(least=3, unit="characters"),
            KeptLanguages(languages=["en"]),
            EvaluationOverlap(evaluations={"quiz": Documents(path=tmp_path / "quiz.jsonl", column="question")}),
            GuardedRows(),
            ExactCopies(),
            NearCopies(),
            SimilarRows(encoder=HashedNgrams(context_weight=0), threshold=0.9),
        ],
    )
    job.run(Run(tmp_path))
    ledger = ledger_of(tmp_path)
    assert ledger["dropped"] == {
        "exact copy": 1,
        "near copy": 1,
        "similar row": 1,
        "language de": 1,
        "fewer than 3 characters in a turn": 1,
        "overlaps with quiz": 1,
        "unsafe: S1": 1,
    }
    assert ledger["failed"] == {"the guard said neither safe nor unsafe with categories": 1} and ledger["kept"] == 3
    assert len(guard.asked) == len(drafts) - 3, "rows that a filter before has dropped are not asked about"


def test_rows_one_at_a_time_are_near_copies_of_the_same_as_all_at_once() -> None:
    settings: list[dict[str, Any]] = [{}, {"threshold": 0.5}, {"shingles": Shingles(unit="words", size=3)}]
    found = [near_duplicates(MADE, **one).keys() for one in settings]
    for one, copies in zip(settings, found, strict=True):
        rules = kept(NearCopies(**one), [draft(text) for text in MADE])
        assert {place for place, rule in enumerate(rules) if rule == "near copy"} == copies
        assert 10 < sum(rule is None for rule in rules) < len(MADE)
    assert found[0] != found[1] and found[0] != found[2], "each setting decides"


def test_each_run_compares_its_own_rows_alone() -> None:
    for one in (ExactCopies(), NearCopies(), SimilarRows(encoder=HashedNgrams())):
        assert kept(one, [draft(), draft()])[0] is None and kept(one, [draft()]) == [None]


def test_near_copies_over_their_room_end_the_run_with_a_sentence() -> None:
    with pytest.raises(UserError, match="the texts of 1 rows that NearCopies compares with need more than its max_gb"):
        kept(NearCopies(max_gb=0.001, num_hashes=4096), [draft()])


def test_similar_rows_are_compared_with_all_that_stayed() -> None:
    texts = sentences(258, seed=2, num_words=6)
    rules = kept(
        SimilarRows(encoder=HashedNgrams(dim=64)), [draft(text) for text in [*texts, texts[0], texts[257], "", "?"]]
    )
    assert rules[:258] == [None] * 258 and rules[258:] == ["similar row", "similar row", None, "similar row"]


def test_whose_turns_are_looked_at_is_chosen_and_answers_of_preferences_are_the_assistants() -> None:
    row = draft("u", "a", chosen=[say("assistant", "c")], rejected=[say("assistant", "r")])
    assert turns_of(row, "user") == ["u"] and turns_of(row, "assistant") == ["a", "c", "r"]
    called = Draft([say("system", "s"), {"role": "assistant", "content": None}, say("user", "u")])
    assert turns_of(called, "all") == ["s", "u"] and turns_of(called, "assistant") == []
    assert turns_of(draft("u", "a", chosen="c", rejected=["r"]), "all") == ["u", "a"]
    two = [draft("same", "one"), draft("same", "other")]
    assert kept(ExactCopies(turns="user"), two)[1] == "exact copy" and kept(ExactCopies(turns="all"), two)[1] is None


@pytest.mark.parametrize("kind", [NearCopies, SimilarRows, ExactCopies])
def test_each_filter_of_copies_compares_the_turns_that_it_was_given(kind: Any) -> None:
    more = {"encoder": HashedNgrams()} if kind is SimilarRows else {}
    two = [draft("one and the same question", "mine is red"), draft("one and the same question", "yours goes by night")]
    gone = {turns: kept(kind(turns=turns, **more), two)[1] is not None for turns in ("user", "assistant")}
    assert gone == {"user": True, "assistant": False}


def test_the_other_turns_are_not_looked_at() -> None:
    german = draft(TEXTS["de"][0], ENGLISH)
    rules = [
        KeptLanguages(languages=["en"], turns=turns).broken_rule(german) is None
        for turns in ("user", "assistant", "all")
    ]
    assert rules == [False, True, False]
    letters, asked = {"letters": Evaluation()}, draft("a b c d e f g h i", "n")
    found = [
        EvaluationOverlap(evaluations=letters, n=9, turns=turns).broken_rule(asked) for turns in ("user", "assistant")
    ]
    assert found == ["overlaps with letters", None]
    assert EvaluationOverlap(evaluations=letters).broken_rule(asked) is None, "13 words in a row unless it is said"


def test_a_short_question_of_an_evaluation_is_looked_for_inside_of_a_turn_from_so_many_words_on() -> None:
    class Capital:
        def texts(self, skipped: Counter[str]) -> Iterator[str]:
            yield "capital of France"

    inside = draft("What is the capital of France?")
    found = [EvaluationOverlap(evaluations={"c": Capital()}, shortest=least).broken_rule(inside) for least in (3, 4)]
    assert found == ["overlaps with c", None]


def test_a_guard_is_the_model_of_the_role_that_is_named() -> None:
    (ask,) = next(GuardedRows(role="censor").rule_program(draft()))
    assert ask.model == "censor" and GuardedRows(role="censor").roles() == ["censor"]


def test_every_turn_has_a_length_within_bounds() -> None:
    words = TextLength(least=2, most=3)
    assert [words.broken_rule(draft(answer=text)) for text in ("one", "one two", "a b c", "a b c d")] == [
        "fewer than 2 words in a turn",
        None,
        None,
        "more than 3 words in a turn",
    ]
    assert TextLength(turns="user").broken_rule(Draft([say("assistant", "x")])) == "fewer than 1 words in a turn"
    assert (
        TextLength(most=4, unit="characters").broken_rule(draft(answer="12345")) == "more than 4 characters in a turn"
    )


def test_turns_in_no_known_language_stay_unless_that_is_asked_for() -> None:
    assert KeptLanguages(languages=["fr", "ja"]).broken_rule(draft(TEXTS["fr"][0], "42")) is None
    strict = KeptLanguages(languages=["fr"], keep_unknown=False)
    assert strict.broken_rule(draft(TEXTS["fr"][0], "42")) == "language not recognized"
    assert strict.broken_rule(draft(TEXTS["fr"][0], TEXTS["ko"][0])) == "language ko"


class Evaluation:
    """One question that can be read, and one that cannot."""

    def texts(self, skipped: Counter[str]) -> Iterator[str]:
        skipped["not JSON"] += 1
        yield "a b c d e f g h i j k l m n"


def test_an_evaluation_is_met_within_one_turn_and_what_cannot_be_read_of_it_is_said(
    capfd: pytest.CaptureFixture[str],
) -> None:
    overlap = EvaluationOverlap(evaluations={"letters": Evaluation()})
    assert overlap.broken_rule(draft("so: A, b c d e f g h i j k l m!")) == "overlaps with letters"
    assert overlap.broken_rule(draft("a b c d e f g", "h i j k l m n")) is None
    assert "evaluation letters are not searched for: 1 not JSON" in " ".join(capfd.readouterr().err.split())
    with pytest.raises(UserError, match=r"nothing\.jsonl"):
        EvaluationOverlap(evaluations={"none": Documents(path=Path("nothing.jsonl"))}).broken_rule(draft())


@pytest.mark.parametrize(
    ("answer", "categories"),
    [
        ("safe", None),
        ("\n\nsafe\n", None),
        ("**Safe**.", None),
        ("unsafe", []),
        ("unsafe\nS1", ["S1"]),
        ("unsafe\nO3,O13", ["O3", "O13"]),
        ("Unsafe: S9, S10.", ["S9", "S10"]),
        ("unsafe\n- Violence\n- Hate and Identity Hate", ["Violence", "Hate and Identity Hate"]),
    ],
)
def test_what_a_guard_says_is_read(answer: str, categories: list[str] | None) -> None:
    assert unsafe_categories(answer) == categories


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "It is safe.",
        "safe, I think",
        "safe\nS1",
        "unsafe because of S1",
        "unsafely",
        "unsafe\nIt speaks of harm to a person here.",
        "I cannot help with that.",
        "unsafe\nS1: they say how to do it. Then they do it",
    ],
)
def test_prose_of_a_guard_is_a_failure_and_never_safe(answer: str) -> None:
    with pytest.raises(RowFailed, match="neither safe nor unsafe"):
        unsafe_categories(answer)


@pytest.mark.parametrize(
    ("drop", "answer", "rule"),
    [
        (None, "unsafe\nS1", "unsafe: S1"),
        (["S2", "violent crimes"], "unsafe\nS1", None),
        (["s2"], "unsafe\nS1,S2", "unsafe: S2"),
        (["violent crimes"], "unsafe\nViolent  Crimes", "unsafe: Violent  Crimes"),
        (["S2"], "unsafe", "unsafe, without a category"),
        (["S2"], "safe", None),
    ],
)
def test_the_categories_that_drop_are_chosen(drop: list[str] | None, answer: str, rule: str | None) -> None:
    program = GuardedRows(drop=drop).rule_program(draft())
    (ask,) = next(program)
    assert (
        ask.prompt == "guard"
        and ask.model == "guard"
        and ask.values == {"transcript": "[user]\nWhy?\n\n[assistant]\nBecause."}
    )
    with pytest.raises(StopIteration) as stop:
        program.send([answer])
    assert stop.value.value == rule


def test_a_guard_whose_own_template_asks_is_sent_the_conversation_with_the_chosen_answer() -> None:
    row = Draft([say("user", "u")], more={"chosen": [say("assistant", "c")], "rejected": [say("assistant", "r")]})
    filtering = GuardedRows(prompt=None)
    (ask,) = next(filtering.rule_program(row))
    assert ask.prompt is None and ask.before == (
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "c"},
    )
    assert filtering.prompts() == {} and filtering.roles() == ["guard"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ExactCopies(turns="system"), "turns is 'system'"),
        (lambda: NearCopies(threshold=1.5), "threshold must be above 0"),
        (lambda: NearCopies(max_gb=0), "max_gb must be at least"),
        (lambda: SimilarRows(encoder=HashedNgrams(), threshold=2), "a cosine from"),
        (lambda: TextLength(least=5, most=4), "not below least"),
        (lambda: TextLength(unit="lines"), "take words or characters"),
        (lambda: KeptLanguages(languages=["xx"]), "'xx' is not one of the languages"),
        (lambda: KeptLanguages(languages=[]), "languages is empty"),
        (lambda: EvaluationOverlap(evaluations={}), "must name at least one"),
        (lambda: GuardedRows(drop=[]), "at least one category"),
    ],
)
def test_settings_that_cannot_be_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
