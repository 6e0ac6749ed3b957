"""Tests that a foreign template is kept from Python, from memory and from time."""

import threading

import pytest

from nemo_vfm.core.errors import DataError
from nemo_vfm.data.chat import bounded_jinja, template_limits
from nemo_vfm.data.chat.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "{{ 7 * 7 }}"}]


DOUBLED = (
    "{% set n = namespace(x=(1,), y=(1,)) %}{% for i in range(60) %}"
    "{% set n.x = (n.x, n.x) %}{% set n.y = (n.y, n.y) %}{% endfor %}"
)


def rendered(template: str) -> str:
    return ChatTemplate(template).render(MESSAGES, special={"eos_token": "</s>"})


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


#: A long text, n.x.
LARGE = "{% set n = namespace(x='a', t=()) %}{% for i in range(16) %}{% set n.x = n.x ~ n.x %}{% endfor %}"


@pytest.mark.parametrize("template", [
    "{{ 'a' * 10**9 }}", "{{ 10**9 * 'a' }}", "{{ [1] * 10**9 }}", "{{ 10 ** 10 ** 10 }}",
    "{% for i in range(10**9) %}{% endfor %}",
    "{% for i in range(60000) %}{% for j in range(60000) %}{% endfor %}{% endfor %}",
    "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x | length }}",
    "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x | length }}",
    "{% set n = namespace(x='a') %}{% for i in range(40) %}{% set n.x = n.x.replace('a', 'aa') %}{% endfor %}",
    "{% set n = namespace(x='a') %}{% for i in range(40) %}{% set n.x = n.x | replace('a', 'aa') %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ 'a' | center(10**9) }}", "{{ 'a'.rjust(10**9) }}", "{{ '%1000000000d' % 1 }}",
    "{{ '{:1000000000}'.format(1) }}", "{{ 'a' | indent(10**9) }}", "{{ (['a' * 10**6] * 10**4) | join }}",
    "{{ ('a' * 10**6).join(['b'] * 10**4) }}", "{{ messages | tojson(indent=10**9) }}",
    "{% for i in range(60000) %}{{ 'a' * 9999 }}{% endfor %}",
    "{% for i in range(60000) %}" + "a" * 9999 + "{% endfor %}",
    *(LARGE + last for last in (
        "{% for i in range(900) %}{{ n.x }}{% endfor %}",
        "{% set y %}{% for i in range(900) %}{{ n.x }}{% endfor %}{% endset %}",
        "{% macro f() %}{% for i in range(900) %}{{ n.x }}{% endfor %}{% endmacro %}{% set y = f() %}",
        "{% filter upper %}{% for i in range(900) %}{{ n.x }}{% endfor %}{% endfilter %}",
        "{% for i in range(900) %}{% set n.t = (n.t, n.x ~ i) %}{% endfor %}",
        "{% for i in range(900) %}{% set n.t = (n.t, n.x[1:]) %}{% endfor %}",
        "{% for i in range(900) %}{% set n.t = (n.t, n.x | list) %}{% endfor %}",
        "{% for i in range(60000) %}{% set n.t = (n.t, [" + "1," * 9999 + "]) %}{% endfor %}",
        "{{ ('a\n' * 10000) | indent(n.x) }}", "{{ ('a\n' * 10000) | indent(width=n.x) }}",
        "{{ ('\t' * 10**6).expandtabs(60000) }}", "{{ ('\t' * 10**6).expandtabs(tabsize=60000) }}",
        "{{ ('a ' * 9999) | wordwrap(1, wrapstring=n.x) }}", "{{ ('a-' * 10**6) | wordwrap(7) }}",
        "{{ [[[1] * 1000]] | tojson(indent=n.x) }}", "{{ [[[1] * 90000]] | tojson(indent=60000) }}",
        "{{ ([1] * 90000) | tojson(separators=(n.x, n.x)) }}", "{{ ('a' * 9999) | replace(old='a', new=n.x) }}",
        "{{ ([1] * 90000) | join(d=n.x) }}", "{{ range(60000) | map('string') | join(n.x) }}",
        "{{ n.x.join(range(60000) | map('string')) }}", "{{ ('{0}' * 90000).format(n.x) }}",
        "{{ ('{a}' * 90000).format_map({'a': n.x}) }}", "{{ ('%(a)s' * 90000) % {'a': n.x} }}",
        "{{ '%*d' % (10**9, 1) }}", "{{ '{:{1[0]}}'.format(1, [10**9]) }}", "{{ 'aa'.translate({97: n.x}) }}",
        "{{ n.x.encode() }}", "{{ ([[1] * 9] * 60000) | sum(start=[]) }}", "{{ ('<!--' * 500000) | striptags }}",
        "{{ strftime_now(n.x) }}", "{{ range(60000) | map(attribute='real.' * 9999 ~ 'real') | list }}",
        "{% for i in range(60000) %}{% set n.t = (n.t,) %}{% endfor %}{{ {n.t: 1} }}",
        "{% for i in range(60000) %}{% set n.t = (n.t,) %}{% endfor %}{{ n.t == (n.t,) }}",
        "{% set n.x = n %}{{ n }}",
    )),
    *(DOUBLED + last for last in (
        "{{ n.x }}", "{{ n.x ~ '' }}", "{{ n.x == n.y }}", "{{ n.x | tojson }}", "{{ n.x | string }}", "{{ {n.x: 1} }}",
        "{{ dict(n.x) }}", "{{ {}[n.x] }}", "{{ n.x | join }}", "{{ 'a' in [n.x, n.y] }}", "{{ '%s' % [n.x] }}",
        "{{ '%s' % (n.x,) }}", "{{ '{}'.format(n.x) }}", "{{ '%s' | format(n.x) }}", "{{ n }}", "{{ n ~ '' }}",
        "{{ {'a': n.x}.items() }}", "{{ raise_exception(n.x) }}", "{{ [n.x, n.y] | sort }}",
        "{{ {'a': n.x}.values() | list }}",
    )),
])  # fmt: skip
def test_time_and_memory_are_bounded(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_ROUNDS", 1 << 17)  # a test need not go all the way
    monkeypatch.setattr(template_limits, "MAX_LETTERS", 1 << 18)
    monkeypatch.setattr(template_limits, "MAX_BYTES", 16 << 20)
    with pytest.raises(DataError, match=r"the chat template|maximum recursion"):
        rendered(template)


@pytest.mark.parametrize(("template", "said"), [
    ("{{ messages | map(attribute='role') | join(', ') }}", "user"),
    ("{{ '%s is %5.2f%%' % ('a', 1.5) }}{{ '{0:>5}{{}}'.format('a') }}", "a is  1.50%    a{}"),
    ("{{ 'a\nb' | indent(2, first=true) }}{{ [1, {'a': 2}] | tojson(indent=2) | length }}", "  a\n  b27"),
    ("{% for a, b in {'x': (1, 2)}.items() %}{{ a ~ b[:1] ~ [a, b][1][1] }}{% endfor %}", "x(1,)2"),
    ("{% set n = namespace(i=0) %}{% for c in 'abc' if c != 'b' %}{% set n.i = n.i + 1 %}{% endfor %}{{ n.i }}", "2"),
    ("{{ 1 if 'a' in 'abc' and 1 < 2 <= 2 and 'x' not in ['y'] else 0 }}", "1"),
])  # fmt: skip
def test_what_templates_usually_do_is_done(template: str, said: str) -> None:
    assert rendered(template) == said


@pytest.mark.parametrize("template", ["{% for i in x %}" * 25 + "{% endfor %}" * 25, "{{ " + "(" * 9999, "{{ [" * 99])
def test_a_template_that_python_cannot_compile_is_refused(template: str) -> None:
    with pytest.raises(DataError, match="is not valid Jinja"):
        ChatTemplate(template)


def test_what_a_template_says_about_a_conversation_is_cut() -> None:
    with pytest.raises(DataError, match="refuses this conversation: aaa") as caught:
        rendered(LARGE + "{{ raise_exception(n.x) }}")
    assert len(str(caught.value)) < 1000


def test_a_slow_template_keeps_no_other_thread_waiting() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def wait() -> str:
        begun.set()
        return str(may_end.wait(60))

    template = ChatTemplate("{% if messages[0].role == 'slow' %}{{ wait() }}{% endif %}x")
    template.environment.globals["wait"] = wait
    slow = threading.Thread(target=template.render, args=([{"role": "slow"}],), kwargs={"special": {}})
    slow.start()
    assert begun.wait(60) and template.render([{"role": "user"}], special={}) == "x"
    may_end.set()
    slow.join(60)


def test_what_a_message_says_is_not_rendered_again() -> None:
    assert rendered("{{ messages[0].content }}{{ eos_token }}") == "{{ 7 * 7 }}</s>"


def test_long_conversations_of_usual_templates_stay_below_the_bounds() -> None:
    template = ChatTemplate("{% for m in messages %}{{ '<' ~ m.role + '>' }}{{ m.content | trim }}{% endfor %}")
    many = [{"role": "user", "content": " word" * 200}] * 2000
    assert len(template.render(many, special={})) > 1_900_000


def test_marks_of_generation_are_found_inside_macros_and_nested_loops() -> None:
    text = rendered(
        "{% macro f(x) %}[{% generation %}{{ x }}{% endgeneration %}]{% endmacro %}"
        "{% for i in range(2) %}{% if i %}{{ f('b') }}{% else %}{{ f('aa') }}{% endif %}{% endfor %}"
    )
    plain, spans = bounded_jinja.without_generation_marks(text)
    assert plain == "[aa][b]" and [plain[a:b] for a, b in spans] == ["aa", "b"]


def test_a_template_that_is_none_is_refused_with_its_error() -> None:
    with pytest.raises(DataError, match="is not valid Jinja"):
        ChatTemplate("{% for %}")
    with pytest.raises(DataError, match="refuses this conversation: no system"):
        rendered("{{ raise_exception('no system') }}")
