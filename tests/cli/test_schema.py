"""Tests that the schema for editors accepts right recipes and ingredients, and refuses spoilt ones."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from nemo_vfm.cli.catalogue.components import Catalogue, catalogue, slots_of
from nemo_vfm.cli.catalogue.explain_component import yaml_text
from nemo_vfm.cli.catalogue.json_schema import Schemas
from nemo_vfm.cli.main import main
from nemo_vfm.config import DEFAULT_TRUST, Roots, compose, read_values, trust_list
from nemo_vfm.core.types.job import Job
from nemo_vfm.train.callbacks.callback import LightningCallback
from tests.support.recipe_folder import PARTS, ROOT

LATER = ("${input}", "${a.b}/${run_dir}", "???", "${env:HOME}")
OURS = Roots.standard()
RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))
INGREDIENTS = [(slot, choice) for slot in slots_of(OURS) for choice in OURS.choices(slot)]


@cache
def found() -> Catalogue:
    return catalogue(OURS, DEFAULT_TRUST)


@cache
def recipes() -> Draft202012Validator:
    schema = Schemas(found(), {slot: OURS.choices(slot) for slot in slots_of(OURS)}).recipe()
    return Draft202012Validator(json.loads(json.dumps(schema)))


@cache
def of_ingredients() -> Schemas:
    """What all slots share: each would define most components anew."""
    return Schemas(found(), {})


@cache
def ingredients(slot: str) -> Draft202012Validator:
    return Draft202012Validator(of_ingredients().ingredient(slot))


def complaint(validator: Draft202012Validator, value: object) -> str:
    """What an editor would underline; empty where all is well."""
    error = best_match(validator.iter_errors(value))
    return f"{error.json_path}: {error.message}" if error else ""


def components(value: object, *above: str) -> Iterator[tuple[tuple[str, ...], dict]]:
    """Every mapping that is or changes a component, and its path, parents first."""
    if isinstance(value, dict):
        yield above, value
        for name, below in value.items():
            yield from components(below, *above, name)


def test_the_schema_is_a_schema():
    """With the classes that are annotated in every way, and jobs; of all others it would take 7 s."""
    schema = typed().schema
    kept = {name: one for name, one in schema["$defs"].items() if PARTS in name or "root:" in name or "." not in name}
    assert len(kept) > 50
    Draft202012Validator.check_schema({**schema, "$defs": kept})


def test_there_are_recipes_and_ingredients():
    assert len(RECIPES) >= 7 and len(INGREDIENTS) >= 25


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_every_recipe_fits(file):
    assert complaint(recipes(), read_values(file.read_text(), file.name)) == ""


@pytest.mark.parametrize(("slot", "choice"), INGREDIENTS)
@pytest.mark.slow
def test_every_ingredient_fits(slot, choice):
    text = OURS.ingredient(slot, choice).read_text()
    assert complaint(ingredients(slot), read_values(text, choice)) == ""


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_every_composed_recipe_is_complete(file):
    values = read_values(compose(file).to_yaml(), file.name)
    assert "defaults" not in values and complaint(recipes(), values) == ""


@pytest.mark.parametrize("name", found().components_for(Job))
def test_what_explain_prints_of_a_job_fits(name):
    assert complaint(recipes(), read_values(yaml_text(found(), name), name)) == ""


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
@pytest.mark.slow
def test_a_misspelt_key_is_seen_in_every_component_of_a_recipe(file):
    spoilt = read_values(file.read_text(), file.name)
    # Others may be mappings of names, where any key is right; Lightning's classes are not looked at.
    wanted = {path: one for path, one in components(spoilt)
              if not one.get("_target_", "???").startswith(("???", "lightning."))}  # fmt: skip
    for one in wanted.values():
        one["conut"] = 1
    errors = [error for error in _leaves(recipes().iter_errors(spoilt)) if error.validator == "additionalProperties"]
    assert wanted.keys() <= {tuple(error.absolute_path) for error in errors if "conut" in error.message}
    assert wanted or "recipe:" in file.read_text()  # it builds on another, which is looked at for itself


class OpenCallback:
    """As some of Lightning's, which a process knows that has imported it."""

    def __init__(self, **more: object) -> None: ...

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None: ...

    def state_dict(self): ...

    def load_state_dict(self, state_dict) -> None: ...


