"""Results on standard output."""

import json
import os
from typing import Any


def print_json(value: Any) -> None:
    """Exactly one JSON document."""
    print(json.dumps(value, indent=1, allow_nan=False))


def is_first_process() -> bool:
    """Whether this process speaks for the command: under torchrun the first one alone does."""
    return os.environ.get("RANK", "0") == "0"
