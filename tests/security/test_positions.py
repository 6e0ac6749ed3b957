"""Tests that harmful calls in every place of a recipe are refused: no file, no connection, no secret printed.

Attacks 1 and 2: each useful target of an attacker, with the arguments that would make it work. It is hidden as a
value, a key, an item, behind an anchor, an override, an interpolation, an ingredient, a recipe, a factory.
"""

import json
import random
import socket
import threading

import pytest

from nemo_vfm.config import ComposedRecipe, RecipeError, build, check, compose, trust_list
from nemo_vfm.config.overrides import apply, parse_override
from nemo_vfm.config.tree import Map, walk
from tests.security.test_targets import TARGETS
from tests.support.recipe_folder import PARTS, ROOT, TRUST

SECRET = "hunter22-abcdef-canary"
HIT = threading.Event()

#: What would work if the gate were open: the argument names of the real things, and a few more.
ARGUMENTS = {"command": "touch canary", "cmd": "touch canary", "source": "__import__('os').system('touch canary')",
             "path": "canary", "folder": ".", "file": "canary", "name": "canary", "text": "x", "shell": "true",
             "args": "[touch, canary]", "url": "http://127.0.0.1:{port}/", "address": "[127.0.0.1, {port}]",
             "_args_": "['touch canary']", "_partial_": "true", "_recursive_": "true", "_fn": "os.system"}  # fmt: skip
