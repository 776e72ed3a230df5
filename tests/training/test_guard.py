"""The guard: it tells a collapse from a healthy run, and its actions save one that collapses."""

import json
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import nn

from bilateral.attacks.table import attack_named
from bilateral.cli import main
from bilateral.config import Adversary, Data, Labels
from bilateral.data.batches import as_floats, channels_first
from bilateral.data.datasets import load
from bilateral.errors import Interrupted, TrainingError, UserError
from bilateral.evaluation.robustness import robust_flags
from bilateral.evaluation.target import trained_model
from bilateral.method import perturb
from bilateral.models import build_model
from bilateral.paper.recipes import recipe_named
from bilateral.processes import Processes
from bilateral.randomness import image_keys
from bilateral.runs import RunFolder, said_of_weights
from bilateral.runtime import StopRequest
from bilateral.training.guard import (
    RECOVERIES,
    Reading,
    Recovery,
    milder,
    read,
)
from bilateral.training.progress import TrainingProgress
from bilateral.training.trainer import Trainer, train
from bilateral.training.watch import Watch

CPU = torch.device("cpu")
RESULTS = Path(__file__).parents[2] / "results"
QUIET = TrainingProgress(quiet=True)
# One step to the most confusing class from noise of twice the budget: PGD is left next to nothing.
COLLAPSING = recipe_named("digits-r-mc-la").with_fields(
    adversary=Adversary(epsilon=0.3, step_size=0.3, start_width=2.0, target="most-confusing"),
    labels=Labels(rule="one-hot"),
    epochs=12,
    check_epochs=1,
)

# Healthy runs on the digits at a budget of 0.3: alignment, FGSM, PGD-10 at every second epoch.
PGD_7 = [
    *[(0.81, 0.10, 0.09), (0.83, 0.19, 0.14), (0.72, 0.36, 0.20), (0.65, 0.50, 0.33)],
    *[(0.56, 0.59, 0.45), (0.52, 0.65, 0.50), (0.50, 0.70, 0.59), (0.48, 0.71, 0.61)],
    *[(0.47, 0.72, 0.60), (0.47, 0.72, 0.60)],
]
TRADES = [
    *[(0.84, 0.12, 0.05), (0.83, 0.26, 0.12), (0.80, 0.33, 0.17), (0.75, 0.44, 0.27)],
    *[(0.71, 0.51, 0.40), (0.66, 0.49, 0.36), (0.63, 0.49, 0.40), (0.62, 0.58, 0.41)],
    *[(0.58, 0.57, 0.40), (0.55, 0.67, 0.51), (0.53, 0.65, 0.44), (0.51, 0.69, 0.54)],
    *[(0.49, 0.70, 0.54), (0.47, 0.70, 0.56), (0.47, 0.71, 0.54), (0.47, 0.72, 0.56)],
    *[(0.47, 0.74, 0.56), (0.45, 0.72, 0.55), (0.45, 0.73, 0.56), (0.45, 0.72, 0.58)],
]


@pytest.fixture(scope="module")
def digits():
    return load("digits", "train")


def reading(fgsm, pgd10, images=250, clean=0.9, guessing=0.1, alignment=0.5):
    return Reading(images, clean, fgsm, pgd10, fgsm, alignment, guessing)


def records(folder):
    return [json.loads(line) for line in folder.log.read_text().splitlines()]


@pytest.mark.parametrize(
    ("fgsm", "pgd10", "best", "collapsed"),
    [
        (0.99, 0.0, 0, True),  # the paper's FGSM row
        (0.89, 0.0, 100, True),  # ours with batch norm in train mode
        (0.53, 0.39, 100, False),  # R-MC-LA, PreAct ResNet-18
        (0.96, 0.88, 219, False),  # R-MC-LA, WRN-28-10, training images
        (0.30, 0.10, 100, True),  # a quarter of its own best
        (0.30, 0.16, 80, False),  # half of it: within chance
        (0.04, 0.0, 0, False),  # ten images tell nothing
    ],
)
def test_a_collapse_is_a_sure_loss_of_half(fgsm, pgd10, best, collapsed):
    assert reading(fgsm, pgd10).collapsed(best) is collapsed


