"""A JSON object that is given as an option of a command."""

from __future__ import annotations

import json
from typing import Any

from zoo.errors import UsageError


def json_object(text: str, option: str, example: str) -> dict[str, Any]:
    """Raises `UsageError`, which names the option."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{option} is no JSON: {error}.") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{option} holds a number with too many digits, or what is nested too deep.") from None
    if not isinstance(value, dict):
        raise UsageError(f"{option} is a JSON object, as {example}.")
    return value
