"""The trainer through its own interface: going on, checks, averaging, what it refuses."""

import json

import numpy as np
import pytest
import torch

from bilateral.config import Data, Run
from bilateral.data.batches import Batches
from bilateral.data.datasets import Split, load
from bilateral.errors import TrainingError, UserError
from bilateral.paper.recipes import recipe_named
from bilateral.runs import RunFolder
from bilateral.training.preparation import remarks
from bilateral.training.progress import TrainingProgress
from bilateral.training.trainer import Trainer, train
from bilateral.weights import read_about, read_weights

CPU = torch.device("cpu")
QUIET = TrainingProgress(quiet=True)
TINY = recipe_named("digits-r-mc-la").with_fields(
    epochs=3,
    data=Data(name="digits", augment="crop", images_per_class=13),
    check_epochs=2,
    averaging=0.9,
)


@pytest.fixture(scope="module")
def digits():
    return load("digits", "train")


def log(folder):
    return [json.loads(line) for line in folder.log.read_text().splitlines()]


def test_a_run_leaves_what_the_contract_names(digits, tmp_path):
    folder = RunFolder(tmp_path / "seed0")
    assert train(TINY, folder, digits, CPU, QUIET)
    stored = json.loads(folder.config.read_text())
    assert stored["run"] == TINY.model_dump(mode="json")
    assert set(stored["versions"]) == {"bilateral", "torch", "device", "precision"}
    assert stored["versions"]["precision"] == "float32"
    records = log(folder)
    assert [record["epoch"] for record in records] == [1, 2, 3]
    for record in records:
        assert record["images_per_second"] > 0 and record["loss"] > 0
        assert 0 <= record["clean_accuracy"] <= 1 and 0 <= record["adversarial_accuracy"] <= 1
    assert [set(record.get("check", {})) for record in records] == [
        set(),
        {"clean", "fgsm", "pgd10"},
        {"clean", "fgsm", "pgd10"},
    ]
    assert read_about(folder.weights)["classes"] == list("0123456789")
    before = folder.weights.read_bytes()
    assert not train(TINY, folder, digits, CPU, QUIET)
    assert folder.weights.read_bytes() == before
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(("looks", "turn"), [(0, None), (1, None), (2, None), (4, None), (2, 0.1)])
def test_stopping_and_going_on_equals_never_having_stopped(
    digits, tmp_path, stopped_after, looks, turn
):
    """Bit for bit, from any step, weights and log alike."""
    run = TINY.with_paths({"optimiser.turn": turn})
    whole, broken = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "broken")
    train(run, whole, digits, CPU, QUIET)
    with stopped_after(looks):
        train(run, broken, digits, CPU, QUIET)
    assert broken.checkpoint.exists() and not broken.weights.exists()
    train(run, broken, digits, CPU, QUIET)
    assert broken.weights.read_bytes() == whole.weights.read_bytes()
    timing = ("images_per_second", "seconds")
    for one, other in zip(log(whole), log(broken), strict=True):
        assert {k: v for k, v in one.items() if k not in timing} == {
            k: v for k, v in other.items() if k not in timing
        }


def test_averaged_weights_are_the_final_ones(digits, tmp_path):
    folder = RunFolder(tmp_path)
    trainer = Trainer(TINY, folder, digits, CPU, QUIET)
    folder.prepare(TINY, {})
    trainer.fit()
    saved = Trainer(TINY, folder, digits, CPU, QUIET).learner.model
    read_weights(folder.weights, saved)
    averaged = trainer.learner.averaged.model.state_dict()
    assert all(torch.equal(value, averaged[key]) for key, value in saved.state_dict().items())
    assert not torch.equal(saved.head.weight, trainer.learner.model.head.weight)


def test_another_configuration_is_refused_with_the_fields(digits, tmp_path):
    folder = RunFolder(tmp_path / "seed0")
    train(TINY, folder, digits, CPU, QUIET)
    with pytest.raises(UserError, match=r"epochs: 3 -> 4"):
        train(TINY.with_fields(epochs=4), folder, digits, CPU, QUIET)


