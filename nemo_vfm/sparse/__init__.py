"""Holds features of different lengths: jagged tensors, deduplicated rows, embedding tables. It needs torch alone."""
