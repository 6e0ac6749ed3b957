"""Tests that keys are told from usual values of settings, by a table for either and by random texts."""

import random
import string

import pytest

from nemo_vfm.core.network.key_shapes import looks_like_a_key, shape

_A = "aB3xK9mQ2vR7tY5wZ8nL"  # in two halves below, so that no scanner takes this file for a leak
_HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize("text", [
    "AKIA" + "IOSFODNN7EXAMPLE", "hf_" + _A, "sk-" + _A, "sk-proj-" + _A, "ghp_" + _A, "glpat-" + _A,
    "github_pat_" + _A, "local-" + _HEX[:20],
    "xoxb-" + "123456789012-abcdef", "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0.x", "nvapi-" + _A, "AIza" + _A + _A,
    "-----BEGIN OPENSSH PRIVATE KEY-----", "https://user:" + "hunter2@example.org/x", "redis://:" + "hunter2@host:6379",
    "Bearer " + _A, "host=db;password=" + "hunter2", "pypi-" + _A, "Server=x;AccountKey=" + _A + "==",
    "prefix " + "hf_" + _A,
])  # fmt: skip
def test_a_key_is_known_by_the_shape_that_its_service_gives_it(text):
    assert shape(text) and looks_like_a_key(text)


@pytest.mark.parametrize("text", [
    "", "1", "0", "mlx5_0:1,mlx5_1:1,mlx5_2:1", "^openib", "expandable_segments:True,garbage_collection_threshold:0.8",
    "/lustre/you/.cache/huggingface/hub/models--nvidia--Cosmos-1.0-Tokenizer-CV8x8x8/snapshots", "8.0;9.0+PTX",
    "Ring,Tree;LL128,Simple", "GPU-8f2a1c3e-1111-2222-3333-0123456789ab", "libnccl-net-ofi.so.2", "en_US.UTF-8",
    "/opt/miniconda3/envs/py311/lib/python3.11/site-packages/nvidia/nccl/lib",
    "registry.example.org/nvidia/pytorch:25.03-py3",
    f"registry#team/image@sha256:{_HEX}", f"git-{_HEX[:40]}", "http://proxy.example.org:3128", "0xffff000000000000",
    "granularity=fine,compact,1,0", "node[0001-0128].cluster.example.org", "TransformerEngineFlashAttention2Backend",
    "dc_x,ud_x,rc_mlx5,self,sm,cuda_copy,gdr_copy", "x86_64-conda-linux-gnu", "0-27,56-83", ":4096:8", "1" * 60,
    "s3://bucket/prefix-2025-01-01/Videos_720p_H264_batch12", "nemotron4_340b_pretrain_fsdp2_tp8_pp12_seqlen4096",
    "experiment-2026-11-22T21-49-53Z-run17-h100x8", "user@example.org", "CollnetDirect,CollnetChain,NVLS,NVLSTree",
    "NCCL_DEBUG=INFO NCCL_IB_HCA=mlx5", "sk-learn", "password", "https://user@example.org/x", "--token-file /a/b",
])  # fmt: skip
def test_a_usual_value_is_no_key(text):
    assert looks_like_a_key(text) == ""


@pytest.mark.parametrize(("letters", "length", "least"), [
    (string.ascii_letters + string.digits, 32, 0.98), (string.ascii_letters + string.digits + "-_", 43, 0.98),
    ("0123456789abcdef", 32, 1), ("0123456789abcdef", 40, 1), (string.ascii_letters + string.digits + "+/", 40, 0.95),
    (string.ascii_lowercase + string.digits, 40, 0.95),
])  # fmt: skip
def test_drawn_letters_are_a_key_nearly_always(letters, length, least):
    """What is missed has no digit, or letters of a kind that stand together: chance, of the fixed seed."""
    rng = random.Random(7)
    found = [looks_like_a_key("".join(rng.choices(letters, k=length))) != "" for _ in range(500)]
    assert sum(found) / len(found) >= least


def test_words_and_numbers_joined_as_settings_join_them_are_no_key():
    rng = random.Random(7)
    words = (
        "mlx5", "bond", "NCCL", "Tree", "fp8", "h100", "node", "cache", "train", "v2", "LL128", "IB", "eth0",
        "64", "2026",
    )  # fmt: skip
    for _ in range(2000):
        text = rng.choice("_-/.,:").join(rng.choices(words, k=rng.randint(1, 9)))
        assert looks_like_a_key(text) == "", text
