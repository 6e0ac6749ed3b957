"""Tests that defaults, nested recipes and changes compose to trees with their places."""

import re

import pytest
import yaml

from nemo_vfm.cli.main import main
from nemo_vfm.config import RecipeError, Roots, compose
from nemo_vfm.config.interpolate import resolve
from nemo_vfm.config.tree import Scalar, find, to_plain, walk
from nemo_vfm.config.yaml_source import parse
from tests.support.recipe_folder import ROOT, TRUST


@pytest.fixture
def stocked(kitchen):
    kitchen.write("conf/stage/scale.yaml", "# scales\n_target_: @.Scale\nby: 2\n")
    kitchen.write("conf/stage/shift.yaml", "# shifts\n_target_: @.Shift\noffset: ${count}\n")
    return kitchen


def values(composed):
    return to_plain(parse(composed.to_yaml(), "composed"))


HEAD = "defaults: [{stage: scale}]\n_target_: @.Wide\ncount: 5\n"


def test_the_file_lies_on_top_of_its_defaults(stocked):
    assert values(stocked.compose(HEAD + "stage: {mode: rounded}"))["stage"] == {
        "_target_": "tests.support.parts.Scale",
        "by": 2,
        "mode": "rounded",
    }


def test_later_defaults_lie_on_top_of_earlier_ones(stocked):
    stocked.write("conf/stage/more.yaml", "by: 9\n")
    recipe = "defaults: [{stage: scale}, {stage: more}]\n_target_: @.Wide\n"
    assert values(stocked.compose(recipe))["stage"]["by"] == 9


def test_lists_and_values_replace(kitchen):
    kitchen.write("conf/a/b.yaml", "x: [1, 2, 3]\ny: {p: 1, q: 2}\nz: {p: 1}\n")
    found = values(kitchen.compose("defaults: [{a: b}]\na: {x: [4], y: {q: 3}, z: 5}"))["a"]
    assert found == {"x": [4], "y": {"p": 1, "q": 3}, "z": 5}


def test_another_class_replaces_and_keeps_no_argument_of_the_first(stocked):
    found = values(stocked.compose(HEAD + "stage: {_target_: '@.Shift', offset: 3}"))["stage"]
    assert found == {"_target_": "tests.support.parts.Shift", "offset": 3}


def test_the_order_of_steps_is_that_of_the_file_not_of_the_defaults(stocked):
    recipe = "defaults: [{steps.b.stage: scale}]\nsteps: {a: {x: 1}, b: {x: 1}, c: {x: 1}}"
    assert list(values(stocked.compose(recipe))["steps"]) == ["a", "b", "c"]
    stocked.write("conf/steps/base.yaml", "a: {x: 1}\nb: {x: 1}\nc: {x: 1}\n")
    recipe = "defaults: [{steps: base}]\nsteps: {d: {x: 1}, c: {x: 2}, a: {x: 2}}"
    assert list(values(stocked.compose(recipe))["steps"]) == ["a", "b", "c", "d"]


def test_a_dotted_slot_takes_the_folder_of_its_last_part(stocked):
    found = values(stocked.compose("defaults: [{steps.one.stage: scale}]\nsteps: {one: {x: 1}}"))
    assert found["steps"]["one"] == {"x": 1, "stage": {"_target_": "tests.support.parts.Scale", "by": 2}}


def test_an_ingredient_may_have_defaults_itself(stocked):
    stocked.write("conf/job/one.yaml", "defaults: [{stage: scale}]\nname: j\n")
    found = values(stocked.compose("defaults: [{job: one}]\n"))["job"]
    assert found["stage"]["by"] == 2 and found["name"] == "j"


def test_addresses_in_an_ingredient_count_from_the_root(stocked):
    found = values(stocked.compose("defaults: [{deep.stage: shift}]\ncount: 5"))
    assert found["deep"]["stage"]["offset"] == 5


