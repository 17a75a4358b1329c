"""What all answers over HTTP are made of."""

from typing import Any

Answer = dict[str, Any]
"""A JSON object."""