@pytest.mark.parametrize(
    ("fgsm", "guessing", "collapsed"), [(0.175, 0.25, False), (0.175, 0.1, True), (0.6, 0.25, True)]
)
def test_what_was_never_learnt_is_not_lost(fgsm, guessing, collapsed):
    """A user's run: four classes, after an epoch of seven steps FGSM left 17.5 %, PGD 2.5 %."""
    early = reading(fgsm, 0.025, images=240, guessing=guessing)
    assert early.collapsed(0) is collapsed


def test_a_reading_knows_what_guessing_gets_right():
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 4))
    images, labels = torch.rand(6, 1, 2, 2), torch.arange(6) % 4
    found = read(network, images, labels, torch.arange(6), COLLAPSING, bfloat16=False, batch_size=4)
    assert found.guessing == 0.25 and found.images == 6


def test_a_slow_decline_is_judged_by_the_best_of_all_readings():
    """Never half of the reading before, and at last a quarter of the first."""
    recovery, judged = Recovery(), []
    for pgd in (0.4, 0.3, 0.2, 0.1):
        judged.append(recovery.collapsed(reading(pgd + 0.05, pgd)))
        recovery.take(reading(pgd + 0.05, pgd), None)
    assert judged == [False, False, False, True] and recovery.best == 100


@pytest.mark.parametrize(
    ("title", "collapsed"),
    [
        ("`cutmix-last`, all images", [150, 155]),  # APGD leaves a fifth of the images
        ("`nuat-cutmix-more`", [130]),  # a third
        ("`cutmix-last`", []),  # half
        ("`nuat-cutmix`", []),
        ("`nuat-cutmix-mix`", []),
    ],
)
def test_gradients_that_have_turned_are_seen_in_real_readings(title, collapsed):
    """The guard as it was told of none of them: PGD-10 still left most of what FGSM left."""
    rows = json.loads((RESULTS / "late-collapse.json").read_text())
    (run,) = (row for row in rows if row["title"] == title)
    recovery, found = Recovery(), []
    for one in run["readings"]:
        shown = reading(one["fgsm"], one["pgd10"], alignment=one["alignment"])
        assert not shown.collapsed(recovery.best)
        if recovery.collapsed(shown):
            found.append(one["epoch"])
        else:
            recovery.take(shown, one["adversarial_accuracy"])
    assert found == collapsed


@pytest.mark.parametrize(
    ("fgsm", "pgd10", "alignment", "collapsed"),
    [
        (0.8, 0.5, 0.45, True),
        (0.58, 0.5, 0.45, False),  # FGSM and PGD-10 have hardly parted
        (0.8, 0.5, 0.85, False),  # gradients are as alike as ever
        (0.9, 0.56, 0.45, False),  # more than ever withstand PGD-10
    ],
)
def test_no_sign_of_turned_gradients_is_one_alone(fgsm, pgd10, alignment, collapsed):
    recovery = Recovery()
    for good in (reading(0.6, 0.55, alignment=0.95), reading(0.5, 0.3, alignment=0.9)):
        assert not recovery.collapsed(good)
        recovery.take(good, 0.5)
    assert (recovery.best, recovery.excess, recovery.alignment) == (138, 12, 0.95)
    assert recovery.collapsed(reading(fgsm, pgd10, alignment=alignment)) is collapsed


def test_a_few_images_do_not_tell_that_gradients_have_turned():
    recovery = Recovery()
    recovery.take(reading(0.55, 0.5, images=20, alignment=0.95), 0.5)
    assert not recovery.collapsed(reading(0.65, 0.45, images=20, alignment=0.3))


@pytest.mark.parametrize("stride", range(1, 6))
@pytest.mark.parametrize("readings", [PGD_7, TRADES], ids=["pgd7", "trades"])
def test_alignment_falls_at_large_budgets_too(readings, stride):
    """However often they are read."""
    for first in range(stride):
        recovery = Recovery()
        for alignment, fgsm, pgd10 in readings[first::stride]:
            one = reading(fgsm, pgd10, alignment=alignment)
            assert not recovery.collapsed(one)
            recovery.take(one, None)


