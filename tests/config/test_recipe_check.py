"""Tests that a recipe gives all its problems at once, or objects: the constructor is the schema, the slot decides."""

from pathlib import Path

import pytest
import torch

from nemo_vfm.config import RecipeError, build, check
from nemo_vfm.config.recipe_check import Checker
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.types.factory import Factory
from tests.support import parts
from tests.support.recipe_folder import TRUST, WIDE


class TestValues:
    @pytest.mark.parametrize(
        ("key", "text", "value"),
        [
            ("count", "28", 28),
            ("rate", "3", 3.0),
            ("rate", "1e-3", 1e-3),
            ("flag", "true", True),
            ("name", "a b", "a b"),
            ("out", "some/where", Path("some/where")),
            ("out", "null", None),
            ("pair", "[3, 4]", (3, 4)),
            ("names", "[a, b]", ("a", "b")),
            ("weights", "{a: 1, b: 0.5}", {"a": 1.0, "b": 0.5}),
            ("duration", "400 steps", Duration(400, "steps")),
            ("either", "3", 3),
            ("either", "x", "x"),
            ("either", "'3'", "3"),
        ],
    )
    def test_a_value_arrives_as_annotated(self, kitchen, key, text, value):
        found = getattr(kitchen.build(f"{WIDE}{key}: {text}"), key)
        assert found == value and type(found) is type(value)

    @pytest.mark.parametrize(
        ("key", "text", "words"),
        [
            ("count", "'28'", 'expected a whole number, got the text "28"; remove the quotes'),
            ("count", "2.0", "expected a whole number, got the number 2.0; write 2"),
            ("count", "true", "expected a whole number, got true"),
            ("count", "null", "expected a whole number, got null"),
            ("rate", "'1e-3'", "expected a number, got the text"),
            ("rate", "true", "expected a number, got true"),
            ("flag", "yes", 'expected true or false, got the text "yes"; write true or false'),
            ("flag", "1", "true or false"),
            ("name", "12", "expected a text, got the number 12; add quotes"),
            ("name", "[a]", "expected a text, got a list"),
            ("out", "3", "expected a path or null, got the number 3"),
            ("pair", "[1]", "expected a list of 2"),
            ("pair", "[1, x]", 'expected a whole number, got the text "x"'),
            ("names", "a", "expected a list, each a text"),
            ("weights", "{a: x}", 'expected a number, got the text "x"'),
            ("weights", "3", "expected a mapping of names"),
            ("duration", "400", "expected a duration such as '400 steps', got the number 400; add the unit"),
            ("duration", "3 weeks", "'3 weeks' is not a duration"),
            ("duration", "12:30:00", "is not a duration"),
            ("either", "1.5", "expected a whole number or a text, got the number 1.5"),
        ],
    )
    def test_nothing_is_converted_by_guessing(self, kitchen, key, text, words):
        said = kitchen.problems(f"{WIDE}{key}: {text}")
        # Optional slots are said with their inner type; the place is the value's.
        assert words.replace(" or null", "") in said.replace(" or null", "") and said.startswith("recipe.yaml:2:")

    def test_a_literal_is_suggested(self, kitchen):
        said = kitchen.problems(WIDE + "stage: {_target_: '@.Scale', by: 1, mode: rouded}")
        assert 'expected one of exact, rounded, got the text "rouded"; did you mean rounded?' in said


