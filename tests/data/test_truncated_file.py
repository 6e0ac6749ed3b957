"""Tests that frames after a gap in a truncated file are not used."""

from nemo_vfm.data.video.joined_recordings import FramePacket, without_gap


def packets(*stamps: int) -> list[FramePacket]:
    """Packets with these pts, decoded one after the other."""
    return [FramePacket(pts, place - 2, place == 0, False) for place, pts in enumerate(stamps)]


def kept(*stamps: int) -> list[int | None]:
    return sorted(packet.pts or 0 for packet in without_gap(packets(*stamps)))


def test_frames_after_a_gap_go_and_others_stay() -> None:
    assert kept(0, 4, 2, 1, 3) == [0, 1, 2, 3, 4]
    assert kept(0, 4, 2, 1) == [0, 1, 2]
    assert kept(0, 4, 2, 1, 3, 8, 6, 5) == [0, 1, 2, 3, 4, 5, 6]
    assert kept(0, 1, 2, 3) == [0, 1, 2, 3]


def test_a_pause_that_the_film_itself_has_is_no_gap() -> None:
    stamps = [0, 1, 2, 30, 31, 32, 33]
    paused = [FramePacket(pts, pts, pts == 0, False) for pts in stamps]
    assert [packet.pts for packet in without_gap(paused)] == stamps


def test_half_a_packet_is_not_used() -> None:
    whole = packets(0, 1, 2)
    assert without_gap([*whole, FramePacket(3, 1, False, True)]) == whole
