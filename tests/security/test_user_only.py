"""Tests that a protection is given up by the user's own words alone, and then wherever the run goes on."""

import pytest

import nemo_vfm
from nemo_vfm.core.errors import UserError
from tests.support.recipe_folder import PARTS

HEAD = "_target_: @.Guarded\nrun_dir: out\n"
STEP = "_target_: nemo_vfm.workflow.Workflow\nrun_dir: out\nsteps: {a: {_target_: @.Guarded}}\n"
#: How a recipe may try it: its text, what the user types, and other files.
TRIES: dict[str, tuple[str, tuple[str, ...], dict[str, str]]] = {
    "written": (f"{HEAD}strict: false\n", (), {}),
    "by an ingredient": ("defaults: [{steps.a: loose}]\n" + STEP, (), {"conf/a/loose.yaml": "strict: false\n"}),
    "by an ingredient that the user chose": (
        STEP, ("steps.a=loose",), {"conf/a/loose.yaml": "_target_: @.Guarded\nstrict: false\n"}),
    "by another recipe": (STEP.replace("{_target_: @.Guarded}", "'recipe:other.yaml'"), (),
                          {"other.yaml": "_target_: @.Guarded\nstrict: false\n"}),
    "by reference": (f"{HEAD}duration: null\nstrict: ${{other}}\nother: false\n", (), {}),
    "by reference to what was typed for something else": (
        f"{STEP.rstrip()[:-2]}, strict: '${{steps.b.flag}}'}}, b: {{_target_: @.Wide, flag: true}}}}\n",
        ("steps.b.flag=false",), {}),
    "by reference that was typed": (f"{HEAD}loose: false\n", ("strict=${loose}",), {}),
    "in a part that was typed": (f"{HEAD}x: {{strict: false}}\n", ("duration=2 steps", "strict=${x.strict}"), {}),
}  # fmt: skip


@pytest.mark.parametrize("text, typed, files", TRIES.values(), ids=TRIES)
def test_no_recipe_gives_up_a_protection(text, typed, files, kitchen, capsys):
    for name, content in files.items():
        kitchen.write(name, content)
    kitchen.write("r.yaml", text)
    assert kitchen.main("check", "r.yaml", *typed) == 2
    said = capsys.readouterr().out
    assert "a recipe cannot disable this protection with false; if you mean it, give it on the command line: " in said
    assert kitchen.main("run", "r.yaml", *typed) == 2
    assert not (kitchen.folder / "out").exists()


@pytest.mark.parametrize("word", ["steps.a.strict=false", "steps={a: {strict: false}}",
                                  "steps.a={_target_: @.Guarded, strict: false}"])  # fmt: skip
def test_what_was_typed_holds_in_a_step_on_resume_and_for_a_sweep(word, kitchen):
    kitchen.write("r.yaml", STEP)
    assert kitchen.main("check", "r.yaml", word) == 0
    assert kitchen.main("run", "r.yaml", word) == 0
    (kitchen.folder / "out/a/done.json").unlink()
    assert kitchen.main("run", "r.yaml", word) == 0
    assert (kitchen.folder / "out/a/strict.txt").read_text() == "False\nFalse\n"
    assert kitchen.main("check", "r.yaml", word, "--sweep", "steps.a.duration=1 steps,2 steps") == 0
    assert kitchen.main("check", "r.yaml", "--sweep", "steps.a.strict=true,false") == 0


def test_the_kept_recipe_of_a_run_grants_nothing_by_itself(kitchen, capsys):
    kitchen.write("r.yaml", HEAD)
    assert kitchen.main("run", "r.yaml", "strict=false") == 0
    assert kitchen.main("run", "out/recipe.yaml") == 2
    assert "out/recipe.yaml:" in capsys.readouterr().err
    assert kitchen.main("run", "out/recipe.yaml", "strict=false") == 0


def test_from_python_a_change_is_the_users_and_a_value_of_the_config_is_not(kitchen):
    file = kitchen.write("r.yaml", HEAD)
    nemo_vfm.run(nemo_vfm.compose(file, ["strict=false"]), trust=[PARTS])
    assert (kitchen.folder / "out/strict.txt").read_text() == "False\n"
    cfg = nemo_vfm.compose(file)
    cfg.strict = False
    with pytest.raises(UserError, match="give it on the command line: strict=false"):
        nemo_vfm.run(cfg, trust=[PARTS])
    with pytest.raises(UserError, match="give it on the command line: strict=false"):
        nemo_vfm.build({"_target_": f"{PARTS}.Guarded", "strict": False}, trust=[PARTS])


def test_the_runner_of_programs_is_strict_unless_the_user_types_otherwise(kitchen):
    name = "nemo_vfm.synth.checks.program_model.ProgramModel"
    with pytest.raises(UserError, match="strict: false"):
        nemo_vfm.build({"_target_": name, "strict": False})
    file = kitchen.write("model.yaml", f"_target_: {name}\n")
    assert nemo_vfm.build(nemo_vfm.compose(file)).strict
    assert not nemo_vfm.build(nemo_vfm.compose(file, ["strict=false"])).strict
