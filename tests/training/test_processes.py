"""Several processes under the real torchrun, on the CPU."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

PLAIN_MODEL = """
from torch import nn
def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(out, *options, processes=1, restarts=0, epochs=2):
    """The words that train the digits."""
    launcher = [sys.executable, "-m"]
    if processes > 1:
        launcher = [*launcher, "torch.distributed.run", "--standalone", "-m"]
        launcher[3:3] = [f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
    words = ["bilateral", "train", "digits-r-mc-la", "--epochs", str(epochs), "--out", str(out)]
    return [*launcher, *words, "--check-epochs", "0", *options]


def run(*arguments, **named):
    return subprocess.run(
        command(*arguments, **named), env=ENVIRONMENT, capture_output=True, text=True, check=False
    )


def weights(out):
    (path,) = Path(out).rglob("model.safetensors")
    return path


def test_two_processes_learn_what_one_does_with_the_whole_batch(tmp_path):
    """Gradients are means over the whole batch; noise and crops belong to the image."""
    (tmp_path / "own.py").write_text(PLAIN_MODEL)
    model = ["--model", f"{tmp_path}/own.py:build"]
    for processes in (1, 2):
        done = run(tmp_path / str(processes), *model, processes=processes)
        assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained") == 1, "the first process alone speaks"
    one, two = (load_file(weights(tmp_path / name)) for name in "12")
    start = torch.cat([tensor.flatten() for tensor in one.values()]).abs().mean()
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, atol=1e-4 * float(start), rtol=1e-4)
    logs = [
        json.loads(next((tmp_path / name).rglob("log.jsonl")).read_text().splitlines()[-1])
        for name in "12"
    ]
    for key in ("loss", "clean_accuracy", "adversarial_accuracy"):
        assert logs[1][key] == pytest.approx(logs[0][key], rel=1e-3)


def children(pid):
    """The process's children and theirs, with their environments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                variables = (entry / "environ").read_bytes().split(b"\0")
            except (OSError, IndexError):
                continue
            found.append((int(entry.name), parent, variables))
    direct = [child for child, parent, _ in found if parent == pid]
    return [(child, variables) for child, parent, variables in found if parent in [pid, *direct]]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the worker through /proc")
def test_a_killed_worker_costs_nothing_but_time(tmp_path):
    """With batch norm too: the restarted run ends with the same weights, bit for bit."""
    options = ["--checkpoint-seconds", "0", "--optimiser.batch-size", "32"]
    undisturbed = run(tmp_path / "whole", *options, processes=2, epochs=3)
    assert undisturbed.returncode == 0, undisturbed.stderr
    out = tmp_path / "broken"
    words = command(out, *options, processes=2, restarts=1, epochs=3)
    with subprocess.Popen(
        words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as launched:
        deadline = time.monotonic() + 60
        while not list(out.rglob("checkpoint.pt")) and time.monotonic() < deadline:
            time.sleep(0.02)
        workers = [pid for pid, variables in children(launched.pid) if b"RANK=1" in variables]
        assert workers
        os.kill(workers[0], signal.SIGKILL)
        _, errors = launched.communicate(timeout=120)
    assert launched.returncode == 0, errors
    assert "going on from step" in errors
    assert weights(out).read_bytes() == weights(tmp_path / "whole").read_bytes()


def test_a_batch_that_does_not_divide_is_refused(tmp_path):
    done = run(tmp_path / "run", "--optimiser.batch-size", "33", processes=2)
    assert done.returncode != 0
    assert "a batch of 33 images does not divide into 2 equal parts" in done.stderr
    assert not list(tmp_path.rglob("config.json"))
