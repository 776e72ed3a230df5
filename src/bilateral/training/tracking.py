"""A run's log as TensorBoard events, by TensorBoard's own writer; `log.jsonl` is the record."""

from pathlib import Path
from typing import Any

from bilateral.errors import UserError


def require_tensorboard() -> Any:
    """TensorBoard's writer; a UserError where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("tensorboard is not installed: pip install tensorboard") from None
    return SummaryWriter


class Tracking:
    """Writes each epoch's readings to `<run folder>/tensorboard/`.

    Events after the step from which a run resumes are hidden: they will be written again.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self._writer = require_tensorboard()(str(folder / "tensorboard"), purge_step=step + 1)

    def epoch(self, record: dict[str, Any]) -> None:
        """The numbers of an epoch, at its last step."""
        for name, value in _numbers(record):
            self._writer.add_scalar(name, value, record["step"])
        self._writer.flush()


def _numbers(record: dict[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """The readings of a record by their names, those of its parts as `part/name`."""
    found = []
    for name, value in record.items():
        if isinstance(value, dict):
            found += _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and name not in ("epoch", "step"):
            found.append((prefix + name, float(value)))
    return found
