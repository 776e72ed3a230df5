"""A run that the guard takes back ends the same wherever a write fails and the run goes on."""

import errno
import json
import os

import pytest
import torch

from bilateral import storage
from bilateral.config import Data
from bilateral.data.datasets import load
from bilateral.paper.recipes import recipe_named
from bilateral.runs import RunFolder
from bilateral.training.progress import TrainingProgress
from bilateral.training.trainer import train
from bilateral.training.watch import Watch

QUIET = TrainingProgress(quiet=True)
RUN = recipe_named("digits-r-mc-la").with_fields(
    epochs=3,
    data=Data(name="digits", augment="crop", images_per_class=13),
    check_epochs=1,
    checkpoint_seconds=0.0,
)
RUN = RUN.with_fields(optimiser=RUN.optimiser.with_fields(batch_size=65))
TIMES = ("seconds", "images_per_second")


class NoRoom:
    """Every flush past the n-th fails, as on a disk that is full; the last one half-way."""

    def __init__(self, after: int) -> None:
        self.left, self.fsync = after, os.fsync

    def __call__(self, handle: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.fsync(handle)


def log(folder):
    lines = map(json.loads, folder.log.read_text().splitlines())
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


@pytest.mark.parametrize("guard", ["two-step", "stop"])
def test_a_collapse_is_told_and_acted_upon_once(guard, tmp_path, monkeypatch, record_property):
    """Between going back, the checkpoint, the log and the final weights nothing is lost."""
    digits, device = load("digits", "train"), torch.device("cpu")
    run = RUN.with_fields(guard=guard, averaging=0.9)

    def collapsed(watch, readings):
        now = watch.learner.step == 4 and watch.recovery.count == 0  # two epochs of 130 images
        return readings[-1] if now else None

    monkeypatch.setattr(Watch, "first_collapsed", collapsed)
    whole, flushes = RunFolder(tmp_path / "whole"), NoRoom(10**6)
    monkeypatch.setattr(storage.os, "fsync", flushes)
    train(run, whole, digits, device, QUIET)
    events = [line["guard"]["event"] for line in log(whole) if "event" in line.get("guard", {})]
    assert len(events) == 1 and "epoch 2 collapsed" in events[0]
    writes = 10**6 - flushes.left
    for after in range(1, writes):
        folder = RunFolder(tmp_path / str(after))
        monkeypatch.setattr(storage.os, "fsync", NoRoom(after))
        with pytest.raises(OSError, match="No space left"):
            train(run, folder, digits, device, QUIET)
        monkeypatch.setattr(storage.os, "fsync", flushes.fsync)
        train(run, folder, digits, device, QUIET)
        assert log(folder) == log(whole), after
        assert folder.weights.read_bytes() == whole.weights.read_bytes(), after
    faults = writes - 1
    kinds = {"failed write": faults}
    value = {"scenario": "guarded train", "kinds": kinds, "runs": faults, "right": faults}
    record_property("faults", value)
