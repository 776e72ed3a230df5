"""Bad arguments are answered in one line, in the words of the command line."""

import os
import pty
import re
import shlex
import subprocess
import sys

import pytest

from bilateral.arguments import one_line
from bilateral.cli import main
from bilateral.commands import train as train_command
from entry_point import bilateral

LEAKS = (
    r"Input should|validation error|invalid literal|could not convert|no type matching|"
    r"Expected|Value error|Error parsing|Missing from|STR|FieldInfo|type=|Unrecognized|[│╭─]"
)
"""What tyro, pydantic or Python would say: never to a user."""
TRAIN = "train digits-r-mc-la"


@pytest.fixture
def said(capsys, monkeypatch, tmp_path):
    """Exit code and standard error of a command line; nothing is trained by it."""
    monkeypatch.chdir(tmp_path)
    done = {"folder": "nowhere", "trained": True}
    monkeypatch.setattr(train_command, "train_run", lambda *_: done)

    def say(line):
        code = main(shlex.split(line))
        out, error = capsys.readouterr()
        assert code == 0 or not out
        return code, error

    return say


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (f"{TRAIN} --epochs 0", "--epochs 0: must be at least 1"),
        (f"{TRAIN} --epochs 1.5", "--epochs 1.5: must be a whole number"),
        (f"{TRAIN} --epochs=many", "--epochs many: must be a whole number"),
        (f"{TRAIN} --epochs", "--epochs needs a value"),
        (f"{TRAIN} --epochs 1 2", "'2' is one word too many after --epochs 1"),
        (f"{TRAIN} --optimiser.learning-rate 0", "--optimiser.learning-rate 0: must be above 0"),
        (f"{TRAIN} --optimiser.learning-rate nan", "learning-rate nan: must be a finite number"),
        (f"{TRAIN} --optimiser.momentum 1", "--optimiser.momentum 1: must be below 1"),
        (f"{TRAIN} --image-size 5000", "--image-size 5000: must be at most 4096"),
        (f"{TRAIN} --labels.ratio none", "--labels.ratio none: must be a number, or None"),
        (f"{TRAIN} --machine.accumulate 0", "--machine.accumulate 0: must be at least 1"),
        (f"{TRAIN} --data.held-out -1", "--data.held-out -1: must be at least 0"),
        (f"{TRAIN} --data", "--data needs a value"),
        (
            f"{TRAIN} --adversary.loss ce",
            "--adversary.loss ce: must be one of cross-entropy, margin, divergence",
        ),
        (
            f"{TRAIN} --optimiser.milestones 0.9 0.5",
            "--optimiser.milestones 0.9 0.5: must be rising fractions of the run",
        ),
        (f"{TRAIN} --optimiser.milestones 0.5 x", "--optimiser.milestones 0.5 x: must be numbers"),
        (f"{TRAIN} --adversary.restarts 2", "restarts need --adversary.iterate any"),
        (f"{TRAIN} --adversary.epsilon -8/255", "--adversary.epsilon: -8/255 is outside (0, 1]"),
        (f"{TRAIN} --guard stop --check-epochs 0", "--check-epochs must be 1 or more"),
        (
            f"{TRAIN} --method undefended --regulariser.kind squared",
            "the regulariser is for adversarial training",
        ),
        (
            f"{TRAIN} --weight-perturbation-along momentum --optimiser.momentum 0",
            "--weight-perturbation-along momentum: --optimiser.momentum is 0",
        ),
        (
            f"{TRAIN} --weight-perturbation-along momentum --optimiser.turn 0.1",
            "--weight-perturbation-along momentum needs SGD: no --optimiser.turn",
        ),
        (
            f"{TRAIN} --labels.averaged-share 0.4",
            "--labels.averaged-share needs adversarial training with averaging",
        ),
        (
            f"{TRAIN} --adversary.prior-start --data.augment resized-crop-flip",
            "--adversary.prior-start can only follow crops: --data.augment must not resize",
        ),
        (
            f"{TRAIN} --adversary.random-start False",
            "it is a switch, and --adversary.no-random-start turns it off",
        ),
        (f"{TRAIN} digits-undefended", "'digits-undefended' is one word too many"),
        ("bench train digits-r-mc-la --seconds 0", "--seconds 0: must be above 0"),
        ("bench evaluate x --peer-batch-sizes 3 x", "--peer-batch-sizes 3 x: must be whole"),
        ("diagnose x --effort.queries 0", "--effort.queries 0: must be at least 1"),
        ("evaluate x --images ten", "--images ten: must be a whole number, or None"),
        ("evaluate x --attacks pgd20 fgsm", "'fgsm' is one word too many after --attacks pgd20"),
        ("evaluate x --format html", "--format html: must be one of text, markdown, csv, latex"),
        ("evaluate", "evaluate needs TARGET: a run folder, or file.py:function"),
        ("verify", "verify needs FILE: <run>/adversarial/"),
        ("data check", "data check needs NAME: a data set's name"),
        ("transfer", "transfer needs --sources: models on which images are made"),
        (f"{TRAIN} --optimiser.lr 0.1", "--optimiser.lr; nearest: --optimiser.learning-rate,"),
        ("transfer --sources a --tragets b", "unknown option --tragets; nearest: --targets"),
    ],
)
def test_an_answer_names_the_option_the_value_and_what_is_valid(line, answer, said):
    code, error = said(line)
    assert code == 2
    assert answer in error
    assert error.startswith("bilateral: ") and error.count("\n") == 1
    assert not re.search(LEAKS, error)


