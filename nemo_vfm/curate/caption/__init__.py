"""Captions clips: from files beside the video, from models, from endpoints, from numbers."""
