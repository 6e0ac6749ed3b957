"""Tests which quotations of an answer are found in a document."""

import time

import pytest

from nemo_vfm.synth.checks.citations import missing_quotations, quotations

DOCUMENT = """The tide turns twice a day\u2014no more, no less. \u201cIt waits for no one,\u201d the
harbour master said; the party   didn\u2019t believe him. At last, the ships sailed."""


@pytest.mark.parametrize(
    "answer",
    [
        'It says "turns twice a day".',
        "It says \u201cThe tide turns twice a day - no more, no less.\u201d",
        'He said "It waits for no one."',
        'They "didn\'t believe him," it says.',
        "\u00abthe harbour master said\u00bb",
        "\u201ethe harbour master said\u201c",
        'In short: "The tide turns ... the ships sailed."',
        'In short: "The tide turns [\u2026] the ships sailed"',
        "> The tide turns twice\n> a day\u2013no more\n\nSo it is.",
        "Nothing is quoted.",
        '"turns twice\na day"',
    ],
)
def test_what_stands_in_the_document_is_found(answer):
    assert missing_quotations(answer, DOCUMENT) == []
    assert "quoted" in answer or quotations(answer)


@pytest.mark.parametrize(
    ("answer", "missing"),
    [
        ('It "turns thrice a day", and "waits for no one".', ["turns thrice a day"]),
        ('"the tide turns"', ["the tide turns"]),
        ('"The tide turns tw"', ["The tide turns tw"]),
        ('an "art" of it', ["art"]),
        ('"the ships sailed ... The tide turns"', ["the ships sailed ... The tide turns"]),
        ('"The tide turns ... the boats sailed"', ["The tide turns ... the boats sailed"]),
        ("> The tide stays.\n", ["The tide stays."]),
        ('"..."', []),
        ("\u201cno more\u201d, \u00abno fewer\u00bb", ["no fewer"]),
    ],
)
def test_what_does_not_is_returned_as_it_is_written(answer, missing):
    assert missing_quotations(answer, DOCUMENT) == missing


def test_marks_that_are_no_quotation_are_left_alone():
    assert quotations('a 5" pipe and a 6" pipe') == []
    assert quotations("it's the dogs' 'own'") == []
    assert quotations('he said "so\n\nand then "yes" too') == ["yes"]


def test_quotations_come_in_their_order_and_short_ones_can_be_left_out():
    answer = '\u00abone\u00bb, then\n> two of them\n\nand "three" or \u201cfour of these\u201d'
    assert quotations(answer) == ["one", "two of them", "three", "four of these"]
    assert quotations(answer, min_words=2) == ["two of them", "four of these"]
    assert missing_quotations('the "nine"', DOCUMENT, min_words=2) == []


@pytest.mark.parametrize("piece", ['"', '"a', "\u201c", "> ", ">\n", "... ", "\n", '" "', "a\u2026"])
def test_long_answers_are_read_at_once(piece):
    begun = time.process_time()
    missing_quotations(piece * 20_000, DOCUMENT)
    missing_quotations('"' + piece.replace('"', "") * 2_000 + '"', "a " * 20_000)
    assert time.process_time() - begun < 2