class TestRecipeInRecipe:
    @pytest.fixture
    def nested(self, stocked):
        stocked.write(
            "recipes/inner.yaml",
            "run_dir: elsewhere\nseed: 99\n_target_: @.Wide\ncount: 7\ntwice: ${count}\nfrom: ${input}/x\n"
            "into: ${run_dir}/y\nlucky: ${seed}\nstage: ${model}\nmodel: {a: '${twice}'}\nhome: ${env:HOME}\n",
        )
        return stocked

    @pytest.mark.parametrize(
        "recipe",
        ["input: in\nsteps: {one: 'recipe:inner.yaml'}", "defaults: [{steps.one: 'recipe:inner.yaml'}]\ninput: in"],
    )
    def test_its_own_addresses_move_with_it_and_shared_ones_stay(self, nested, recipe):
        one = values(nested.compose(recipe, "run_dir=out", "seed=3"))["steps"]["one"]
        assert one["twice"] == 7 and one["stage"] == {"a": 7}
        assert (one["from"], one["into"], one["lucky"]) == ("in/x", "${run_dir}/y", 3)
        assert one["home"] == "${env:HOME}"
        assert "run_dir" not in one and "seed" not in one

    def test_the_outer_file_lies_on_top(self, nested):
        recipe = "defaults: [{steps.one: 'recipe:inner.yaml'}]\ninput: in\nsteps: {one: {count: 8}}"
        assert values(nested.compose(recipe))["steps"]["one"]["twice"] == 8

    def test_two_levels_move_twice(self, nested):
        nested.write(
            "recipes/middle.yaml", "_target_: m\nx: 4\nsteps: {in: 'recipe:inner.yaml'}\ny: ${steps.in.count}\n"
        )
        outer = values(nested.compose("input: in\nsteps: {mid: 'recipe:middle.yaml'}", "steps.mid.steps.in.count=1"))
        assert outer["steps"]["mid"]["y"] == 1
        assert outer["steps"]["mid"]["steps"]["in"]["twice"] == 1

    def test_an_ingredient_inside_it_is_swapped_from_the_command_line(self, nested):
        nested.write("recipes/cooked.yaml", "defaults: [{stage: scale}]\n_target_: @.Wide\ncount: 3\nstage: {}\n")
        found = values(nested.compose("steps: {one: 'recipe:cooked.yaml'}", "steps.one.stage=shift"))
        assert found["steps"]["one"]["stage"] == {"_target_": "tests.support.parts.Shift", "offset": 3}

    def test_a_step_is_swapped_for_a_recipe_from_the_command_line(self, nested):
        found = values(nested.compose("input: in\nsteps: {one: {x: 1}}", "steps.one=recipe:inner.yaml"))
        assert found["steps"]["one"]["count"] == 7

    def test_beside_the_file_comes_before_the_folder_of_recipes(self, nested):
        nested.write("sub/inner.yaml", "_target_: m\nhere: 1\n")
        file = nested.write("sub/outer.yaml", "steps: {one: 'recipe:inner.yaml'}\n")
        assert values(compose(file))["steps"]["one"]["here"] == 1