def test_it_goes_on_three_times_and_ends_at_the_fourth():
    recovery, adversary = Recovery(), Adversary(epsilon=8 / 255, step_size=8 / 255)
    steps, stopped = [], []
    for epoch in (3, 5, 7, 9):
        recovery.event = ""
        adversary, news = recovery.act(reading(0.9, 0.0), epoch, epoch - 1, "two-step", adversary)
        steps.append(adversary.steps)
        stopped.append(recovery.stopped)
    assert steps == [2, 4, 8, 8] and stopped == [False, False, False, True]
    told = "epoch 9 collapsed: FGSM leaves 90.0 %, PGD-10 0.0 %, alignment 0.50; back to epoch 8"
    assert recovery.event == news == f"{told}, where training ends"


def test_a_collapse_that_was_not_told_yet_is_told_with_the_next():
    recovery, adversary = Recovery(), Adversary(epsilon=8 / 255, step_size=8 / 255)
    for epoch in (3, 4):
        adversary, news = recovery.act(reading(0.9, 0.0), epoch, 2, "shrink-step", adversary)
    first, second = recovery.event.split(". ")
    assert news == second, "what was said already is not said again"
    assert first.startswith("epoch 3 collapsed") and first.endswith("on with 1 x 4/255")
    assert second.startswith("epoch 4 collapsed") and second.endswith("on with 1 x 2/255")
    assert Recovery().act(reading(0.9, 0.0), 3, 2, "stop", adversary)[0] is adversary


class Grid(nn.Module):
    """Wrong about what a camera can take, right about everything else."""

    def forward(self, images):
        levels = 255 * images.flatten(1)
        exact = (levels - levels.round()).abs().amax(1) < 1e-3
        return torch.stack([~exact, exact], 1).float() + 0 * images.sum()


def test_an_image_that_is_wrong_when_clean_withstands_nothing():
    """Noise alone would make it right."""
    images, labels = (torch.rand(8, 1, 4, 4) * 255).round() / 255, torch.zeros(8).long()
    found = read(
        *(Grid(), images, labels, image_keys(0, torch.arange(8))),
        *(recipe_named("digits-r-mc-la"), False),
    )
    assert found.check == {"clean": 0, "fgsm": 0, "pgd10": 0} and found.training_attack == 0


class Brightness(nn.Module):
    def forward(self, images):
        above = images.flatten(1).mean(1) - 0.4999
        return torch.stack([above, -above], 1)


def test_a_reading_is_the_same_whatever_was_drawn_before():
    """Noise decides half of these images, and their keys decide the noise."""
    adversary = Adversary(epsilon=0.3, step_size=1e-6, target="most-confusing")
    run = recipe_named("digits-r-mc-la").with_fields(adversary=adversary)
    images, labels = torch.full((64, 1, 4, 4), 0.5), torch.zeros(64).long()
    keys, found = image_keys(0, torch.arange(64)), []
    for seed in range(6):
        torch.manual_seed(seed)
        found.append(read(Brightness(), images, labels, keys, run, bfloat16=False))
    assert found == [found[0]] * 6
    assert found[0].clean == 1 and 0.2 < found[0].training_attack < 0.8


