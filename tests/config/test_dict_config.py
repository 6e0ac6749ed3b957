"""Tests that a recipe survives the way through OmegaConf, and that what was changed there is shown as such."""

import copy
import pickle
from enum import Enum
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nemo_vfm.config import RecipeError, build, check, compose
from nemo_vfm.config.dict_config import address_of, from_dict_config, to_dict_config
from nemo_vfm.core.errors import UserError
from tests.support.recipe_folder import ROOT, TRUST

TEXT = """_target_: @.Wide
name: ${env:DICT_CONFIG_NAME}-x
count: 3
rate: 1e-5
flag: true
out: ???
pair: [1, 2]
weights: {a: 0.5, b: '${rate}'}
stage: {_target_: @.Scale, by: 2.0}
chain: ['${stage}', {_target_: @.Shift}]
size: null
"""


class Colour(Enum):
    RED = 1


def problems(config) -> str:
    return "\n".join(problem.render() for problem in check(from_dict_config(config), TRUST))


def test_the_way_there_and_back_changes_nothing(kitchen):
    composed = kitchen.compose(TEXT, "count=4", "out=/somewhere")
    back = from_dict_config(to_dict_config(composed))
    assert back == composed
    assert back.root.items["count"].mark.source.is_typed


@pytest.mark.parametrize("recipe", sorted(str(f.relative_to(ROOT)) for f in (ROOT / "recipes").rglob("*.yaml")))
def test_every_recipe_comes_back_as_it_was(recipe, monkeypatch):
    monkeypatch.chdir(ROOT)
    composed = compose(recipe)
    assert from_dict_config(to_dict_config(composed)).show() == composed.show()


def test_omegaconf_resolves_what_we_resolve(kitchen, monkeypatch):
    monkeypatch.setenv("DICT_CONFIG_NAME", "abc")
    config = to_dict_config(kitchen.compose(TEXT))
    assert config.name == "abc-x" and config.weights.b == 1e-5 and config.chain[0].by == 2.0
    assert OmegaConf.is_missing(config, "out") and config.size is None


def test_a_literal_reference_is_the_same_text_to_omegaconf_and_to_us(kitchen):
    config = to_dict_config(kitchen.compose(TEXT, "out=/x", "name=echo $${HOME:-x} $${#a}"))
    assert config.name == "echo ${HOME:-x} ${#a}"
    config.names = ["a", r"\${b}"]
    built = build(from_dict_config(config), TRUST)
    assert (built.name, built.names) == ("echo ${HOME:-x} ${#a}", ("a", "${b}"))


@pytest.mark.parametrize(
    "through",
    [copy.deepcopy, lambda config: pickle.loads(pickle.dumps(config)), lambda config: OmegaConf.merge(config, {})],
)
def test_places_survive_copies(kitchen, through):
    config = through(to_dict_config(kitchen.compose(TEXT)))
    assert from_dict_config(config).root.items["stage"].items["by"].mark.place() == "recipe.yaml:9"


def test_a_changed_value_is_shown_in_the_config_and_others_in_their_file(kitchen):
    config = to_dict_config(kitchen.compose(TEXT + "kount: 1\n"))
    config.stage.by = "two"
    config.pair = [1, "x"]
    shown = problems(config)
    assert "the config  stage.by\n    by: two\n        ^ expected a number" in shown
    assert "the config  pair.1\n" in shown and "recipe.yaml:12:1  kount" in shown


def test_two_equal_mistakes_at_two_addresses_are_two_problems(kitchen):
    config = to_dict_config(kitchen.compose(TEXT))
    config.weights.a = config.stage.by = "two"
    assert problems(config).count("expected a number") == 2


def test_a_component_used_twice_is_wrong_once(kitchen):
    config = to_dict_config(kitchen.compose(TEXT))
    config.stage.buy = 1
    assert problems(config).count("takes no argument buy") == 1


def test_a_value_from_a_merged_file_is_not_the_users(kitchen):
    config = OmegaConf.merge(to_dict_config(kitchen.compose(TEXT, "run_dir=/a/b")), {"run_dir": "/elsewhere"})
    with pytest.raises(RecipeError, match="must be below the working directory"):
        _ = from_dict_config(config).run_dir


def test_a_config_made_by_hand_is_a_recipe():
    composed = from_dict_config(OmegaConf.create({"_target_": "tests.support.parts.Wide", "count": "many"}))
    assert composed.seed == 0 and composed.run_dir == Path("runs/config")
    assert "the config  count\n    count: many\n           ^ expected a whole number" in problems({"_target_":
        "tests.support.parts.Wide", "count": "many"})  # fmt: skip


def test_what_omegaconf_holds_and_yaml_does_not_becomes_text():
    made = OmegaConf.create({"a": Colour.RED, "b": Path("/x"), 3: 1, True: 2})
    assert from_dict_config(made).show().splitlines()[0].startswith("a: RED")
    assert {"3", "true", "b"} < from_dict_config(made).root.items.keys()


def test_relative_references_are_counted_from_the_root():
    made = OmegaConf.create({"a": {"b": 1, "c": "${.b}", "d": {"e": "${..b}", "f": ["${..e}"]}}})
    back = from_dict_config(made).root
    assert back.items["a"].items["c"].value == "${a.b}" and back.items["a"].items["d"].items["e"].value == "${a.b}"
    assert (
        OmegaConf.create(OmegaConf.to_container(to_dict_config(from_dict_config(made)))).a.d.f[0] == made.a.d.f[0] == 1
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [({"a": float("nan")}, "nan is not a finite number"), ({"a": b"x"}, "got bytes"), ({"a": "\x00"}, "a NUL"),
     ({"a\nb": 1}, "not plain ASCII text"), ({"a": "${now:%Y}"}, "the only two forms")],
)  # fmt: skip
def test_a_value_that_no_recipe_can_hold_is_refused(config, message):
    with pytest.raises(RecipeError, match=message):
        to_dict_config(from_dict_config(OmegaConf.create(config)))


@pytest.mark.parametrize("config", [3, "quickstart", None, [1], OmegaConf.create([1])])
def test_what_is_no_mapping_is_refused(config):
    with pytest.raises(UserError, match="a recipe is a mapping, got"):
        from_dict_config(config)


def test_the_address_of_a_part(kitchen):
    config = to_dict_config(kitchen.compose(TEXT))
    assert address_of(config) == "" and address_of(config.weights) == "weights"
    assert address_of(config.chain[1]) == "chain.1" and address_of(config.chain[0]) == "stage"