class TestChanges:
    def test_a_slot_takes_another_ingredient(self, stocked):
        found = values(stocked.compose(HEAD, "stage=shift"))["stage"]
        assert found == {"_target_": "tests.support.parts.Shift", "offset": 5}

    def test_a_swap_keeps_what_the_file_says_about_the_slot(self, stocked):
        stocked.write("conf/stage/half.yaml", "_target_: @.Scale\nby: 0.5\n")
        found = values(stocked.compose(HEAD + "stage: {mode: rounded}", "stage=half"))["stage"]
        assert (found["by"], found["mode"]) == (0.5, "rounded")

    def test_a_swap_wins_over_a_component_that_the_file_writes_out(self, stocked):
        recipe = HEAD + "stage: {_target_: '@.Scale', by: 7}"
        assert values(stocked.compose(recipe, "stage=shift"))["stage"]["_target_"].endswith("Shift")
        assert values(stocked.compose("stage: {_target_: x.Y}\ncount: 2", "stage=shift"))["stage"]["offset"] == 2

    def test_a_swap_comes_first_whatever_the_order(self, stocked):
        found = values(stocked.compose(HEAD, "stage.offset=8", "stage=shift"))["stage"]
        assert found["offset"] == 8

    def test_a_dotted_value_is_not_a_swap_where_a_plain_value_stands(self, stocked):
        found = values(stocked.compose("a: {stage: text}", "a.stage=scale"))
        assert found["a"]["stage"] == "scale"

    @pytest.mark.parametrize("stage", ["'@.Scale'", "'???'"])
    def test_a_word_is_a_choice_only_where_its_argument_takes_a_component(self, stocked, stage):
        for slot in ("mode", "name", "height"):
            stocked.write(f"conf/{slot}/exact.yaml", "_target_: @.Scale\n")
        recipe = f"_target_: '@.Wide'\nmake: {{_target_: {stage}, by: 3}}\nlater: null\n"
        words = ["stage=scale", "name=exact", "make._target_=@.Scale", "make.mode=exact", "size.height=exact"]
        words = [word.replace("@", "tests.support.parts") for word in words]
        found = values(compose(stocked.write("recipe.yaml", recipe), words, trust=TRUST))
        assert found["stage"]["by"] == 2, "it takes a component"
        assert found["name"] == found["make"]["mode"] == found["size"]["height"] == "exact"

    @pytest.mark.parametrize(
        ("recipe", "address", "word"),
        [
            ("nemo_vfm.train.lightning_fit.LightningFit", "trainer.precision", "bf16"),
            ("nemo_vfm.curate.job.Curate\ncaptions: {a: {_target_: nemo_vfm.curate.caption.vlm_captioner."
             "HuggingFaceCaptioner}}", "captions.a.precision", "bf16"),
        ],
    )  # fmt: skip
    def test_the_word_for_a_precision_is_no_ingredient_where_a_text_is_asked_for(self, kitchen, recipe, address, word):
        composed = kitchen.compose(f"_target_: {recipe}\n", f"{address}={word}")
        assert find(composed.root, address).value == word

    @pytest.mark.parametrize(
        ("word", "value"),
        [
            ("a.b=3", 3),
            ("a.b=1e-3", 1e-3),
            ("a.b=x=y", "x=y"),
            ("a.b=one: two #3", "one: two #3"),
            ("a.b=", None),
            ("a.b='3'", "3"),
            ("a.b=[1, x]", [1, "x"]),
            ("a.b={c: 2}", {"c": 2}),
            ("a.b=yes", "yes"),
            ("a.b=*x", "*x"),
            ("a.b=!!str x", "!!str x"),
            ("a.new.deep=1", None),
        ],
    )
    def test_a_value_is_read_like_yaml(self, kitchen, word, value):
        found = values(kitchen.compose("a: {b: 1}", word))["a"]
        assert found == {"b": 1, "new": {"deep": 1}} if "new" in word else found["b"] == value

    def test_a_mapping_merges(self, kitchen):
        assert values(kitchen.compose("a: {b: 1, c: 2}", "a={c: 3}"))["a"] == {"b": 1, "c": 3}

    @pytest.mark.parametrize("word", ["size={}", "deep={size: {}}", "deep={count: 2, size: {}}", "deep.size={}"])
    def test_an_empty_mapping_over_a_filled_one_is_refused_with_the_words_that_empty_it(self, kitchen, word):
        recipe = "size: {width: 3}\ndeep: {size: {width: 3}, count: 1}\n"
        with pytest.raises(RecipeError, match=r"changes nothing here \(width\)") as refused:
            kitchen.compose(recipe, word)
        remedy = re.search(r": (~\S+) (\S+) empties it", str(refused.value))
        emptied = values(kitchen.compose(recipe, remedy[1], remedy[2]))
        assert {} in (emptied["size"], emptied["deep"]["size"])

    def test_an_empty_mapping_is_a_value_where_it_changes_something(self, kitchen):
        recipe = "size: {}\nstage: {_target_: '@.Shift', more: {width: 3}}\n"
        found = values(kitchen.compose(recipe, "size={}", "other={}", "stage={_target_: '@.Scale', more: {}}"))
        assert (found["size"], found["other"], found["stage"]["more"]) == ({}, {}, {})

    def test_a_part_is_removed(self, kitchen):
        assert values(kitchen.compose("a: {b: 1, c: 2}", "~a.b"))["a"] == {"c": 2}

    @pytest.mark.parametrize(
        ("word", "words"),
        [
            ("~a.bb", "there is no a.bb to remove; did you mean a.b?"),
            ("a.b.c=1", "a.b is a single value, so it has no c"),
            ("a.l.0=1", "a.l is a list, and a list can only be set as a whole: a.l=[...]"),
            ("word", "not a change"),
            ("a..b=1", "not an address"),
            ("=1", "not an address"),
            ("a.b=[1", "not valid YAML"),
            ("a.l=[The", "quote a change that contains spaces"),
            ("a.m={x:", "quote a change that contains spaces"),
            ("a.b=010", "begins with a zero"),
            ("a.i.x=1", "a.i is ${a.m}; change that instead"),
            ("stage=scal", "conf/stage holds scale, shift; did you mean scale?"),
            ("a.b=x\u202ey", "invisible"),
        ],
    )
    def test_a_change_that_cannot_be_made_says_why(self, stocked, word, words):
        with pytest.raises(RecipeError) as error:
            stocked.compose("a: {b: 1, l: [1], m: {x: 1}, i: '${a.m}'}\nstage: {_target_: x.Y}", word)
        assert words in str(error.value) and "command line" in str(error.value)

    def test_only_choices_that_fit_the_slot_are_offered(self):
        """Folders of one name hold what other jobs read, too: conf/source has videos, and logs of clicks."""
        with pytest.raises(RecipeError, match="holds click_csv, click_parquet; did you mean click_csv"):
            compose("recommendation/dlrm_log", ["steps.import.source=click_tsv"])
        with pytest.raises(RecipeError, match="folder, table; did you mean table"):
            compose("curation/clips", ["source=tabel"])


