"""Tests what follows from whether the processor multiplies bfloat16, with both answers on any processor."""

import os
import re
import sys

import pytest
import torch

from nemo_vfm.core.device import has_fast_bf16
from nemo_vfm.core.errors import UserError
from nemo_vfm.core.precision import Precision
from tests.support import preloaded
from tests.support.repository import ROOT

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU answers for itself")


@pytest.mark.parametrize("instructions", ["avx512_bf16", "amx_bf16", "avx2"])
def test_without_a_word_of_the_user_the_processor_answers(instructions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NEMO_VFM_CPU_BF16")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {instructions: True})
    assert has_fast_bf16() == (instructions != "avx2")


def test_auto_computes_in_bf16_exactly_where_that_is_fast(fast_bf16: bool) -> None:
    dtype, reason = Precision("auto").resolve()
    assert (
        dtype == (torch.bfloat16 if fast_bf16 else torch.float32) and ("bfloat16 is slow here" in reason) != fast_bf16
    )
    assert Precision("auto").narrowest() == ("bf16" if fast_bf16 else "fp32")
    assert Precision("bf16").resolve()[0] == torch.bfloat16 and Precision("fp32").resolve()[0] == torch.float32


def test_another_word_than_0_or_1_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_VFM_CPU_BF16", "yes")
    with pytest.raises(UserError, match=r"NEMO_VFM_CPU_BF16 must be 1 .* not 'yes'"):
        has_fast_bf16()


@pytest.mark.slow
def test_models_and_trainings_pass_their_quick_tests_under_the_other_answer() -> None:
    other = "0" if os.environ["NEMO_VFM_CPU_BF16"] == "1" else "1"
    asks = re.compile("bf16|bfloat16|autocast|recision|golden")  # others compute in fp32 alone
    apart = ("convert", "hub", "lightning")  # and these compute nothing under our autocast
    files = [file for folder in ("models", "train") for file in (ROOT / "tests" / folder).rglob("test_*.py")
             if file.parent.name not in apart and asks.search(file.read_text())]  # fmt: skip
    assert len(files) > 12
    words = ["-x", "-p", "no:cacheprovider", "-m", "not slow and not cluster and not soak"]
    words = [sys.executable, "-m", "pytest", *words, *map(str, files)]
    done = preloaded.run(words, env=os.environ | {"NEMO_VFM_CPU_BF16": other}, timeout=580)
    assert done.returncode == 0, done.stdout[-3000:]
