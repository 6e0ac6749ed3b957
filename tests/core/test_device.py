"""Tests how GPUs are described; without a GPU torch's answers are replaced."""

from types import SimpleNamespace

import pytest
import torch

from nemo_vfm.core import device


def test_gpus_are_told_in_words(monkeypatch):
    properties = SimpleNamespace(name="NVIDIA H100 80GB HBM3", total_memory=85_000_000_000, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    found = device.gpus()
    assert len(found) == 2 and found[0].capability >= (8, 9)
    assert str(found[0]) == "NVIDIA H100 80GB HBM3, 85 GB, compute capability 9.0"


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch was built for CUDA")
def test_a_torch_for_cpus_names_neither_cuda_nor_nccl():
    assert not {"CUDA", "NCCL"} & set(device.gpu_versions())


def test_a_bfloat16_product_comes_out_right_on_this_device():
    device.try_product()
