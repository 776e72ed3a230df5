"""A cheaper beginning: clean or small images first, then the whole method, exactly."""

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from bilateral.config import Beginning, Data, Labels, Run
from bilateral.data.batches import resized
from bilateral.data.datasets import load
from bilateral.errors import UserError
from bilateral.export.model_card import _recipe
from bilateral.machine import Machine
from bilateral.paper.recipes import recipe_named
from bilateral.runs import RunFolder
from bilateral.training.bench import bench_train
from bilateral.training.guard import Reading
from bilateral.training.preparation import remarks
from bilateral.training.progress import TrainingProgress
from bilateral.training.step import passes_per_image
from bilateral.training.trainer import Trainer, train

CPU = torch.device("cpu")
QUIET = TrainingProgress(quiet=True)
RUN = recipe_named("digits-r-mc-la").with_fields(
    epochs=4,
    data=Data(name="digits", augment="crop", images_per_class=16),
    labels=Labels(rule="one-hot"),
    check_epochs=0,
    averaging=0.9,
)
CLEAN = RUN.with_paths({"beginning.share": 0.5, "beginning.clean": True})
SMALL = RUN.with_paths({"beginning.share": 0.5, "beginning.image_size": 6})


@pytest.fixture(scope="module")
def digits():
    return load("digits", "train")


def begun(run, digits, tmp_path, epochs):
    """A trainer after so many epochs."""
    trainer = Trainer(run, RunFolder(tmp_path / "unused"), digits, CPU, QUIET)
    for epoch in range(epochs):
        for batch in trainer.batches.epoch(epoch):
            trainer.take(batch, epoch)
    return trainer


def equal(one, other):
    theirs = other.state_dict()
    return all(torch.equal(tensor, theirs[name]) for name, tensor in one.state_dict().items())


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"labels.rule": "adversarial", "adversary.target": "most-confusing"},
        {"labels.rule": "supplementary", "labels.top_k": 3},
        {"labels.averaged_share": 0.5},
        {"weight_perturbation": 0.01},
        {"adversary.prior_start": True},
    ],
)
def test_a_clean_beginning_is_undefended_training(digits, tmp_path, fields):
    """Labels are as given then, and weights where they are: both halves are the attack's."""
    undefended = RUN.with_fields(method="undefended")
    for epochs, same in ((2, True), (3, False)):
        own = begun(CLEAN.with_paths(fields), digits, tmp_path, epochs)
        other = begun(undefended, digits, tmp_path, epochs)
        assert equal(own.model, other.model) == equal(own.final_model, other.final_model) == same


@pytest.mark.parametrize("run", [CLEAN, SMALL])
def test_after_the_beginning_steps_are_those_of_the_whole_method(digits, tmp_path, run):
    own = begun(run, digits, tmp_path, 2)
    other = Trainer(RUN, RunFolder(tmp_path / "unused"), digits, CPU, QUIET)
    other._take_state(own._state())
    assert equal(own.model, other.model)
    for batch in own.batches.epoch(2):
        for trainer in (own, other):
            trainer.take(batch, 2)
        assert equal(own.model, other.model)
    assert own.engine.beginning == Beginning() and own.engine.counts == other.engine.counts


def test_images_are_small_in_the_beginning_alone(digits, tmp_path):
    trainer = Trainer(SMALL, RunFolder(tmp_path / "unused"), digits, CPU, QUIET)
    seen = []
    trainer.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[2:]))
    for epoch, size in ((1, (6, 6)), (2, (8, 8))):
        seen.clear()
        trainer.take(next(iter(trainer.batches.epoch(epoch))), epoch)
        assert set(seen) == {size}
    assert trainer.engine.counts[1], "attacks are there from the first step on"


