"""Results on standard output."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import Any, TextIO

_answers: ContextVar[TextIO | None] = ContextVar("answers", default=None)


@contextmanager
def one_document() -> Iterator[None]:
    """What somebody's own model or attack prints goes to standard error, beside the progress."""
    token = _answers.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _answers.reset(token)


def print_json(value: Any) -> None:
    """Exactly one JSON document."""
    print(json.dumps(value, indent=1, allow_nan=False), file=_answers.get())


def is_first_process() -> bool:
    """Whether this process speaks for the command: under torchrun the first one alone does."""
    return os.environ.get("RANK", "0") == "0"
