"""Translates between the config.json of language models of transformers and GPT's arguments."""