class TestBuildsOn:
    def test_a_recipe_that_changes_nothing_is_the_one_that_it_builds_on(self, kitchen):
        names = [name for name, _ in Roots.standard().all_recipes()]
        assert len(names) > 50
        for name in names[::4]:
            derived = kitchen.write("derived.yaml", f"defaults: ['recipe:{name}']\n")
            assert values(compose(derived)) == {**values(compose(name)), "run_dir": "runs/derived"}

    @pytest.fixture
    def base(self, stocked):
        stocked.write("recipes/deep/base.yaml", "# Base.\nseed: 3\nrun_dir: here\n" + HEAD + "stage: {by: 3}\n")
        stocked.write(
            "recipes/deep/derived.yaml", "# Ours.\ndefaults: ['recipe:base']\ncount: 6\nstage: {mode: rounded}"
        )
        return stocked

    def test_it_keeps_what_it_does_not_change_and_a_run_folder_of_its_own(self, base):
        found = values(base.compose("defaults: [recipe:deep/derived]\nrate: 2.0"))
        assert (found["count"], found["rate"], found["seed"], found["run_dir"]) == (6, 2.0, 3, "runs/recipe")
        assert found["stage"] == {"_target_": "tests.support.parts.Scale", "by": 3, "mode": "rounded"}

    def test_a_choice_of_the_command_line_wins_over_both(self, base):
        written_out = "defaults: [recipe:deep/derived]\nstage: {_target_: '@.Scale', by: 9}\n"
        for text in ("defaults: [recipe:deep/derived]", written_out):
            found = values(base.compose(text, "stage=shift"))["stage"]
            assert (found["_target_"], found["offset"]) == ("tests.support.parts.Shift", 6)

    def test_it_can_be_a_step(self, base):
        found = values(base.compose("steps: {one: 'recipe:deep/derived'}", "steps.one.stage=shift"))["steps"]["one"]
        assert (found["count"], found["stage"]["offset"]) == (6, 6)

    def test_a_mistake_names_both_files(self, base):
        base.write("recipes/deep/base.yaml", "_target_: @.Wide\nconut: 3\n")
        said = base.problems("defaults: [recipe:deep/derived]")
        assert "recipes/deep/base.yaml:2:1  conut" in said
        assert "(included from recipes/deep/derived.yaml:2, from recipe.yaml:1)" in said

    def test_show_names_both_files_and_a_flat_copy_is_the_same(self, base, capsys):
        assert main(["show", "deep/derived"]) == 0
        shown = capsys.readouterr().out
        assert re.search(r"count: 6 +# recipes/deep/derived.yaml:3", shown)
        assert re.search(r"by: 3 +# recipes/deep/base.yaml:\d", shown)
        assert main(["copy", "deep/derived", "flat.yaml", "--flat"]) == 0
        assert main(["copy", "deep/derived", "elsewhere/copy.yaml"]) == 0
        derived = values(compose("deep/derived"))
        base.write("recipes/deep/derived.yaml", "_target_: gone")
        for copy in ("flat", "elsewhere/copy"):
            assert values(compose(copy)) == {**derived, "run_dir": f"runs/{copy.rpartition('/')[2]}"}

    def test_a_recipe_of_the_same_name_builds_on_ours(self, kitchen):
        name = "world_model/lora"
        own = kitchen.write(f"recipes/{name}.yaml", f"defaults: [recipe:{name}]\nloop: {{duration: 3 steps}}\n")
        assert compose(name).path.resolve() == own.resolve()
        ours = values(compose(ROOT / f"recipes/{name}.yaml"))
        assert values(compose(name)) == {**ours, "loop": {**ours["loop"], "duration": "3 steps"}}

    @pytest.mark.slow
    def test_runs_of_a_sweep_are_of_the_whole(self, base):
        base.write("mine.yaml", "defaults: [recipe:deep/derived]\nname: mine\n")
        done = base.command("run", "mine.yaml", "--sweep", "count=1,2")
        assert done.returncode == 0, done.stderr
        kept = [values(compose(file)) for file in sorted(base.folder.glob("runs/mine-sweep/*/recipe.yaml"))]
        assert [(one["count"], one["name"], one["stage"]["by"]) for one in kept] == [(1, "mine", 3), (2, "mine", 3)]

    def test_those_that_build_on_one_another_are_refused(self, base):
        base.write("recipes/deep/base.yaml", "defaults: [recipe:deep/derived]\n")
        with pytest.raises(RecipeError, match=r"derived.yaml -> recipes/deep/base.yaml -> recipes/deep/derived.yaml"):
            compose("deep/derived")


