"""Tests that each component declares the optional packages that its code reaches, and who repeats what it declares."""

import ast
import re
from functools import cache
from itertools import product
from typing import Any, get_args

import pytest
from packaging.requirements import Requirement

from nemo_vfm.cli.catalogue.components import catalogue
from nemo_vfm.config import Roots, compose, needs, trust_list
from nemo_vfm.config.locate import GUARDED
from nemo_vfm.config.roots import header
from nemo_vfm.core.optional import EXTRAS, declared_packages, needed_packages
from nemo_vfm.core.types.media_types import Decoder
from tests.support.package_users import is_ours, reached
from tests.support.repository import ROOT, nodes, python_files, tree, where, yaml_files

#: What a component reaches and does not declare itself: (component or "", package) -> why.
ELSEWHERE = {
    ("", "numba"): "torch's operators do the same",
    ("", "transformer_engine"): "Fp8 declares it, where its kernels are chosen",
    ("", "decord"): "training data declares it, where its decoder is chosen; nothing else names one",
    ("", "torchcodec"): "training data declares it, where its decoder is chosen; nothing else names one",
    ("nemo_vfm.text.train_tokenizer.TrainTokenizer", "sentencepiece"): "its learner declares it",
    ("nemo_vfm.train.job.Train", "tokenizers"): "transformers brings it",
    ("nemo_vfm.synth.sample_videos.Sample", "tokenizers"): "transformers brings it",
}
#: Where what others reach, too, is chosen.
CHOOSERS = {
    "nemo_vfm.core.fp8.Fp8",
    *(f"nemo_vfm.data.sources.{name}" for name in ("piped.PipedTars", "shard_data.ShardData", "streamed.StreamedTars",
                                                   "video_folder.VideoFolder", "video_table.VideoTable")),
}  # fmt: skip
TRUST = trust_list(sorted(set(GUARDED.values())))


@cache
def components() -> dict[str, object]:
    """Every component of ours that fills a slot, by name."""
    found = catalogue(Roots.standard(), TRUST)
    assert not found.left_out
    return {name: found.known[name] for name in found.all_components() if is_ours(name)}


@cache
def setup_lists() -> dict[str, Any]:
    """The lists of setup.py, without setting anything up."""
    wanted = ("RUNTIME", "DEV", "EXTRAS")
    body = [node for node in tree(ROOT / "setup.py").body
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in wanted]  # fmt: skip
    found: dict[str, Any] = {}
    exec(compile(ast.Module(body, []), "setup.py", "exec"), found)
    return found


def modules_of(lines: list[str]) -> set[str]:
    """What packages are called where they are imported, for those that are called after themselves."""
    return {Requirement(line).name.lower().replace("-", "_") for line in lines}


def extras_of(recipe) -> set[str]:
    """What the components of a recipe declare."""
    found = needs(compose(recipe), TRUST)
    return {EXTRAS[module.partition(".")[0]] for _, need in found for module in need.modules}


def test_each_component_declares_what_its_code_reaches_and_nothing_else():
    assert len(components()) > 200
    wrong = {}
    for name, component in components().items():
        own = {module.partition(".")[0] for need in declared_packages(component) for module in need.modules}
        expected = {one for one in reached(name) & EXTRAS.keys() if not {("", one), (name, one)} & ELSEWHERE.keys()}
        if own != expected and name not in CHOOSERS:
            wrong[name] = f"declares {sorted(own)}, and its code reaches {sorted(expected)}"
    assert not wrong


def test_a_decoder_that_an_extra_brings_is_declared_where_it_is_chosen_and_none_is_needed_otherwise():
    choosers = [components()[name] for name in sorted(CHOOSERS) if name.startswith("nemo_vfm.data.sources.")]
    for component, decoder in product(choosers, get_args(Decoder)):
        wanted = {module for need in needed_packages(component, {"decoder": decoder}) for module in need.modules}
        assert wanted == {decoder} & EXTRAS.keys(), (component, decoder)
    assert not {*get_args(Decoder)} & modules_of(setup_lists()["RUNTIME"]) and {"decord"} <= EXTRAS.keys()


def test_no_exception_is_idle():
    users = {name: reached(name) for name in components()}
    assert not [key for key in ELSEWHERE
                if not any(key[1] in found for name, found in users.items() if key[0] in ("", name))]  # fmt: skip


def test_what_is_required_comes_with_an_extra_or_with_us():
    ours = modules_of(setup_lists()["RUNTIME"])
    packages = {
        node.args[0].value.partition(".")[0]: where(path, node)
        for path in python_files("nemo_vfm")
        for node in nodes(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "require" and isinstance(node.args[0], ast.Constant)
    }
    assert len(packages) > 15
    assert not {one: place for one, place in packages.items() if one not in {*EXTRAS, *ours, "triton"}}


@pytest.mark.parametrize(("module", "extra"), sorted(EXTRAS.items()))
def test_the_extra_of_a_module_brings_it(module, extra):
    names = modules_of(setup_lists()["EXTRAS"][extra])
    assert any(name in (module, f"{module}_core", f"{module}_skinny", f"{module}_toolkit") for name in names), names


@pytest.mark.parametrize("recipe", [str(path.relative_to(ROOT)) for path in yaml_files("recipes")])
def test_a_recipe_tells_on_top_which_extras_its_components_declare(recipe):
    assert set(header(ROOT / recipe).extras) == extras_of(ROOT / recipe), 'write "Extras: NAME, NAME." in its header'


def test_the_image_holds_the_extras_of_all_recipes_but_those_for_nemo():
    wanted = set().union(*(extras_of(path) for path in yaml_files("recipes"))) - {"nemo"}
    found = re.search(r"^ARG EXTRAS=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert found and found[1] == ",".join(sorted(wanted))
