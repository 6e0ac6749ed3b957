"""Tests that arguments far out of range are accepted or refused with a message, for every component of our recipes."""

import random
import time
from collections.abc import Iterator
from functools import cache

import pytest
import torch

from nemo_vfm.cli.catalogue.constructor_arguments import ABSENT, REQUIRED, describe, node_of
from nemo_vfm.config import Mark, RecipeError, Roots, SourceText, compose, trust_list
from nemo_vfm.config.build import make
from nemo_vfm.config.compose import RESERVED
from nemo_vfm.config.interpolate import resolve
from nemo_vfm.config.locate import locate
from nemo_vfm.config.recipe_check import Checker
from nemo_vfm.config.tree import TARGET, Map, Plain, Scalar, put, walk

ROOTS, TRUSTED = Roots.standard(), trust_list(["nemo", "piped", "model_code"])
MARK = Mark(SourceText("an extreme", (), is_file=False))
NUMBERS = (-(10**18), -1000, -1, 0, 10**6, 10**12, 10**18, 1e-300, 1e300, -1e300)
TEXTS = ("", "x" * 300, "a\x1b[31mb", "a\nb", "../..", "\u202ex", "9" * 300)
VALUES: tuple[Plain, ...] = (*NUMBERS, *TEXTS, None, True)


@cache
def components() -> dict[str, Map]:
    """Each class of ours that a recipe names, as the first recipe has it and with its defaults written out."""
    found: dict[str, Map] = {}
    for _, file in ROOTS.all_recipes():
        tree, _ = resolve(compose(file).root)
        for _, node in [("", tree.without(*RESERVED)), *walk(tree)]:
            if isinstance(node, Map) and (node.target() or "").startswith("nemo_vfm."):
                found.setdefault(node.target() or "", node)
    return {name: _whole(node) for name, node in found.items()}


def _whole(node: Map) -> Map:
    for argument in describe(locate(node.target() or "", TRUSTED), None):
        default = node_of(argument.default) if argument.default not in (ABSENT, REQUIRED) else None
        if default is not None and not argument.given and argument.name not in node.items:
            node = node.with_item(argument.name, default, MARK)
    for path, below in list(walk(node)):
        if isinstance(below, Scalar) and below.value == "???":
            node = put(node, path, Scalar("given-later", MARK), MARK)
    small = {"depth": 2, "blocks": 1}  # one block is built as another is
    for name in small.keys() & node.items.keys():
        node = node.with_item(name, Scalar(small[name], MARK), MARK)
    return node


def arguments(node: Map, prefix: str = "") -> Iterator[str]:
    """The addresses of the single values of a component, those of components inside it apart."""
    for key, below in node.items.items():
        if isinstance(below, Scalar) and key != TARGET:
            yield prefix + key
        elif isinstance(below, Map) and below.target() is None:
            yield from arguments(below, f"{prefix}{key}.")


def build(node: Map) -> bool:
    """Check and build a component, models on the meta device; whether it was taken."""
    checker = Checker(TRUSTED, ROOTS.targets)
    part = checker.node(node, locate(node.target() or "", TRUSTED), "", MARK)
    if checker.problems:
        return False
    with torch.device("meta"):
        try:
            make(part)
        except RecipeError as error:
            assert "\x1b" not in str(error) and len(str(error)) < 20_000
            return False
    return True


def tries(share: int) -> Iterator[tuple[str, str, Plain]]:
    """Every argument with so many of the values, other ones for each."""
    for name, node in components().items():
        for path in arguments(node):
            yield from ((name, path, value) for value in random.Random(f"{name} {path}").sample(VALUES, share))


@pytest.mark.parametrize("share", [1, pytest.param(len(VALUES), marks=pytest.mark.soak)])
@pytest.mark.slow
def test_every_extreme_is_taken_or_refused_in_a_sentence(share: int) -> None:
    wrong = []
    for name, path, value in tries(share):
        node = components()[name]
        try:
            build(put(node, path, Scalar(value, MARK), MARK))
        except Exception as error:
            wrong.append(f"{name} {path}={value!r:.40}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong[:40])


def test_the_components_are_taken_as_they_are() -> None:
    """Else nothing would be seen above: what is wrong already is refused whatever else is."""
    taken = [name for name, node in components().items() if build(node)]
    assert len(taken) > 0.8 * len(components()) > 60


TOO_MUCH = {
    "nemo_vfm.models.dit.DiT": {
        "depth": 10**9,
        "width": 10**18,
        "mlp_ratio": -1.0,
        "base_fps": -1.0,
        "rope_theta": 0.0,
    },
    "nemo_vfm.models.gpt.GPT": {"depth": 10**6, "vocab": 10**18, "head_dim": 10**12, "eps": -1.0},
    "nemo_vfm.models.autoencoder.CausalAutoencoder": {"blocks": 10**12, "widest": -1, "latent_channels": 10**12},
    "nemo_vfm.parallel.plan.plan.ParallelPlan": {"shard": 10**12, "tensor": 10**18},
    "nemo_vfm.synth.make_shapes.MakeVideos": {"crf": -1000, "fps": 10**12, "side_px": 10**6, "num_files": 10**12},
    "nemo_vfm.train.callbacks.preview.Preview": {"num_frames": -1, "height_px": 10**12, "fps": 0.0},
    "nemo_vfm.diffusion.sampler.Euler": {"steps": 10**12},
    "nemo_vfm.data.batching.bucket.Bucket": {"width": 10**12, "num_frames": 10**12},
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_could_never_be_built_or_drawn_is_refused_with_its_number_at_once(name: str) -> None:
    for path, value in TOO_MUCH[name].items():
        began = time.process_time()
        checker = Checker(TRUSTED, ROOTS.targets)
        node = put(components()[name], path, Scalar(value, MARK), MARK)
        part = checker.node(node, locate(name, TRUSTED), "", MARK)
        with pytest.raises(RecipeError, match=rf"{path} must be at (least|most) .* got {value:,}".replace("+", r"\+")):
            make(part)
        assert time.process_time() - began < 5, "before anything is built; far below a second on an idle machine"


@pytest.mark.parametrize("words, number", [
    (["check", "diffusion/train_small", "data.shards=x", "model.depth=1000000000", "--gpus", "8"], "1,000,000,000"),
    (["plan", "diffusion/dit_7b_8k", "model.depth=1000000", "--gpus", "8"], "1,000,000"),
    (["run", "synthetic/shapes", "crf=-1000"], "-1,000"),
    (["run", "synthetic/shapes", "fps=1000000000000"], "1,000,000,000,000"),
    (["check", "synthetic/shapes", f"seed={10**18}", "side_px=1000000"], "1,000,000"),
])  # fmt: skip
def test_a_verb_refuses_it_with_the_number(kitchen, capsys, words, number) -> None:
    assert kitchen.main(*words) == 2
    said = "".join(capsys.readouterr())
    assert f"got {number}" in said and "Traceback" not in said


def test_a_step_of_three_hundred_letters_is_refused(kitchen, capsys) -> None:
    kitchen.write(
        "r.yaml",
        f"_target_: nemo_vfm.workflow.Workflow\nsteps: {{{'x' * 300}: {{_target_: '@.Count', duration: 1 steps}}}}\n",
    )
    assert kitchen.main("run", "r.yaml") == 2
    said = capsys.readouterr().err
    assert "at most 100 letters" in said and "Traceback" not in said
