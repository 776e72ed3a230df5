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
    """What somebody's own model or attack prints goes to standard error, beside the progress.

    Where the command is the whole `process`, so does what other programs and libraries print, and
    what is printed when the interpreter ends.
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
    """Exactly one JSON document."""
    print(json.dumps(value, indent=1, allow_nan=False), file=_answers.get())


def is_first_process() -> bool:
    """Whether this process speaks for the command: under torchrun the first one alone does."""
    return os.environ.get("RANK", "0") == "0"
