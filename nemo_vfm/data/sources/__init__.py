"""Provides the data sources that a recipe names: shards, folders, tables, streams and blends of them."""
