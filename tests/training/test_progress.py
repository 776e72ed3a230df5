"""What a user sees of training: plain lines in a pipe, a bar on a terminal, nothing when quiet."""

from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from bilateral.cli import main
from bilateral.commands.train import _kept_budget, _nothing_learnt
from bilateral.paper.recipes import recipe_named
from bilateral.training import progress as module
from bilateral.training.progress import TrainingProgress

RECORD = {
    "epoch": 2,
    "step": 8,
    "loss": 1.234,
    "clean_accuracy": 0.5,
    "adversarial_accuracy": None,
    "images_per_second": 1234.5,
    "check": {"clean": 0.9, "fgsm": 0.8, "pgd10": 0.7},
}


def shown(terminal, quiet=False, width=160):
    progress = TrainingProgress(quiet=quiet)
    progress.console = Console(
        force_terminal=terminal, width=width, record=True, quiet=quiet, highlight=False
    )
    with progress.running("digits-r-mc-la on cpu", steps=10, done=4):
        wanted = progress.wants_readings
        progress.step(5)
        progress.epoch(RECORD, 3)
    return wanted, progress.console.export_text()


def test_plain_lines_elsewhere():
    wanted, text = shown(terminal=False)
    line = "epoch 2/3  loss 1.234  clean 50.0 %  PGD-10 70.0 %  1,234 images/s"
    assert line in text
    assert not wanted and "━" not in text


def test_a_bar_on_a_terminal():
    wanted, text = shown(terminal=True)
    assert wanted
    assert "digits-r-mc-la on cpu" in text and "━" in text
    assert "epoch 2  loss 1.234" in text


def test_nothing_when_quiet():
    wanted, text = shown(terminal=True, quiet=True)
    assert not wanted and text == ""


def test_a_narrow_terminal_keeps_the_bar_and_the_time_left():
    """80 columns are what most terminals have: the reading gives way, not the bar."""
    for width in (80, 60):
        _, text = shown(terminal=True, width=width)
        last = text.splitlines()[-1]
        assert last.startswith("digits-r-mc-la on cpu ") and "━━━━━" in last and "80%" in last
        assert "epoch 2" in last and ":" in last.split()[-1]
    assert "loss 1.234" in shown(terminal=True, width=80)[1].splitlines()[-1]


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (1000, ["about 2.6 hours to go at this rate"]),
        (300, ["about 40 minutes to go at this rate"]),
        (75, []),
    ],
)
def test_a_long_run_is_told_of_once_where_no_bar_shows_it(steps, told, monkeypatch):
    """The first step, which may be compiled, took 500 s; each later one takes ten."""
    clock = iter([500.0 + 10 * step for step in range(40)])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    progress = TrainingProgress()
    progress.console = Console(force_terminal=False, width=160, record=True, highlight=False)
    with progress.running("a run", steps=steps, done=50):
        for done in range(51, 91):
            progress.step(done)
    assert progress.console.export_text().splitlines() == told


def test_a_run_that_learnt_nothing_says_so(tmp_path, monkeypatch, capsys):
    """A rate far too high ends near guessing; the folder is whole all the same."""
    monkeypatch.chdir(tmp_path)
    words = ["train", "digits-r-mc-la", "--data.images-per-class", "13", "--epochs"]
    assert main([*words, "2", "--name", "wild", "--optimiser.learning-rate", "1000"]) == 0
    assert "nothing was learnt: " in capsys.readouterr().err
    assert main([*words, "40", "--name", "tame", "--method", "undefended"]) == 0
    assert "nothing was learnt" not in capsys.readouterr().err
    assert _nothing_learnt({}, 10) == [], "of a log that says nothing"


def test_a_budget_that_is_unusual_for_the_data_is_told_of(tmp_path, monkeypatch, capsys):
    """The digits' budget hides a photograph; nobody who changes the data alone asks for it."""
    monkeypatch.chdir(tmp_path)
    for name in ("cat", "dog"):
        for number in range(12):
            path = Path("pictures") / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8), 20 * number).save(path)
    words = ["train", "digits-r-mc-la", "--epochs", "1", "--data.images-per-class", "5"]
    other = [*words, "--data", "folder:pictures", "--image-size", "8", "--name", "other"]
    for given, told in (
        (words, False),
        (other, True),
        ([*other, "--adversary.epsilon", "4/255", "--name", "own"], False),
    ):
        assert main(given) == 0
        said = capsys.readouterr().err
        assert (
            "the budget stays the recipe's, 40/255: --adversary.epsilon sets another" in said
        ) == told
    run = recipe_named("cifar10-r-mc-la-eps4")
    on_digits = run.with_paths({"data.name": "digits"})
    assert _kept_budget(on_digits, run, []) == [
        "the budget stays the recipe's, 4/255: --adversary.epsilon 40/255 is usual for digits"
    ]
