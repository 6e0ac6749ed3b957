"""Tests what `explain` says of components, and that `check` accepts the YAML that it prints."""

import ast
import json
import subprocess
import sys
from functools import cache
from itertools import combinations
from typing import get_origin

import pytest

from nemo_vfm.cli.catalogue import components
from nemo_vfm.cli.catalogue.components import (
    Catalogue,
    Slot,
    _own_texts,
    all_names,
    catalogue,
    full_names,
    named_in,
    own_classes,
)
from nemo_vfm.cli.catalogue.constructor_arguments import argument_texts, node_of, summary
from nemo_vfm.cli.catalogue.explain_component import yaml_text
from nemo_vfm.cli.main import main
from nemo_vfm.config import DEFAULT_TRUST, Problem, Roots, trust_list
from nemo_vfm.config.hints import is_protocol, signature
from nemo_vfm.config.interpolate import resolve
from nemo_vfm.config.locate import locate
from nemo_vfm.config.recipe_check import Checker
from nemo_vfm.config.slot_fit import member_names, required_methods
from nemo_vfm.config.tree import to_plain
from nemo_vfm.config.yaml_source import parse
from nemo_vfm.core.duration import Duration
from nemo_vfm.core.precision import Precision
from nemo_vfm.core.types.factory import Factory
from nemo_vfm.core.types.job import Job, made_by
from tests.support.recipe_folder import PARTS, ROOT

OURS = Roots.standard()


@cache
def found() -> Catalogue:
    return catalogue(OURS, DEFAULT_TRUST)


def judged(text: str, slot: Slot) -> list[Problem]:
    """What `check` says of YAML in a slot."""
    tree, problems = resolve(parse(text, "pasted"))
    hint = Factory[[object] * (slot.num_given or 0), slot.kind] if slot.later else slot.kind
    checker = Checker(DEFAULT_TRUST)
    checker.node(tree, hint, "pasted", tree.mark)
    return [*problems, *checker.problems]


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["explain", *words]) == 0
    return capsys.readouterr().out


def test_there_are_components_for_every_kind_of_job():
    reached = found().all_components()
    assert len(reached) > 40 and not found().left_out
    ours = {name for name in named_in(OURS) if not name.startswith("lightning.")}  # which nobody imports for this
    assert ours <= set(reached), "what a recipe names fills a slot"


def test_classes_are_compared_with_a_slot_once_and_method_by_method_only_if_they_have_its_names(monkeypatch):
    asked: list[tuple[object, object]] = []
    compared = components.fits
    found()
    components._makes.cache_clear()
    monkeypatch.setattr(components, "fits", lambda made, kind: bool(asked.append((made, kind))) or compared(made, kind))
    catalogue(OURS, DEFAULT_TRUST)
    assert asked and all(required_methods(kind) <= member_names(made) for made, kind in asked)
    compared_pairs = components._makes.cache_info()
    assert compared_pairs.hits < compared_pairs.misses, "a slot asked for by many was compared again and again"


def test_a_class_that_happens_to_have_a_method_of_that_name_is_no_component():
    names = {name.rpartition(".")[2] for name in found().all_components()}
    assert not names & {"RunFolder", "Shot", "Address", "LocalFolder"} and {"TensorBoard", "Sidecar"} <= names


def test_the_yaml_of_every_component_checks_in_every_slot_that_it_fits():
    """In one test: whoever collects the tests would search all of our classes to name each."""
    for name in found().all_components():
        text, slots = yaml_text(found(), name), found().slots_for(name)
        assert slots, name
        for slot in slots:
            problems = judged(text, slot)
            wrong = [problem.render() for problem in problems if problem.kind != "missing"]
            assert not wrong and len(problems) == text.count("???"), f"{name}: {wrong}"


@pytest.mark.parametrize("name", ["Train", "Sample", "Curate", "Workflow"])
def test_the_yaml_of_a_job_is_a_recipe(kitchen, capsys, name):
    kitchen.write("r.yaml", explained(capsys, name, "--yaml"))
    assert kitchen.main("check", "r.yaml") == 0
    assert "you must set this" in capsys.readouterr().out