class TestReserved:
    def test_they_have_defaults(self, kitchen):
        composed = kitchen.compose("_target_: @.Wide\nname: ${run_dir}-${seed}")
        assert (str(composed.run_dir), composed.seed) == ("runs/recipe", 0)

    def test_they_are_set_in_the_file_and_on_the_command_line(self, kitchen):
        composed = kitchen.compose("seed: 3\nrun_dir: here/${seed}", "seed=4")
        assert (str(composed.run_dir), composed.seed) == ("here/4", 4)

    @pytest.mark.parametrize(
        "word", ["seed=a", "seed=-1", "seed=9223372036854775808", "seed=1.5", "seed=true", "run_dir=[1]", "run_dir=7"]
    )
    def test_what_they_cannot_be_is_said_before_anything_runs(self, kitchen, word):
        wrong = r"seed must be at least 0 and below 2\^63|must be a whole number|must be a path"
        with pytest.raises(RecipeError, match=wrong):
            _ = kitchen.compose("a: 1", word).seed, kitchen.compose("a: 1", word).run_dir
        key, _, text = word.partition("=")
        for said in (
            kitchen.problems("_target_: @.Quiet", word),
            kitchen.problems(f"_target_: @.Quiet\n{key}: {text}"),
        ):
            assert re.search(wrong, said)