def test_a_loss_that_is_not_finite_stops_the_run(digits, tmp_path):
    """The step is named and the last good checkpoint stays as it was."""
    optimiser = TINY.optimiser.with_fields(learning_rate=1e-3, batch_size=26)
    run = TINY.with_fields(optimiser=optimiser, checkpoint_seconds=0.0, check_epochs=0)
    folder = RunFolder(tmp_path)
    trainer = Trainer(run, folder, digits, CPU, QUIET)
    folder.prepare(run, {})
    step, calls = trainer.take, []

    def poisoned(*arguments):
        calls.append(1)
        if len(calls) == 8:
            with torch.no_grad():
                trainer.learner.model.head.weight.fill_(float("nan"))
        step(*arguments)

    trainer.take = poisoned
    with pytest.raises(TrainingError, match="step 8"):
        trainer.fit()
    state = torch.load(folder.checkpoint, weights_only=True)
    assert state["step"] == 7
    assert all(torch.isfinite(value).all() for value in state["model"].values())


def test_seeds_differ_and_repeat(digits, tmp_path):
    weights = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        folder = RunFolder(tmp_path / name)
        train(TINY.with_fields(seed=seed, epochs=1), folder, digits, CPU, QUIET)
        weights.append(folder.weights.read_bytes())
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"labels.ratio": 3}, "less than half of the label's mass"),
        ({"labels.top_k": 20}, "labels.top_k 20: all 9 wrong classes get a share"),
        ({"optimiser.batch_size": 99999}, "batch_size 99999: a step takes all"),
        ({"trades_weight": 3.0}, "trades_weight has no effect"),
        (
            {"trades_weight": 3.0, "method": "trades", "regulariser.kind": "squared"},
            "trades_weight has no effect",
        ),
        ({"trades_weight": 3.0, "method": "trades"}, ""),
        ({"weight_perturbation_along": "momentum"}, "weight_perturbation is 0"),
        ({"weight_perturbation_along": "momentum", "weight_perturbation": 0.01}, ""),
        ({"optimiser.last_share": 0.5}, "last_share has no effect: the schedule is steps"),
        ({"optimiser.last_share": 0.5, "optimiser.schedule": "triangular"}, ""),
        ({"optimiser.drop": 0.2, "optimiser.schedule": "one-cycle"}, "drop has no effect"),
        ({"data.held_out": 10, "check_epochs": 0}, "nothing is measured on these images"),
        ({"check_epochs": 1}, "PGD-10 is measured on training images"),
        ({"data.held_out": 10, "keep": "best"}, "keep = best has one reading to choose from"),
        ({"regulariser.rising": True}, "regulariser.rising has no effect"),
        (
            {"regulariser.kind": "squared", "regulariser.of": "logits"},
            "regulariser.of = logits with method = adversarial moves only",
        ),
        (
            {"regulariser.kind": "squared", "regulariser.of": "logits", "method": "trades"},
            "",
        ),
        ({"data.name": "folder:mine"}, "2 updates in all"),
        ({"labels.top_k": 9}, ""),
        ({"labels.rule": "one-hot", "labels.top_k": 20, "labels.ratio": 3}, ""),
    ],
)
def test_settings_that_do_other_than_they_seem_are_explained(
    fields, said, digits, tmp_path, capsys
):
    run = TINY.with_fields(epochs=1).with_paths(fields)
    train(run, RunFolder(tmp_path), digits, CPU, TrainingProgress())
    told = capsys.readouterr().err
    assert said in told
    assert said or not {"mass", "share", "takes", "effect:", "diverge"} & set(told.split())


def test_few_updates_are_told_of_a_new_network_on_somebodys_pictures():
    own = TINY.with_paths({"data.name": "folder:mine", "epochs": 10})
    for run, images, told in (
        (own, 320, True),
        (own.with_fields(epochs=100), 320, False),
        (own.with_fields(weights="trained.safetensors"), 320, False),
        (own.with_fields(method="undefended"), 320, False),
        (TINY.with_fields(epochs=10), 320, False),
        (own, 30, True),
    ):
        assert any("updates in all" in said for said in remarks(run, 10, images)) == told
    (said,) = [one for one in remarks(own.with_fields(epochs=1), 10, 30) if "in all" in one]
    assert said.startswith("1 update in all: ")


def test_weights_that_may_know_the_held_out_images_are_told_of():
    held_out = TINY.with_paths({"data.held_out": 10})
    for run, told in (
        (held_out.with_fields(weights="w.safetensors"), True),
        (TINY.with_fields(weights="w.safetensors"), False),
        (held_out, False),
    ):
        assert any("may have been trained on" in said for said in remarks(run, 10, 320)) == told


