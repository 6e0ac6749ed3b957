"""Makes odd, damaged and hostile media from a seed: (name, kind, bytes), the same for the same seed.

All of it is made of small videos that are encoded here. Shape letters: T frames, H height, W width, C colours.
"""

import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path

import av
import numpy as np

from tests.support.films import pan

FPS = 12


@dataclass(frozen=True, slots=True)
class Mutant:
    """One file.

    Args:
        name: what it is called; unlike any other of its generation.
        kind: what was done to it.
        content: its bytes.
        sound: whether all of it can be decoded, so that it must not fail.
    """

    name: str
    kind: str
    content: bytes
    sound: bool = False


def film(
    container: str = "mp4", codec: str = "libx264", *, num_frames: int = 24, seed: int = 0, pix_fmt: str = "yuv420p",
    options: tuple[tuple[str, str], ...] = (), muxer: tuple[tuple[str, str], ...] = (),
    size: tuple[int, int] = (128, 96), stamps: Callable[[int], int] = lambda index: index, audio: bool = False,
) -> bytes:  # fmt: skip
    """A small film.

    Args:
        size: width and height.
        stamps: the time stamp of each frame, in frames.
        audio: nothing but a tone.
    """
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "film")  # on the disk, since moving the index to the front reads what was written
        with av.open(target, "w", format=container, options=dict(muxer)) as out:
            if audio:
                _tone(out)
            else:
                _pictures(out, codec, num_frames, seed, pix_fmt, dict(options), size, stamps)
        return target.read_bytes()


def _pictures(out, codec, num_frames, seed, pix_fmt, options, size, stamps) -> None:
    stream = out.add_stream(codec, rate=FPS, options=options)
    stream.width, stream.height, stream.pix_fmt = *size, pix_fmt
    stream.codec_context.time_base = Fraction(1, FPS)
    for index, picture in enumerate(pan(seed, num_frames)):
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(*size, format=pix_fmt)
        frame.pts = stamps(index)
        out.mux(stream.encode(frame))
    out.mux(stream.encode(None))


def _tone(out) -> None:
    stream = out.add_stream("aac", rate=16_000)
    for block in range(8):
        wave = np.sin(np.arange(1024) / 5 + block, dtype=np.float32)[None] / 4
        frame = av.AudioFrame.from_ndarray(wave, format="fltp", layout="mono")
        frame.sample_rate, frame.pts = 16_000, 1024 * block
        out.mux(stream.encode(frame))
    out.mux(stream.encode(None))


