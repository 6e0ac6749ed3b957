"""Tests that 16-bit matmuls on a CPU without hardware support give the numbers of rounded operands."""

import pytest
import torch
from torch.nn import functional as F

from nemo_vfm.parallel.layers import linear as matmul_support
from nemo_vfm.parallel.layers.linear import Linear
from nemo_vfm.parallel.layers.parallel_attention import attention

BF16 = torch.bfloat16


@pytest.fixture
def slow_bf16(monkeypatch):
    monkeypatch.setattr(matmul_support, "_slow_bf16", lambda: True)


def rounded(x):
    return x.to(BF16).float()


def test_attention_is_softmax_of_scaled_products():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
    mask = torch.rand(2, 1, 1, 7) > 0.3
    mask[..., 0] = True
    scores = (q @ k.transpose(2, 3) / 8**0.5).masked_fill(~mask, float("-inf"))
    torch.testing.assert_close(attention(q, k, v, mask), scores.softmax(-1) @ v)


@pytest.mark.usefixtures("slow_bf16")
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_under_autocast_multiplies_rounded_operands_and_rounds_the_result(bias):
    torch.manual_seed(0)
    linear, x = Linear(64, 32, bias=bias), torch.randn(5, 64, requires_grad=True)
    with torch.autocast("cpu", dtype=BF16):
        y = linear(x)
    assert y.dtype == BF16
    expected = F.linear(rounded(x), rounded(linear.weight), rounded(linear.bias) if bias else None).to(BF16)
    torch.testing.assert_close(y, expected, rtol=0, atol=0)
    g = torch.randn(5, 32).to(BF16)
    y.backward(g)
    torch.testing.assert_close(linear.weight.grad, rounded(g.float().T @ rounded(x)), rtol=0, atol=0)
    torch.testing.assert_close(x.grad, rounded(g.float() @ rounded(linear.weight)), rtol=0, atol=0)


@pytest.mark.usefixtures("slow_bf16")
def test_both_agree_with_torch_up_to_the_order_of_summation(monkeypatch):
    torch.manual_seed(0)
    linear, x = Linear(32, 3 * 32), torch.randn(2, 6, 32)

    def step():
        linear.zero_grad()
        with torch.autocast("cpu", dtype=BF16):
            q, k, v = linear(x).unflatten(2, (3, 4, 8)).unbind(2)
            y = attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        y.float().square().sum().backward()
        return y, linear.weight.grad.clone()

    ours = step()
    monkeypatch.setattr(matmul_support, "_slow_bf16", lambda: False)
    theirs = step()
    assert ours[0].dtype == theirs[0].dtype == BF16
    for own, reference in zip(ours, theirs, strict=True):
        assert (own.float() - reference.float()).norm() / reference.float().norm() < 0.01


@pytest.mark.parametrize("fast", [True, False])
def test_fp32_is_never_touched(monkeypatch, fast):
    monkeypatch.setattr(matmul_support, "_slow_bf16", lambda: not fast)
    linear, x = Linear(16, 8), torch.randn(3, 16)
    torch.testing.assert_close(linear(x), F.linear(x, linear.weight, linear.bias), rtol=0, atol=0)
    assert matmul_support.emulated_dtype(x) is None


def test_with_hardware_for_it_torchs_own_product_runs(monkeypatch):
    monkeypatch.setattr(matmul_support, "_slow_bf16", lambda: False)
    with torch.autocast("cpu", dtype=BF16):
        assert matmul_support.emulated_dtype(torch.zeros(1)) is None
    monkeypatch.setattr(matmul_support, "_slow_bf16", lambda: True)
    with torch.autocast("cpu", dtype=BF16):
        assert matmul_support.emulated_dtype(torch.zeros(1)) == BF16
