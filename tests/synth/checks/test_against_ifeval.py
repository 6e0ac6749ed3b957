"""Compares our decisions about made answers with those of the public IFEval code, as lm-evaluation-harness holds it.

Left out: sentences and words in capitals, for which that code needs data of nltk, and the language of an answer, for
which it needs langdetect. A stand-in says that everything is English; another is a dictionary for its frozen one.
"""

import importlib
import random
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from nemo_vfm.synth.checks.answer_measures import words
from nemo_vfm.synth.checks.instruction_kinds import Instruction

PROMPT = "Tell me about the river."
#: Our kind and values -> their identifier and arguments.
SAME = [
    ("min_words", {"count": 12}, "length_constraints:number_words", {"num_words": 12, "relation": "at least"}),
    ("max_words", {"count": 12}, "length_constraints:number_words", {"num_words": 13, "relation": "less than"}),
    ("avoid_words", {"words": ["river", "tide"]}, "keywords:forbidden_words", {"forbidden_words": ["river", "tide"]}),
    ("min_letters", {"letter": "e", "count": 5}, "keywords:letter_frequency",
     {"letter": "e", "let_frequency": 5, "let_relation": "at least"}),
    ("max_letters", {"letter": "e", "count": 5}, "keywords:letter_frequency",
     {"letter": "e", "let_frequency": 6, "let_relation": "less than"}),
    ("bullets", {"count": 2}, "detectable_format:number_bullet_lists", {"num_bullets": 2}),
    ("title", {}, "detectable_format:title", {}),
    ("highlights", {"count": 2}, "detectable_format:number_highlighted_sections", {"num_highlights": 2}),
    ("placeholders", {"count": 2}, "detectable_content:number_placeholders", {"num_placeholders": 2}),
    ("divided_parts", {"count": 2}, "length_constraints:number_paragraphs", {"num_paragraphs": 2}),
    ("paragraph_start", {"count": 2, "place": 2, "word": "tide"}, "length_constraints:nth_paragraph_first_word",
     {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "tide"}),
    ("no_commas", {}, "punctuation:no_comma", {}),
    ("uppercase", {}, "change_case:english_capital", {}),
    ("lowercase", {}, "change_case:english_lowercase", {}),
    ("quotation", {}, "startend:quotation", {}),
    ("end_phrase", {"phrase": "That is all."}, "startend:end_checker", {"end_phrase": "That is all."}),
    ("two_responses", {}, "combination:two_responses", {}),
    ("repeat_prompt", {"prompt": PROMPT}, "combination:repeat_prompt", {"prompt_to_repeat": PROMPT}),
]  # fmt: skip
#: Ours demand more: whole words, a line of its own, numbers in their order, nothing beside the choice, an object.
STRICTER = [
    ("include_words", {"words": ["river", "tide"]}, "keywords:existence", {"keywords": ["river", "tide"]}),
    ("word_frequency", {"word": "river", "count": 2}, "keywords:frequency",
     {"keyword": "river", "frequency": 2, "relation": "at least"}),
    ("postscript", {"marker": "P.S."}, "detectable_content:postscript", {"postscript_marker": "P.S."}),
    ("sections", {"marker": "Section", "count": 2}, "detectable_format:multiple_sections",
     {"section_spliter": "Section", "num_sections": 2}),
    ("choice", {"options": ["My answer is yes.", "My answer is no.", "My answer is maybe."]},
     "detectable_format:constrained_response", {}),
    ("json_object", {}, "detectable_format:json_format", {}),
]  # fmt: skip
LINES = [
    "The river is wide and slow.", "rivers rise with the TIDE", "Tide, wind and rain;", "* one bullet", "- another",
    "<<Rain>>", "**bold words** and *plain ones*", "[name] at [date]", "P.S. Bring a coat.", "Section 1", "Section 2",
    "see Section 1 (p.s. later)", "", "", "***", "******", "so be it", "SO BE IT", "That is all.", '"quoted"', PROMPT,
    '{"river": "tide"}', "My answer is no.", "no", "tide",
]  # fmt: skip
WRAPPED = ["{}", '"{}"', "```json\n{}\n```", "{}\n\n{}", PROMPT + " {}", "{}\nThat is all."]


def _answers() -> list[str]:
    rng = random.Random(11)
    made = ["\n".join(rng.choices(LINES, k=rng.randint(1, 6))) for _ in range(600)]
    wrapped = [rng.choice(WRAPPED).replace("{}", text) for text in made]
    return wrapped + [text.upper() for text in made[:100]] + [text.lower() for text in made[:100]]


#: Their code reads six asterisks as two dividers, and three within a line as one; ours reads lines that are three.
SIX = re.compile(r"\*{6}|\*{3}.|.\*{3}")
#: Without a word an answer obeys nothing of ours.
ANSWERS = [answer for answer in _answers() if words(answer)]


@pytest.fixture(scope="module")
def ifeval():
    """Their checkers by identifier. The packages around them are left out: those take seconds to import."""
    nltk, found = pytest.importorskip("nltk"), find_spec("lm_eval")
    if found is None:
        pytest.skip("lm_eval is not installed")
    (folder,) = found.submodule_search_locations
    before = {*sys.modules}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("lm_eval", "lm_eval.tasks", "lm_eval.tasks.ifeval"):
            patch.setitem(sys.modules, name, _module(name, __path__=[str(Path(folder, *name.split(".")[1:]))]))
        english = _module("langdetect", detect=lambda text: "en", LangDetectException=ValueError)
        for module in (english, _module("immutabledict", immutabledict=dict)):
            patch.setitem(sys.modules, module.__name__, module)
        patch.setattr(nltk.data, "find", lambda *_: None)  # else it looks for data on the network
        yield importlib.import_module("lm_eval.tasks.ifeval.instructions_registry").INSTRUCTION_DICT
    for name in {*sys.modules} - before:
        if name.startswith("lm_eval"):
            del sys.modules[name]


def _module(name: str, **holds) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(holds)
    return module


def _decisions(ifeval, case) -> list[tuple[str, bool, bool]]:
    """(answer, ours, theirs)."""
    kind, values, name, arguments = case
    theirs, found = ifeval[name](name), []
    theirs.build_description(**arguments)
    for answer in ANSWERS:
        found.append((answer, Instruction(kind, values, "").holds(answer), bool(theirs.check_following(answer))))
    return found


@pytest.mark.parametrize("case", SAME, ids=[case[0] for case in SAME])
def test_decisions_are_the_same(ifeval, case):
    found = [one for one in _decisions(ifeval, case) if case[0] != "divided_parts" or not SIX.search(one[0])]
    assert [one for one in found if one[1] != one[2]] == []
    assert {ours for _, ours, _ in found} == {True, False}


@pytest.mark.parametrize("case", STRICTER, ids=[case[0] for case in STRICTER])
def test_what_obeys_ours_obeys_theirs_too_and_there_is_a_difference(ifeval, case):
    found = _decisions(ifeval, case)
    assert [one for one in found if one[1] and not one[2]] == []
    assert {(ours, theirs) for _, ours, theirs in found} == {(True, True), (False, True), (False, False)}
