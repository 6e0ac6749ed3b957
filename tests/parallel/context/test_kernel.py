"""Tests kernels against torch's own attention: values, lse, gradients, and the memory they keep."""

import logging
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from nemo_vfm.core.errors import UserError
from nemo_vfm.parallel.context.attend import attend
from nemo_vfm.parallel.context.kernel import Gradients, MathAttention, RunningSoftmax, TiledKernel
from nemo_vfm.parallel.context.kernel_choice import CpuFlash, _verify_kernel, choose_kernel
from nemo_vfm.parallel.context.scheme import Scheme
from nemo_vfm.parallel.context.tiles import local_spans, tiles
from nemo_vfm.parallel.context.varlen_batching import VarlenBatch

SEGMENTS = (3, 6, 1, 2)


class OneByOne:
    """Sequences of unequal lengths as a GPU kernel takes them, one after another by the plain formula."""

    calls = 0

    def forward(self, q, k, v, lengths):
        OneByOne.calls += 1
        parts = [MathAttention().forward(*self.tile(q_rows, q), *self.tile(k_rows, k, v), lengths.diagonal)
                 for q_rows, k_rows in self.rows(lengths)]  # fmt: skip
        out = torch.cat([self.rows_first(out) for out, _ in parts])
        return out, torch.cat([lse[0] for _, lse in parts], 1)

    def backward(self, do, q, k, v, out, lse, lengths):
        parts = [
            MathAttention().backward(*self.tile(q_rows, do, q), *self.tile(k_rows, k, v), *self.tile(q_rows, out),
                                     lse[None, :, q_rows], lengths.diagonal)
            for q_rows, k_rows in self.rows(lengths)
        ]  # fmt: skip
        return tuple(torch.cat([self.rows_first(part) for part in of_one]) for of_one in zip(*parts, strict=True))

    @staticmethod
    def rows(lengths):
        ends = [x.tolist() for x in (lengths.q_ends_N1, lengths.k_ends_N1)]
        runs = [[slice(*pair) for pair in pairwise(x)] for x in ends]
        assert lengths.q_ends_N1.dtype == torch.int32
        assert (lengths.q_most, lengths.k_most) == tuple(max(run.stop - run.start for run in x) for x in runs)
        return list(zip(*runs, strict=True))

    @staticmethod
    def tile(rows, *tensors):
        return [x[rows].transpose(0, 1)[None] for x in tensors]

    @staticmethod
    def rows_first(x):
        return x[0].transpose(0, 1)


KERNELS = [TiledKernel(MathAttention()), TiledKernel(CpuFlash()), VarlenBatch(OneByOne())]
NAMES = ("plain", "cpu", "together")


def drawn(heads=4, kv_heads=2, length=12, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, n, length, 8, generator=generator, dtype=dtype) for n in (heads, kv_heads, kv_heads, heads)]


def mask(causal):
    owner = torch.repeat_interleave(torch.tensor(SEGMENTS))
    seen = owner[:, None] == owner[None, :]
    return seen.tril() if causal else seen


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", KERNELS, ids=NAMES)
def test_a_kernel_gives_torchs_values_gradients_and_the_lse(kernel, causal):
    q, k, v, do = drawn()
    seen = tiles(((0, 12),), ((0, 12),), SEGMENTS, causal)
    running, sums = RunningSoftmax(q), Gradients(q, k)
    kernel.forward(q, k, v, seen, running)
    out, lse = running.result()
    kernel.backward(do, q, k, v, out, lse, seen, sums)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    expected = F.scaled_dot_product_attention(*inputs, attn_mask=mask(causal), enable_gqa=True)
    gradients = torch.autograd.grad(expected, inputs, do)
    scores = (q @ k.repeat_interleave(2, 1).mT / 8**0.5).masked_fill(~mask(causal), float("-inf"))
    torch.testing.assert_close(out, expected.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(lse, scores.logsumexp(3).detach(), rtol=0, atol=1e-12)
    for found, right in zip((sums.q_BHSD, *sums.kv_2BKLD), gradients, strict=True):
        torch.testing.assert_close(found, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS, ids=NAMES)
def test_keys_that_come_in_parts_in_any_order_give_the_same(kernel):
    q, k, v, _ = drawn()
    whole, parts = RunningSoftmax(q), RunningSoftmax(q)
    kernel.forward(q, k, v, tiles(((0, 12),), ((0, 12),), (12,), False), whole)
    for start in (8, 0, 4):
        part = slice(start, start + 4)
        seen = tiles(((0, 12),), ((start, start + 4),), (12,), False)
        kernel.forward(q, k[:, :, part], v[:, :, part], seen, parts)
    torch.testing.assert_close(parts.result(), whole.result(), rtol=0, atol=1e-12)


def test_extreme_scores_merge_without_overflow():
    q, k, v, _ = drawn()
    whole, parts = RunningSoftmax(q), RunningSoftmax(q)
    kernel = TiledKernel(MathAttention())
    kernel.forward(1e4 * q, k, v, tiles(((0, 12),), ((0, 12),), (12,), False), whole)
    for start in (0, 6):
        part = slice(start, start + 6)
        seen = tiles(((0, 12),), ((start, start + 6),), (12,), False)
        kernel.forward(1e4 * q, k[:, :, part], v[:, :, part], seen, parts)
    assert parts.result()[0].isfinite().all()
    torch.testing.assert_close(parts.result(), whole.result(), rtol=1e-9, atol=1e-9)


def test_sixteen_bits_are_added_up_in_thirty_two():
    q, k, _, _ = drawn(dtype=torch.bfloat16)
    assert RunningSoftmax(q).out_BHSD.dtype == Gradients(q, k).kv_2BKLD.dtype == torch.float32
    assert RunningSoftmax(q).result()[0].dtype == torch.bfloat16


@pytest.mark.usefixtures("fast_bf16")
def test_one_device_attends_as_torch_does_under_autocast():
    q, k, v, do = drawn(4, 4, dtype=torch.float32)
    found = []
    for attention in (lambda *x: attend(*x, group=None, scheme=Scheme()), F.scaled_dot_product_attention):
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = attention(*inputs)
        assert out.dtype == torch.bfloat16
        found.append([out, *torch.autograd.grad(out, inputs, do.to(out.dtype))])
    assert found[0][1].dtype == torch.float32
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)


