"""Exceptions that end a command early, and the exit code of each; no torch."""

import signal
from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """The user's input is at fault; the message says in one line what is wrong and what to do."""


class TrainingError(Exception):
    """Training cannot continue; the last good checkpoint is intact. Exit code 1."""


class Interrupted(BaseException):
    """A signal ended the work. Exit code 128 + its number.

    Unless the work so far is `saved`, the same command may start from the beginning.
    """

    def __init__(self, number: int, saved: bool = True) -> None:
        self.number, self.saved = number, saved
        super().__init__(f"stopped by {signal.Signals(number).name}")


def unknown(kind: str, name: str, valid: Iterable[str]) -> UserError:
    """The error for an unknown name, with the nearest valid ones, or else the first twelve."""
    names = list(valid)
    plain = name.replace("-", "").lower()
    within = [one for one in names if len(plain) > 2 and plain in one.replace("-", "").lower()]
    close = get_close_matches(name, names, n=3, cutoff=0.4)
    if near := list(dict.fromkeys([*sorted(within, key=len)[:1], *close])):
        return UserError(f"unknown {kind} '{name}'; nearest: {', '.join(near[:3])}")
    shown = ", ".join(names[:12]) + (f", ... ({len(names)} in all)" if len(names) > 12 else "")
    return UserError(f"unknown {kind} '{name}'; available: {shown}")
