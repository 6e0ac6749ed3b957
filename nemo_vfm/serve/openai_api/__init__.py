"""Speaks OpenAI's HTTP protocol for completions and chats."""

from nemo_vfm.core.optional import require

for package in ("starlette", "uvicorn"):
    require(package, purpose="Serving a model")