class TestIncludes:
    def test_a_cycle_is_drawn(self, kitchen):
        kitchen.write("conf/a/one.yaml", "defaults: [{a: two}]\n")
        kitchen.write("conf/a/two.yaml", "defaults: [{a: one}]\n")
        with pytest.raises(RecipeError, match=r"one.yaml -> conf/a/two.yaml -> conf/a/one.yaml"):
            kitchen.compose("defaults: [{a: one}]")

    def test_a_recipe_that_holds_itself_is_refused(self, kitchen):
        with pytest.raises(RecipeError, match=r"include each other: recipe.yaml -> recipe.yaml"):
            kitchen.compose("steps: {a: 'recipe:recipe.yaml'}")

    def test_a_chain_of_a_thousand_is_refused(self, kitchen):
        for number in range(1000):
            kitchen.write(f"conf/a/n{number}.yaml", f"defaults: [{{a: n{number + 1}}}]\n")
        with pytest.raises(RecipeError, match="more than 20 levels deep"):
            kitchen.compose("defaults: [{a: n0}]")

    def test_only_ingredients_that_fit_a_slot_are_suggested_for_it(self, stocked):
        stocked.write("conf/stage/scalar.yaml", "_target_: @.Quiet\n")
        wide = "_target_: @.Wide\nstage: {_target_: '@.Shift'}\n"
        with pytest.raises(RecipeError, match=r"conf/stage holds scale, shift; did you mean scale\?"):
            compose(stocked.write("recipe.yaml", wide), ["stage=scalr"], trust=TRUST)
        assert "conf/stage holds scale, shift; did you mean scale?" in stocked.problems(
            "_target_: @.Wide\nstage: scalr"
        )

    def test_a_word_that_an_argument_takes_stands_in_the_place_of_a_component(self, stocked):
        typed = stocked.write("recipe.yaml", "_target_: @.Typed\nsent: {a: 1}\nlevel: {a: 1}\n")
        found = values(compose(typed, ["sent=huge", "level=top"], trust=TRUST))
        assert (found["sent"], found["level"]) == ("huge", "top")

    @pytest.mark.parametrize("text", ["${size}", "???"])
    def test_a_reference_and_a_missing_value_stand_in_the_place_of_a_component(self, stocked, text):
        wide = stocked.write("recipe.yaml", "_target_: @.Wide\nsize: {width: 1}\nstage: {_target_: '@.Shift'}\n")
        assert find(compose(wide, [f"stage={text}"], trust=TRUST).root, "stage").value == text

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("lora", "did you mean world_model/lora?"),
            ("recipes/lora.yaml", "did you mean world_model/lora?"),
            ("synthetic/lora", "did you mean world_model/lora?"),
            ("lroa", "did you mean world_model/lora?"),
            ("open_qa", "did you mean synthetic/open_qa?"),
            ("destripe", "did you mean curation/destripe or restore/destripe?"),
            ("curation/clip", "did you mean curation/clips?"),
            ("qqqqqqq", "`nemo-vfm list`"),
        ],
    )
    def test_the_short_name_of_a_recipe_and_a_slip_of_it_are_answered_with_the_whole_name(self, kitchen, name, words):
        with pytest.raises(RecipeError) as error:
            compose(name)
        assert words in str(error.value)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            (
                "defaults: [{stage: scal}]",
                "there is no conf/stage/scal.yaml: conf/stage holds scale, shift; did you mean scale?",
            ),
            ("defaults: [{stag: x}]", "there is no folder conf/stag"),
            ("defaults: {stage: scale}", "must be a list such as"),
            ("defaults: [{a: b, c: d}]", "one {slot: choice}"),
            ("defaults: [{stage: 3}]", "must be a name"),
            ("defaults: [{stage: ../../x}]", "there is no"),
            ("defaults: [{stage: /etc/passwd}]", "there is no"),
            ("steps: {a: 'recipe:https://x.org/r.yaml'}", "not a path; recipes are read from files only"),
            ("steps: {a: 'recipe:nowhere.yaml'}", "there is no recipe nowhere.yaml"),
            ("steps: ['recipe:conf/stage/scale.yaml']", "cannot be an item of a list"),
        ],
    )
    def test_what_cannot_be_included_says_why(self, stocked, text, words):
        with pytest.raises(RecipeError) as error:
            stocked.compose(text)
        assert words in str(error.value) and "recipe.yaml:1:" in str(error.value)


def test_a_missing_recipe_is_suggested(kitchen):
    kitchen.write("recipes/quick.yaml", "_target_: a.B\n")
    with pytest.raises(RecipeError, match="did you mean quick"):
        compose("quik")
    assert compose("quick").path.name == "quick.yaml"