def split_of(images=20, shape=(8, 8, 1), labels=None):
    labels = np.arange(images) % 10 if labels is None else labels
    pixels = np.zeros((images, *shape), dtype=np.uint8)
    return Split(pixels, np.asarray(labels, dtype=np.int64), tuple("0123456789"))


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (split_of(labels=[10] * 20), "outside the 10 classes"),
        (split_of(labels=[-1] * 20), "outside the 10 classes"),
        (split_of(images=0), "empty"),
    ],
)
def test_data_that_does_not_fit_is_refused_before_anything_is_written(split, message, tmp_path):
    run = Run(model="small-cnn", data=Data(name="digits"), epochs=1)
    with pytest.raises(UserError, match=message):
        train(run, RunFolder(tmp_path / "run"), split, CPU, QUIET)
    assert not (tmp_path / "run").exists()


def test_a_model_that_does_not_take_the_images_is_refused(tmp_path):
    (tmp_path / "own.py").write_text(
        "import torch\n"
        "def wide():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(7, 10))\n"
        "def few():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))\n"
    )
    for function, message in (("wide", "does not take images"), ("few", r"needs \(1, 10\)")):
        run = Run(model=f"{tmp_path}/own.py:{function}", data=Data(name="digits"), epochs=1)
        with pytest.raises(UserError, match=message):
            train(run, RunFolder(tmp_path / "run"), split_of(), CPU, QUIET)


def test_a_model_that_ends_in_a_softmax_is_refused(digits, tmp_path):
    """Its own softmax in the loss would flatten the gradients that it learns from."""
    (tmp_path / "own.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def sharp():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Softmax(1))\n"
        "class Sums(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n        self.head = nn.Linear(64, 10)\n"
        "    def forward(self, images):\n"
        "        rows = self.head(images.flatten(1))\n"
        "        return rows + (1 - rows.sum(1, keepdim=True)) / 10 {}\n"
        "def logits():\n    return Sums()\n".format("+ 3 * images.mean((1, 2, 3))[:, None]")
    )
    fields = {"epochs": 1, "averaging": None, "check_epochs": 0}
    sharp = TINY.with_fields(model=f"{tmp_path}/own.py:sharp", **fields)
    with pytest.raises(
        UserError, match=r"own\.py:sharp returns probabilities \(every row sums to 1"
    ):
        train(sharp, RunFolder(tmp_path / "run"), digits, CPU, QUIET)
    assert not (tmp_path / "run").exists()
    logits = TINY.with_fields(model=f"{tmp_path}/own.py:logits", **fields)
    assert train(logits, RunFolder(tmp_path / "run"), digits, CPU, QUIET)


def test_weights_to_start_from(digits, tmp_path):
    first = RunFolder(tmp_path / "first")
    train(TINY.with_fields(epochs=1), first, digits, CPU, QUIET)
    run, new = TINY.with_fields(weights=str(first.weights)), RunFolder(tmp_path / "new")
    trainer = Trainer(run, RunFolder(tmp_path / "second"), digits, CPU, QUIET)
    other = Trainer(TINY, RunFolder(tmp_path / "third"), digits, CPU, QUIET)
    read_weights(first.weights, other.learner.model)
    assert torch.equal(trainer.learner.model.head.weight, other.learner.model.head.weight)
    with pytest.raises(UserError, match="does not fit the model"):
        Trainer(run.with_fields(model="wrn-10-1"), new, digits, CPU, QUIET)
    renamed = tmp_path / "theirs.bin"
    renamed.write_bytes(first.weights.read_bytes())
    same = Trainer(run.with_fields(weights=str(renamed)), new, digits, CPU, QUIET)
    head = same.learner.model.head
    assert torch.equal(head.weight, other.learner.model.head.weight), "whatever its name"
    with pytest.raises(UserError, match="no weights at"):
        Trainer(run.with_fields(weights="nowhere.safetensors"), new, digits, CPU, QUIET)


OWN = """
import torch
from torch import nn

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(64, 64)
        self.other = nn.Linear(64, 64)
        self.other.weight = self.one.weight
        self.head = nn.Linear(64, 10)
    def forward(self, x):
        return self.head(self.other(self.one(x.flatten(1)).relu()))

def tied(): return Tied()
def dropping():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.5), nn.Linear(32, 10))
def parametrised():
    layer = torch.nn.utils.parametrizations.weight_norm(nn.Linear(64, 10))
    return nn.Sequential(nn.Flatten(), layer)
def pair():
    class Pair(nn.Module):
        def forward(self, x):
            return x, x
    return Pair()
def raising():
    class Raising(nn.Module):
        def forward(self, x):
            raise KeyError("no such layer")
    return Raising()
"""


