"""Defines networks, codecs and text encoders: plain single-device PyTorch, each declaring how it can be split."""
