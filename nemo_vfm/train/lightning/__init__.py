"""Trains LightningModules of anybody in a run folder: the Trainer of `LightningFit`, its exact resume, its metrics."""