class TestKeys:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("conut: 3", "Wide takes no argument conut; did you mean count?"),
            ("stage: {_target_: '@.Scale', by: 1, moed: exact}", "Scale takes no argument moed; did you mean mode?"),
            ("stages: {a: {_target_: '@.Scale', bye: 1}}", "Scale takes no argument bye; did you mean by?"),
            ("size: {width: 3, heigt: 4}", "Size takes no argument heigt; did you mean height?"),
            ("later: {_target_: '@.Both', moer: 1}", "Both takes no argument moer; did you mean more?"),
        ],
    )
    def test_an_unknown_key_is_suggested_at_every_depth(self, kitchen, text, words):
        assert words in kitchen.problems(WIDE + text)

    def test_a_key_of_another_look_is_no_key(self, kitchen):
        with pytest.raises(RecipeError, match="not plain ASCII"):
            kitchen.problems(WIDE + "cоunt: 3")

    @pytest.mark.parametrize("key", ["_partial_", "_args_", "_recursive_", "_convert_"])
    def test_words_of_hydra_are_explained(self, kitchen, key):
        flow = "_target_: nemo_vfm.workflow.Workflow\n"
        for text in (
            f"{flow}{key}: true",
            f"{flow}steps: {{a: {{_target_: nemo_vfm.workflow.Workflow, {key}: true}}}}",
        ):
            assert f"takes no argument {key}; " in kitchen.problems(text)

    def test_a_plain_default_is_the_type_of_an_argument_without_an_annotation(self, kitchen):
        loose = f"{WIDE}loose: {{_target_: '@.Unsaid', "
        for wrong in ("flag: False", "flag: 1", "rate: fast", "count: '2'", "word: 7"):
            assert "expected" in kitchen.problems(f"{loose}{wrong}}}")
        assert "write true or false" in kitchen.problems(f"{loose}rate: 1}}", "loose.flag=False")
        built = kitchen.build(f"{loose}flag: false, rate: 1, count: 0.5, word: two, other: [x]}}")
        assert built.loose.value == (False, 1.0, 0.5, "two", ["x"])

    def test_a_required_argument_is_missed(self, kitchen):
        said = kitchen.problems(WIDE + "stage: {_target_: '@.Scale'}\nsize: {}")
        assert "Scale needs by (a number)" in said and "Size needs width (a whole number)" in said

    def test_all_problems_come_at_once_in_the_order_of_the_file(self, kitchen):
        said = kitchen.problems(WIDE + "count: x\nnmae: a\nrate: ${nowhere}\nstage: {_target_: os.system}\nflag: on")
        heads = [line for line in said.splitlines() if line.startswith("recipe.yaml")]
        assert [head.split(":")[1] for head in heads] == ["2", "3", "4", "5", "6"]


class TestSlots:
    def test_components_and_mappings_of_them_are_built_in_order(self, kitchen):
        job = kitchen.build(
            WIDE + "stage: {_target_: '@.Shift'}\nchain: [{_target_: '@.Shift'}, {_target_: '@.Scale', by: 2}]\n"
            "stages: {z: {_target_: '@.Scale', by: 3}, a: {_target_: '@.Shift'}}\nsize: {width: 4}"
        )
        assert isinstance(job.stage, parts.Shift) and job.size == parts.Size(4)
        assert [type(s) for s in job.chain] == [parts.Shift, parts.Scale]
        assert list(job.stages) == ["z", "a"] and job.stages["z"].by == 3.0

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("stage: {_target_: '@.Quiet'}", "Quiet is not a Stage: it has no apply"),
            ("stage: {_target_: '@.Stage'}", "Stage is an interface"),
            ("stage: {by: 1}", "_target_ is missing"),
            ("stage: text", "expected a Stage (a mapping with _target_), got the text"),
            ("stage: {_target_: 3}", "must be the dotted name of a class"),
            ("stage: {_target_: '@.Scle', by: 1}", "did you mean Scale?"),
            ("stage: {_target_: '@.label', text: a}", "label is a function that returns a text, not a component"),
            ("stages: {_target_: '@.Scale', by: 1}", "makes this a single component; put it under a name"),
            ("size: {_target_: '@.Scale', by: 1}", "Scale is not a Size"),
            ("chain: [1]", "expected a Stage"),
            ("stage: {_target_: tests.support.prts.Scale}", "is not trusted"),
            (
                "stage: {_target_: nemo_vfm.core.durations.Duration}",
                "there is no module nemo_vfm.core.durations; did you mean nemo_vfm.core.duration.Duration?",
            ),
            (
                "loose: {_target_: '@.Loose', value: {_target_: lightning.pytorch.callbacks.RichProgressBar, "
                "console_kwargs: {a: [{_target_: '@.Scale', by: 1}]}}}",
                "it takes no component",
            ),
        ],
    )
    def test_what_does_not_fit_a_slot_is_said(self, kitchen, text, words):
        assert words in kitchen.problems(WIDE + text)

    def test_a_function_that_says_what_it_makes_fits(self, kitchen):
        assert kitchen.build(WIDE + "stage: {_target_: '@.double'}").stage.by == 2.0

    def test_the_root_is_a_job(self, kitchen):
        assert "Shift is not a Job, as the root of a recipe must be: it has no run" in kitchen.problems(
            "_target_: '@.Shift'"
        )
        assert "name the class that builds a job" in kitchen.problems("count: 3")

    def test_a_choice_is_suggested_where_a_component_belongs(self, kitchen):
        kitchen.write("conf/stage/scale.yaml", "_target_: '@.Scale'\n")
        assert "conf/stage holds scale; did you mean scale?" in kitchen.problems(WIDE + "stage: scal")


