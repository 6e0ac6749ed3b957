"""Reads and writes shards: WebDataset tars with an index beside them."""