def test_the_users_folders_come_first(kitchen, tmp_path):
    kitchen.write("conf/stage/x.yaml", "from: working directory\n")
    mine = kitchen.write("mine/stage/x.yaml", "from: option\n")
    file = kitchen.write("r.yaml", "defaults: [{stage: x}]\n")
    assert to_plain(compose(file).root)["stage"]["from"] == "working directory"
    assert to_plain(compose(file, [], [mine.parents[1]]).root)["stage"]["from"] == "option"


def test_show_names_the_place_of_every_value(stocked):
    shown = stocked.compose(HEAD + "name: x-${count}\nhome: ${env:HOME}", "stage.mode=rounded").show()
    for line in (
        "  by: 2 * # conf/stage/scale.yaml:3",
        "count: 5 *# recipe.yaml:3",
        "  mode: rounded *# command line",
        r"name: x-5 *# recipe.yaml:4 x-\$\{count\}",
        r"home: \$\{env:HOME\} *# recipe.yaml:5",
        "seed: 0 *# default of every recipe",
    ):
        assert re.search(line, shown), f"{line}\n{shown}"


@pytest.mark.parametrize("width", [40, 60, 80, 120, None])
def test_places_stand_in_one_column_or_all_below_and_the_text_reads_back(stocked, width):
    composed = stocked.compose(HEAD + f"name: {'x' * 90}\n")
    shown = composed.show(width)
    lines = shown.splitlines()
    columns = {line.index("  # ") for line in lines if "  # " in line}
    behind = [line.strip().startswith("# ") for line in lines if "  # " in line]
    assert len(columns) == 1 or all(behind)
    assert yaml.safe_load(shown) == yaml.safe_load(composed.to_yaml())
    if width is not None:
        assert all(len(line) <= width for line in lines if "xxx" not in line) or all(behind)


def test_what_the_user_typed_is_typed_in_every_process_that_reads_the_composed_recipe(kitchen, monkeypatch):
    monkeypatch.setenv("SOMEWHERE", "/there")
    text = ("_target_: @.Wide\nplain: {a: 1, b: [1], e: ''}\nref: ${plain.a}\nall: ${plain.b}\nmixed: ${plain.a}/x\n"
            "own: {x: {p: 1}, y: 2, z: '${env:SOMEWHERE}'}\nlist: ['${plain.a}', 7]\nrun_dir: runs/a\n")  # fmt: skip
    typed = ("plain.a=2", "plain.b=[1, {c: 'x: ]'}]", "plain.e='[a'", "own.x={p: '${env:SOMEWHERE}/it', q: null}",
             "new.w=${run_dir}/deep")  # fmt: skip
    first = kitchen.compose(text, *typed)
    again = compose(kitchen.write("again.yaml", first.to_yaml()), first.typed_words())

    def marks(composed):
        tree = resolve(composed.root)[0]
        return {path: (node.value, node.is_typed) for path, node in walk(tree) if isinstance(node, Scalar)}

    found = marks(first)
    assert [path for path, (_, typed) in found.items() if typed] == [
        "plain.a", "plain.b.0", "plain.b.1.c", "plain.e", "ref", "all.0", "all.1.c", "own.x.p", "own.x.q", "list.0",
    ]  # fmt: skip
    assert found["mixed"] == ("2/x", False), "the recipe wrote a part of it"
    assert found["new.w"] == ("runs/a/deep", False), "the folder is the recipe's"
    # An item of a list cannot be typed alone, and ${run_dir} follows a folder that is moved.
    different = {"list.0", "new.w"}
    assert {k: v for k, v in marks(again).items() if k not in different} == {
        k: v for k, v in found.items() if k not in different
    }


def test_a_reference_to_what_was_typed_elsewhere_is_not_typed_here(kitchen):
    tree = resolve(kitchen.compose("a: 1\nb: ${a}\nc: 3\n", "a=2", "c=${a}").root)[0]
    assert {key: node.is_typed_here for key, node in tree.items.items() if key in "abc"} == {
        "a": True, "b": False, "c": True,
    }  # fmt: skip
