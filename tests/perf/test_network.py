"""Tests the seconds of collectives on networks against hand-computed ones, and one measured in a paper."""

import pytest

from nemo_vfm.config import ingredient
from nemo_vfm.core.errors import UserError
from nemo_vfm.perf.network import Link, Network, RankGroup

BOX = Network(
    gpus_per_node=8, inside=Link(gb_per_s=100, share=1, latency_us=0),
    between=Link(gb_per_s=10, share=1, latency_us=0), host=Link(gb_per_s=10),
)  # fmt: skip


def network(name: str) -> Network:
    return ingredient("network", name, Network)


def test_a_gather_in_one_machine_moves_all_but_the_own_part():
    assert BOX.gather_s(8e9, RankGroup(8)) == pytest.approx(8e9 * 7 / 8 / 100e9)
    assert BOX.gather_s(8e9, RankGroup(1)) == 0 and BOX.reduce_s(8e9, RankGroup(2)) == pytest.approx(8e9 / 100e9)


def test_a_group_over_machines_uses_the_cards_of_all_its_members_there():
    assert BOX.gather_s(1e9, RankGroup(16)) == pytest.approx(1e9 * 15 / 16 / 80e9)  # eight cards
    assert BOX.gather_s(1e9, RankGroup(16, stride=4)) == pytest.approx(1e9 * 15 / 16 / 20e9)  # two of them
    assert BOX.gather_s(1e9, RankGroup(4, stride=8)) == pytest.approx(1e9 * 3 / 4 / 10e9)


def test_neighbours_have_one_link_and_the_slowest_border_counts():
    assert BOX.send_s(1e9, RankGroup(8)) == pytest.approx(0.01) and BOX.send_s(1e9, RankGroup(16)) == pytest.approx(0.1)
    assert BOX.send_s(1e9, RankGroup(4, stride=2)) == pytest.approx(0.01)


def test_an_exchange_goes_to_each_alike():
    assert BOX.exchange_s(15e9, RankGroup(16)) == pytest.approx(8e9 / 10e9)  # eight of fifteen parts leave the machine
    assert BOX.exchange_s(7e9, RankGroup(8)) == pytest.approx(7e9 / 100e9)


def test_a_message_costs_its_latency_however_small_it_is():
    slow = Network(gpus_per_node=8, inside=Link(gb_per_s=100), between=Link(gb_per_s=10, latency_us=20), host=BOX.host)
    assert slow.gather_s(0, RankGroup(8)) == pytest.approx(3 * 5e-6)
    assert slow.gather_s(0, RankGroup(64)) == pytest.approx(3 * 5e-6 + 7 * 20e-6)
    assert slow.gather_s(0, RankGroup(1024, stride=8)) == pytest.approx(1023 * 20e-6)


def test_zionex_gives_what_its_paper_measured_over_128_gpus():
    zionex, group, size = network("zionex_16x8"), RankGroup(128), 256e6
    assert 2 * size * 127 / 128 / zionex.reduce_s(size, group) / 1e9 == pytest.approx(60, rel=0.1)
    assert size / zionex.exchange_s(size, group) / 1e9 == pytest.approx(7, rel=0.1)


@pytest.mark.parametrize("name", ["dgx_a100", "dgx_h100", "gb200_nvl72", "zionex_16x8", "pcie_box"])
def test_links_inside_are_quicker_than_those_between(name):
    found = network(name)
    assert found.inside.bytes_per_s > found.between.bytes_per_s > 1e9
    assert found.inside.latency_us < found.between.latency_us


def test_a_rack_of_72_gathers_over_16_inside():
    rack, box = network("gb200_nvl72"), network("dgx_h100")
    assert rack.members_inside(RankGroup(16)) == 16 and box.members_inside(RankGroup(16)) == 8
    assert rack.gather_s(1e9, RankGroup(16)) < box.gather_s(1e9, RankGroup(16)) / 1.5


@pytest.mark.parametrize("wrong", [{"gb_per_s": 0}, {"gb_per_s": 1, "share": 1.5}, {"gb_per_s": 1, "latency_us": -1}])
def test_a_link_that_cannot_be_is_refused_with_its_numbers(wrong):
    with pytest.raises(ValueError, match="gb_per_s above 0"):
        Link(**wrong)


def test_a_network_that_there_is_not_is_told_with_the_nearest_name():
    with pytest.raises(UserError, match="did you mean dgx_h100"):
        network("dgx_h10")