def test_every_argument_of_ours_is_given_or_left_out_with_the_reason():
    ours = set(found().all_components()) & set(own_classes())
    assert len(ours) > 200
    for name in ours:
        text = yaml_text(found(), name)
        for argument in signature(found().known[name]).arguments:
            assert f"\n{argument}:" in text or f"\n# {argument}: given" in text, f"{name}\n{text}"


def test_a_component_is_explained_by_its_short_name_its_long_one_and_an_ingredient(capsys):
    short = explained(capsys, "DiT")
    assert short == explained(capsys, "nemo_vfm.models.dit.DiT")
    assert "number of blocks" in short and "depth: a whole number, default 12" in short
    assert "conf/model: " in short and "dit_b, " in short and "in_channels: ???" in short
    ingredient = explained(capsys, "model=dit_s")
    assert "DiT-S: 12 blocks of width 384." in ingredient and "heads: a whole number, default 6" in ingredient
    assert "in_channels: a whole number, required" in ingredient


def test_of_the_other_ingredients_those_are_listed_that_fit_the_slot_too(capsys):
    assert "conf/source: folder, table\n" in explained(capsys, "source=table")


def test_an_ingredients_values_stand_in_its_yaml(capsys):
    assert "depth: 28\n" in explained(capsys, "model=dit_xl", "--yaml")
    stages = explained(capsys, "stages=standard", "--yaml")
    assert "motion:\n  _target_: nemo_vfm.curate.score.motion.Motion\n" in stages


def test_what_the_job_gives_is_left_out_and_said(capsys):
    text = explained(capsys, "AdamW", "--yaml")
    assert "# params: given by the job" in text and "lr: 0.001" in text
    assert {p.kind for p in judged(text, next(s for s in found().slots if s.name == "optimizer"))} <= {"missing"}


def test_a_trusted_class_of_lightning_is_explained_too(capsys):
    assert "learning rate" in explained(capsys, "torch.optim.lr_scheduler.StepLR").lower()


def test_a_protocol_says_what_fills_it(capsys):
    text = explained(capsys, "Codec")
    assert "nemo_vfm.models.codec.WaveletCodec" in text and "codec of Denoise" in text


def test_a_slot_says_what_fills_it(capsys):
    text = explained(capsys, "optimizer")
    assert "torch.optim.AdamW" in text and "conf/optimizer: adamw" in text


def test_each_job_that_has_a_slot_of_that_name_has_its_own_components_below_it(capsys):
    _, of_videos, of_imports, of_logs = explained(capsys, "source").split("\n  source of ")
    assert of_videos.startswith("Curate\n  conf/source: folder, table\n") and "TextLog" not in of_videos
    for text, owner in ((of_imports, "ImportLog"), (of_logs, "Profile")):
        assert text.startswith(f"{owner}\n  conf/source: click_csv, click_parquet\n")
        assert "TextLog" in text and "TableSource" not in text and ("SessionLog" in text) == (owner == "Profile")
    told = json.loads(explained(capsys, "source", "--json"))
    assert [[slot["of"] for slot in one["slots"]] for one in told["places"]] == [["Curate"], ["ImportLog"], ["Profile"]]


def test_without_a_name_everything_is_listed_by_slot(capsys):
    text = explained(capsys)
    assert text.startswith("root, steps (Job)\n") and "  nemo_vfm.models.dit.DiT\n" in text
    listed = json.loads(explained(capsys, "--json"))
    assert {"kind", "slots", "components"} == set(listed[0])


