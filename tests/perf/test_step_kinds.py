"""Tests that the time of profiled steps is divided by kinds without rest, on a CPU and on a GPU."""

import time
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, record_function

from nemo_vfm.perf.step_kinds import LOSS, Work, kind_of, step_kinds, work_of


@dataclass
class Event:
    """As torch's profiler has them, in nanoseconds."""

    label: str
    begin: int
    took: int
    thread: int = 0
    number: int = 0
    linked: int = 0

    def name(self) -> str:
        return self.label

    def start_ns(self) -> int:
        return self.begin

    def duration_ns(self) -> int:
        return self.took

    def start_thread_id(self) -> int:
        return self.thread

    def correlation_id(self) -> int:
        return self.number

    def linked_correlation_id(self) -> int:
        return self.linked


@pytest.mark.parametrize(("name", "around", "kind"), [
    ("aten::mm", (), "products"),
    ("aten::addmm", ("aten::linear",), "products"),
    ("aten::bmm", ("aten::scaled_dot_product_attention", "aten::_scaled_dot_product_attention_math"), "attention"),
    ("aten::mul", ("Optimizer.step#AdamW.step",), "optimizer"),
    ("aten::_fused_adamw_", (), "optimizer"),
    ("aten::mean", (LOSS,), "loss"),
    ("aten::mm", ("_CrossEntropyBackward",), "loss"),
    ("aten::copy_", ("aten::to", "aten::_to_copy"), "copies_and_casts"),
    ("aten::native_layer_norm", (), "norms_and_pointwise"),
    ("c10d::allreduce_", (), "collectives"),
    ("sm90_xmma_gemm_bf16bf16_bf16f32", (), "products"),
    ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNT", (), "products"),
    ("void flash_fwd_kernel<...>", (), "attention"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop", (), "attention"),
    ("triton_poi_fused_add_mul_3", (), "norms_and_pointwise"),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", (), "collectives"),
    ("Memcpy HtoD (Pinned -> Device)", (), "copies_and_casts"),
])  # fmt: skip
def test_work_is_known_by_its_name_or_by_what_it_is_part_of(name: str, around: tuple[str, ...], kind: str) -> None:
    assert kind_of(name, around) == kind


def test_a_moment_is_the_innermost_operations_on_a_cpu() -> None:
    host = [
        Event("aten::linear", 0, 60), Event("aten::t", 0, 10), Event("aten::addmm", 20, 30),
        Event("autograd::engine::evaluate_function: MmBackward0", 70, 30, thread=1),
        Event("aten::mm", 80, 15, thread=1), Event("not an operation", 0, 200),
    ]  # fmt: skip
    found = step_kinds(work_of(host, []), 0, 100, nested=True).seconds
    assert {kind: round(seconds * 1e9) for kind, seconds in found.items() if seconds} == {
        "products": 45, "norms_and_pointwise": 30, "idle": 25,
    }  # fmt: skip


def test_a_kernel_is_of_the_kind_of_what_started_it_and_hides_an_exchange() -> None:
    host = [Event("Optimizer.step#AdamW.step", 0, 10), Event("aten::mul", 2, 2, number=7),
            Event("aten::mul", 12, 2, number=8), Event("aten::mm", 16, 2, number=9)]  # fmt: skip
    kernels = [
        Event("elementwise_kernel", 20, 10, linked=7), Event("elementwise_kernel", 30, 10, linked=8),
        Event("unknown_kernel", 40, 20, linked=9), Event("ncclDevKernel_AllGather", 45, 30),
    ]  # fmt: skip
    found = step_kinds(work_of(host, kernels), 10, 100, nested=False)
    assert {kind: round(seconds * 1e9) for kind, seconds in found.seconds.items() if seconds} == {
        "optimizer": 10, "norms_and_pointwise": 10, "products": 20, "collectives": 15, "idle": 35,
    }  # fmt: skip
    assert [name for name, _, _ in found.largest][:2] == ["unknown_kernel", "ncclDevKernel_AllGather"]


def test_the_kinds_of_any_work_add_up_to_the_time() -> None:
    numbers = torch.Generator().manual_seed(0)
    draws = torch.randint(0, 1000, (40, 2), generator=numbers).tolist()  # some at once, and gaps between them
    work = [Work(begin, begin + took // 40, f"{begin}", ("products", "collectives")[took % 2]) for begin, took in draws]
    for nested in (True, False):
        found = step_kinds(work, 100, 900, nested=nested).seconds
        assert sum(found.values()) == pytest.approx(800e-9) and 100e-9 < found["idle"] < 700e-9


def test_a_real_profile_finds_products_attention_and_loss() -> None:
    x, heads = torch.randn(256, 256, requires_grad=True), torch.randn(1, 4, 128, 32, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        begin = time.time_ns()
        y = (x @ x).sum() + F.scaled_dot_product_attention(heads, heads, heads).sum()
        with record_function(LOSS):
            loss = y.square().sqrt()
        loss.backward()
        time.sleep(0.02)
        end = time.time_ns()
    assert seen.profiler is not None and seen.profiler.kineto_results is not None
    found = step_kinds(work_of(seen.profiler.kineto_results.events(), []), begin, end, nested=True).seconds
    assert sum(found.values()) == pytest.approx((end - begin) / 1e9)
    assert min(found["products"], found["attention"], found["loss"]) > 0 and found["idle"] > 0.015
