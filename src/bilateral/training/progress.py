"""How training is shown, on standard error: a live bar on a terminal, else plain lines."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

BAR = 32
"""Columns reserved for the bar, the share done and the time left, however narrow the terminal."""

KNOWN_AFTER, LONG = 60.0, 180.0
"""Seconds until the rate is known, and the remaining seconds beyond which they are reported."""


class TrainingProgress:
    """Shows steps and epochs as they end; prints nothing when quiet."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(file=sys.stderr, quiet=quiet, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._steps = 0
        self._first: tuple[int, float] | None = None
        self._told = False

    @contextmanager
    def running(self, title: str, steps: int, done: int) -> Iterator[None]:
        """Show a run of `steps` steps of which `done` are done already."""
        if not self.console.is_terminal or self.console.quiet:
            self._steps, self._first, self._told = steps, None, False
            yield
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(None),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[reading]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console) as self._bar:
            self._task = self._bar.add_task(title, total=steps, completed=done, reading="")
            yield
        self._bar = None

    @property
    def wants_readings(self) -> bool:
        """Whether readings within an epoch are shown; each of them waits for the device."""
        return self._bar is not None

    def step(self, done: int, record: dict[str, Any] | None = None) -> None:
        """A step was taken; `record` holds the epoch so far when it was read."""
        if self._bar is None or self._task is None:
            self._tell_length(done)
            return
        self._bar.update(self._task, completed=done)
        if record is not None:
            self._bar.update(self._task, reading=self._reading(record))

    def _tell_length(self, done: int) -> None:
        """Without a bar, report once how long the rest will take, if that is long."""
        now = time.monotonic()
        if self._first is None:  # the step before may include compilation
            self._first = done, now
        first, since = self._first
        if self._told or done <= first or now - since < KNOWN_AFTER:
            return
        self._told = True
        left = (self._steps - done) * (now - since) / (done - first)
        if left > LONG:
            long = f"{left / 3600:.1f} hours" if left > 3600 else f"{left / 60:.0f} minutes"
            self.note(f"about {long} to go at this rate")

    def _reading(self, record: dict[str, Any]) -> str:
        """The epoch so far, as much as fits beside the bar; the lines above hold the rest."""
        title = self._bar.tasks[0].description if self._bar else ""
        room = self.console.width - len(title) - BAR
        reading = f"epoch {record['epoch']}"
        for part in _parts(record):
            if len(reading) + 2 + len(part) > room:
                break
            reading += f"  {part}"
        return reading

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        """An epoch ended."""
        self.console.print(f"epoch {record['epoch']}/{epochs}  {_line(record)}")
        self.step(record["step"], record)

    def note(self, text: str) -> None:
        """Something the user should know."""
        self.console.print(text)


def _line(record: dict[str, Any]) -> str:
    return "  ".join(_parts(record))


def _parts(record: dict[str, Any]) -> list[str]:
    parts = [f"loss {record['loss']:.3f}"]
    for key, name in (("clean_accuracy", "clean"), ("adversarial_accuracy", "adversarial")):
        if record.get(key) is not None:
            parts.append(f"{name} {100 * record[key]:.1f} %")
    if check := record.get("check"):
        parts.append(f"PGD-10 {100 * check['pgd10']:.1f} %")
    parts.append(f"{record['images_per_second']:,.0f} images/s")
    return parts
