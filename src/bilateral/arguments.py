"""Command-line arguments from typed functions and values, by tyro; its errors as one line.

tyro draws boxes around its errors, and pydantic's are meant for programmers: both are rephrased in
terms of the command line.
"""

import contextlib
import functools
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any

import tyro
from pydantic import ValidationError

from bilateral.budgets import parse_budget
from bilateral.complaints import complaint
from bilateral.errors import UserError

_ROOTS = ("Run", "Options")
"""Classes whose fields are options without a prefix; a field of `Labels` has `--labels.`."""
_KINDS = {"INT": "whole number", "FLOAT": "number"}
_INTERNAL = r"invalid literal|could not convert|no type matching|Could not find valid parse"


def call(command: Callable[..., Any], arguments: Sequence[str], prog: str) -> Any:
    """Call a command with the arguments that its signature describes."""

    @functools.wraps(command)
    def bound(*positional: Any, **named: Any) -> Callable[[], Any]:
        return functools.partial(command, *positional, **named)

    # Parsing and calling are separate: what the command itself prints must not be captured.
    return parse(bound, arguments, prog)()


def parse(target: Callable[..., Any], arguments: Sequence[str], prog: str, **options: Any) -> Any:
    """Build `target` from the arguments; a bad argument raises UserError."""
    captured = io.StringIO()
    plainly = contextlib.nullcontext() if wants_help(arguments) else _plain_boxes()
    try:
        with plainly, contextlib.redirect_stderr(captured):
            found = tyro.cli(target, args=list(arguments), prog=prog, **options)
    except ValidationError as error:
        raise UserError(_of_fields(error)) from None
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        cause: BaseException | None = stop
        while cause is not None and not isinstance(cause, ValidationError):
            cause = cause.__context__
        message = _of_fields(cause) if cause else one_line(captured.getvalue(), arguments, prog)
        raise UserError(message) from None
    _refuse_empty_lists(found, arguments)
    return found


def _refuse_empty_lists(found: object, words: Sequence[str]) -> None:
    """Refuse a list option given without a value: it would be taken for the default, all."""
    for word, after in zip(words, [*words[1:], "--"], strict=False):
        value = getattr(found, word.removeprefix("--").replace("-", "_"), None)
        if word.startswith("--") and after.startswith("--") and value in ((), []):
            raise UserError(f"{word} needs a value")


@contextlib.contextmanager
def _plain_boxes() -> Iterator[None]:
    """Make tyro draw its boxes as if standard output were no terminal: rules, and no colours.

    They are as wide as they need to be: otherwise a path could be broken in two.
    """
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100000"
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before


def _of_fields(error: ValidationError) -> str:
    """The first of pydantic's errors, with fields named as the options that set them."""
    fault = error.errors()[0]
    path = [str(part) for part in fault["loc"] if isinstance(part, str)]
    if error.title not in _ROOTS:
        path.insert(0, error.title.lower())
    name = _option(".".join(path)) if fault["loc"] else ""
    prefix = "" if error.title in _ROOTS else f"{error.title.lower()}."

    def spelled(match: re.Match[str]) -> str:
        field = match[1] if "." in match[1] else prefix + match[1]
        return _option(field) + (f" {match[2]}" if match[2] else "")

    text = complaint(fault, name)
    text = re.sub(r"(?<![-\w.])([a-z_]+(?:\.[a-z_]+)*) = ([\w-]+)", spelled, text)
    return re.sub(r"(?<![-\w.])([a-z]+(?:[_.][a-z]+)+)()(?!\w)", spelled, text)


def _option(field: str) -> str:
    """The option that sets a field; `--data` is short for `--data.name`."""
    option = f"--{field.rstrip('_').replace('_', '-')}"
    return "--data" if option == "--data.name" else option


