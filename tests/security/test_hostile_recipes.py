"""Tests that recipes meant to exhaust or to leak are refused within bounds."""

import time

import pytest

from nemo_vfm.config import RecipeError, read_values


def laughs(levels=9):
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    return "\n".join(lines + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)])


def interpolated_laughs(levels=9):
    lines = ["a0: [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += ["a%d: [%s]" % (n, ", ".join(["'${a%d}'" % (n - 1)] * 10)) for n in range(1, levels)]  # noqa: UP031
    return "\n".join(lines)


HOSTILE = {
    "aliases": laughs(),
    "interpolations": interpolated_laughs(),
    "lists": "a: " + "[" * 20_000,
    "mappings": "a: " + "{a: " * 20_000,
    "indentation": "a:\n" + "".join(" " * n + "a:\n" for n in range(300)),
    "digits": "a: " + "9" * 100_000,
    "size": "x" * (1 << 21),
    "long loop": "\n".join(f"a{n}: ${{a{n + 1}}}" for n in range(2000)) + "\na2000: ${a0}",
    "long chain": "\n".join(f"a{n}: ${{a{n + 1}.x}}" for n in range(2000)) + "\na2000: {x: 1}",
    "long text": "a: " + "${b}" * 20_000 + "\nb: " + "x" * 1000,
    "dashes": "a: " + "- " * 5000,
    "questions": "? " * 5000,
    "anchors": "&a " * 5000,
    "tags": "!" * 5000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_it_ends_soon_in_a_sentence(kitchen, text):
    began = time.monotonic()
    with pytest.raises(RecipeError) as error:
        kitchen.compose(text).to_yaml()
    assert time.monotonic() - began < 10  # far below a second on an idle machine; the limit is against hanging
    assert len(str(error.value)) < 20_000


def test_a_secret_is_not_written_to_the_run_folder_or_shown(kitchen, monkeypatch):
    monkeypatch.setenv("PARTS_SECRET", "hunter22-abcdef")
    composed = kitchen.compose("_target_: @.Wide\nname: ${env:PARTS_SECRET}\nout: x/${name}\nweights: {a: '${name}'}")
    assert "hunter22" not in composed.to_yaml() + composed.show()
    assert read_values(composed.to_yaml(), "r")["out"] == "x/${env:PARTS_SECRET}"
    assert "hunter22" not in kitchen.problems("_target_: @.Wide\nweights: {a: '${env:PARTS_SECRET}'}")


@pytest.mark.parametrize("name", ["../x", "/etc", "a/b", "..", ".hidden", "a.b", "", "_replaced"])
def test_a_step_cannot_leave_the_run_folder(kitchen, name):
    recipe = f"_target_: nemo_vfm.workflow.Workflow\nsteps: {{'{name}': {{_target_: '@.Count', duration: 1 steps}}}}"
    with pytest.raises(RecipeError):
        kitchen.build(recipe)


def test_a_run_folder_that_is_somebody_elses_is_refused(kitchen, capsys):
    kitchen.write("home/.ssh/id", "key")
    kitchen.write("r.yaml", "_target_: @.Count\nduration: 1 steps\nrun_dir: home/.ssh\n")
    assert kitchen.main("run", "r.yaml") == 2
    assert "not empty and not a run folder (it holds id)" in capsys.readouterr().err
    assert sorted(p.name for p in (kitchen.folder / "home/.ssh").iterdir() if p.name != ".lock") == ["id"]