def test_a_model_that_is_trained_is_read_in_eval_mode(digits):
    """With several steps the training attack's column is FGSM's: one can be learnt."""
    adversary = Adversary(epsilon=0.1, step_size=1e-3, steps=3, target="least-likely")
    run = recipe_named("digits-r-mc-la").with_fields(adversary=adversary)
    torch.manual_seed(0)
    model = build_model("small-cnn", 10, 1, (8, 8))
    images = as_floats(channels_first(digits.pixels[:60]))
    labels, keys = torch.from_numpy(digits.labels[:60]), image_keys(3, torch.arange(60))
    for _ in range(30):
        nn.functional.cross_entropy(model(images), labels).backward()
        with torch.no_grad():
            for value in model.parameters():
                value -= 0.1 * value.grad
                value.grad = None
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = [
        read(model.train(mode), images, labels, keys, run, bfloat16=False) for mode in (True, False)
    ]
    assert found[0] == found[1] and 0 < found[0].fgsm < found[0].clean
    assert found[0].training_attack == found[0].fgsm
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_readings_are_those_of_an_evaluation(digits):
    run = recipe_named("digits-r-mc-la")
    torch.manual_seed(0)
    model = build_model("small-cnn", 10, 1, (8, 8)).eval()
    images = as_floats(channels_first(digits.pixels[:60]))
    labels = torch.from_numpy(digits.labels[:60])
    optimiser = torch.optim.Adam(model.parameters(), 0.003)
    for _ in range(30):  # right on some images, not on all
        loss = nn.functional.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    keys = image_keys(3, torch.arange(60))
    found = read(model, images, labels, keys, run, bfloat16=False)
    for name in ("fgsm", "pgd10"):
        settings = attack_named(name, run.adversary.epsilon)
        flags = robust_flags(model, images, labels, settings, keys)
        assert getattr(found, name) == pytest.approx(float(flags.robust.float().mean()))
    assert found.clean == pytest.approx(float((model(images).argmax(1) == labels).float().mean()))
    assert found.pgd10 <= found.fgsm < found.clean
    assert found.fgsm <= found.training_attack <= found.clean, "a random start is a weaker attack"


def test_gradients_of_a_linear_model_are_alike_everywhere():
    torch.manual_seed(0)
    run = recipe_named("digits-r-mc-la")
    images, labels = torch.rand(20, 1, 4, 4), torch.arange(20) % 2
    keys = image_keys(1, torch.arange(20))
    linear = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    assert read(linear, images, labels, keys, run, False).alignment == pytest.approx(1, abs=1e-4)

    class Torn(nn.Module):
        """A network whose gradient turns around every thousandth of a grey level."""

        def forward(self, images):
            waves = torch.sin(6e5 * images).flatten(1)
            return torch.stack([waves.sum(1), -waves.sum(1)], 1) * 1e-4

    assert abs(read(Torn(), images, labels, keys, run, False).alignment) < 0.3


def test_milder_attacks():
    adversary = Adversary(epsilon=8 / 255, step_size=8 / 255)
    shrunk, split = milder(adversary, "shrink-step"), milder(adversary, "two-step")
    assert (shrunk.steps, shrunk.step_size) == (1, 4 / 255)
    assert (split.steps, split.step_size) == (2, 4 / 255)
    assert split.epsilon == adversary.epsilon


def test_a_leap_is_measured_from_the_last_reading():
    acting = Recovery({}, level=0.5)
    assert acting.leaps(0.56) and not acting.leaps(0.54) and not acting.leaps(None)
    assert not Recovery({}).leaps(0.99), "nothing was read yet"
    assert not Recovery(level=0.5).leaps(0.99), "it only watches"


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    """The collapsing run, once as it is and once saved by the guard."""
    folders = {}
    for guard in ("watch", "two-step"):
        folders[guard] = RunFolder(tmp_path_factory.mktemp(guard) / "seed0")
        assert train(COLLAPSING.with_fields(guard=guard), folders[guard], digits, CPU, QUIET)
    return folders


def test_watching_tells_and_changes_nothing(digits, trained, tmp_path):
    folder = trained["watch"]
    log = records(folder)
    assert len(log) == COLLAPSING.epochs and log[-1]["check"]["pgd10"] < 0.1
    assert log[-1]["check"]["fgsm"] > 2 * log[-1]["check"]["pgd10"]
    events = folder.guard_events()
    assert events and "collapsed: FGSM leaves" in events[0] and "changes nothing" in events[0]
    unwatched = RunFolder(tmp_path / "seed0")
    train(COLLAPSING.with_fields(check_epochs=0), unwatched, digits, CPU, QUIET)
    digests = {said_of_weights(one.weights)["weights_digest"] for one in (unwatched, folder)}
    assert len(digests) == 1
    assert not any("check" in record for record in records(unwatched))


