# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_vfm authors
# SPDX-License-Identifier: Apache-2.0
"""Recipes that try to run code in, refusals out, with a canary that must not appear."""

import json

import pytest

from nemo_vfm.config import DEFAULT_TRUST, RecipeError, build, check, compose, trust_list
from nemo_vfm.config.locate import NotLocated, locate
from tests.support.recipe_folder import PARTS, TRUST

#: Names of things that run code, under their own names and under the names of modules that imported them.
TARGETS = (
    "os.system",
    "posix.system",
    "builtins.eval",
    "builtins.exec",
    "builtins.__import__",
    "builtins.compile",
    "logging.os.system",
    "importlib.import_module",
    "functools.partial",
    "subprocess.run",
    "subprocess.Popen",
    "subprocess.check_output",
    "runpy.run_path",
    "shutil.rmtree",
    "pty.spawn",
    "pickle.loads",
    "torch.load",
    "torch.hub.load",
    "torch.utils.cpp_extension.load",
    "torch.os.system",
    "torch.optim.os.system",
    "torch.optim.Adam.load",
    "torch.optim.adamw.AdamW",
    "torch.optim.lr_scheduler.partial",
    "lightning.pytorch.callbacks.LambdaCallback",
    "nemo_vfm.core.files.os.system",
    "nemo_vfm.core.files.hashlib.sha256",
    "nemo_vfm.core.optional.require",
    "nemo_vfm.core.optional.find_spec",
    "nemo_vfm.config.locate.importlib.import_module",
    "nemo_vfm.config.locate.locate",
    "nemo_vfm.core.duration.re.compile",
    "nemo_vfm.core.files.write_text",
    "nemo_vfm.core.types.dataclass",
    "nemo_vfm.core.types.Path",
    "nemo_vfm.cli.lock.os.kill",
    "nemo_vfm.cli.manifest._git",
    "nemo_vfm.__main__.main",
    "nemo_vfmx.evil.Run",
    "nemo_vfm",
    "nemo_vfm..core",
    ".os.system",
    "os.system\n",
    "nemo_vfm.core.files.write_text\0",
    "оs.system",
    "",
    "x" * 5000,
    f"{PARTS}.system",
    f"{PARTS}.logging.os.system",
    f"{PARTS}.partial",
    f"{PARTS}.os.system",
    f"{PARTS}.json.loads",
    "tests.support.partsx.Evil",
)


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_what_is_defined_where_it_is_trusted_is_found_for_a_slot(kitchen, name):
    with pytest.raises((RecipeError, ValueError)):
        build(_composed(kitchen, {"_target_": name}), TRUST)


def _composed(kitchen, root):
    return compose(kitchen.write("recipe.yaml", json.dumps(root, ensure_ascii=False)))


CANARY = "touch canary"
#: Places where a recipe may hide a component; {call} is replaced.
PLACES = {
    "root": "{call}",
    "slot": "_target_: @.Wide\nstage: {call}",
    "mapping": "_target_: @.Wide\nstages: {{a: {call}}}",
    "list": "_target_: @.Wide\nchain: [{call}]",
    "factory": "_target_: @.Wide\nmake: {call}",
    "value": "_target_: @.Wide\nname: {call}",
    "untyped slot": "_target_: @.Wide\nloose: {{_target_: @.Loose, value: {call}}}",
    "untyped keyword": "_target_: @.Wide\nloose: {{_target_: @.Loose, more: [{{x: {call}}}]}}",
    "anchor": "_target_: @.Wide\nname: &x {call}\nstage: *x",
    "interpolation": "_target_: @.Wide\nname: {call}\nstage: ${{name}}",
    "hydra": "_target_: @.Wide\nstage: {{_target_: @.Scale, by: 1, _args_: [{call}], _partial_: true}}",
    "reserved key": "_target_: @.Wide\nseed: {call}",
    "run folder": "_target_: @.Wide\nrun_dir: {call}",
}
CALLS = {
    "system": "{_target_: os.system, command: 'touch canary'}",
    "alias": "{_target_: @.logging.os.system, command: 'touch canary'}",
    "imported": "{_target_: @.system, command: 'touch canary'}",
    "eval": "{_target_: builtins.eval, source: \"__import__('os').system('touch canary')\"}",
    "partial": "{_target_: functools.partial, _args_: [os.system, 'touch canary']}",
    "file writer of ours": "{_target_: nemo_vfm.core.files.write_text, path: canary, text: x}",
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_the_canary_is_absent_wherever_the_call_hides(kitchen, place, call):
    text = place.replace("{call}", call).replace("{{", "{").replace("}}", "}") if place != "{call}" else call
    with pytest.raises(RecipeError):
        composed = kitchen.compose(text)
        _ = composed.seed, composed.run_dir
        build(composed, TRUST)
    assert not (kitchen.folder / "canary").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("stage._target_=os.system", "stage.command=touch canary"),
        ("stage={_target_: os.system, command: touch canary}",),
        ("_target_=os.system", "command=touch canary"),
        ("stage=!!python/object/apply:os.system ['touch canary']",),
        ("stage=${env:PARTS_CALL}",),
        ("stage._target_=${env:PARTS_NAME}", "stage.command=touch canary"),
    ],
)
def test_a_call_from_the_command_line_or_the_environment_is_refused_too(kitchen, monkeypatch, words):
    monkeypatch.setenv("PARTS_CALL", "{_target_: os.system, command: touch canary}")
    monkeypatch.setenv("PARTS_NAME", "os.system")
    with pytest.raises(RecipeError):
        kitchen.build("_target_: @.Wide\n", *words)
    assert not (kitchen.folder / "canary").exists()


def test_an_untrusted_module_is_not_even_imported(kitchen, monkeypatch):
    kitchen.write("evil_module.py", "from pathlib import Path\nPath('canary').touch()\nclass Job: ...\n")
    monkeypatch.syspath_prepend(str(kitchen.folder))
    said = kitchen.problems("_target_: evil_module.Job")
    assert "evil_module.Job is not trusted; if you trust its code, add --trust evil_module" in said
    assert not (kitchen.folder / "canary").exists()
    check(kitchen.compose("_target_: evil_module.Job"), trust_list(["evil_module"]))
    assert (kitchen.folder / "canary").exists(), "this test must be able to see an import"


def test_a_recipe_cannot_widen_the_trust(kitchen):
    assert "trust" in kitchen.problems("_target_: @.Wide\ntrust: [os]\n")
    assert "is not trusted" in kitchen.problems("_target_: os.system\ntrust: [os]\n")


def test_a_prefix_ends_at_a_dot():
    with pytest.raises(NotLocated, match="not trusted"):
        locate("tests.support.parts_other.X", trust_list(["tests.support.parts"]))
    assert locate("tests.support.parts.Scale", trust_list(["tests.support.parts."])).__name__ == "Scale"


def test_a_trusted_package_does_not_lend_its_imports():
    with pytest.raises(NotLocated, match=r"is really functools.partial, which is not trusted"):
        locate("tests.support.parts.partial", trust_list(["tests.support.parts"]))


def test_the_default_list_is_short_and_every_name_on_it_exists():
    named = [name for name in DEFAULT_TRUST if not name.endswith(".")]
    assert len(named) <= 20 and [name for name in DEFAULT_TRUST if name.endswith(".")] == ["nemo_vfm."]
    for name in named:
        assert locate(name, DEFAULT_TRUST).__module__.split(".")[0] in ("torch", "lightning", "pytorch_lightning")
