"""Probes torch, GPUs, codecs and the rest by really doing a little work with each, in a process of its own.

The last line that process prints is the answer. A probe returns a text, or raises: UserError where something is absent,
anything else where it is broken. What it imports may end the process or never return: there is an answer still.
Shape letters: T frames, H height, W width.
"""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from nemo_vfm.core.errors import MissingPackage, UserError
from nemo_vfm.core.optional import require
from nemo_vfm.core.process import end_now, how_it_ended, run_module

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


#: ok; low: works, but too little of it; missing: not there; broken: there, and does not work.
State = Literal["ok", "low", "missing", "broken"]
LIMIT_S = 60.0
_MARK = "nemo_vfm doctor answers: "
_LEVELS = (60, 190)  # grey values of the two frames
_SIDE_PX = 64
_TOLERANCE = 6  # a lossy codec gives a flat grey back nearly unchanged


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """How a probe ended."""

    state: State
    detail: str


def ask(name: str, limit_s: float = LIMIT_S) -> ProbeResult:
    """Run a probe apart."""
    try:
        done = run_module(__name__, [name], env=os.environ, timeout_s=limit_s)
    except subprocess.TimeoutExpired:
        return ProbeResult("broken", f"did not answer within {limit_s:.0f} s")
    if answers := [line.removeprefix(_MARK) for line in done.stdout.splitlines() if line.startswith(_MARK)]:
        return ProbeResult(**json.loads(answers[-1]))
    return ProbeResult("broken", how_it_ended(done.returncode, done.stderr))


def answer(name: str) -> ProbeResult:
    """Run a probe here."""
    try:
        return ProbeResult("ok", PROBES[name]())
    except MissingPackage as error:
        # Not installed, or installed and something that it needs is not: then it cannot be used as it is.
        cause = error.__cause__
        absent = isinstance(cause, ModuleNotFoundError)
        return ProbeResult("missing" if absent else "broken", f"{type(cause).__name__}: {cause}"[:300])
    except UserError as error:
        return ProbeResult("missing", str(error))
    except BaseException as error:  # SystemExit at import too: whatever it is, it is the finding
        return ProbeResult("broken", f"{type(error).__name__}: {str(error).strip()[:300]}")


def torch_works() -> str:
    """A product on the CPU, its gradient, and how this CPU takes bfloat16."""
    import torch

    from nemo_vfm.core.device import has_fast_bf16

    weight = torch.ones(8, 8, requires_grad=True)
    (weight @ weight).sum().backward()  # type: ignore[no-untyped-call]
    if weight.grad is None or float(weight.grad.sum()) != 8.0 * 8 * 16:
        raise RuntimeError("a matmul and its gradient are wrong")
    bf16 = "fast" if has_fast_bf16() else "no fast"
    threads = torch.get_num_threads()
    return f"{torch.__version__}, {threads} {'thread' if threads == 1 else 'threads'}, {bf16} bf16 on this device"


def gpu_works() -> str:
    """A bfloat16 product on the first GPU, and what all of them are."""
    from nemo_vfm.core import device

    found = device.gpus()
    if not found:
        raise UserError("no GPU found; everything runs on the CPU")
    device.try_product()
    versions = ", ".join(f"{name} {version}" for name, version in device.gpu_versions().items())
    return f"{'; '.join(map(str, found))}; {versions}"


def nvidia_codec_works(name: str) -> str:
    """Four frames by the GPU's encoder, or one by its decoder."""
    from nemo_vfm.data.video.codecs import COSTS, nvdec_why_not, why_not

    reason = why_not("nvenc") if name == "nvenc" else nvdec_why_not()
    if reason is not None:
        raise UserError(f"{reason}; {COSTS[name]}")
    if name == "nvenc":
        return "H.264 on the GPU: transcode.encoder=nvenc"
    return "H.264 is decoded on the GPU: decode=nvdec of a curation"