def test_going_back_to_more_steps_saves_the_run(trained):
    log = records(trained["two-step"])
    assert [record["epoch"] for record in log] == list(range(1, COLLAPSING.epochs + 1))
    assert log[-1]["check"]["pgd10"] > 2 * records(trained["watch"])[-1]["check"]["pgd10"]
    (event,) = trained["two-step"].guard_events()
    assert event.startswith("epoch 6 collapsed") and event.endswith("epoch 5, on with 2 x 0.15")
    assert not any(record["guard"].get("collapsed") for record in log)


@pytest.mark.kills
def test_a_saved_run_goes_on_as_if_never_stopped(digits, trained, tmp_path, monkeypatch):
    """Interrupted after every step from the collapse on, through the recovery."""
    run = COLLAPSING.with_fields(guard="two-step")
    folder = RunFolder(tmp_path / "seed0")
    steps = 1437 // run.optimiser.batch_size
    places = iter(range(5 * steps, 7 * steps, 3))
    wanted = [next(places)]

    class Stop(StopRequest):
        def __init__(self):
            self.trainer, self.patience = None, None

        @property
        def number(self):
            return 15 if self.trainer is not None and self.trainer.step == wanted[0] else None

    stop = Stop()
    monkeypatch.setattr("bilateral.training.trainer.StopRequest", lambda: stop)
    interrupted = 0
    while not folder.weights.exists():
        trainer = Trainer(run, folder, digits, CPU, QUIET)
        stop.trainer = trainer
        folder.prepare(run, {})
        try:
            trainer.fit()
        except Interrupted:
            interrupted += 1
            wanted[0] = next(places, -1)
    assert interrupted > 5
    assert folder.weights.read_bytes() == trained["two-step"].weights.read_bytes()
    assert folder.guard_events() == trained["two-step"].guard_events()


def test_stopping_leaves_the_last_good_model(digits, trained, tmp_path):
    folder = RunFolder(tmp_path / "seed0")
    assert train(COLLAPSING.with_fields(guard="stop"), folder, digits, CPU, QUIET)
    log = records(folder)
    assert len(log) < COLLAPSING.epochs and log[-1]["guard"]["discarded"]
    assert "where training ends" in folder.guard_events()[0]
    good = next(record for record in reversed(log) if not record["guard"].get("collapsed"))
    _, model = trained_model(folder, CPU)
    trainer = Trainer(COLLAPSING, RunFolder(tmp_path / "other"), digits, CPU, QUIET)
    found = read(model, *trainer.watch.images, COLLAPSING, bfloat16=False)
    assert found.check == good["check"]
    assert not train(COLLAPSING.with_fields(guard="stop"), folder, digits, CPU, QUIET), "finished"


def test_it_does_not_go_back_for_ever(digits, tmp_path, monkeypatch):
    """The first epoch is good, every other reading a collapse."""
    judged = iter([False])
    monkeypatch.setattr(Reading, "collapsed", lambda self, best: next(judged, True))
    folder = RunFolder(tmp_path / "seed0")
    run = COLLAPSING.with_fields(guard="shrink-step", epochs=2)
    assert train(run, folder, digits, CPU, QUIET)
    checkpoint = torch.load(folder.checkpoint, weights_only=True)
    assert checkpoint["step"] == 1437 // run.optimiser.batch_size
    assert checkpoint["recovery"]["count"] == RECOVERIES + 1 and checkpoint["recovery"]["stopped"]
    assert checkpoint["adversary"]["step_size"] == pytest.approx(0.3 / 2**RECOVERIES)