@cache
def sound() -> dict[str, tuple[str, bytes]]:
    """Odd films that are well made, by kind: how each name ends, and the bytes."""
    fast = (("preset", "ultrafast"),)
    return {
        "mp4": (".mp4", film(options=fast)),
        "moov in front": (".mp4", film(options=fast, seed=1, muxer=(("movflags", "faststart"),))),
        "fragmented": (".mp4", film(options=fast, seed=2, muxer=(("movflags", "frag_keyframe+empty_moov"),))),
        "webm": (".webm", film("webm", "libvpx-vp9", seed=3, options=(("deadline", "realtime"), ("cpu-used", "8")))),
        "mkv": (".mkv", film("matroska", "libx264", seed=4, options=fast)),
        "avi": (".avi", film("avi", "mpeg4", seed=5)),
        "ts": (".ts", film("mpegts", "libx264", seed=6, options=fast)),
        "10 bit": (".mp4", film(pix_fmt="yuv420p10le", seed=7, options=fast)),
        "4:4:4": (".mkv", film("matroska", pix_fmt="yuv444p", seed=8, options=fast)),
        "interlaced": (".mpg", film("mpeg", "mpeg2video", seed=9, options=(("flags", "+ildct+ilme"),), size=(128, 96))),
        "variable rate": (".mkv", film("matroska", seed=10, options=fast, stamps=lambda i: i + (i // 5) * 3)),
        "one frame": (".mp4", film(num_frames=1, options=fast)),
        "odd size": (".mkv", film("matroska", "ffv1", seed=11, size=(125, 93))),
        "tiny": (".mp4", film(size=(2, 2), options=fast)),
        "turned": (".mp4", turned(film(options=fast, seed=12))),
        "other name": (".mp4", film("matroska", "libx264", seed=13, options=fast)),
    }


def _inside(film_: bytes, name: bytes) -> int:
    """Where a box's content begins."""
    return film_.index(name) + 4


def _put(film_: bytes, place: int, value: bytes) -> bytes:
    return film_[:place] + value + film_[place + len(value) :]


def turned(film_: bytes, *, over: bool = False) -> bytes:
    """A film whose header says that it lies on its side, or stands on its head."""
    across, down = (-(1 << 16), 0) if over else (0, 1 << 16)
    matrix = struct.pack(">9i", across, down, 0, -down, across, 0, 0, 0, 1 << 30)
    return _put(film_, _inside(film_, b"tkhd") + 40, matrix)


def no_rate(film_: bytes) -> bytes:
    """Every frame lasts no time."""
    return _put(film_, _inside(film_, b"stts") + 12, struct.pack(">I", 0))


def no_timescale(film_: bytes) -> bytes:
    """Time is counted in units of which there are none in a second."""
    return _put(film_, _inside(film_, b"mdhd") + 12, struct.pack(">I", 0))


def absurd_rate(film_: bytes) -> bytes:
    """A billion frames a second."""
    film_ = _put(film_, _inside(film_, b"mdhd") + 12, struct.pack(">I", 1_000_000_000))
    return _put(film_, _inside(film_, b"stts") + 12, struct.pack(">I", 1))


def slow_rate(film_: bytes) -> bytes:
    """A frame a week."""
    film_ = _put(film_, _inside(film_, b"mdhd") + 12, struct.pack(">I", 1))
    return _put(film_, _inside(film_, b"stts") + 12, struct.pack(">I", 604_800))


def many_frames(film_: bytes) -> bytes:
    """A header that promises four billion frames."""
    film_ = _put(film_, _inside(film_, b"stts") + 8, struct.pack(">I", 0xFFFFFFFF))
    return _put(film_, _inside(film_, b"stsz") + 8, struct.pack(">I", 0xFFFFFFFF))


def negative_stamps(film_: bytes) -> bytes:
    """The list of edits begins before the film does."""
    at = _inside(film_, b"elst") + 12
    return _put(film_, at, struct.pack(">i", -1_000_000))


def huge(film_: bytes) -> bytes:
    """A header of 65535x65535 pixels."""
    film_ = _put(film_, _inside(film_, b"avc1") + 24, struct.pack(">HH", 65535, 65535))
    return _put(film_, _inside(film_, b"tkhd") + 76, struct.pack(">II", 65535 << 16, 65535 << 16))


def huge_picture() -> bytes:
    """VP8 in IVF whose every picture says that it has 16383x16383 pixels."""
    header = b"DKIF" + struct.pack("<HHIHHIIII", 0, 32, 0x30385056, 65535, 65535, 12, 1, 4, 0)
    picture = b"\x10\x02\x00\x9d\x01\x2a" + struct.pack("<HH", 16383, 16383) + bytes(64)
    return header + b"".join(struct.pack("<IQ", len(picture), n) + picture for n in range(4))


def cut_moov(film_: bytes) -> bytes:
    """The index at the end is there by half."""
    return film_[: (_inside(film_, b"moov") + len(film_)) // 2]


def resized() -> bytes:
    """Two sizes in one stream."""
    one, other = (film("mpegts", options=(("preset", "ultrafast"),), size=size) for size in ((128, 96), (96, 64)))
    return one + other


def late_stream() -> bytes:
    """MPEG-TS that gets another programme on the way, as recordings from the air do."""
    fast, pids = (("preset", "ultrafast"),), (("mpegts_start_pid", "0x200"), ("mpegts_pmt_start_pid", "0x1100"))
    return film("mpegts", options=fast) + film("mpegts", options=fast, muxer=pids, seed=1)


def flipped(content: bytes, random: np.random.Generator, share: float) -> bytes:
    """Some bytes made others."""
    data = np.frombuffer(content, np.uint8).copy()
    places = random.integers(0, len(data), max(1, int(share * len(data))))
    data[places] = random.integers(0, 256, len(places))
    return data.tobytes()


def zeroed(content: bytes, random: np.random.Generator) -> bytes:
    """A run of bytes lost, as on a bad disk."""
    start = int(random.integers(0, len(content)))
    stop = min(len(content), start + int(random.integers(1, 4096)))
    return content[:start] + bytes(stop - start) + content[stop:]


def shuffled(content: bytes, random: np.random.Generator) -> bytes:
    """Blocks in another order, as from a broken download."""
    blocks = [content[start : start + 512] for start in range(0, len(content), 512)]
    first, second = random.integers(0, len(blocks), 2)
    blocks[first], blocks[second] = blocks[second], blocks[first]
    return b"".join(blocks)


def cut(content: bytes, random: np.random.Generator) -> bytes:
    """The beginning alone."""
    return content[: int(random.integers(1, len(content)))]


_DAMAGE: dict[str, Callable[[bytes, np.random.Generator], bytes]] = {
    "a few bytes": lambda content, random: flipped(content, random, 0.0005),
    "many bytes": lambda content, random: flipped(content, random, 0.02),
    "zeroed": zeroed, "shuffled": shuffled, "cut": cut,
}  # fmt: skip


def reaching(target: str) -> dict[str, bytes]:
    """Playlists and pictures that name a file or an address, by kind: what a demuxer that follows them would open."""
    space = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return {
        "hls": f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{target}\n#EXT-X-ENDLIST\n".encode(),
        "hls of concat": f"#EXTM3U\n#EXTINF:1,\nconcat:{target}|{target}\n#EXT-X-ENDLIST\n".encode(),
        "hls of subfile": f"#EXTM3U\n#EXTINF:1,\nsubfile,,start,0,end,64,,:{target}\n#EXT-X-ENDLIST\n".encode(),
        "hls with a key": f'#EXTM3U\n#EXT-X-KEY:METHOD=AES-128,URI="{target}"\n#EXTINF:1,\nx.ts\n'.encode(),
        "dash": (
            '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" '
            'mediaPresentationDuration="PT1S"><Period><AdaptationSet mimeType="video/mp4"><Representation id="1" '
            f'bandwidth="1"><BaseURL>{target}</BaseURL><SegmentList><Initialization sourceURL="{target}"/>'
            f'<SegmentURL media="{target}"/></SegmentList></Representation></AdaptationSet></Period></MPD>'
        ).encode(),
        "concat": f"ffconcat version 1.0\nfile '{target}'\n".encode(),
        "concat, unsafe": f"ffconcat version 1.0\noption safe 0\nfile '{target}'\nduration 1\n".encode(),
        "svg": f'<svg {space}><image xlink:href="{target}" width="64" height="64"/></svg>'.encode(),
        "image2": f"{target}\n".encode(),
        "sdp": f"v=0\nc=IN IP4 127.0.0.1\nm=video 9 RTP/AVP 96\na=control:{target}\n".encode(),
        "asx": f'<asx version="3.0"><entry><ref href="{target}"/></entry></asx>'.encode(),
        "reference movie": _reference_movie(target),
        "quicktime alias": _alias(target),
    }


def _box(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", 8 + len(content)) + name + content


def _reference_movie(target: str) -> bytes:
    """A QuickTime movie that is somewhere else."""
    text = target.encode() + b"\0"
    record = _box(b"rdrf", struct.pack(">I4sI", 0, b"url ", len(text)) + text)
    return _box(b"ftyp", b"qt  \0\0\0\0qt  ") + _box(b"moov", _box(b"rmra", _box(b"rmda", record)))


def _alias(target: str) -> bytes:
    """A film whose frames are said to lie in another file: the data reference is a URL and not itself."""
    whole = film(options=(("preset", "ultrafast"),), muxer=(("movflags", "faststart"),))
    entry = whole.index(b"url ") - 4
    text = target.encode() + b"\0"
    changed = _box(b"url ", struct.pack(">I", 0) + text)
    grown = len(changed) - 12
    out = whole[:entry] + changed + whole[entry + 12 :]
    for name in (b"dref", b"dinf", b"minf", b"mdia", b"trak", b"moov"):  # all of them become longer
        at = out.index(name) - 4
        out = _put(out, at, struct.pack(">I", struct.unpack(">I", out[at : at + 4])[0] + grown))
    return out


NAMES = (
    "-i evil.mp4", "a;rm.mp4", "http:x.mp4", "new\nline.mp4", "$(touch x).mp4", "`id`.mp4", "concat:a|b.mp4", "%d.mp4",
    "pipe:0.mp4", "file:a.mp4", "subfile,,start,0,end,9,,:a.mp4", "é ü 日本.mp4", "'quoted\".mp4", "=cmd().mp4",
    "a*?[b].mp4", "<script>alert(1)<\u2215script>.mp4", "tab\there.mp4", "\u202egnp.mp4", "--.mp4", "x" * 200 + ".mp4",
)  # fmt: skip


def crafted() -> Iterator[Mutant]:
    """Each kind of damage once."""
    mp4, front = sound()["mp4"][1], sound()["moov in front"][1]
    for change in (no_rate, no_timescale, absurd_rate, slow_rate, many_frames, negative_stamps, huge, cut_moov):
        yield Mutant(f"{change.__name__}.mp4", change.__name__, change(mp4))
    yield Mutant("huge_picture.ivf.mp4", "huge picture", huge_picture())
    yield Mutant("resized.ts", "two sizes", resized())
    yield Mutant("late.ts", "late stream", late_stream())
    yield Mutant("tone.mp4", "audio only", film(audio=True))
    yield Mutant("empty.mp4", "empty", b"")
    yield Mutant("text.mp4", "no video", b"this is no video\n" * 64)
    yield Mutant("zeros.mp4", "zeros", bytes(4096))
    yield Mutant("cut.mp4", "cut short", front[: len(front) * 2 // 3])
    yield Mutant("header.mp4", "header alone", mp4[:64])
    for kind, content in reaching("/etc/passwd").items():
        yield Mutant(f"{kind} reaching.mp4", kind, content)


def odd() -> Iterator[Mutant]:
    """Each film that is odd and well made, and a good film under each odd name."""
    for kind, (ending, content) in sound().items():
        yield Mutant(f"{kind.replace(':', '-')}{ending}", kind, content, sound=True)
    for number, name in enumerate(NAMES):
        yield Mutant(name, "name", film(seed=20 + number, options=(("preset", "ultrafast"),)), sound=True)


def damaged(seed: int) -> Iterator[Mutant]:
    """Films with damage at random places, without end."""
    random, films = np.random.default_rng(seed), list(sound().items())
    number = 0
    while True:
        kind, (ending, content) = films[int(random.integers(len(films)))]
        damage = tuple(_DAMAGE)[int(random.integers(len(_DAMAGE)))]
        yield Mutant(f"{number:04d}{ending}", f"{kind}, {damage}", _DAMAGE[damage](content, random))
        number += 1


def generation(seed: int, count: int) -> list[Mutant]:
    """`count` files: of those made by hand, of odd ones and of those damaged by chance, drawn by the seed."""
    random = np.random.default_rng(seed)
    made = [*crafted(), *odd()]
    random.shuffle(made)
    chosen = made[: count * 2 // 3]
    chance = damaged(seed)
    return chosen + [next(chance) for _ in range(count - len(chosen))]
