"""ImageNet's recipe, shrunk, through the real command: photographs decoded, cropped, attacked."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from entry_point import bilateral

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
RECIPE = ["train", "imagenet-r-mc-la-resnet50", "--model", "small-cnn", "--image-size", "32"]
RECIPE += ["--optimiser.batch-size", "16"]


@pytest.fixture
def folder(tmp_path):
    """Three classes of small JPEGs of different sizes that a network can tell apart."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 24), ("val", 6)):
        for label, name in enumerate(("ape", "bee", "cat")):
            (tmp_path / "photographs" / split / name).mkdir(parents=True)
            for number in range(count):
                height, width = generator.integers(40, 90, 2)
                pixels = generator.integers(0, 60, (height, width, 3))
                pixels[..., label] += 150
                path = tmp_path / "photographs" / split / name / f"{number}.jpg"
                Image.fromarray(pixels.astype(np.uint8)).save(path)
    return tmp_path / "photographs"


def test_the_imagenet_recipe_trains_and_is_evaluated(folder, tmp_path):
    """With decoding workers, and a photograph that cannot be read among the good ones."""
    bad = folder / "train" / "ape" / "0.jpg"
    bad.write_bytes(bad.read_bytes()[:300])
    out = ["--out", tmp_path / "runs", "--data", f"folder:{folder}"]
    done = bilateral(*RECIPE, *out, "--epochs", "2", "--machine.workers", "2")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"{bad} cannot be read: another image took its place") == 1
    run = tmp_path / "runs" / "imagenet-r-mc-la-resnet50-small-cnn" / "seed0"
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [record["unreadable"] for record in records] == [[str(bad)]] * 2
    config = json.loads((run / "config.json").read_text())["run"]
    assert config["adversary"]["steps"] == 2
    assert config["labels"]["ratio"] == 100, "any folder may hold the recipe's own data"
    attacks = "pgd10-step1.6,pgd10-step1.6-rd,pgd100-step1,pgd100-step1-rd"
    words = ["--attacks", attacks, "--epsilon", "16/255", "--images", 6, "--json", "--quiet"]
    evaluated = bilateral("evaluate", run, *words)
    assert evaluated.returncode == 0, evaluated.stderr
    entry = json.loads(evaluated.stdout)
    assert entry["images"] == 6 and len(entry["attacks"]) == 4
    steps = json.loads(next(run.glob("attacks/pgd10-step1-6@*.json")).read_text())["settings"]
    assert steps["pgd10-step1.6"]["step_size"] == pytest.approx(1.6 / 255)


def test_too_many_unreadable_photographs_stop_the_run(folder, tmp_path):
    for name in ("ape", "bee"):
        for number in range(8):
            (folder / "train" / name / f"{number}.jpg").write_bytes(b"not a picture")
    done = bilateral(
        *RECIPE, "--out", tmp_path / "runs", "--data", f"folder:{folder}", "--epochs", "1"
    )
    assert done.returncode == 2
    assert "photographs cannot be read" in done.stderr.splitlines()[-1]


@pytest.mark.kills
def test_a_signal_while_decoding_saves_first_and_the_run_goes_on(folder, tmp_path):
    """Bit for bit, with workers, though the signal reaches the whole process group."""
    options = ["--data", f"folder:{folder}", "--machine.workers", "2", "--epochs", "4"]
    whole = bilateral(*RECIPE, *options, "--out", tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    words = [sys.executable, "-m", "bilateral", *RECIPE, *options, "--out", str(tmp_path / "cut")]
    with subprocess.Popen(
        words,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "cut").rglob("log.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    again = bilateral(*RECIPE, *options, "--out", tmp_path / "cut")
    assert again.returncode == 0 and "resuming from step" in again.stderr, again.stderr
    one, other = (next((tmp_path / name).rglob("model.safetensors")) for name in ("whole", "cut"))
    assert one.read_bytes() == other.read_bytes()
