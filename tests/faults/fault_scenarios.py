"""What each command is disturbed in, and how its results are compared."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fault_data import NAME
from fault_injection import Scenario
from safetensors import safe_open

from bilateral.data.sources import check
from bilateral.training.checkpoint import read_checkpoint

RECIPE, TABLE = "digits-r-mc-la", "label-formulas"
RUN = f"runs/{RECIPE}/seed0"
TRAIN = ["train", RECIPE, "--epochs", "3", "--check-epochs", "2", "--checkpoint-seconds", "0"]
TRAIN += ["--data.images-per-class", "13", "--optimiser.batch-size", "26", "--averaging", "0.9"]
EVALUATE = ["evaluate", RUN, "--attacks", "fgsm,apgd-ce,apgd", "--images", "10"]
EVALUATE += ["--batch-size", "5", "--save-adversarial", "--quiet"]
REPRODUCE = ["reproduce", TABLE, "--quick", "--columns", "clean", "CE20"]
REPRODUCE += ["--rows", "R-MC-LA (main)", "R-MC-LA (sup)"]
TIMES = {"seconds", "images_per_second", "train_seconds"}
ABOUT_THE_CALL = {"commit", "command"}


def without_times(value: Any) -> Any:
    """A JSON value without what a clock decided."""
    if isinstance(value, dict):
        left_out = TIMES | ABOUT_THE_CALL
        return {key: without_times(one) for key, one in value.items() if key not in left_out}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def arrays(path: Path) -> dict[str, str]:
    """The arrays of an npz file, each as a digest."""
    with np.load(path, allow_pickle=False) as file:
        return {
            name: hashlib.sha256(np.ascontiguousarray(file[name]).tobytes()).hexdigest()
            for name in file.files
        }


def results(folder: Path) -> dict[str, Any]:
    """Every file below a folder in a form that can be compared."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        name = str(path.relative_to(folder))
        if path.suffix == ".json":
            found[name] = without_times(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            found[name] = [
                without_times(json.loads(line)) for line in path.read_text().splitlines()
            ]
        elif path.suffix == ".npz":
            found[name] = arrays(path)
        elif path.suffix == ".pt":
            found[name] = "a checkpoint"  # it holds the seconds of training
        else:
            found[name] = digest(path)
    return found


def whole(folder: Path) -> None:
    """No file under its own name is half-written; only the log may end in half a line."""
    for path in folder.rglob("*"):
        if not path.is_file() or path.name.startswith("."):
            continue
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".jsonl":
            for line in path.read_text().splitlines()[:-1]:
                json.loads(line)
        elif path.suffix == ".npz":
            arrays(path)
        elif path.suffix == ".pt":
            read_checkpoint(path, torch.device("cpu"))
        elif path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                assert file.metadata()
        elif path.suffix == ".html":
            assert path.read_text().rstrip().endswith("</html>")


def cache_is_whole(folder: Path) -> None:
    """The data set is whole, or not there under its name."""
    if (folder / "cache" / NAME).exists():
        assert all(finding.ok for finding in check(NAME, folder / "cache"))


def scenarios(trained: Path, evaluated: Path, archive: Path) -> dict[str, Scenario]:
    """All of them by name; the folders hold a trained run, and one that is evaluated too."""
    fetch = ["data", "fetch", NAME, "--quiet"]
    every = [
        Scenario("train", [*TRAIN, "--quiet"], results, whole),
        Scenario("evaluate", EVALUATE, results, whole, base=trained),
        Scenario("reproduce", [*REPRODUCE, "--quiet"], results, whole),
        Scenario("download", fetch, results, cache_is_whole, fresh=False),
        Scenario("fetch", [*fetch, "--source", str(archive)], results, cache_is_whole, fresh=False),
        Scenario("report", ["report", RUN], results, whole, base=evaluated),
    ]
    return {scenario.name: scenario for scenario in every}
