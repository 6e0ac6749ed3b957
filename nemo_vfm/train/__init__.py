"""Trains models: a job, one LightningModule, optimizer schedule, weight averaging, callbacks."""