class TestFactories:
    def test_the_slot_decides(self, kitchen):
        job = kitchen.build(WIDE + "optimizer: {_target_: torch.optim.AdamW, lr: 1e-3, betas: [0.9, 0.95]}")
        assert isinstance(job.optimizer, Factory)
        made = job.optimizer([torch.nn.Parameter(torch.zeros(2))])
        assert isinstance(made, torch.optim.AdamW) and made.defaults["betas"] == (0.9, 0.95)

    def test_what_comes_later_is_given_by_position(self, kitchen):
        made = kitchen.build(WIDE + "later: {_target_: '@.Both', more: 2}").later(3.0)
        assert (made.given, made.more) == (3.0, 2.0)

    def test_each_call_makes_another(self, kitchen):
        make = kitchen.build(WIDE + "make: {_target_: '@.Scale', by: 2}").make
        assert make() is not make()

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("later: {_target_: '@.Both'}", "Both needs more (a number)"),
            ("later: {_target_: '@.Both', given: 1, more: 2}", "given is passed to Both by the job; remove it here"),
            ("later: {_target_: '@.Scale', by: 1}", "takes 0 positional arguments, but this slot passes 1"),
            ("make: {_target_: '@.Both', more: 1}", "Both needs given (a number)"),
            ("make: {_target_: '@.Quiet'}", "Quiet is not a Stage"),
            ("make: {_target_: torch.optim.AdamW}", "AdamW is not a Stage"),
            ("optimizer: {_target_: '@.Scale', by: 1}", "Scale is not an Optimizer"),
            ("optimizer: {_target_: torch.optim.AdamW, lr: '1e-3'}", "expected a number or a Tensor"),
            ("optimizer: {_target_: torch.optim.AdmW}", "is not trusted; did you mean torch.optim.AdamW?"),
        ],
    )
    def test_a_factory_that_could_not_be_called_is_seen_before(self, kitchen, text, words):
        assert words in kitchen.problems(WIDE + text)

    def test_an_objection_at_the_call_still_has_its_place(self, kitchen):
        make = kitchen.build(WIDE + "make: {_target_: '@.Scale', by: 0}").make
        with pytest.raises(RecipeError, match=r"recipe.yaml:2:47  make.by"):
            make()


class TestMissing:
    def test_it_is_listed_and_is_no_error(self, kitchen):
        (problem,) = check(kitchen.compose(WIDE + "out: ???"), TRUST)
        assert problem.kind == "missing" and "you must set this: out=DIR (a path or null)" in problem.message

    def test_it_is_refused_when_built(self, kitchen):
        with pytest.raises(RecipeError, match=r"you must set this: stage.by=VALUE"):
            kitchen.build(WIDE + "stage: {_target_: '@.Scale', by: '???'}")

    def test_what_refers_to_it_is_not_asked_for_again(self, kitchen):
        found = check(kitchen.compose(WIDE + "name: ???\nout: ${name}/x"), TRUST)
        assert [(p.kind, p.path) for p in found] == [("missing", "name")]

    def test_a_whole_component_may_be_missing(self, kitchen):
        assert "you must set this: stage=VALUE (a Stage or null)" in kitchen.problems(WIDE + "stage: ???")
        assert "you must set this" in kitchen.problems(WIDE + "stage: {_target_: '???'}")

    def test_what_is_missing_in_a_component_is_asked_for_once_where_it_is_written(self, kitchen):
        stage = "stage: {_target_: @.Scale, by: '???'}\n"
        said = kitchen.problems(WIDE + stage + "stages: {a: '${stage}', b: '${stage}'}\n")
        assert "you must set this: stage.by=VALUE" in said and said.count("you must set") == 1