def test_a_kernel_is_not_touched_by_autocast_in_either_direction():
    q, k, v, do = (x.requires_grad_() for x in drawn(4, 4, dtype=torch.bfloat16))
    plain = TiledKernel(MathAttention())
    outside = torch.autograd.grad(attend(q, k, v, group=None, scheme=Scheme(), kernel=plain), (q, k, v), do)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = torch.autograd.grad(attend(q, k, v, group=None, scheme=Scheme(), kernel=plain), (q, k, v), do)
    torch.testing.assert_close(inside, outside, rtol=0, atol=0)


def test_hundreds_of_samples_are_two_calls_of_a_kernel_that_takes_them_together():
    q, k, v, _ = drawn(length=600)
    spans = local_spans(0, 2, 600, True)
    OneByOne.calls = 0
    VarlenBatch(OneByOne()).forward(q, k, v, tiles(spans, spans, (3,) * 400, True), RunningSoftmax(q))
    assert OneByOne.calls == 1
    VarlenBatch(OneByOne()).forward(q, k, v, tiles(spans, ((0, 1200),), (7,) * 171 + (3,), True), RunningSoftmax(q))
    assert OneByOne.calls <= 4


class Off(MathAttention):
    """A kernel whose lse is of another base: values are right, merged ones and gradients are not."""

    def forward(self, q, k, v, diagonal):
        out, lse = super().forward(q, k, v, diagonal)
        return out, lse * 1.4427


class Refusing(MathAttention):
    """A kernel of another version of torch."""

    def backward(self, *_):
        raise TypeError("got 12 arguments")


@pytest.mark.parametrize(("one", "text"), [(Off(), "its results differ"), (Refusing(), "got 12 arguments")])
def test_a_kernel_that_does_not_give_the_formulas_numbers_is_not_used_and_said_so(one, text, caplog):
    with caplog.at_level(logging.WARNING, "nemo_vfm"):
        logging.getLogger("nemo_vfm").addHandler(caplog.handler)
        found = _verify_kernel(TiledKernel(one), torch.zeros(0, 8))
        logging.getLogger("nemo_vfm").removeHandler(caplog.handler)
    assert isinstance(found._one, MathAttention)
    assert not isinstance(found._one, type(one))
    assert text in caplog.text
    assert "plain formula" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_cpu_gets_torchs_flash_kernel_for_every_precision(dtype):
    assert isinstance(choose_kernel(torch.device("cpu"), dtype, 8)._one, CpuFlash)


@pytest.mark.parametrize(
    "bad",
    [
        lambda q, k, v: (q[0], k[0], v[0]),
        lambda q, k, v: (q, k, v[:, :1]),
        lambda q, k, v: (q, k[:, :, :4], v[:, :, :4]),
        lambda q, k, v: (q, k.float(), v.float()),
    ],
)
def test_tensors_that_do_not_fit_are_refused_with_their_shapes(bad):
    q, k, v, _ = drawn()
    with pytest.raises(UserError, match=r"takes queries \(batch, heads, tokens, width\)"):
        attend(*bad(q, k, v), group=None, scheme=Scheme())