_WIDE = "_target_: @.Wide\n"
_STEP = "_target_: nemo_vfm.workflow.Workflow\n"
#: Where the call hides, <call> and <name> replaced; the files besides the recipe follow as `name: text`.
POSITIONS = {
    "root": ("<call>", {}),
    "value": (_WIDE + "name: <call>", {}),
    "number": (_WIDE + "count: <call>", {}),
    "path": (_WIDE + "out: <call>", {}),
    "duration": (_WIDE + "duration: <call>", {}),
    "tuple": (_WIDE + "pair: [1, <call>]", {}),
    "slot": (_WIDE + "stage: <call>", {}),
    "slot of a class that needs no name": (_WIDE + "size: <call>", {}),
    "text where a component belongs": (_WIDE + "stage: <name>", {}),
    "mapping of components": (_WIDE + "stages: {a: <call>}", {}),
    "the mapping itself": (_WIDE + "stages: <call>", {}),
    "list of components": (_WIDE + "chain: [{_target_: '@.Shift'}, <call>]", {}),
    "list item": (_WIDE + "names: [<call>]", {}),
    "key": (_WIDE + "<name>: 1", {}),
    "key of a mapping": (_WIDE + "weights: {'<name>': 1}\nstages: {'<name>': <call>}", {}),
    "mapping as key": (_WIDE + "? <call>\n: 1", {}),
    "factory": (_WIDE + "make: <call>", {}),
    "factory of an optimizer": (_WIDE + "optimizer: <call>", {}),
    "inside a factory": (_WIDE + "make: {_target_: '@.Scale', by: <call>}", {}),
    "factories in a mapping": ("_target_: '@.Typed'\nmakers: {a: <call>}", {}),
    "union of components": ("_target_: '@.Typed'\neither: <call>", {}),
    "annotated": ("_target_: '@.Typed'\nnoted: <call>", {}),
    "named tuple": ("_target_: '@.Typed'\npoint: <call>", {}),
    "typed dictionary": ("_target_: '@.Typed'\nlimits: {low: <call>}", {}),
    "third-party class": ("_target_: '@.Typed'\nwhen: <call>", {}),
    "open slot": (_WIDE + "loose: {_target_: '@.Loose', value: <call>}", {}),
    "open keyword": (_WIDE + "loose: {_target_: '@.Loose', more: [{x: <call>}]}", {}),
    "argument of torch": (_WIDE + "optimizer: {_target_: torch.optim.AdamW, betas: [<call>, 0.9]}", {}),
    "open argument of torch": (_WIDE + "optimizer: {_target_: torch.optim.AdamW, lr: <call>, foreach: <call>}", {}),
    "anchor": (_WIDE + "name: &x <call>\nstage: *x", {}),
    "anchor on the name": (_WIDE + "name: &n '<name>'\nstage: {_target_: *n, command: touch canary}", {}),
    "merge key": (_WIDE + "names: &x <call>\nstage: {<<: *x}", {}),
    "tag": (_WIDE + "stage: !!python/object/apply:<name> ['touch canary']", {}),
    "interpolation": (_WIDE + "name: <call>\nstage: ${name}", {}),
    "interpolated name": (_WIDE + "name: '<name>'\nstage: {_target_: '${name}', command: touch canary}", {}),
    "pieced name": (_WIDE + "name: '<name>'\nout: touch canary\nstage: {_target_: '${name}${out}'}", {}),
    "environment, name": (_WIDE + "stage: {_target_: '${env:PARTS_NAME}', command: touch canary}", {}),
    "environment, OmegaConf's": (_WIDE + "stage: {_target_: '${oc.env:PARTS_NAME}', command: touch canary}", {}),
    "environment, whole": (_WIDE + "stage: ${env:PARTS_CALL}", {}),
    "resolver": (_WIDE + "stage: '${oc.create:<call>}'", {}),
    "hydra": (_WIDE + "stage: {_target_: '@.Scale', by: 1, _args_: [<call>], _partial_: true, _fn: '<name>'}", {}),
    "hydra's mode": (_WIDE + "stage: {_mode_: partial, _convert_: all, _recursive_: true, _target_: '<name>'}", {}),
    "reserved seed": (_WIDE + "seed: <call>", {}),
    "reserved folder": (_WIDE + "run_dir: <call>", {}),
    "ingredient": ("defaults: [{stage: evil}]\n" + _WIDE, {"conf/stage/evil.yaml": "<call>"}),
    "ingredient's ingredient": ("defaults: [{stage: a}]\n" + _WIDE,
                                {"conf/stage/a.yaml": "defaults: [{by: evil}]\n_target_: '@.Scale'\n",
                                 "conf/by/evil.yaml": "<call>"}),
    "name over an ingredient": ("defaults: [{stage: fine}]\n" + _WIDE + "stage: {_target_: '<name>'}",
                                {"conf/stage/fine.yaml": "_target_: '@.Scale'\nby: 1\ncommand: touch canary"}),
    "ingredient's name": ("defaults: [{stage: '<name>'}]\n" + _WIDE, {}),
    "slot's name": ("defaults: [{'<name>': evil}]\n" + _WIDE, {"conf/stage/evil.yaml": "<call>"}),
    "recipe in a recipe": (_STEP + "steps: {a: 'recipe:evil.yaml'}", {"evil.yaml": "<call>"}),
    "slot of a recipe in a recipe": (_STEP + "steps: {a: 'recipe:evil.yaml'}",
                                     {"evil.yaml": _WIDE + "name: x\nstage: ${name}\nmake: <call>"}),
    "recipe by defaults": ("defaults: [{steps.a: 'recipe:evil.yaml'}]\n" + _STEP, {"evil.yaml": "<call>"}),
    "step": (_STEP + "steps: {a: <call>}", {}),
    "step's slot": (_STEP + "steps: {a: {_target_: '@.Wide', stage: <call>}}", {}),
    "workflow's input": (_STEP + "input: <call>\nsteps: {a: {_target_: '@.Wide'}}", {}),
    "step in a step": (_STEP + "steps: {a: {_target_: nemo_vfm.workflow.Workflow, steps: {b: <call>}}}", {}),
}  # fmt: skip
#: Changes on the command line that would do the same.
CHANGES = {
    "override a slot": ("stage=<call>",),
    "override the name": ("stage._target_=<name>", "stage.command=touch canary"),
    "override the root": ("_target_=<name>", "command=touch canary"),
    "override an item": ("chain=[<call>]",),
    "override a mapping": ("stages={a: <call>}",),
    "override with a tag": ("stage=!!python/object/apply:<name> ['touch canary']",),
    "override with a variable": ("stage._target_=${env:PARTS_NAME}", "stage.command=touch canary"),
    "override with an interpolation": ("name=<name>", "stage._target_=${name}"),
    "override the folder": ("run_dir=<call>",),
}


