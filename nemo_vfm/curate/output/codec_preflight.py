"""Tries the encoder and decoder of a curation; refuses what does not work here, and names what is slower."""

from collections.abc import Sequence

from nemo_vfm.core.device import gpus
from nemo_vfm.core.log import info, warn_once
from nemo_vfm.curate.output.transcode import Transcode
from nemo_vfm.curate.record.ledger import FileRecord
from nemo_vfm.data.video.codecs import COSTS, NVDEC_CODECS, Decoding, check_decoding, nvdec_why_not, usable, why_not


def say_what_codecs_lack(transcode: Transcode, decode: Decoding) -> None:
    """Say once what is slower than it could be.

    Raises:
        UserError: the encoder or the decoder does not work here.
    """
    usable(transcode.encoder)
    check_decoding(decode)
    if gpus() and transcode.encoder == "x264":
        reason = why_not("nvenc")
        info(f"nvenc does not work ({reason}): {COSTS['nvenc']}" if reason else "encoder=nvenc would encode on the GPU")
    if gpus() and decode == "cpu":
        reason = nvdec_why_not()
        info(f"nvdec does not work ({reason}): {COSTS['nvdec']}" if reason else "decode=nvdec would decode on the GPU")


def say_what_nvdec_leaves(files: Sequence[FileRecord], decode: Decoding) -> None:
    """Say once which of these files are decoded by the CPU although NVDEC was asked for."""
    if decode == "cpu":
        return
    videos = [file.info for file in files if file.info is not None and not file.found.is_image]
    left = [info.codec for info in videos if info.codec not in NVDEC_CODECS]
    if left:
        codecs = ", ".join(sorted(set(left)))
        warn_once(f"NVDEC does not decode {codecs}: {len(left)} of {len(files)} files are decoded by the CPU")
