"""Works around the steps, one file each: metrics, validation, previews, checkpoints, throughput, progress."""
