"""Explains what a run did: a clip, a shard, a step."""
