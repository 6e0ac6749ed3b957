"""Names the types of unchecked JSON; checked values have their own types."""

from typing import Any

Json = Any
