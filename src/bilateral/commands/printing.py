"""Results on standard output."""

import json
from typing import Any


def print_json(value: Any) -> None:
    """Exactly one JSON document."""
    print(json.dumps(value, indent=1, allow_nan=False))