@pytest.mark.parametrize("run", [CLEAN, SMALL])
@pytest.mark.parametrize("looks", [2, 3, 4])
def test_an_interruption_changes_nothing(digits, tmp_path, stopped_after, run, looks):
    """In the beginning, at its end, and after it: there are two steps an epoch."""
    whole, broken = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "broken")
    train(run, whole, digits, CPU, QUIET)
    with stopped_after(looks):
        train(run, broken, digits, CPU, QUIET)
    train(run, broken, digits, CPU, QUIET)
    assert broken.weights.read_bytes() == whole.weights.read_bytes()
    counted = [
        [record["adversarial_accuracy"] for record in folder.records()]
        for folder in (whole, broken)
    ]
    assert counted[0] == counted[1]
    assert [share is None for share in counted[0]] == [run is CLEAN] * 2 + [False] * 2


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((0.0, 0.0, 0.0, 0.0), [False, False, False, False]),
        ((0.0, 0.0, 0.12, 0.0), [False, False, False, False]),
        ((0.0, 0.0, 0.4, 0.0), [False, False, False, True]),
    ],
)
def test_what_attacks_have_not_taught_cannot_be_lost(
    digits, tmp_path, monkeypatch, shares, expected
):
    """Accuracies under PGD-10 epoch by epoch: attacks come in the third, guessing gets a tenth."""

    def read_guard(trainer):
        share = shares[trainer.step // trainer.batches.steps - 1]
        return Reading(250, 0.9, 0.6, share, training_attack=0.6, alignment=0.1, guessing=0.1)

    monkeypatch.setattr(Trainer, "read_guard", read_guard)
    folder = RunFolder(tmp_path / "seed0")
    train(CLEAN.with_fields(check_epochs=1), folder, digits, CPU, QUIET)
    told = [record["guard"].get("collapsed", False) for record in folder.records()]
    assert told == expected


def test_going_back_after_the_beginning(digits, tmp_path, monkeypatch):
    """The guard of the fourth epoch goes back to the third, the first that was attacked."""
    fallen = Reading(250, 0.9, 0.6, 0.0, training_attack=0.6, alignment=0.1, guessing=0.1)
    fine = Reading(250, 0.9, 0.6, 0.5, training_attack=0.6, alignment=0.9, guessing=0.1)
    falls = [fallen]

    def read_guard(trainer):
        last = trainer.step == 4 * trainer.batches.steps
        return falls.pop() if last and falls else fine

    monkeypatch.setattr(Trainer, "read_guard", read_guard)
    folder = RunFolder(tmp_path / "seed0")
    run = CLEAN.with_fields(check_epochs=1, guard="shrink-step")
    train(run, folder, digits, CPU, QUIET)
    records = folder.records()
    assert [record["epoch"] for record in records] == [1, 2, 3, 4]
    attacked = [record["adversarial_accuracy"] is not None for record in records]
    assert attacked == [False, False, True, True]
    assert "back to epoch 3, on with 1 x 20/255" in folder.guard_events()[0]


@pytest.mark.parametrize(("height", "width", "small"), [(32, 32, 24), (20, 30, 10), (8, 8, 8)])
def test_images_shrink_as_pillow_shrinks_them(height, width, small):
    pixels = np.random.default_rng(0).random((height, width), dtype=np.float32)
    found = resized(torch.from_numpy(pixels)[None, None], small)[0, 0]
    size = (round(width * small / height), small)
    expected = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"beginning.share": 0.5}, "beginning.clean or beginning.image_size"),
        ({"beginning.clean": True}, "beginning.share goes with"),
        ({"beginning.share": 1.0, "beginning.clean": True}, "share"),
        ({"beginning.share": 0.5, "beginning.clean": True, "method": "undefended"}, "undefended"),
        (
            {"beginning.share": 0.5, "beginning.image_size": 6, "adversary.prior_start": True},
            "prior_start",
        ),
    ],
)
def test_what_does_not_go_together(fields, words):
    with pytest.raises(ValidationError, match=words):
        Run().with_paths(fields)


def test_a_model_that_takes_one_size_alone_is_refused_at_once(digits, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n"
        "def build(classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    with pytest.raises(UserError, match=r"does not take images of shape \(1, 6, 6\)"):
        Trainer(SMALL.with_fields(model=f"{file}:build"), RunFolder(tmp_path), digits, CPU, QUIET)


@pytest.mark.parametrize("size", [8, 32])
def test_images_that_are_no_smaller_are_refused(digits, tmp_path, size):
    run = SMALL.with_paths({"beginning.image_size": size})
    with pytest.raises(UserError, match=f"image_size {size}: must be below the images' 8"):
        Trainer(run, RunFolder(tmp_path), digits, CPU, QUIET)


def test_a_cheaper_beginning_is_counted():
    """Six passes an epoch; clean ones cost three, and those at half the height a quarter."""
    assert passes_per_image(RUN, 8) == 4 * 6
    assert passes_per_image(CLEAN, 8) == 2 * 3 + 2 * 6
    small = {"beginning.share": 0.5, "beginning.image_size": 4}
    assert passes_per_image(RUN.with_paths(small), 8) == 2 * 6 / 4 + 2 * 6
    assert passes_per_image(CLEAN.with_paths(small), 8) == 2 * 3 / 4 + 2 * 6


def test_a_beginning_ends_before_the_last_epoch_and_is_told():
    assert RUN.beginning_epochs == 0 and CLEAN.beginning_epochs == 2
    nearly = CLEAN.with_paths({"beginning.share": 0.95})
    assert nearly.beginning_epochs == 3
    short = CLEAN.with_paths({"beginning.share": 0.1})
    assert "beginning.share 0.1: that is no epoch of 4" in remarks(short, 10, 160)
    assert "| epochs | 4, the first 2 on clean images |" in _recipe(CLEAN)
    assert "| epochs | 4, the first 2 on attacked images of height 6 |" in _recipe(SMALL)
    assert "| epochs | 4 |" in _recipe(RUN) and "| epochs | 4 |" in _recipe(short)


def test_the_benchmark_is_of_the_whole_method(digits, monkeypatch):
    seen = []
    monkeypatch.setattr("bilateral.training.bench.matmul_tflops", lambda device: 1.0)

    def measure(run, *_):
        seen.append(run.beginning)
        return {"images_per_second": 1.0, "first_step_seconds": 1.0}

    monkeypatch.setattr("bilateral.training.bench._measure", measure)
    bench_train(CLEAN, digits, 100, CPU, Machine())
    assert seen == [Beginning()]
