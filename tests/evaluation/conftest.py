"""What several tests of evaluation share: a trained run, and a place for its results."""

import pytest
import torch

from bilateral.config import Data
from bilateral.data.datasets import load
from bilateral.evaluation.target import find_target
from bilateral.paper.recipes import recipe_named
from bilateral.runs import RunFolder
from bilateral.training.progress import TrainingProgress
from bilateral.training.trainer import train

CPU = torch.device("cpu")


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    """A digits model of a few epochs; nothing writes into its folder."""
    folder = RunFolder(tmp_path_factory.mktemp("run") / "seed0")
    recipe = recipe_named("digits-r-mc-la").with_fields(
        epochs=4, check_epochs=0, data=Data(name="digits", augment="none")
    )
    train(recipe, folder, load("digits", "train"), CPU, TrainingProgress(quiet=True))
    return folder


@pytest.fixture
def target(digits_run, tmp_path):
    """The model with a fresh place for its results."""
    return find_target(str(digits_run.path), None, None, str(tmp_path / "results"), CPU)
