"""Tests that `${...}` becomes a value, or an error that says why not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from nemo_vfm.config import RecipeError
from nemo_vfm.config.emit import to_yaml
from nemo_vfm.config.interpolate import reroot, resolve
from nemo_vfm.config.tree import to_plain
from nemo_vfm.config.yaml_source import parse


def resolved(text, **options):
    tree, problems = resolve(parse(text, "t"), **options)
    assert not problems, [p.message for p in problems]
    return to_plain(tree)


def complaint(text):
    return "\n".join(problem.render() for problem in resolve(parse(text, "t"))[1])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x: ${a}\na: 3", 3),
        ("x: ${a}\na: 1e-3", 1e-3),
        ("x: ${a}\na: true", True),
        ("x: ${a}\na: null", None),
        ("x: n-${a}\na: 3", "n-3"),
        ("x: ${a}${b}\na: 1\nb: true", "1true"),
        ("x: ${a.b}\na: {b: [1, 2]}", [1, 2]),
        ("x: ${a.1}\na: [5, 6]", 6),
        ("x: ${a}\na: ${b}\nb: 4", 4),
        ("x: ${a.c}\na: ${b}\nb: {c: 4}", 4),
        ("x: ${a}\na: {b: '${c}'}\nc: 9", {"b": 9}),
        ("x: ['${a}']\na: 1", [1]),
        ("x: ${a}\na: ???", "???"),
        ("x: p/${a}\na: ???", "???"),
        ("x: $a {b} $", "$a {b} $"),
    ],
)
def test_a_value_stands_for_another(text, value):
    assert resolved(text)["x"] == value


@settings(max_examples=40)
@given(
    st.dictionaries(
        st.sampled_from("abcd"), st.sampled_from([1, 2.5, True, "t", "${z.k}", "q-${z.k}-${z.n}"]), min_size=1
    )
)
def test_we_agree_with_omegaconf(values):
    tree = {**values, "z": {"k": "v", "n": 3}, "whole": "${z}", "item": "${z.n}"}
    text = OmegaConf.to_yaml(OmegaConf.create(tree))
    assert resolved(text) == OmegaConf.to_container(OmegaConf.create(tree), resolve=True)


def test_the_environment_is_read_as_text_and_kept_out_of_what_is_written(monkeypatch):
    monkeypatch.setenv("PARTS_KEY", "12")
    text = "x: ${env:PARTS_KEY}\ny: ${oc.env:PARTS_KEY}/z\nz: a-${x}"
    assert resolved(text) == {"x": "12", "y": "12/z", "z": "a-12"}
    assert resolved(text, keep_env=True) == {
        "x": "${env:PARTS_KEY}",
        "y": "${oc.env:PARTS_KEY}/z",
        "z": "a-${env:PARTS_KEY}",
    }


def test_what_the_environment_holds_is_not_interpolated_again(monkeypatch):
    monkeypatch.setenv("PARTS_KEY", "${secret}")
    assert resolved("x: a${env:PARTS_KEY}\nsecret: 1")["x"] == "a${secret}"


def test_a_literal_reference_arrives_as_text_and_survives_being_written_and_read_again(monkeypatch):
    monkeypatch.setenv("PARTS_KEY", "k$${v}")
    text = "a: 'echo $${HOME} $$${b} ${env:PARTS_KEY}'\nb: ['${a}!', '$${']\nc: {d: '${b.0}', e: '{$${x}}'}"
    said = "echo ${HOME} $${b} k$${v}"
    expected = {"a": said, "b": [f"{said}!", "${"], "c": {"d": f"{said}!", "e": "{${x}}"}}
    assert resolved(text) == expected
    kept = to_yaml(resolve(parse(text, "t"), keep_env=True)[0])
    assert "v}" not in kept and resolved(kept) == expected
    assert to_plain(reroot(parse("a: '$${b} ${b}'", "t"), "in")) == {"a": "$${b} ${in.b}"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: ${b}\nb: ${a}", "this refers to itself: b -> a -> b"),
        ("a: ${a}", "this refers to itself: a -> a"),
        ("a: {b: '${a}'}", "this refers to itself: a -> a"),
        ("a: {b: '${c}'}\nc: ${a}", "refers to itself"),
        ("a: ${a.b}", "refers to itself"),
        ("a: ${b.c}\nb: ${a}", "refers to itself"),
        ("a: x${b}\nb: y${c}\nc: ${a}", "b -> c -> a -> b"),
        ("a: ${model.widht}\nmodel: {width: 1}", "there is no model.widht; did you mean model.width?"),
        ("a: ${b.c}\nb: 3", "there is no b.c"),
        ("a: ${env:NOT_THERE_}", "variable NOT_THERE_ is not set"),
        ("a: x${b}\nb: {c: 1}", "${b} is not a single value"),
        ("a: x${b}\nb: null", "not a single value"),
        ("a: ${oc.decode:x}", "the only two"),
        ("a: ${.b}", "the only two"),
        ("a: ${}", "the only two"),
        ("a: ${x${y}}", "the only two"),
        ("a: ${env:A,default}", "the only two"),
        ("a: ${", "the only two"),
        ("a: '${oc.create:{_target_: os.system}}'", "the only two"),
        ("a: '${b}${c}'\nb: $\nc: '{d}'", "would turn into a reference"),
        ("a: '${b}${env:PATH}'\nb: $", "would turn into a reference"),
        ("a: ${HOME", "write $${ for a literal ${"),
        ("a: ${b.99999999999999999999}\nb: [1]", "there is no"),
    ],
)
def test_what_cannot_be_followed_is_said_with_its_place(text, words):
    said = complaint(text)
    assert words in said and said.startswith("t:1:")


def test_a_laugh_by_interpolation_is_bounded():
    lines = ["a0: [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: [{', '.join([f'${{a{n - 1}}}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(RecipeError, match="more than 50000 values"):
        resolve(parse("\n".join(lines).replace("[$", "['$").replace(", $", ", '$").replace("}", "}'"), "t"))


def test_a_text_that_doubles_is_bounded():
    lines = ["a0: abcdefgh"] + [f"a{n}: ${{a{n - 1}}}${{a{n - 1}}}" for n in range(1, 40)]
    with pytest.raises(RecipeError, match="more than 50000 values"):
        resolve(parse("\n".join(lines), "t"))
    assert "more than" in complaint("\n".join(["a0: " + "x" * 5000, *lines[1:6]]))


def test_a_problem_of_a_shared_node_is_said_once():
    said = complaint("a: {x: '${nowhere}'}\nb: ${a}\nc: ${a}")
    assert said.count("there is no nowhere") == 1
