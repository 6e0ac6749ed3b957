"""Downloads models from a hub for `nemo-vfm get`, the only command that does so."""
