"""Lists the videos, images and clips that a curation reads."""
