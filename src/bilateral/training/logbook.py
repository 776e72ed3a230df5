"""A run's log, a line per epoch: in its folder, for TensorBoard, on screen; and its wall time."""

import time
from typing import Any

from bilateral.processes import Processes
from bilateral.runs import RunFolder
from bilateral.training.progress import TrainingProgress
from bilateral.training.tracking import Tracking


class Logbook:
    """Writes the log of a run as it goes; only the first process writes and reads."""

    def __init__(
        self, folder: RunFolder, progress: TrainingProgress, processes: Processes, epochs: int
    ) -> None:
        self.folder, self.progress, self.processes = folder, progress, processes
        self.epochs = epochs
        self.seconds, self._since = 0.0, time.monotonic()
        self._tracking: Tracking | None = None

    def begin(self, step: int, tensorboard: bool) -> None:
        """The run starts or resumes now, at this step."""
        if tensorboard and self.processes.first:
            self._tracking = Tracking(self.folder.path, step)
        self._since = time.monotonic()

    def cut(self, epochs: int) -> None:
        """Remove the lines of later epochs."""
        if self.processes.first:
            self.folder.cut_log(epochs)

    def write(self, record: dict[str, Any]) -> None:
        """An epoch's line, with the time so far."""
        record["seconds"] = self.count_time()
        if self.processes.first:
            self.folder.append_log(record)
        if self._tracking:
            self._tracking.epoch(record)
        self.progress.epoch(record, self.epochs)

    def last(self) -> dict[str, Any]:
        """The last line, the same for all processes; empty where there is none."""
        own = self.folder.last_record() if self.processes.first else {}
        return dict(self.processes.gather(own)[0])

    def count_time(self) -> float:
        """Wall time so far, checks and checkpoints included, summed over interruptions."""
        now = time.monotonic()
        self.seconds, self._since = self.seconds + now - self._since, now
        return self.seconds
