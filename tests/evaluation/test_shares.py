"""An evaluation shared by two processes under the real torchrun finds what one process finds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "bilateral"]


def bilateral(*words, processes=1):
    launched = TORCHRUN if processes > 1 else ["bilateral"]
    done = subprocess.run(
        [sys.executable, "-m", *launched, *map(str, words)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    bilateral("train", "digits-r-mc-la", "--epochs", "3", "--out", out, "--quiet")
    return out / "digits-r-mc-la" / "seed0"


@pytest.mark.kills
def test_two_processes_find_the_same_flags(trained, tmp_path):
    """With a last round in which one process has nothing to do, and every image kept."""
    words = ["evaluate", trained, "--images", "41", "--attacks", "pgd7,apgd-t,deepfool-l2"]
    words += ["--batch-size", "20", "--json", "--quiet", "--save-adversarial", "--out"]
    outputs = {
        processes: json.loads(bilateral(*words, tmp_path / str(processes), processes=processes))
        for processes in (1, 2)
    }
    for name, attack in outputs[1]["attacks"].items():
        for key, value in attack.items():
            if key == "mean_distance":  # the same sum in another order
                value = None if value is None else pytest.approx(value, rel=1e-6)
            if key != "seconds":
                assert outputs[2]["attacks"][name][key] == value, (name, key)
    for key in ("clean_accuracy", "clean_confusion"):
        assert outputs[1][key] == outputs[2][key] != []
    assert all(attack["confusion"] for attack in outputs[2]["attacks"].values())
    flags = {
        processes: [
            sorted(zip(member["images"], member["robust"], member["predictions"], strict=True))
            for path in sorted((tmp_path / str(processes)).rglob("attacks/*.json"))
            for member in json.loads(path.read_text())["members"].values()
        ]
        for processes in (1, 2)
    }
    assert flags[1] == flags[2] and sum(map(len, flags[1])) == 3 * 41
    for file in ("gallery.npz", "adversarial/pgd7@40-255.npz"):
        one, two = (np.load(next(Path(tmp_path / name).rglob(file))) for name in "12")
        for key in one.files:
            if one[key].dtype.kind == "f":  # a gradient's last bit follows the place in the batch
                np.testing.assert_allclose(one[key], two[key], 0, 1e-6, err_msg=f"{file} {key}")
            elif key != "about":
                np.testing.assert_array_equal(one[key], two[key], err_msg=f"{file} {key}")
