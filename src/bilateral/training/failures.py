"""Failures in the middle of training, each reported in one line with what to do."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from bilateral.data.batches import Batches
from bilateral.data.photograph_batches import PhotographBatches, judge_unreadable
from bilateral.errors import TrainingError
from bilateral.processes import Processes, is_lost_process
from bilateral.runs import RunFolder
from bilateral.training.engine import Totals
from bilateral.training.progress import TrainingProgress


@contextmanager
def explained(device: torch.device) -> Iterator[None]:
    """Report out-of-memory and a lost process in one line; other errors pass through."""
    try:
        yield
    except torch.OutOfMemoryError as error:  # itself a RuntimeError
        raise TrainingError(
            f"out of memory on {device} ({str(error).splitlines()[0][:120]}): give "
            "--machine.accumulate 2 (or more) to compute a batch in parts; the same "
            "command with it resumes from the last checkpoint"
        ) from None
    except RuntimeError as error:
        if not is_lost_process(error):
            raise
        raise TrainingError(
            f"another process of this run was lost ({str(error).splitlines()[0][:160]}); "
            "the same command resumes from the last checkpoint"
        ) from None


def stop_if_not_finite(totals: Totals, folder: RunFolder) -> None:
    """Stop a run whose loss was not finite; every checkpoint is from before that step."""
    if totals.bad_step >= 0:
        raise TrainingError(
            f"the loss was not finite at step {totals.bad_step}; the last checkpoint in "
            f"{folder.path} is from before it (a lower learning rate may help)"
        )


class Unreadable:
    """Photographs that some process could not read: each is named once, too many end the run."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self.files = set(known)

    def tell(
        self,
        batches: Batches | PhotographBatches,
        images: int,
        processes: Processes,
        progress: TrainingProgress,
    ) -> None:
        """Name what was found since the last call; all processes call it."""
        if isinstance(batches, Batches):
            return
        own = [str(path) for path in batches.corrupt]
        found = {path for paths in processes.gather(own) for path in paths}
        for path in sorted(found - self.files):
            progress.note(f"{path} cannot be read: another image took its place")
        self.files |= found
        judge_unreadable(sorted(self.files), images)
