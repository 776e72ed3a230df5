"""`keep = best`: a run ends with the weights of its best reading, also after an interruption."""

import json

import pytest
import torch
from pydantic import ValidationError

from bilateral.cli import main
from bilateral.config import Data
from bilateral.data.datasets import load
from bilateral.errors import UserError
from bilateral.evaluation.robustness import evaluate
from bilateral.paper.recipes import recipe_named
from bilateral.runs import RunFolder
from bilateral.training.checkpoint import read_checkpoint, write_checkpoint
from bilateral.training.guard import Best, Reading
from bilateral.training.preparation import guard_images
from bilateral.training.progress import TrainingProgress
from bilateral.training.trainer import Trainer, train
from bilateral.training.watch import Watch
from bilateral.weights import read_weights

CPU = torch.device("cpu")
QUIET = TrainingProgress(quiet=True)
RUN = recipe_named("digits-r-mc-la").with_fields(
    epochs=4,
    data=Data(name="digits", augment="none", images_per_class=30, held_out=200),
    check_epochs=1,
    keep="best",
    averaging=0.9,
)
SHARES = [0.3, 0.6, 0.2, 0.5]
"""Of the held-out images under PGD-10, epoch by epoch: the second is the best."""


@pytest.fixture(scope="module")
def digits():
    return load("digits", "train")


def reading(pgd10, images=100):
    return Reading(images, 0.9, 0.7, pgd10, training_attack=0.7, alignment=0.5)