def test_a_leap_within_an_epoch_is_looked_into(digits, tmp_path, monkeypatch):
    """With readings at the end alone: a leap brings one forward, and the guard goes back."""
    read_at = []
    monkeypatch.setattr(Recovery, "leaps", lambda *_: True)
    monkeypatch.setattr(Reading, "collapsed", lambda self, best: True)
    plain = Watch.read
    monkeypatch.setattr(
        Watch, "read", lambda self, *one: (read_at.append(self.learner.step), plain(self, *one))[1]
    )
    run = COLLAPSING.with_fields(guard="stop", epochs=4, check_epochs=4)
    with pytest.raises(TrainingError, match="back to epoch 0"):
        train(run, RunFolder(tmp_path / "seed0"), digits, CPU, QUIET)
    assert read_at == [(1437 // run.optimiser.batch_size) // 4]


def risen(patch, collapses=()):
    """Four steps an epoch, each with 3 points more; at which steps the guard reads.

    Readings are good but where the n-th collapse is to be found, in the weights that learn.
    """
    read_at = []

    def read(self, model, _):
        read_at.append(self.learner.step)
        falls = dict(enumerate(collapses)).get(self.recovery.count) == self.learner.step
        falls = falls and model is self.learner.model
        return reading(0.9, 0.0) if falls else reading(0.6, 0.55, alignment=0.95)

    def rising(self, *words):
        return {**plain(self, *words), "adversarial_accuracy": 0.03 * self.step}

    plain = Trainer._record
    patch.setattr(Watch, "read", read)
    patch.setattr(Trainer, "_record", rising)
    return read_at


def test_what_another_process_finds_collapsed_counts_for_none(digits, tmp_path, monkeypatch):
    """Its reading may differ by an image, and all must go on from the same."""
    good = reading(0.6, 0.55, alignment=0.95)
    monkeypatch.setattr(Watch, "read", lambda *_: good)
    folder = RunFolder(tmp_path / "seed0")
    folder.prepare(COLLAPSING, {})
    trainer = Trainer(COLLAPSING, folder, digits, CPU, QUIET)
    monkeypatch.setattr(Processes, "largest", lambda _, *values: [value or 1 for value in values])
    for batch in trainer.batches.epoch(0):
        trainer.take(batch, 0)
    assert trainer._end_epoch(0, 0.0, 0), "a guard that watches goes on"
    left = trainer.watch.recovery
    assert (left.best, left.excess, left.alignment) == (0, 0, 0.0) and left.told
    monkeypatch.setattr(Processes, "largest", lambda _, *values: list(values))
    assert trainer._end_epoch(0, 0.0, 0)
    left = trainer.watch.recovery
    assert (left.best, left.excess, left.alignment) == (138, 12, 0.95)


RISING = COLLAPSING.with_fields(epochs=4).with_paths({"optimiser.batch_size": 359})


def test_a_slow_rise_is_looked_into_once_for_each_leap(digits, tmp_path, monkeypatch):
    read_at = risen(monkeypatch)
    run = RISING.with_fields(guard="stop", check_epochs=4)
    train(run, RunFolder(tmp_path / "seed0"), digits, CPU, QUIET)
    assert read_at == [6, 8, 10, 12, 14, 16]


def test_it_goes_back_to_a_reading_that_was_due_and_to_its_level(digits, tmp_path, monkeypatch):
    """One that a leap brought may be of a collapse that has begun."""
    read_at = risen(monkeypatch, collapses=(12, 14))
    folder = RunFolder(tmp_path / "seed0")
    run = RISING.with_fields(guard="two-step", check_epochs=2)
    train(run, folder, digits, CPU, QUIET)
    assert read_at == [*(6, 8, 10, 12), *(10, 12, 14), *(10, 12, 14, 16)]
    (events,) = folder.guard_events()
    assert events.count("; back to epoch 2, on with") == 2


def test_nothing_is_measured_by_a_reading_that_a_leap_brought(digits, tmp_path, monkeypatch):
    """It is better than all others, and undone: neither the best weights nor a bar for the rest."""
    read_at = risen(monkeypatch, collapses=(16,))
    plain = Watch.read

    def read(self, *words):
        found = plain(self, *words)
        return reading(0.8, 0.75, alignment=0.99) if self.learner.step == 12 else found

    monkeypatch.setattr(Watch, "read", read)
    kept = {}
    end = Trainer._end_epoch

    def ended(self, epoch, *words):
        if (epoch, self.watch.recovery.count) == (1, 0):
            state = self.learner.model.state_dict()
            kept.update({name: one.clone() for name, one in state.items()})
        return end(self, epoch, *words)

    monkeypatch.setattr(Trainer, "_end_epoch", ended)
    folder = RunFolder(tmp_path / "seed0")
    run = RISING.with_paths({"data.held_out": 2, "optimiser.batch_size": 358})
    run = run.with_fields(guard="stop", check_epochs=2, keep="best")
    train(run, folder, digits, CPU, QUIET)
    assert 12 in read_at and read_at[-1] == 16
    state = torch.load(folder.checkpoint, weights_only=True)
    assert (state["best"]["epoch"], state["recovery"]["best"]) == (2, 138)
    assert state["recovery"]["alignment"] == pytest.approx(0.95)
    weights = load_file(folder.weights)
    assert all(torch.equal(weights[name], one) for name, one in kept.items())


@pytest.mark.parametrize("leaps", [True, False])
def test_the_weights_in_training_tell_before_their_average(digits, tmp_path, monkeypatch, leaps):
    """Within an epoch they alone are read, at the end of one beside the average."""
    read_at = risen(monkeypatch, collapses=(12 if leaps else 16,))
    if not leaps:
        monkeypatch.setattr(Recovery, "leaps", lambda *_: False)
    folder = RunFolder(tmp_path / "seed0")
    run = RISING.with_fields(guard="two-step", check_epochs=2, averaging=0.99)
    train(run, folder, digits, CPU, QUIET)
    after = [10, 12, 12, 14, 16, 16]
    assert read_at == ([6, 8, 8, 10, 12, 12, *after] if leaps else [8, 8, 16, 16, 16, 16])
    (events,) = folder.guard_events()
    epoch = 3 if leaps else 4
    assert f"epoch {epoch} collapsed (weights in training)" in events
    assert "; back to epoch 2, on with" in events


def test_the_line_of_a_collapse_has_the_reading_that_told(digits, tmp_path, monkeypatch):
    """The average may look well beside it."""
    risen(monkeypatch, collapses=(16,))
    monkeypatch.setattr(Recovery, "leaps", lambda *_: False)
    folder = RunFolder(tmp_path / "seed0")
    run = RISING.with_fields(guard="stop", check_epochs=2, averaging=0.99)
    train(run, folder, digits, CPU, QUIET)
    good, last = records(folder)[1], records(folder)[-1]
    assert good["check"]["pgd10"] == 0.55 and "discarded" not in good["guard"]
    assert last["check"] == reading(0.9, 0.0).check and last["guard"]["discarded"]


def test_a_watched_average_is_read_alone(digits, tmp_path, monkeypatch):
    read_at = risen(monkeypatch)
    run = RISING.with_fields(guard="watch", check_epochs=2, averaging=0.99)
    train(run, RunFolder(tmp_path / "seed0"), digits, CPU, QUIET)
    assert read_at == [8, 16]


def test_an_undefended_run_is_not_judged(digits, tmp_path):
    run = recipe_named("digits-undefended").with_fields(epochs=4, check_epochs=1)
    folder = RunFolder(tmp_path / "seed0")
    train(run, folder, digits, CPU, QUIET)
    assert records(folder)[-1]["check"]["pgd10"] < 0.2 and not folder.guard_events()


def test_a_healthy_run_is_left_alone(digits, tmp_path):
    run = recipe_named("digits-r-mc-la").with_fields(epochs=8, check_epochs=1, guard="two-step")
    folder = RunFolder(tmp_path / "seed0")
    train(run, folder, digits, CPU, QUIET)
    assert not folder.guard_events() and records(folder)[-1]["check"]["pgd10"] > 0.4


def test_held_out_images_are_never_trained_on(digits, tmp_path):
    data = Data(name="digits", augment="none", held_out=100)
    run = COLLAPSING.with_fields(data=data, epochs=1)
    trainer = Trainer(run, RunFolder(tmp_path), digits, CPU, QUIET)
    images, labels, _ = trainer.watch.images
    assert len(trainer.split.labels) == len(digits.labels) - 100
    assert len(labels) == 100 and labels.bincount().tolist() == [10] * 10
    kept = {pixels.tobytes() for pixels in trainer.split.pixels}
    shown = [(255 * image).round().to(torch.uint8).numpy().tobytes() for image in images]
    assert not kept & set(shown)
    without = Trainer(COLLAPSING, RunFolder(tmp_path), digits, CPU, QUIET)
    assert len(without.watch.images[1]) == 250
    everything = data.with_fields(held_out=1437)
    with pytest.raises(UserError, match=r"--data.held-out 1437 .*: there are 1437 images"):
        Trainer(run.with_fields(data=everything), RunFolder(tmp_path), digits, CPU, QUIET)


@pytest.mark.parametrize("check_epochs", [1, 2])
def test_a_watched_collapse_is_told_once(digits, tmp_path, monkeypatch, check_epochs):
    monkeypatch.setattr(Watch, "read", lambda *_: reading(0.9, 0.0))
    run = COLLAPSING.with_fields(
        epochs=6, check_epochs=check_epochs, data=Data(name="digits", images_per_class=13)
    )
    folder = RunFolder(tmp_path / "seed0")
    train(run, folder, digits, CPU, QUIET)
    assert len(folder.guard_events()) == 1
    collapsed = [one["epoch"] for one in records(folder) if one.get("guard", {}).get("collapsed")]
    assert collapsed == list(range(check_epochs, 7, check_epochs))


def test_untrained_weights_are_no_model(digits, tmp_path, monkeypatch):
    """No reading before the collapse was good: there is nothing to go back to."""
    monkeypatch.setattr(Watch, "read", lambda *_: reading(0.9, 0.0))
    run = COLLAPSING.with_fields(
        epochs=2, guard="stop", data=Data(name="digits", images_per_class=13)
    )
    folder = RunFolder(tmp_path / "seed0")
    for _ in range(2):
        with pytest.raises(TrainingError, match="so there is no model to keep"):
            train(run, folder, digits, CPU, QUIET)
        assert not folder.weights.exists()


def test_what_an_acting_guard_needs():
    with pytest.raises(ValidationError, match="check_epochs must be 1 or more"):
        COLLAPSING.with_fields(guard="stop", check_epochs=0)
    with pytest.raises(ValidationError, match="the method is undefended"):
        COLLAPSING.with_fields(guard="stop", method="undefended")


def test_evaluate_shows_what_the_guard_said(trained, capsys):
    words = ["--attacks", "fgsm", "--images", "20", "--quiet", "--epsilon", "0.3"]
    assert main(["evaluate", str(trained["two-step"].path), *words]) == 0
    error = capsys.readouterr().err
    assert "bilateral: warning: training: epoch" in error and "on with 2 x 0.15" in error


def test_readings_do_not_depend_on_the_parts(digits):
    """A small batch of training bounds the memory of a reading, not its result."""
    run = recipe_named("digits-r-mc-la")
    torch.manual_seed(0)
    model = build_model("small-cnn", 10, 1, (8, 8)).eval()
    images = as_floats(channels_first(digits.pixels[:50]))
    labels, keys = torch.from_numpy(digits.labels[:50]), image_keys(3, torch.arange(50))
    whole = read(model, images, labels, keys, run, bfloat16=False)
    parts = read(model, images, labels, keys, run, bfloat16=False, batch_size=16)
    assert parts.check == whole.check and parts.training_attack == whole.training_attack
    assert parts.alignment == pytest.approx(whole.alignment, abs=1e-5)


def test_the_training_attack_is_the_one_of_training(digits):
    """Guided and with batch norm in train mode: what `perturb` makes, not a plain step."""
    adversary = Adversary(epsilon=0.2, step_size=0.2, guide=50.0, batch_norm="train")
    run = recipe_named("digits-r-mc-la").with_fields(adversary=adversary)
    torch.manual_seed(0)
    model = build_model("small-cnn", 10, 1, (8, 8)).eval()
    images = as_floats(channels_first(digits.pixels[:50]))
    labels, keys = torch.from_numpy(digits.labels[:50]), image_keys(3, torch.arange(50))
    attacked, _, _ = perturb(model, images, labels, adversary, run.labels, keys)
    right = (model(images).argmax(1) == labels) & (model(attacked).argmax(1) == labels)
    found = read(model, images, labels, keys, run, bfloat16=False)
    assert found.training_attack == pytest.approx(float(right.float().mean()))
