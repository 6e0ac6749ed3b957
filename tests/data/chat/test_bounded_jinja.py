# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Tests that a foreign template is kept from Python, from memory and from time."""

import pytest

from nemo_vfm.core.errors import DataError
from nemo_vfm.data.chat import bounded_jinja
from nemo_vfm.data.chat.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "{{ 7 * 7 }}"}]


DOUBLED = (
    "{% set n = namespace(x=(1,), y=(1,)) %}{% for i in range(60) %}"
    "{% set n.x = (n.x, n.x) %}{% set n.y = (n.y, n.y) %}{% endfor %}"
)


def rendered(template: str) -> str:
    return ChatTemplate(template).rendered(MESSAGES, special={"eos_token": "</s>"})


@pytest.mark.parametrize("template", [
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.append('x') }}",
    "{{ raise_exception.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ lipsum(n=100) }}",
    "{{ '{0.__class__}'.format('x') }}",
    "{% import 'x' as y %}",
    "{% include '/etc/passwd' %}",
])  # fmt: skip
def test_python_and_files_are_out_of_reach(template: str) -> None:
    try:
        found = rendered(template)
    except DataError:
        return
    assert not found.strip(), found


@pytest.mark.parametrize("template", [
    "{{ 'a' * 10**9 }}", "{{ 10**9 * 'a' }}", "{{ [1] * 10**9 }}", "{{ 10 ** 10 ** 10 }}",
    "{% for i in range(10**9) %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x | length }}",
    "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x | length }}",
    "{% set n = namespace(x='a') %}{% for i in range(40) %}{% set n.x = n.x.replace('a', 'aa') %}{% endfor %}",
    "{% set n = namespace(x='a') %}{% for i in range(40) %}{% set n.x = n.x | replace('a', 'aa') %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ 'a' | center(10**9) }}", "{{ 'a'.rjust(10**9) }}", "{{ '%1000000000d' % 1 }}",
    "{{ '{:1000000000}'.format(1) }}", "{{ 'a' | indent(10**9) }}", "{{ (['a' * 10**6] * 10**4) | join }}",
    "{{ ('a' * 10**6).join(['b'] * 10**4) }}", "{{ messages | tojson(indent=10**9) }}",
    "{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
    *(DOUBLED + last for last in (
        "{{ n.x }}", "{{ n.x ~ '' }}", "{{ n.x == n.y }}", "{{ n.x | tojson }}", "{{ n.x | string }}", "{{ {n.x: 1} }}",
        "{{ dict(n.x) }}", "{{ {}[n.x] }}", "{{ n.x | join }}", "{{ 'a' in [n.x, n.y] }}",
    )),
])  # fmt: skip
def test_time_and_memory_are_bounded(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_jinja, "MOST_ROUNDS", 1 << 17)  # a test need not go all the way
    with pytest.raises(DataError):
        rendered(template)


def test_what_a_message_says_is_not_rendered_again() -> None:
    assert rendered("{{ messages[0].content }}{{ eos_token }}") == "{{ 7 * 7 }}</s>"


def test_long_conversations_of_usual_templates_stay_below_the_bounds() -> None:
    template = ChatTemplate("{% for m in messages %}{{ '<' ~ m.role + '>' }}{{ m.content | trim }}{% endfor %}")
    many = [{"role": "user", "content": " word" * 200}] * 2000
    assert len(template.rendered(many, special={})) > 1_900_000


def test_marks_of_generation_are_found_inside_macros_and_nested_loops() -> None:
    text = rendered(
        "{% macro f(x) %}[{% generation %}{{ x }}{% endgeneration %}]{% endmacro %}"
        "{% for i in range(2) %}{% if i %}{{ f('b') }}{% else %}{{ f('aa') }}{% endif %}{% endfor %}"
    )
    plain, spans = bounded_jinja.without_generation_marks(text)
    assert plain == "[aa][b]" and [plain[a:b] for a, b in spans] == ["aa", "b"]


def test_a_template_that_is_none_is_refused_with_its_error() -> None:
    with pytest.raises(DataError, match="is no jinja"):
        ChatTemplate("{% for %}")
    with pytest.raises(DataError, match="refuses this conversation: no system"):
        rendered("{{ raise_exception('no system') }}")
