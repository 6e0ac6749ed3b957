"""Exports finished clip shards to the layouts that other frameworks read; each layout has a file."""
