"""Tests which variables follow from the kind of GPU and the layout."""

import pytest

from launcher.render.environment import environment

NODE = {"gpus_per_node": 8, "cpus_per_task": 14}


def found(gpu: str | None = "h100", engine: str = "torch", **degrees: int) -> dict[str, str]:
    settings = [*environment(gpu=gpu, degrees=degrees, engine=engine, **NODE)]
    return {setting.name: setting.value for setting in settings}


def test_every_variable_has_one_value_and_a_reason():
    for engine in ("torch", "megatron", ""):
        for gpu in ("a100", "h100", "gb200", None):
            degrees = {"tensor": 2, "context": 2, "pipeline": 8, "virtual": 2, "shard": 4}
            settings = [*environment(gpu=gpu, degrees=degrees, engine=engine, **NODE)]
            assert len({setting.name for setting in settings}) == len(settings) >= 4
            assert all(len(setting.reason) > 15 for setting in settings)


def test_where_there_is_no_gpu_nothing_is_said_of_one():
    assert not [name for name in found(None, shard=8) if name.startswith(("NCCL", "CUDA", "NVTE", "PYTORCH"))]


@pytest.mark.parametrize(
    ("gpu", "engine", "degrees", "queues"),
    [
        ("h100", "torch", {"shard": 8}, "8"), ("h100", "torch", {"context": 2}, "8"), ("h100", "torch", {}, None),
        ("h100", "torch", {"tensor": 8}, None), ("a100", "megatron", {"tensor": 2}, "1"),
        ("h100", "megatron", {"context": 2}, "1"), ("h100", "megatron", {"shard": 8}, None),
        ("b200", "megatron", {"tensor": 2}, "32"), ("gb200", "torch", {"shard": 8}, "32"), ("h100", "", {}, None),
    ],
)  # fmt: skip
def test_queues_follow_from_the_gpu_and_from_what_is_overlapped(gpu, engine, degrees, queues):
    assert found(gpu, engine, **degrees).get("CUDA_DEVICE_MAX_CONNECTIONS") == queues


def test_pieces_between_stages_are_large_only_where_stages_are_on_several_nodes():
    assert "NCCL_P2P_NET_CHUNKSIZE" not in found(pipeline=4, tensor=2)
    assert found(pipeline=4, tensor=4)["NCCL_P2P_NET_CHUNKSIZE"] == "2097152"


def test_megatrons_variables_are_set_for_megatron_alone():
    degrees = {"tensor": 2, "virtual": 2, "pipeline": 2}
    of_megatron = {"NVTE_FWD_LAYERNORM_SM_MARGIN", "NVTE_BWD_LAYERNORM_SM_MARGIN", "NCCL_NVLS_ENABLE"}
    assert of_megatron <= found(engine="megatron", **degrees).keys()
    assert not of_megatron & found(engine="torch", **degrees).keys()


def test_network_cards_of_grace_are_reached_over_its_link():
    assert "NCCL_NET_GDR_C2C" in found("gb200") and "NCCL_NET_GDR_C2C" not in found("b200")


def test_threads_are_the_cores_of_a_process_where_several_train_on_a_node():
    assert found()["OMP_NUM_THREADS"] == "14" and "OMP_NUM_THREADS" not in found(engine="")