@pytest.fixture
def own(tmp_path):
    """A run of a model of the user's own."""
    (tmp_path / "own.py").write_text(OWN)
    return lambda name: TINY.with_fields(
        model=f"{tmp_path}/own.py:{name}", averaging=None, check_epochs=0, epochs=2
    )


@pytest.mark.parametrize("name", ["tied", "parametrised", "dropping"])
def test_unusual_models_train_to_the_end(digits, tmp_path, own, name):
    folder = RunFolder(tmp_path / "run")
    assert train(own(name), folder, digits, CPU, QUIET)
    assert folder.weights.exists()


def test_dropout_goes_on_exactly_too(digits, tmp_path, own, stopped_after):
    whole, broken = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "broken")
    train(own("dropping"), whole, digits, CPU, QUIET)
    with stopped_after(1):
        train(own("dropping"), broken, digits, CPU, QUIET)
    train(own("dropping"), broken, digits, CPU, QUIET)
    assert broken.weights.read_bytes() == whole.weights.read_bytes()


@pytest.mark.parametrize(("name", "message"), [("pair", "returns tuple"), ("raising", "no such")])
def test_models_that_do_not_give_logits_are_refused(digits, tmp_path, own, name, message):
    with pytest.raises(UserError, match=message):
        train(own(name), RunFolder(tmp_path / "run"), digits, CPU, QUIET)


def test_an_edited_model_does_not_fit_its_checkpoint(digits, tmp_path, own, stopped_after):
    folder = RunFolder(tmp_path / "run")
    with stopped_after(1):
        train(own("dropping"), folder, digits, CPU, QUIET)
    (tmp_path / "own.py").write_text(OWN.replace("32", "33"))
    with pytest.raises(UserError, match="no longer fits the model"):
        train(own("dropping"), folder, digits, CPU, QUIET)


def test_one_class_is_refused(tmp_path):
    one = Split(np.zeros((8, 8, 8, 1), np.uint8), np.zeros(8, np.int64), ("only",))
    with pytest.raises(UserError, match="one class"):
        train(TINY, RunFolder(tmp_path / "run"), one, CPU, QUIET)


def test_a_damaged_checkpoint_is_named(digits, tmp_path):
    folder = RunFolder(tmp_path)
    folder.prepare(TINY, {})
    folder.checkpoint.write_bytes(b"PK\x03\x04 not a checkpoint")
    with pytest.raises(UserError, match=r"checkpoint\.pt is damaged"):
        train(TINY, folder, digits, CPU, QUIET)


def test_a_signal_that_ends_the_decoders_too_saves_first(
    digits, tmp_path, monkeypatch, stopped_after
):
    """A batch that never arrives while a stop is asked for is a stop, not a crash."""
    whole, broken = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "broken")
    train(TINY, whole, digits, CPU, QUIET)

    epoch = Batches.epoch

    def lost(self, number, first_step=0):
        for step, batch in enumerate(epoch(self, number, first_step)):
            if number == 1 and step == 1:
                raise RuntimeError("DataLoader worker exited unexpectedly")
            yield batch

    with monkeypatch.context() as patch:
        patch.setattr(Batches, "epoch", lost)
        with pytest.raises(RuntimeError, match="DataLoader worker"):
            train(TINY, RunFolder(tmp_path / "crash"), digits, CPU, QUIET)
        patch.setattr("bilateral.training.trainer.Trainer._epochs", _epochs_without_looking)
        with stopped_after(0):
            train(TINY, broken, digits, CPU, QUIET)
    train(TINY, broken, digits, CPU, QUIET)
    assert broken.weights.read_bytes() == whole.weights.read_bytes()


def _epochs_without_looking(trainer, stop):
    """The signal comes while a batch is awaited: nothing looked at it before."""
    while trainer.step < trainer.total_steps:
        number, first = divmod(trainer.step, trainer.batches.steps)
        for batch in trainer._arriving(number, first, stop):
            trainer.take(batch, number)
            if trainer.step % trainer.batches.steps == 0:
                trainer._end_epoch(number, 0.0, first)