def nccl_works() -> str:
    """NCCL's version."""
    from nemo_vfm.core.device import gpu_versions

    versions = gpu_versions()
    if "NCCL" not in versions:
        raise UserError("this torch was built without NCCL; several GPUs need it, CPUs use gloo")
    return versions["NCCL"]


def h264_encodes() -> str:
    """Two frames through libx264."""
    import av

    return f"libx264 of PyAV {av.__version__} made {len(_clip()):,} bytes of H.264"


def pyav_decodes() -> str:
    """Our base reader, on the clip."""
    import av

    from nemo_vfm.data.video.decode import open_video

    clip, codec = _any_clip()
    with open_video(clip, "pyav") as reader:
        _compare(reader.read([0, 1]))
    return f"PyAV {av.__version__} read two frames of {codec}"


def decord_decodes() -> str:
    """decord, on the clip."""
    decord = require("decord", purpose="Decoding with decord")
    clip, codec = _any_clip()
    _compare(decord.VideoReader(io.BytesIO(clip), num_threads=1).get_batch([0, 1]).asnumpy())
    return f"decord {decord.__version__} read two frames of {codec}"


def torchcodec_decodes() -> str:
    """torchcodec with the system's FFmpeg, on the clip."""
    codec = require("torchcodec", purpose="Decoding with torchcodec")
    decoders = require("torchcodec.decoders", purpose="Decoding with torchcodec")
    clip, name = _any_clip()
    _compare(decoders.VideoDecoder(clip).get_frames_at([0, 1]).data.permute(0, 2, 3, 1).numpy())
    return f"torchcodec {codec.__version__} read two frames of {name}"


def imports(module: str) -> str:
    """Nothing but the import: of Ray no cluster is started."""
    found = require(module, purpose="This")
    version = getattr(found, "__version__", "")
    return f"{module} {version} imports".replace("  ", " ")


PROBES: dict[str, Callable[[], str]] = {
    "torch": torch_works, "gpu": gpu_works, "nccl": nccl_works,
    "nvenc": partial(nvidia_codec_works, "nvenc"), "nvdec": partial(nvidia_codec_works, "nvdec"),
    "h264": h264_encodes, "pyav": pyav_decodes, "decord": decord_decodes, "torchcodec": torchcodec_decodes,
    "ray": partial(imports, "ray"), "lightning": partial(imports, "lightning.pytorch"),
}  # fmt: skip


def _frames() -> "NDArray[np.uint8]":
    """(T, H, W, 3)."""
    import numpy as np

    return np.stack([np.full((_SIDE_PX, _SIDE_PX, 3), level, np.uint8) for level in _LEVELS])


def _clip() -> bytes:
    from nemo_vfm.data.video.encode import encode_mp4

    file = io.BytesIO()
    encode_mp4(file, _frames(), fps=10, preset="ultrafast")
    return file.getvalue()


def _any_clip() -> tuple[bytes, str]:
    """Two frames of H.264; of MPEG-4 where this machine cannot write H.264, which is another finding."""
    try:
        return _clip(), "H.264"
    except Exception:
        import av

        file = io.BytesIO()
        with av.open(file, "w", format="mp4") as container:
            stream = container.add_stream("mpeg4", rate=10)
            stream.width = stream.height = _SIDE_PX
            stream.pix_fmt = "yuv420p"
            for picture in _frames():
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode(None))
        return file.getvalue(), "MPEG-4"


def _compare(pictures_THWC: "NDArray[np.uint8]") -> None:
    seen = [float(picture.mean()) for picture in pictures_THWC]
    if len(seen) != 2 or any(abs(a - b) > _TOLERANCE for a, b in zip(seen, _LEVELS, strict=True)):
        raise RuntimeError(f"frames of grey {_LEVELS} came back as {[round(level) for level in seen]}")


def main() -> None:
    """The process: the probe that its command line names."""
    found = answer(sys.argv[1])
    sys.stdout.write(f"\n{_MARK}{json.dumps({'state': found.state, 'detail': found.detail})}\n")
    end_now(0)  # threads and handlers of what was imported do not matter any more