def test_machines_get_json(capsys):
    told = json.loads(explained(capsys, "FlowMatching", "--json"))
    shift = next(a for a in told["arguments"] if a["name"] == "shift")
    assert shift["default"] == 1.0 and shift["type"] == "a number or a Shift"
    assert not shift["required"] and shift["text"]
    assert parse(told["yaml"], "x").target() == "nemo_vfm.diffusion.objective.FlowMatching"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("Dit", "did you mean DiT?"),
        ("nemo_vfm.models.dit.Dit", "did you mean DiT?"),
        ("os.system", "os.system is not trusted"),
        ("nemo_vfm.models.dit.torch.nn.Linear", "no module"),
        ("model=dit_z", "did you mean dit_"),
        ("modell=dit_s", "there is no folder conf/modell"),
        ("nothing at all", "there is no component"),
        ("modle", "did you mean model?"),
        ("WaveletCode", "did you mean WaveletCodec?"),
        ("MegatronPipelin", "did you mean MegatronPipeline?"),
        ("quickstart", "quickstart is a recipe: `nemo-vfm show quickstart`"),
    ],
)
def test_a_wrong_name_gets_a_sentence(capsys, word, message):
    assert main(["explain", word]) == 2
    assert message in capsys.readouterr().err


def test_nothing_is_imported_before_it_is_trusted(kitchen, capsys, monkeypatch):
    kitchen.write("stranger.py", "open('canary', 'w')\nclass Thing: ...\n")
    kitchen.write("conf/stage/mine.yaml", "_target_: stranger.Thing\n")
    monkeypatch.syspath_prepend(str(kitchen.folder))
    for words in (["stranger.Thing"], ["Thing"], ["stage=mine"], ["DiT"], []):
        main(["explain", *words])
    assert not (kitchen.folder / "canary").exists()
    assert main(["explain", "Thing", "--trust", "stranger"]) == 0
    assert (kitchen.folder / "canary").exists() and "_target_: stranger.Thing" in capsys.readouterr().out


def test_a_users_own_ingredients_and_classes_are_explained(kitchen, capsys):
    kitchen.write("mine/stage/twice.yaml", "# Twice as much.\n_target_: '@.Scale'\nby: 2\n")
    text = explained(capsys, "stage=twice", "--conf", "mine", "--trust", PARTS)
    assert "Twice as much." in text and "by: 2" in text and "one of exact, rounded" in text


@pytest.mark.parametrize("name", ["Wide", "Typed", "Limits", "Point", "Size", "Loose", "Both", "Trips"])
def test_annotations_of_every_kind_are_explained(capsys, name):
    text = explained(capsys, f"{PARTS}.{name}", "--trust", PARTS, "--yaml")
    trusted = trust_list([PARTS])
    kinds = catalogue(OURS, trusted, more=[f"{PARTS}.{name}"])
    tree = resolve(parse(text, "pasted"))[0]
    checker = Checker(trusted)
    checker.node(tree, kinds.known[f"{PARTS}.{name}"], "pasted", tree.mark)
    assert {p.kind for p in checker.problems} <= {"missing"}, [p.render() for p in checker.problems]


@pytest.mark.parametrize("name", ["Opaque", "Unreadable"])
def test_a_class_that_cannot_be_read_says_so_and_takes_no_other_with_it(capsys, name):
    assert main(["explain", f"{PARTS}.{name}", "--trust", PARTS]) == 2
    assert "cannot be" in capsys.readouterr().err
    kinds = catalogue(OURS, trust_list([PARTS]), more=[f"{PARTS}.{name}", f"{PARTS}.Wide"])
    assert "stages: null" in yaml_text(kinds, f"{PARTS}.Wide")


def test_a_name_of_two_classes_is_asked_back(kitchen, capsys):
    kitchen.write("conf/model/mine.yaml", "_target_: my_package.DiT\n")
    assert main(["explain", "DiT"]) == 2
    assert "  my_package.DiT\n  nemo_vfm.models.dit.DiT" in capsys.readouterr().err


def test_every_job_but_one_that_writes_where_its_argument_says_tells_what_it_makes():
    jobs = [name for name in found().components_for(Job) if name.startswith("nemo_vfm.")]
    assert len(jobs) > 30
    silent = {name.rpartition(".")[2] for name in jobs if not made_by(locate(name, DEFAULT_TRUST))}
    assert silent <= {"Workflow", "WriteEnergon", "Experiment"}


