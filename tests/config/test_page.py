# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""The page on recipes in, a verdict out: every message it shows is one that a user really gets."""

import re

import pytest

from nemo_vfm.config import RecipeError
from tests.support.recipe_folder import ROOT

PAGE = (ROOT / "docs/recipes.md").read_text()
HEAD = "_target_: @.Wide\n"
#: What a user writes -> the sentence that the page shows for it.
SHOWN = {
    "a key that does not exist": (HEAD + "conut: 12", "Wide takes no argument conut; did you mean count?"),
    "a value of another kind": (HEAD + 'count: "28"', 'expected a whole number, got the text "28"; remove the quotes'),
    "a word that is not allowed": (
        HEAD + "stage: {_target_: '@.Scale', by: 2, mode: exat}",
        'expected one of exact, rounded, got the text "exat"; did you mean exact?',
    ),
    "an argument that was not given": (HEAD + "stage: {_target_: '@.Scale'}", "Scale needs by (a number)"),
    "a class that does not exist": (
        HEAD + "stage: {_target_: '@.Scael', by: 2}",
        "tests.support.parts has no Scael; did you mean Scale?",
    ),
    "a class of another kind": (HEAD + "stage: {_target_: '@.Quiet'}", "Quiet is not a Stage: it has no apply"),
    "a name that is not trusted": (
        "_target_: my_package.Job",
        "my_package.Job is not trusted; if you trust its code, add --trust my_package",
    ),
    "an ingredient that does not exist": (
        "defaults: [{stage: scal}]\n" + HEAD,
        "there is no conf/stage/scal.yaml: conf/stage holds scale, shift; did you mean scale?",
    ),
    "an address that does not exist": (
        HEAD + "name: ${coutn}\ncount: 3",
        "${coutn}: there is no coutn; did you mean count?",
    ),
    "values that refer to one another": (
        HEAD + "name: ${out}\nout: ${name}",
        "this refers to itself: out -> name -> out",
    ),
    "a value for you to give": (HEAD + "out: ???", "you must give this: out=DIR (a path or null)"),
    "what a constructor objects to": (HEAD + "stage: {_target_: '@.Scale', by: 0}", "a scale of 0.0 forgets its input"),
    "YAML itself": ("seed: 1\nseed: 2\n" + HEAD, "seed is given twice; the first is on line 1"),
}


def complaint(kitchen, text):
    try:
        return kitchen.problems(text) or str(kitchen.build(text))
    except RecipeError as error:
        return str(error)


@pytest.mark.parametrize("what", SHOWN)
def test_the_page_shows_what_a_user_gets(kitchen, what):
    for name in ("scale", "shift"):
        kitchen.write(f"conf/stage/{name}.yaml", "# x\na: 1\n")
    text, sentence = SHOWN[what]
    said = complaint(kitchen, text)
    assert sentence in said
    example = re.search(rf"^# {re.escape(what)}\n((?:.+\n)+)", PAGE, re.MULTILINE)
    assert example, f"docs/recipes.md has no example of {what}"
    assert said.splitlines()[:3] == [
        line.replace("my_parts", "tests.support.parts") for line in example[1].splitlines()[:3]
    ]
