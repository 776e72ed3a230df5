"""TensorBoard reads back what the log says."""

import json
import sys

import pytest
import torch

from bilateral.data.datasets import load
from bilateral.errors import UserError
from bilateral.machine import Machine
from bilateral.paper.recipes import recipe_named
from bilateral.runs import RunFolder
from bilateral.training.progress import TrainingProgress
from bilateral.training.trainer import train

RUN = recipe_named("digits-r-mc-la").with_fields(epochs=2, check_epochs=1)


def test_events_hold_the_log(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = RunFolder(tmp_path / "run")
    quiet = TrainingProgress(quiet=True)
    split = load("digits", "train")
    assert train(RUN, folder, split, torch.device("cpu"), quiet, Machine(tensorboard=True))
    events = EventAccumulator(str(folder.path / "tensorboard"))
    events.Reload()
    records = [json.loads(line) for line in folder.log.read_text().splitlines()]
    for name, reading in (
        ("loss", lambda record: record["loss"]),
        ("learning_rate", lambda record: record["learning_rate"]),
        ("check/pgd10", lambda record: record["check"]["pgd10"]),
    ):
        shown = [(event.step, event.value) for event in events.Scalars(name)]
        expected = [(record["step"], pytest.approx(reading(record))) for record in records]
        assert shown == expected


def test_without_tensorboard_nothing_is_started(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    folder = RunFolder(tmp_path / "run")
    quiet, split = TrainingProgress(quiet=True), load("digits", "train")
    with pytest.raises(UserError, match=r"pip install tensorboard"):
        train(RUN, folder, split, torch.device("cpu"), quiet, Machine(tensorboard=True))
    assert not folder.path.exists()