def test_only_components_that_are_meant_to_fit_two_unrelated_protocols():
    protocols = {get_origin(kind) or kind for kind in found().kinds() if is_protocol(kind)}
    assert len(protocols) > 50
    prompts = {"CaptionPrompts", "DemoPrompts", "HeldOutPrompts", "PromptList", "StoryPrompts"}
    shared: dict[frozenset[str], set[str]] = {}
    for one, other in combinations(protocols, 2):
        if one not in other.__mro__ and other not in one.__mro__:
            both = set(found().components_for(one)) & set(found().components_for(other))
            ours = {name.rpartition(".")[2] for name in both if name.startswith("nemo_vfm.")}
            shared[frozenset({one.__name__, other.__name__})] = ours
    assert {pair: names for pair, names in shared.items() if names} == {
        frozenset({"LearnedStage", "Compares"}): {"LearnedDuplicate"},
        frozenset({"ImportSource", "LogSource"}): {"CriteoTsv", "KuaiRandCsv", "ParquetLog", "TextLog"},
        frozenset({"Pipeline", "TaskSource"}): {"KeywordTasks", "TopicTasks"},
        # Two names of one thing: the rooms that ask for it do not import each other.
        frozenset({"PromptSource", "Prompts"}): prompts,
    }


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_prose_keeps_to_the_terminal(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    text = explained(capsys, "WarmupCosine")
    assert "\x1b" not in text, "no colours in a pipe"
    prose = [line for line in text.splitlines() if line.startswith("      ")]
    assert prose and max(map(len, prose)) <= max(int(columns), 40)


def test_docstrings_of_both_styles_are_read():
    from torch.optim import AdamW

    assert argument_texts(AdamW)["betas"].startswith("coefficients")
    assert summary(AdamW).startswith("Implements AdamW")

    class Nested:
        """One line
        and its end.

        Args:
            first: begins here
                and ends here: really.
            second (int, optional): of another style

        Raises:
            third: no argument.
        """

    assert argument_texts(Nested) == {"first": "begins here and ends here: really.", "second": "of another style"}
    assert summary(Nested) == "One line and its end."


def test_defaults_are_written_as_a_recipe_writes_them():
    assert to_plain(node_of((1, 2))) == [1, 2]
    assert to_plain(node_of(Duration(2, "epochs"))) == "2 epochs"
    assert to_plain(node_of(Precision("bf16"))) == {
        "_target_": "nemo_vfm.core.precision.Precision",
        "compute": "bf16",
        "fp8": None,
    }
    assert node_of(float("inf")) is None and node_of(object()) is None


@pytest.mark.slow  # a process that imports all but what is slow
def test_looking_at_everything_imports_no_slow_package_and_prints_nothing_else():
    verb = "import sys\nfrom nemo_vfm.cli.main import main\nmain(['explain', '--json'])\n"
    code = f"{verb}sys.exit(', '.join({{'lightning', 'megatron'}} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert not done.stderr.strip(), "Lightning costs some 5 s and Megatron-Core 3 s, and it warns of what is not there"
    listed = {group["slots"][0]: group["components"] for group in json.loads(done.stdout)}
    assert "torch.optim.AdamW" in listed["optimizer"], "whatever this process had imported before"


@pytest.mark.slow  # syntax trees of all files
def test_the_classes_that_are_found_are_those_of_the_syntax_trees_but_for_slow_modules():
    classes = [
        f"{module}.{node.name}"
        for module, text in _own_texts().items()
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert [name for name in classes if name in own_classes()] == list(own_classes())
    apart = {name.rpartition(".")[0] for name in set(classes) - set(own_classes())}
    assert "nemo_vfm.parallel.megatron.schedule" in apart and len(apart) < 30
    assert set(classes) <= set(all_names(OURS)), "those of slow modules have short names, too"


def test_short_names_are_found_without_importing_anything():
    assert full_names("DiT", OURS) == ["nemo_vfm.models.dit.DiT"]
    assert full_names("AdamW", OURS) == ["torch.optim.AdamW"]
    assert full_names("MegatronPipeline", OURS) == ["nemo_vfm.parallel.megatron.schedule.MegatronPipeline"]
