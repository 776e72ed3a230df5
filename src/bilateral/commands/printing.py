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
def one_document(process: bool = False) -> Iterator[None]:
    """Send what a user's own model or attack prints to standard error, beside the progress.

    If the command is the whole `process`, this includes what other programs and libraries print,
    and what is printed when the interpreter exits.
    """
    answers = sys.stdout
    if process:
        sys.stdout.flush()
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
    token = _answers.set(answers)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _answers.reset(token)
        answers.flush()


def print_json(value: Any) -> None:
    """Print exactly one JSON document."""
    print(json.dumps(value, indent=1, allow_nan=False), file=_answers.get())


def is_first_process() -> bool:
    """Whether this process prints for the command: under torchrun only the first one does."""
    return os.environ.get("RANK", "0") == "0"