class TestBuild:
    def test_a_constructors_objection_gets_its_place(self, kitchen):
        with pytest.raises(RecipeError) as error:
            kitchen.build(WIDE + "stages:\n  one: {_target_: '@.Scale', by: 0}")
        lines = str(error.value).splitlines()
        assert lines[0] == "recipe.yaml:3:48  stages.one.by"
        assert lines[2].endswith(" ^ a scale of 0.0 forgets its input")

    def test_a_secret_is_not_shown_by_a_check_or_a_constructor(self, kitchen, monkeypatch):
        monkeypatch.setenv("PARTS_KEY", "hunter22")
        said = kitchen.problems(
            WIDE
            + "count: ${env:PARTS_KEY}\nduration: ${env:PARTS_KEY}\neither: 1\nflag: ${name}\nname: ${env:PARTS_KEY}"
        )
        assert "hunter22" not in said and said.count("${env:PARTS_KEY}") >= 2

    def test_a_component_that_several_places_refer_to_is_one_object(self, kitchen):
        text = WIDE + "stage: {_target_: '@.Scale', by: 2}\nstages: {a: '${stage}', b: '${stages.a}', c: {_target_: "
        job = kitchen.build(text + "'@.Scale', by: 2}}")
        assert job.stages["a"] is job.stage and job.stages["b"] is job.stage
        assert job.stages["c"] is not job.stage and kitchen.build(text + "'@.Scale', by: 2}}").stage is not job.stage

    def test_what_a_factory_refers_to_is_shared_and_what_stands_below_it_is_made_at_each_call(self, kitchen):
        job = kitchen.build(
            WIDE + "stages: {one: {_target_: '@.Scale', by: 2}}\n"
            "make: {_target_: '@.Three', first: '${stages.one}', second: {_target_: '@.Scale', by: 3}, "
            "third: '${make.second}'}\nstage: '${make.second}'"
        )
        first, second = job.make(), job.make()
        assert first.first is job.stages["one"] and second.first is job.stages["one"]
        assert first.third is first.second and second.second not in (first.second, job.stage)

    def test_a_value_from_the_command_line_says_so(self, kitchen):
        assert kitchen.problems(WIDE, "count=x").splitlines() == [
            "command line  count",
            "    count=x",
            '          ^ expected a whole number, got the text "x"',
        ]

    def test_the_text_that_is_kept_builds_the_same(self, kitchen):
        composed = kitchen.compose(
            WIDE + "count: ${seed}\nstage: {_target_: '@.Scale', by: 2}\nout: ${run_dir}/x", "seed=5"
        )
        again = kitchen.compose(composed.to_yaml())
        assert again.to_yaml() == composed.to_yaml()
        assert build(again, TRUST).count == 5 and build(again, TRUST).out == Path("runs/recipe/x")


def test_values_of_wide_cover_every_kind_of_slot(kitchen):
    """A typo in the other tests' keys would make them pass for the wrong reason."""
    assert kitchen.problems(WIDE) == ""


def test_yaml_of_another_framework_is_led_to_migrate(kitchen):
    assert "`nemo-vfm migrate FILE`" in kitchen.problems("trainer: {max_steps: 3}\nmodel: {}\n")
    assert "`nemo-vfm migrate FILE`" in kitchen.problems("_target_: nemo_automodel.Train\nstep_scheduler: {}\n")
    assert "migrate" not in kitchen.problems("_targt_: @.Wide\n")


def test_a_right_recipe_is_examined_once_and_a_wrong_one_each_time(kitchen, monkeypatch):
    """The class that a wrong one names may be there the next time."""
    examined = []
    root = Checker.root
    monkeypatch.setattr(Checker, "root", lambda self, node: examined.append(node) or root(self, node))
    for text, times in ((WIDE, 1), (WIDE + "count: ???\n", 1), (WIDE + "conut: 1\n", 3)):
        examined.clear()
        composed = kitchen.compose(text)
        found = [[problem.kind for problem in check(composed, TRUST)] for _ in range(3)]
        assert len(examined) == times and found[0] == found[1] == found[2]


def test_a_composed_recipe_is_built_with_what_the_environment_says_now(kitchen, monkeypatch):
    composed = kitchen.compose(WIDE + "name: ${env:PLACE}\n")
    for place in ("here", "there"):
        monkeypatch.setenv("PLACE", place)
        assert build(composed, TRUST).name == place


def test_what_is_built_twice_of_one_composed_recipe_is_two_objects(kitchen):
    composed = kitchen.compose(WIDE)
    assert build(composed, TRUST) is not build(composed, TRUST)
    check(composed, TRUST).append(None)
    assert check(composed, TRUST) == []