def test_a_command_without_any_argument_runs(said, capsys):
    assert main(["data", "list"]) == 0
    assert "digits" in capsys.readouterr().out


def test_a_long_path_comes_out_in_one_piece(said):
    path = "/".join(["somewhere"] * 20)
    code, error = said(f"evaluate there {path}")
    assert code == 2 and f"'{path}' is one word too many" in error


@pytest.mark.parametrize("recipe", ["train", "bench train"])
def test_an_empty_recipe_is_not_the_default_one(recipe, said):
    """As in `train "$RECIPE"`, where nothing has set RECIPE."""
    code, error = said(f"{recipe} ''")
    assert code == 2 and "needs a recipe" in error


@pytest.mark.parametrize("name", ["", "..", "../up", "a/../../up", "/tmp/up", "."])
def test_a_run_stays_inside_its_out(name, said):
    code, error = said(f"{TRAIN} --name '{name}'")
    assert code == 2 and "must be the name of a folder inside --out" in error
    assert said(f"{TRAIN} --name mine/first --quiet") == (0, "")


def test_a_run_folder_in_place_of_a_recipe_is_told_how(said, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    code, error = said(f"train {tmp_path}")
    assert code == 2 and f"to repeat its run, give {tmp_path}/config.json" in error


BOX = """
╭─ Value error ────────────────────────────────────────────────────────────────╮
│ Error parsing --images: no type matching {None}|INT could be instantiated    │
│ ──────────────────────────────────────────────────────────────────────────── │
│ Argument helptext:                                                           │
│     --images {None}|INT                                                      │
╰──────────────────────────────────────────────────────────────────────────────╯
"""


@pytest.mark.parametrize(
    ("box", "line"),
    [
        (BOX, "--images ten: must be a whole number, or None"),
        (" Oops \n ------ \n  something else \n", "something else"),
        ("something without a box", "something without a box"),
        ("", ""),
    ],
)
def test_boxes_of_other_versions_are_understood_or_told_as_they_are(box, line):
    assert one_line(box, ["x", "--images", "ten"], "bilateral evaluate") == line


def options_of(line, capsys):
    """The options that a command's help shows, with what each takes."""
    with pytest.raises(SystemExit):
        main([*shlex.split(line), "--help"])
    text = capsys.readouterr().out
    return re.findall(
        r"^[│ ] (?:--[\w.-]+ \S+, )?(--[\w.-]+) (\{.*?\}\S*|INT|FLOAT|\[INT.*)", text, re.M
    )


LINES = dict.fromkeys(("evaluate", "verify", "diagnose", "reproduce", "sweep"), "x")
LINES |= {"transfer": "--sources x --targets x", "bench evaluate": "x"}
LINES |= {TRAIN: "", "bench train digits-r-mc-la": ""}


@pytest.mark.parametrize("line", LINES)
def test_no_option_answers_in_the_words_of_a_library(line, said, capsys):
    options = options_of(line, capsys)
    assert options
    for option, takes in options:
        if takes == "{None}|STR":
            continue
        code, error = said(f"{line} {LINES[line]} {option} x")
        assert code == 2, f"{line} {option} x"
        assert error.startswith(f"bilateral: {option} x: must be "), error
        assert error.count("\n") == 1 and not re.search(LEAKS, error), error
        if line == TRAIN:
            for value in ("-1", "nan"):
                code, error = said(f"{line} {option} {value}")
                assert code in (0, 2) and not re.search(LEAKS, error), error


def test_the_answer_is_the_same_on_a_terminal(tmp_path):
    """There tyro draws boxes in colour."""
    for words in (["evaluate"], ["evaluate", "x", "--images", "ten"]):
        piped = bilateral(*words, cwd=tmp_path).stderr
        reading, writing = pty.openpty()
        shown = subprocess.run(
            [sys.executable, "-m", "bilateral", *words],
            cwd=tmp_path,
            env={**os.environ, "TERM": "xterm-256color"},
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        os.close(writing)
        os.close(reading)
        assert shown.returncode == 2 and shown.stderr == piped
