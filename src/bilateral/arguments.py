"""Command-line arguments from typed functions and values, by tyro; its errors as one line."""

import contextlib
import functools
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import tyro
from pydantic import ValidationError

from bilateral.config import first_complaint, parse_budget
from bilateral.errors import UserError


def call(command: Callable[..., Any], arguments: Sequence[str], prog: str) -> Any:
    """Call a command with the arguments that its signature describes."""

    @functools.wraps(command)
    def bound(*positional: Any, **named: Any) -> Callable[[], Any]:
        return functools.partial(command, *positional, **named)

    # Parsing and calling are apart: what the command itself prints must not be captured.
    return parse(bound, arguments, prog)()


def parse(target: Callable[..., Any], arguments: Sequence[str], prog: str, **options: Any) -> Any:
    """Build `target` from the arguments; a bad one becomes a UserError."""
    captured = io.StringIO()
    try:
        with contextlib.redirect_stderr(captured):
            return tyro.cli(target, args=list(arguments), prog=prog, **options)
    except ValidationError as error:
        raise UserError(first_complaint(error).removeprefix("run.")) from None
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise UserError(one_line(captured.getvalue())) from None


def one_line(box: str) -> str:
    """tyro's boxed message as one line, without pydantic's decoration."""
    sections: list[list[str]] = [[]]
    for line in box.splitlines():
        text = line.strip("│╭╮╰╯|+ \t")  # tyro draws with | and + where the output is ASCII
        if set(text) <= {"─", "-"}:
            sections.append([])
        elif line.startswith(("│", "|")):
            sections[-1].append(text)
    message = " ".join(sections[0]) or " ".join(box.split())
    if match := re.match(r"Unrecognized options: ([^, ]+)", message):
        near = [
            word
            for section in sections[1:]
            if section and section[0].startswith("Perhaps")
            for line in section[1:]
            for word in re.findall(r"^--[\w.-]+", line)
        ]
        hint = f"; nearest: {', '.join(dict.fromkeys(near))}" if near else ""
        return f"unknown option {match[1]}{hint} (--help lists all)"
    pydantic = r"Error parsing (\S+): \d+ validation errors? for \w+ (\S+) (.*?) \[type=.*"
    if match := re.match(pydantic, message):
        where = f"{match[1]}.{match[2]}".removeprefix("run.").removeprefix("options.")
        return f"{where}: {match[3].removeprefix('Value error, ')}"
    return message.removeprefix("Error parsing ").removesuffix(".")


def budget(option: str, text: str | None) -> float | None:
    """A budget such as 8/255 given to an option that may be absent."""
    if text is None:
        return None
    try:
        return parse_budget(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None


def wants_help(arguments: Sequence[str]) -> bool:
    """Whether help was asked for."""
    return any(word in ("-h", "--help") for word in arguments)
