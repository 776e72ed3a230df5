"""The user's mistakes: each becomes one line on standard error and exit code 2."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """The user's input is at fault; the message is one line that says what and what to do."""


def unknown(kind: str, name: str, valid: Iterable[str]) -> UserError:
    """An unknown name, with the nearest valid ones (or all, where there are few)."""
    names = list(valid)
    near = get_close_matches(name, names, n=3, cutoff=0.4)
    if near:
        return UserError(f"unknown {kind} '{name}'; nearest: {', '.join(near)}")
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return UserError(f"unknown {kind} '{name}'; there are: {shown}")
