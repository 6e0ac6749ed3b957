"""Writes a `.nemo` archive of a random speech model of one layer; needs NeMo's speech collection."""

from pathlib import Path

import torch
from nemo.collections.asr.models import EncDecCTCModel
from omegaconf import OmegaConf

LETTERS = " abcdefghijklmnopqrstuvwxyz'"
MODULES = "nemo.collections.asr.modules."


def tiny_speech(path: Path, seed: int = 0) -> Path:
    """A CTC model of letters that hears 16 mel bands."""
    torch.manual_seed(seed)
    layer = {"filters": 32, "repeat": 1, "kernel": [3], "stride": [4], "dilation": [1], "dropout": 0.0,
             "residual": False, "separable": True}  # fmt: skip
    preprocessor = {"_target_": f"{MODULES}AudioToMelSpectrogramPreprocessor", "sample_rate": 16000, "features": 16,
                    "window_size": 0.025, "window_stride": 0.01, "dither": 0.0, "pad_to": 0, "n_fft": 512,
                    "normalize": "per_feature", "window": "hann"}  # fmt: skip
    encoder = {"_target_": f"{MODULES}ConvASREncoder", "feat_in": 16, "activation": "relu", "conv_mask": True,
               "jasper": [layer]}  # fmt: skip
    decoder = {
        "_target_": f"{MODULES}ConvASRDecoder",
        "feat_in": 32,
        "num_classes": len(LETTERS),
        "vocabulary": list(LETTERS),
    }
    parts = {"sample_rate": 16000, "preprocessor": preprocessor, "encoder": encoder, "decoder": decoder}
    EncDecCTCModel(cfg=OmegaConf.create(parts)).save_to(str(path))
    return path
