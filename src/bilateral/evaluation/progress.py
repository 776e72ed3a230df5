"""How an evaluation is shown, on standard error: a bar per attack with the accuracy so far."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.progress import TimeRemainingColumn as TimeLeft

SILENT_SECONDS = 30.0


class EvaluationProgress:
    """A bar for each attack on a terminal; elsewhere a line now and then and at its end."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(file=sys.stderr, quiet=quiet, highlight=False, soft_wrap=True)
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[reading]}"),
            TimeLeft(),
            console=self.console,
            disable=quiet or not self.console.is_terminal,
        )
        self.tasks: dict[str, TaskID] = {}
        self.told = time.monotonic()

    def __enter__(self) -> Self:
        if not self.bars.disable:  # an older rich ends even a hidden bar with a line
            self.bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.bars.disable:
            self.bars.stop()

    def show(self, attack: str, done: int, images: int, accuracy: float) -> None:
        """Show how many images of an attack are done, and the accuracy so far."""
        reading = f"robust so far {100 * accuracy:.1f} %"
        if self.bars.disable:
            if done == images or time.monotonic() - self.told > SILENT_SECONDS:
                of = "" if done == images else f" of {images}"
                self.console.print(f"{attack}: {done}{of} images attacked, {reading}")
                self.told = time.monotonic()
            return
        if attack not in self.tasks:
            self.tasks[attack] = self.bars.add_task(attack, total=images, reading="")
        self.bars.update(self.tasks[attack], completed=done, reading=reading)