def test_what_a_process_has_imported_of_lightning_lets_no_misspelt_key_pass():
    known = replace(found(), known={**found().known, "lightning.Open": OpenCallback})
    known.named = {*known.named, "lightning.Open"}
    assert "lightning.Open" in known.components_for(LightningCallback)
    values = {
        "callbacks": {"preview": {"prompst": ["a"]}},
        "defaults": [{"model": "dit_s"}],
        "_target_": "nemo_vfm.train.job.Train",
    }
    assert "prompst" in complaint(Draft202012Validator(Schemas(known, {}).recipe()), values)


def _leaves(errors) -> Iterator:
    for error in errors:
        yield error
        yield from _leaves(error.context or ())


def test_a_misspelt_key_is_seen_where_an_ingredient_gives_the_class():
    values = {"_target_": "nemo_vfm.train.job.Train", "defaults": [{"model": "dit_s"}], "model": {"depht": 3}}
    assert "depht" in complaint(recipes(), values)
    assert complaint(recipes(), {**values, "model": {"depth": 3}}) == ""


def test_what_has_no_default_is_asked_for_only_where_no_ingredient_can_give_it():
    alone = {"_target_": "nemo_vfm.diffusion.denoising_task.Denoise"}
    train = {"_target_": "nemo_vfm.train.job.Train", "task": alone}
    assert complaint(recipes(), {**train, "defaults": [{"task.codec": "haar"}]}) == ""
    assert "required" in complaint(recipes(), train)
    encode = {
        "_target_": "nemo_vfm.curate.encode_shards.EncodeShards",
        "shards": "x",
        "codec": "${c}",
        "buckets": "???",
    }
    assert "'text_encoder' is a required property" in complaint(recipes(), encode)
    assert complaint(recipes(), {**encode, "text_encoder": "${t}"}) == ""
    rate = {
        "_target_": "nemo_vfm.curate.encode_shards.EncodeShards",
        "shards": "x",
        "codec": "???",
        "text_encoder": "???",
    }
    square = {"width": 8, "height": 8, "num_frames": 1}
    assert complaint(recipes(), {**rate, "buckets": {"buckets": {"a": square}}}) == "", (
        "a plain class needs no _target_"
    )
    assert "buckets.a" in complaint(recipes(), {**rate, "buckets": {"buckets": {"a": {"width": 8, "height": 8}}}})


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["_target_"], "nemo_vfm.train.job.Trian"), (["_target_"], "nemo_vfm.models.dit.DiT"), (["seed"], "zero"),
        (["model", "depth"], "28"), (["model", "depth"], 2.5), (["model", "depth"], True), (["model", "patch"], [1, 2]),
        (["model", "patch"], 2), (["model", "width"], None), (["task", "objective", "prediction"], "noise"),
        (["task", "objective"], "flow"), (["duration"], 400), (["duration"], "400"), (["defaults"], "dit_s"),
        (["task", "codec", "_target_"], "nemo_vfm.models.dit.DiT"), (["optimizer", "params"], []), (["data"], []),
        (["callbacks", "extra"], {"_target_": "nemo_vfm.models.dit.DiT"}), (["callbacks", "_target_"], "x"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_seen(path, value):
    values = read_values(compose(ROOT / "recipes/diffusion/dit_xl.yaml").to_yaml(), "dit_xl")
    assert complaint(recipes(), values) == ""
    holder = values
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    assert complaint(recipes(), values) != ""


@pytest.mark.parametrize(("file", "later"), zip(RECIPES, cycle(LATER)), ids=lambda one: getattr(one, "stem", one))
@pytest.mark.slow
def test_any_value_may_come_from_elsewhere_or_later(file, later):
    def replaced(value: object) -> object:
        if isinstance(value, dict):
            kept = ("_target_", "defaults")
            return {key: below if key in kept else replaced(below) for key, below in value.items()}
        return [replaced(item) for item in value] if isinstance(value, list) else later

    whole = read_values(file.read_text(), file.name)
    assert complaint(recipes(), replaced(whole)) == ""
    assert complaint(recipes(), {k: v if k in ("_target_", "defaults") else later for k, v in whole.items()}) == ""


def test_numbers_that_other_readers_take_for_texts_are_numbers():
    values = {"_target_": "nemo_vfm.train.job.Train", "defaults": [], "model": {"depth": "4_000", "rope_theta": "1e-4"}}
    assert complaint(recipes(), values) == ""
    for text in ("28", "4_", "_4", "1e", "e5", "x_1"):
        assert complaint(recipes(), {**values, "model": {"depth": text}}) != "", text


def test_a_workflow_step_may_be_another_recipe():
    values = {"_target_": "nemo_vfm.workflow.Workflow", "steps": {"a": "recipe:diffusion/sample.yaml"}}
    assert complaint(recipes(), values) == ""
    assert complaint(recipes(), {**values, "steps": {"a": "diffusion/sample.yaml"}}) != ""


def test_choices_are_offered_and_ones_that_are_new_are_no_error():
    slots = recipes().schema["$defs"]["defaults"]["items"]["patternProperties"]
    assert "dit_xl" in slots[r"(^|\.)model$"]["anyOf"][0]["enum"]
    assert (
        complaint(recipes(), {"_target_": "nemo_vfm.synth.make_shapes.MakeVideos", "defaults": [{"model": "mine"}]})
        == ""
    )
    assert complaint(recipes(), {"_target_": "nemo_vfm.synth.make_shapes.MakeVideos", "defaults": [{"a": 1}]}) != ""


def test_docstrings_defaults_and_literals_reach_the_editor():
    flow = recipes().schema["$defs"]["nemo_vfm.diffusion.objective.FlowMatching"]
    shift, prediction = flow["properties"]["shift"], flow["properties"]["prediction"]
    assert shift["default"] == 1.0 and len(shift["description"]) > 10
    assert {"enum": ["velocity", "sample"]} in prediction["anyOf"]


def test_an_ingredient_may_have_ingredients_of_its_own():
    denoise = {"_target_": "nemo_vfm.train.optim.Constant", "defaults": [{"x": "y"}], "warmup_steps": 1}
    assert complaint(ingredients("schedule"), denoise) == ""
    assert complaint(ingredients("schedule"), {**denoise, "warmup": 1}) != ""
    assert complaint(ingredients("stages"), {"defaults": [{"motion": "m"}], "motion": {"side_px": 8}}) == ""


@pytest.mark.slow
def test_the_file_is_written_whole_and_of_the_users_own_classes_too(kitchen, capsys):
    kitchen.write("recipes/mine.yaml", "_target_: '@.Count'\nduration: 3 steps\n")
    assert main(["schema", "--out", "s/recipe.json", "--trust", PARTS]) == 0
    validator = Draft202012Validator(json.loads(Path("s/recipe.json").read_text()))
    mine = read_values(Path("recipes/mine.yaml").read_text(), "mine")
    assert complaint(validator, mine) == "" and "conut" in complaint(validator, {**mine, "conut": 1})
    told = capsys.readouterr()
    assert "components" in told.err and "dotted name" not in told.err, "a package that is trusted is no class"
    assert main(["schema"]) == 0
    told = capsys.readouterr()
    assert "left out: " in told.err and "--trust tests" in told.err
    assert complaint(Draft202012Validator(json.loads(told.out)), mine) != ""


@pytest.mark.parametrize(
    ("recipe", "is_right"),
    [
        ({"defaults": ["recipe:world_model/lora"], "duration": "3 steps"}, True),
        ({"defaults": ["recipe:world_model/lora", {"optimizer": "adamw"}]}, True),
        ({"defaults": [{"optimizer": "adamw"}]}, False),
        ({"defaults": ["world_model/lora"]}, False),
        ({"duration": "3 steps"}, False),
    ],
)
def test_a_recipe_needs_a_job_or_a_recipe_that_it_builds_on(recipe, is_right):
    assert (complaint(recipes(), recipe) == "") is is_right


def test_a_slot_has_a_schema_of_its_own(capsys):
    assert main(["schema", "--slot", "model"]) == 0
    assert "conf" not in (told := json.loads(capsys.readouterr().out)) and "slot model" in told["title"]
    assert main(["schema", "--slot", "overlay"]) == 2
    assert "there is no slot overlay" in capsys.readouterr().err


@cache
def typed() -> Draft202012Validator:
    """The schema with the classes of our tests that are annotated in every way."""
    names = [f"{PARTS}.{name}" for name in ("Typed", "Scale", "Shift", "Opaque")]
    return Draft202012Validator(Schemas(catalogue(OURS, trust_list([PARTS]), more=names), {}).recipe())


TYPED = {
    "colour": "red", "metres": 2.5, "above_zero": 3, "level": None, "by_number": {"1": 2.0}, "by_colour": {"red": 1},
    "by_side": {"left": 1}, "grid": [[1, 2], []], "point": {"x": 1}, "limits": {"low": 1.0}, "sizes": [{"width": 2}],
    "either": {"_target_": f"{PARTS}.Scale", "by": 2}, "makers": {"a": {"_target_": f"{PARTS}.Shift"}}, "mode": 3,
    "nothing": [], "noted": {"by": 3}, "durations": {"a": "3 steps"}, "caught": [1],
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("colour", "green"), ("metres", "far"), ("level", 3), ("by_colour", {"green": 1}), ("by_side", {"up": 1}),
        ("grid", [1]), ("point", {"z": 1}), ("limits", {"high": 1}), ("sizes", [{"height": 2}]), ("mode", "slow"),
        ("either", {"_target_": f"{PARTS}.Quiet"}), ("makers", {"a": {"by": 1, "offset": 2, "x": 1}}), ("nothing", [1]),
        ("noted", {"by": "x"}), ("durations", {"a": 3}), ("caught", ["x"]),
    ],
)  # fmt: skip
def test_annotations_of_every_kind_are_judged_as_check_judges_them(kitchen, key, wrong):
    validator = typed()
    right = {"_target_": f"{PARTS}.Typed", **TYPED}
    assert kitchen.problems(json.dumps(right)) == "" == complaint(validator, right)
    assert kitchen.problems(json.dumps({**right, key: wrong})) != "" != complaint(validator, {**right, key: wrong})


def test_each_place_of_a_tuple_has_its_own_type():
    schemas = Schemas(found(), {})
    validator = Draft202012Validator(
        {"anyOf": schemas._options(tuple[int, str, int], complete=False), "$defs": schemas.defs}
    )
    assert complaint(validator, [1, "a", 2]) == ""
    assert complaint(validator, [1, "a", "b"]) != "" != complaint(validator, [1, 2, 3])


def test_classes_of_other_packages_are_judged_by_name_alone_where_they_are_open():
    kinds = catalogue(OURS, trust_list([PARTS]), more=[f"{PARTS}.Loose", f"{PARTS}.Wide"])
    validator = Draft202012Validator(Schemas(kinds, {}).recipe())
    loose = {"_target_": f"{PARTS}.Wide", "loose": {"_target_": f"{PARTS}.Loose", "anything": 1}}
    assert complaint(validator, loose) == ""
