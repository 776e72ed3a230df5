"""Likely slips, each answered by what was likely meant: one line, exit code 2, nothing changed."""

import shlex
from pathlib import Path

import pytest
import torch
from PIL import Image

from bilateral.cli import main
from bilateral.models import build_model
from bilateral.paper.recipes import recipe_named
from bilateral.runs import RunFolder
from bilateral.weights import write_weights

OWN = "from torch import nn\ndef maps():\n    return nn.Conv2d(1, 10, 3)\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Here lie a run of the digits, a folder that is none, a file and a few pictures."""
    monkeypatch.chdir(tmp_path)
    run = RunFolder(tmp_path / "runs/digits/seed0")
    run.prepare(recipe_named("digits-r-mc-la"), {})
    torch.manual_seed(0)
    about = {"classes": list("0123456789"), "channels": 1, "image_size": [8, 8]}
    write_weights(run.weights, build_model("small-cnn", 10, 1), about)
    (run.path / "attacks").mkdir()
    (run.path / "attacks/pgd20@40-255.json").write_text("{}")
    (run.path / "evaluation.json").write_text("{")
    Path("empty").mkdir()
    Path("text.txt").write_text("hello")
    torch.save({"weight": torch.zeros(1)}, "their.pth")
    Path("own.py").write_text(OWN)
    for name in ("cat", "dog"):
        for number in range(3):
            path = Path("pictures") / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (12, 12), (20 * number, 0, 0)).save(path)
    return tmp_path


RUN = "runs/digits/seed0"


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("evaluate ''", "no model is named"),
        ("evaluate runs", f"did you mean {RUN}?"),
        ("evaluate runs/digits", f"did you mean {RUN}?"),
        ("export runs", f"did you mean {RUN}?"),
        ("report runs", f"did you mean {RUN}?"),
        ("compare runs/digits empty", f"did you mean {RUN}?"),
        ("export ''", "export needs RUN"),
        ("report ''", "report needs RUN"),
        ("verify ''", "verify needs FILE"),
        ("verify nowhere.npz", "evaluate --save-adversarial saves them"),
        (f"evaluate {RUN} --images 0", "--images 0: must be 1 to 360, the test images of digits"),
        (f"evaluate {RUN} --images 361", "must be 1 to 360, the test images of digits"),
        (f"evaluate {RUN} --image-size 32", "--image-size 32 is for folder:PATH: digits has"),
        (f"evaluate {RUN} --attacks pgd20-step0", "-stepS is a step of S/255, S above 0"),
        (f"evaluate {RUN} --attacks pgd20-step999", "and at most 255"),
        (
            f"evaluate {RUN} --out text.txt --attacks fgsm --images 5 --quiet",
            "a file is where a folder is needed",
        ),
        (f"transfer --sources {RUN} --targets {RUN} --attacks pgd9-step0", "S above 0"),
        (
            f"transfer --sources {RUN} --targets own.py:maps --data digits",
            "own.py:maps: the model returns outputs of shape (1, 10, 6, 6)",
        ),
        ("evaluate own.py:maps --data folder:pictures --image-size 99999", "must be 1 to 4096"),
        ("evaluate own.py:maps --data folder:pictures --image-size 0", "--image-size 0: must be"),
        ("train digits-r-mc-la --data folder:", "folder: names no folder: write folder:PATH"),
        ("train digits-r-mc-la --data folder:nowhere", "nowhere is not a folder"),
        (
            "train digits-r-mc-la --weights their.pth",
            "convert them with safetensors.torch.save_file",
        ),
        (
            f"evaluate {RUN} --attacks pgd20-x5-last",
            "-last is for one start and does not combine with -xN",
        ),
        ("train digits-r-mc-la --data.images-per-class 9999", "--data.images-per-class 9999: a"),
        (
            "train digits-r-mc-la --data.held-out 5000",
            "--data.held-out 5000 (yours or the recipe's): there are 1437",
        ),
        (f"report {RUN} --transfer nowhere.json", "no nowhere.json there; bilateral transfer"),
        (f"report {RUN} --transfer empty", "--transfer empty: no transfer.json there"),
        (f"report {RUN} --transfer text.txt", "text.txt cannot be read: not JSON"),
        (f"bench evaluate {RUN} --attacks pgd0", "unknown attack 'pgd0'"),
        (f"bench evaluate {RUN} --attacks pgd2 --peer-batch-sizes 0", "--peer-batch-sizes 0: must"),
        (f"bench evaluate {RUN} --attacks pgd2 --peer-batch-sizes", "needs a value"),
        (f"bench evaluate {RUN} --attacks pgd2 --batch-size 0", "--batch-size 0: must be at least"),
        ("bench train digits-r-mc-la --model small-cn", "nearest: small-cnn"),
        ("bench train digits-r-mc-la --model resnet18", "nearest: preact-resnet-18, resnet-"),
    ],
)
def test_a_slip_is_answered(line, answer, place, capsys):
    before = sorted((path, path.stat().st_mtime_ns) for path in place.rglob("*"))
    assert main(shlex.split(line)) == 2
    out, error = capsys.readouterr()
    assert answer in error
    said = [line for line in error.splitlines() if not line.startswith("bilateral: warning: ")]
    assert len(said) == 1 and said[0].startswith("bilateral: ") and not out
    assert "warning" not in error or "--out" in line
    assert sorted((path, path.stat().st_mtime_ns) for path in place.rglob("*")) == before


def test_compare_says_which_flags_there_are(place, capsys):
    other = place / "runs/digits/seed1"
    (other / "attacks").mkdir(parents=True)
    assert main(["compare", RUN, str(other), "--attack", "autoattack"]) == 2
    said = f"{RUN} has no flags of autoattack: it has pgd20 at 40/255; run bilateral evaluate {RUN}"
    assert said in capsys.readouterr().err
    assert main(["compare", RUN, str(other), "--attack", "PGD20"]) == 2
    assert "unknown attack 'PGD20'; nearest: pgd20" in capsys.readouterr().err


def test_a_damaged_file_is_named_once(place, capsys):
    assert main(["report", RUN, "--out", "page.html"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "evaluation.json" in line]
    assert line.startswith("digits/seed0: evaluation.json: damaged (not JSON")


def test_help_is_a_command_too(capsys):
    assert main(["help"]) == 0
    assert "usage: bilateral COMMAND" in capsys.readouterr().out
