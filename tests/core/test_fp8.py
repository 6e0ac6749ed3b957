"""Tests which GPUs compute which FP8 recipe, and what a recipe that cannot run is told to use."""

import pytest

from nemo_vfm.core.fp8 import RECIPES, Fp8

AMPERE, ADA, HOPPER, BLACKWELL = (8, 0), (8, 9), (9, 0), (10, 0)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_gpu_without_fp8_is_told_to_use_bf16(recipe):
    assert "use precision=bf16" in (Fp8(recipe=recipe).objection_to(AMPERE) or "")


@pytest.mark.parametrize("capability", [ADA, HOPPER, BLACKWELL])
@pytest.mark.parametrize("recipe", ["current", "delayed", "rowwise"])
def test_scales_of_tensors_and_rows_have_hardware_everywhere(recipe, capability):
    assert Fp8(recipe=recipe).objection_to(capability) is None


def test_scales_of_blocks_have_hardware_on_hopper_and_not_for_e5m2():
    assert Fp8(recipe="block").objection_to(HOPPER) is None
    assert "leave precision.fp8.format out" in (Fp8(recipe="block", format="hybrid").objection_to(HOPPER) or "")


@pytest.mark.parametrize(("recipe", "capability", "said"), [
    ("mxfp8", HOPPER, "needs compute capability 10.0 to 11 (Blackwell), but this GPU's compute capability is 9.0"),
    ("block", BLACKWELL, "need compute capability 9.0 (Hopper)"), ("block", ADA, "(Hopper), but"),
    ("mxfp8", BLACKWELL, "still emulated"),
])  # fmt: skip
def test_scales_of_blocks_are_refused_with_the_reason_and_what_works(recipe, capability, said):
    why = Fp8(recipe=recipe).objection_to(capability)
    assert why is not None and said in why and "precision.fp8.recipe=rowwise" in why
