"""How training is shown, on standard error: a live bar on a terminal, else plain lines."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class TrainingProgress:
    """Shows steps and epochs as they come; says nothing when quiet."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(file=sys.stderr, quiet=quiet, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    @contextmanager
    def running(self, title: str, steps: int, done: int) -> Iterator[None]:
        """Show a run of `steps` steps of which `done` are done already."""
        if not self.console.is_terminal or self.console.quiet:
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
        """Whether a reading within an epoch would be seen; reading one waits for the device."""
        return self._bar is not None

    def step(self, done: int, record: dict[str, Any] | None = None) -> None:
        """A step was taken; `record` holds the epoch so far when it was read."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done)
            if record is not None:
                reading = f"epoch {record['epoch']}  {_line(record)}"
                self._bar.update(self._task, reading=reading)

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        """An epoch ended."""
        self.console.print(f"epoch {record['epoch']}/{epochs}  {_line(record)}")
        self.step(record["step"], record)

    def note(self, text: str) -> None:
        """Something the user should know."""
        self.console.print(text)


def _line(record: dict[str, Any]) -> str:
    parts = [f"loss {record['loss']:.3f}"]
    for key, name in (("clean_accuracy", "clean"), ("adversarial_accuracy", "adversarial")):
        if record.get(key) is not None:
            parts.append(f"{name} {100 * record[key]:.1f} %")
    if check := record.get("check"):
        parts.append(f"PGD-10 {100 * check['pgd10']:.1f} %")
    parts.append(f"{record['images_per_second']:,.0f} images/s")
    return "  ".join(parts)