def passed_through(patch, shares=SHARES, steps=1):
    """Readings as given, an epoch of `steps` each; a list of the final model's weights at each."""
    seen = []

    def read(watch, model, _):
        if model is watch.learner.final_model:
            seen.append({name: kept.clone() for name, kept in model.state_dict().items()})
        return reading(shares[watch.learner.step // steps - 1])

    patch.setattr(Watch, "read", read)
    return seen


def weights_of(run, folder, digits):
    model = Trainer(run, folder, digits, CPU, QUIET).learner.model
    read_weights(folder.weights, model)
    return model.state_dict()


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("averaging", [None, 0.9])
def test_the_weights_of_the_best_reading_are_kept(digits, tmp_path, monkeypatch, averaging):
    run, folder = RUN.with_fields(averaging=averaging), RunFolder(tmp_path / "seed0")
    seen = passed_through(monkeypatch)
    train(run, folder, digits, CPU, QUIET)
    kept = weights_of(run, folder, digits)
    assert [equal(kept, each) for each in seen] == [False, True, False, False]
    records = [json.loads(line) for line in folder.log.read_text().splitlines()]
    assert [record["kept"] for record in records] == [True, True, False, False]


@pytest.mark.parametrize("looks", [1, 2])
def test_an_interruption_does_not_forget_them(digits, tmp_path, monkeypatch, stopped_after, looks):
    """After the second and the third epoch: there is one step an epoch."""
    whole, broken = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "broken")
    passed_through(monkeypatch)
    train(RUN, whole, digits, CPU, QUIET)
    with stopped_after(looks):
        train(RUN, broken, digits, CPU, QUIET)
    train(RUN, broken, digits, CPU, QUIET)
    assert broken.weights.read_bytes() == whole.weights.read_bytes()


@pytest.mark.parametrize(
    "best",
    [
        {"weights": {"head.bias": torch.zeros(10)}, "robust": 1, "epoch": 1},
        {"weights": "none", "robust": 1, "epoch": 1},
        {"weights": {}, "robust": "many", "epoch": 1},
        {"weights": torch.zeros(3), "robust": 1, "epoch": 1},
    ],
)
def test_weights_that_are_not_the_models_are_refused_at_once(digits, tmp_path, best):
    folder = RunFolder(tmp_path)
    folder.prepare(RUN, {})
    trainer = Trainer(RUN, folder, digits, CPU, QUIET)
    trainer._save()
    state = read_checkpoint(folder.checkpoint, CPU)
    write_checkpoint(folder.checkpoint, {**state, "best": best})
    with pytest.raises(UserError, match="no longer fits the model"):
        Trainer(RUN, folder, digits, CPU, QUIET).fit()


def test_of_equals_the_later_and_never_a_worse_one():
    model, best = torch.nn.Linear(2, 2), Best()
    taken = []
    for epoch, share in enumerate([0.0, 0.4, 0.4, 0.39], start=1):
        torch.nn.init.constant_(model.bias, epoch)
        taken.append(best.look(reading(share), epoch, model))
    assert taken == [True, True, True, False]
    assert (best.robust, best.epoch) == (40, 3)
    assert best.weights["bias"].tolist() == [3.0, 3.0]


@pytest.mark.parametrize(("held_out", "read"), [(100, 50), (700, 350)])
def test_half_of_the_held_out_images_are_read(digits, tmp_path, held_out, read):
    run = RUN.with_fields(data=Data(name="digits", augment="none", held_out=held_out))
    assert len(Trainer(run, RunFolder(tmp_path), digits, CPU, QUIET).watch.images[1]) == read


def test_and_a_thousand_at_the_most():
    many = RUN.with_fields(data=RUN.data.with_fields(held_out=5000))
    assert many.images_read == 1000 and many.with_fields(keep="last").images_read == 250


def test_what_it_needs():
    with pytest.raises(ValidationError, match="check_epochs 1 or more"):
        RUN.with_fields(check_epochs=0)
    for few in (0, 1):
        with pytest.raises(ValidationError, match="held_out must be 2 or more"):
            RUN.with_fields(data=Data(name="digits", held_out=few))
    with pytest.raises(ValidationError, match="the method is undefended"):
        RUN.with_fields(method="undefended", data=Data(name="digits"))


@pytest.mark.parametrize(("averaging", "weights"), [(None, "those"), (0.9, "averaged ones")])
def test_which_were_kept_is_said(tmp_path, capsys, monkeypatch, averaging, weights):
    passed_through(monkeypatch, steps=(1437 - 200) // RUN.optimiser.batch_size)
    words = ["--epochs", "4", "--keep", "best", "--data.held-out", "200", "--check-epochs", "1"]
    words += ["--averaging", str(averaging)] if averaging else []
    assert main(["train", "digits-r-mc-la", *words, "--out", str(tmp_path)]) == 0
    assert "kept: epoch 2, where 60 of 100 held-out images withstood" in capsys.readouterr().err
    folder = tmp_path / "digits-r-mc-la" / "seed0"
    assert main(["export", str(folder), "--quiet"]) == 0
    card = (folder / "export" / "MODEL_CARD.md").read_text()
    kept = json.loads((folder / "log.jsonl").read_text().splitlines()[1])
    said = f"{weights} of the epoch at which most of 100 held-out images withstood PGD-10"
    assert f"Weights: {said}" in card and "Epochs behind these weights: 2" in card
    assert f"Loss in the last of them: {kept['loss']:.4f}" in card
    assert main(["report", str(folder), "--quiet"]) == 0
    assert "seed0 kept the weights of epoch 2." in (folder / "report.html").read_text()


def test_a_guard_that_goes_back_and_the_best_weights_go_together(digits, tmp_path, monkeypatch):
    """After the collapse it goes on from the third epoch; the second stays the best."""
    shares, run = [0.3, 0.6, 0.5, 0.0, 0.55], RUN.with_fields(epochs=5, guard="two-step")
    seen = passed_through(monkeypatch, shares)
    monkeypatch.setattr("bilateral.training.guard.RECOVERIES", 1)
    folder = RunFolder(tmp_path / "seed0")
    train(run, folder, digits, CPU, QUIET)
    assert equal(weights_of(run, folder, digits), seen[1])
    assert [line.count("back to epoch 3") for line in folder.guard_events()] == [2]


def test_a_sweep_judges_on_the_other_half(tmp_path, monkeypatch, capsys):
    (tmp_path / "kept.toml").write_text(
        'recipe = "digits-r-mc-la"\nattacks = "fgsm"\nheld_out = 200\n'
        '[fields]\nepochs = 2\ncheck_epochs = 1\nkeep = "best"\ndata.images_per_class = 40\n'
    )
    judged = []
    monkeypatch.setattr(
        "bilateral.sweeps.evaluate",
        lambda model, images, *words: judged.append(images) or evaluate(model, images, *words),
    )
    read = []
    monkeypatch.setattr(
        "bilateral.training.trainer.guard_images",
        lambda *words: read.append(guard_images(*words)) or read[-1],
    )
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "kept.toml"]) == 0
    assert "on 100 images held out of training" in capsys.readouterr().err
    (images,), ((chosen, _, _),) = judged, read
    assert len(images) == len(chosen) == 100
    both = {image.numpy().tobytes() for image in (*images, *chosen)}
    assert len(both) > 195, "digits that are alike, not the same ones"