def one_line(box: str, words: Sequence[str], prog: str) -> str:
    """tyro's boxed message as one line: what was given, and what is valid."""
    sections: list[list[str]] = [[]]
    for line in box.splitlines():
        text = line.strip("│╭╮╰╯ ")  # an older tyro draws them on any standard output
        if set(text) <= {"─", "-"}:
            sections.append([])
        else:
            sections[-1].append(text)
    title, *rest = [section for section in sections if section] or [[""]]
    first, *others = [title[1:], *rest] if title[1:] else rest or [title]
    if first[0].startswith("Missing from"):
        return _missing(first[1:], others, prog)
    if match := re.match(r"Unrecognized options: (.*)", first[0]):
        return _unrecognised(match[1], others, words)
    if match := re.match(r"Missing value for argument '([^/']+)", first[0]):
        return f"{match[1]} needs a value"
    if match := re.match(r"invalid choice '(.*)' for argument '(\S+)'.*? of \((.*)\)", first[0]):
        choices = match[3].replace("'", "").removesuffix(",")
        return f"{match[2]} {match[1]}: must be one of {choices}"
    if match := re.match(r"Error parsing ([^/ ]+?)(?:/\S+)?: (.*)", first[0]):
        if re.match(_INTERNAL, match[2]):
            return _not_of_a_kind(match[1], others, words)
        return f"{match[1]}: {match[2].removesuffix('.')}"
    return " ".join(first) or " ".join(box.split())


def _missing(lines: list[str], others: list[list[str]], prog: str) -> str:
    """The arguments that are missing, or else a misspelt option, which is the likelier mistake."""
    needed: dict[str, str] = {}
    for line in lines:
        if match := re.match(r"(--[\w.-]+|[A-Z]+)(?: \[.*|$)", line):
            needed[match[1]] = ""
        elif needed:
            needed[next(reversed(needed))] += f" {line}"
    for section in others:
        if section[0].startswith("Unrecognized") and section[1].startswith("--"):
            near = get_close_matches(section[1], needed)
            return _unknown_option(section[1], near)
    parts = [
        f"{name}:{text.removesuffix('(required)').rstrip(' .')}" for name, text in needed.items()
    ]
    return f"{prog.removeprefix('bilateral ')} needs {'; and '.join(parts)}"


def _unrecognised(given: str, others: list[list[str]], words: Sequence[str]) -> str:
    """An unknown option, or a superfluous word."""
    word = given.split(", ")[0]
    if word.startswith("-"):
        near = [
            option
            for section in others
            if section and section[0].startswith(("Perhaps", f"Arguments similar to {word}:"))
            for line in section[1:]
            for option in re.findall(r"^--[\w.-]+", line)
        ]
        if word.endswith(".lr") and near:  # too short to be similar to the full name
            near.insert(0, f"{word.removesuffix('lr')}learning-rate")
        return _unknown_option(word, near)
    before = list(words[: words.index(word)]) if word in words else []
    options = [place for place, each in enumerate(before) if each.startswith("--")]
    after = f" after {' '.join(before[options[-1] :])}" if options else ""
    hint = ""
    if options and word.lower() in ("true", "false", "yes", "no", "on", "off"):
        *group, name = before[options[-1]].removeprefix("--").split(".")
        hint = f": it is a switch, and --{'.'.join([*group, f'no-{name}'])} turns it off"
    return f"'{word}' is one word too many{after}{hint} (--help lists all options)"


def _unknown_option(option: str, near: Sequence[str]) -> str:
    hint = f"; nearest: {', '.join(dict.fromkeys(near))}" if near else ""
    return f"unknown option {option}{hint} (--help lists all)"


def _not_of_a_kind(option: str, others: list[list[str]], words: Sequence[str]) -> str:
    """A value of the wrong type; the help text that tyro adds says what the option takes."""
    usage = next((part[1] for part in others if part[0].startswith("Argument helptext")), "")
    kinds = [_KINDS[kind] for kind in re.findall("|".join(_KINDS), usage)[:1]]
    several, none = " ..." in usage, "{None}" in usage
    needed = "".join([*kinds, "s" * several]) if several else f"a {''.join(kinds) or 'value'}"
    given = ""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == option:
            rest = [value] if equals else list(words[place + 1 :])
            values = [each for each in rest if not each.startswith("--")]
            given = f" {' '.join(values if several else values[:1])}"
    return f"{option}{given}: must be {needed}{', or None' if none else ''}"


def budget(option: str, text: str | None) -> float | None:
    """The budget, such as 8/255, that an option was given; None if it was not given."""
    if text is None:
        return None
    try:
        return parse_budget(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None


def wants_help(arguments: Sequence[str]) -> bool:
    """Whether help was asked for."""
    return any(word in ("-h", "--help") for word in arguments)