@pytest.fixture(scope="module")
def canary_port():
    """A server on the loopback that notes whether anybody comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(None)

        def listen():
            while True:
                try:
                    server.accept()[0].close()
                except OSError:
                    return
                HIT.set()

        threading.Thread(target=listen, daemon=True).start()
        yield server.getsockname()[1]


@pytest.fixture
def attack(kitchen, monkeypatch, canary_port, capfd):
    """Tries one call at one place, and looks at the canaries."""

    def attempt(name, position):
        call = "{" + ", ".join([f"_target_: {json.dumps(name)}", *(f"{k}: {v}" for k, v in ARGUMENTS.items())]) + "}"
        call = call.replace("{port}", str(canary_port))
        monkeypatch.setenv("PARTS_NAME", name.replace("\0", "") + SECRET)
        monkeypatch.setenv("PARTS_CALL", call.replace("\0", "").replace("\\u0000", "") + SECRET)

        def filled(text):
            return text.replace("<call>", call).replace("<name>", name.replace("'", ""))

        recipe, files = POSITIONS.get(position, (_WIDE, {}))
        for file, text in files.items():
            kitchen.write(file, filled(text))
        with pytest.raises(RecipeError) as error:
            composed = kitchen.compose(filled(recipe), *map(filled, CHANGES.get(position, ())))
            _ = composed.seed, composed.run_dir
            problems = check(composed, TRUST)
            composed.show()
            if problems:
                raise RecipeError(problems)
            build(composed, TRUST)
        said = str(error.value) + "".join(capfd.readouterr())
        assert SECRET not in said and len(said) < 20_000
        left = {path.name for path in kitchen.folder.rglob("*") if path.is_file()}
        assert left <= _WRITTEN_HERE, "something was written"
        assert not HIT.is_set(), "somebody connected"

    return attempt


_WRITTEN_HERE = {"recipe.yaml", *(name.rpartition("/")[2] for _, files in POSITIONS.values() for name in files)}
NAMES = [name for name in TARGETS if name]  # an empty text is null, which a slot may allow
CASES = [(name, position) for name in NAMES for position in (*POSITIONS, *CHANGES)]
_ALWAYS = ("os.system", f"{PARTS}.system", f"{PARTS}.label", "nemo_vfm.report.page.write")
SOME = [(name, position) for position in (*POSITIONS, *CHANGES) for name in _ALWAYS]
SOME += random.Random(3).sample(CASES, 250)


@pytest.mark.parametrize("position", [*POSITIONS, *CHANGES])
def test_nothing_happens_wherever_a_call_hides(attack, position):
    for name in [name for name, where in SOME if where == position]:
        attack(name, position)


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_nothing_happens_whatever_is_called_wherever(attack, name):
    for position in (*POSITIONS, *CHANGES):
        attack(name, position)


def test_the_canaries_can_sing(kitchen, monkeypatch, canary_port):
    """Where the gate is opened on purpose, the file appears and the server is called: the tests above can fail."""
    kitchen.write("opened.py", "import socket\nfrom pathlib import Path\nfrom tests.support.parts import Shift\n"
                  "def evil(*, port: int) -> Shift:\n    Path('canary').touch()\n"
                  "    socket.create_connection(('127.0.0.1', port)).close()\n    return Shift()\n")  # fmt: skip
    monkeypatch.syspath_prepend(str(kitchen.folder))
    composed = kitchen.compose(f"{_WIDE}stage: {{_target_: opened.evil, port: {canary_port}}}")
    build(composed, (*TRUST, *trust_list(["opened"])))
    assert (kitchen.folder / "canary").exists() and HIT.wait(5)
    HIT.clear()


def sections(root):
    """The address of every value of a composed recipe."""
    return [path for path, _ in walk(root) if path and not any(part.isdecimal() for part in path.split("."))]


def attack_section(composed, path):
    """Put a call in place of one value, and its name alone into every mapping that has one."""
    call = "{_target_: os.system, command: touch canary}"
    changes = [f"{path}={call}", f"{path}=[{call}]", f"{path}._target_=os.system"]
    for change in changes:
        try:
            root = apply(composed.root, parse_override(change))
        except RecipeError:
            continue  # a single value has nothing below it
        assert isinstance(root, Map)
        changed = ComposedRecipe(root, composed.path, composed.roots)
        with pytest.raises(RecipeError):
            _ = changed.seed, changed.run_dir
            build(changed)


RECIPES = sorted(str(file.relative_to(ROOT)) for file in (ROOT / "recipes").rglob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.slow
def test_no_section_of_a_real_recipe_takes_a_call(kitchen, recipe):
    composed = compose(ROOT / recipe, [], [ROOT / "conf"])
    found = sections(composed.root)
    for path in random.Random(recipe).sample(found, min(6, len(found))):
        attack_section(composed, path)
    assert not (kitchen.folder / "canary").exists()


@pytest.mark.soak
@pytest.mark.parametrize("recipe", RECIPES)
def test_no_section_at_all_of_a_real_recipe_takes_a_call(kitchen, recipe):
    composed = compose(ROOT / recipe, [], [ROOT / "conf"])
    for path in sections(composed.root):
        attack_section(composed, path)
    assert not (kitchen.folder / "canary").exists()
