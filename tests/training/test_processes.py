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


NUAT = "--method trades --regulariser.kind nuclear --regulariser.of logits --regulariser.rising"
NUAT += " --regulariser.weight 5 --labels.rule one-hot --adversary.target none"


@pytest.mark.parametrize(
    "options",
    [pytest.param("", id="r-mc-la"), pytest.param(NUAT, id="nuat", marks=pytest.mark.kills)],
)
def test_two_processes_learn_what_one_does_with_the_whole_batch(tmp_path, options):
    """Gradients are means over the whole batch, and a nuclear norm is of all of it; noise and
    crops belong to the image.
    """
    (tmp_path / "own.py").write_text(PLAIN_MODEL)
    words = ["--model", f"{tmp_path}/own.py:build", *options.split()]
    for processes in (1, 2):
        done = run(tmp_path / str(processes), *words, processes=processes)
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


@pytest.mark.kills
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the worker through /proc")
def test_a_killed_worker_costs_nothing_but_time(tmp_path):
    """With batch norm too: the restarted run ends with the same weights, bit for bit."""
    options = ["--checkpoint-seconds", "0", "--optimiser.batch-size", "32"]
    undisturbed = run(tmp_path / "whole", *options, processes=2)
    assert undisturbed.returncode == 0, undisturbed.stderr
    out = tmp_path / "broken"
    words = command(out, *options, processes=2, restarts=1)
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
    assert "resuming from step" in errors
    assert weights(out).read_bytes() == weights(tmp_path / "whole").read_bytes()


@pytest.mark.kills
def test_a_run_goes_on_with_fewer_processes(tmp_path):
    """TRADES, whose two passes each move the statistics; the epoch's loss stays a mean."""
    options = ["--method", "trades", "--adversary.loss", "divergence", "--adversary.target", "none"]
    options += ["--labels.rule", "one-hot", "--optimiser.batch-size", "64"]
    whole = run(tmp_path / "whole", *options, processes=2)
    assert whole.returncode == 0, whole.stderr
    words = command(tmp_path / "cut", *options, "--checkpoint-seconds", "0", processes=2)
    with subprocess.Popen(
        words, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as launched:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "cut").rglob("checkpoint.pt")) and time.monotonic() < deadline:
            time.sleep(0.02)
        launched.terminate()
        launched.wait(timeout=60)
    assert not list((tmp_path / "cut").rglob("model.safetensors"))
    again = run(tmp_path / "cut", *options, "--checkpoint-seconds", "0")
    assert again.returncode == 0 and "resuming from step" in again.stderr, again.stderr
    one, other = (
        json.loads(next((tmp_path / name).rglob("log.jsonl")).read_text().splitlines()[0])
        for name in ("whole", "cut")
    )
    assert other["loss"] == pytest.approx(one["loss"], rel=0.1)
    for key in ("clean_accuracy", "adversarial_accuracy"):
        assert other[key] == pytest.approx(one[key], abs=0.1)


def test_statistics_of_both_passes_are_those_of_all_processes(tmp_path):
    """A model that only normalises: the running mean after a step of TRADES is known."""
    (tmp_path / "check.py").write_text(STATISTICS)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*words, str(tmp_path / "check.py")],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Momentum 0.1, two passes on shares of means 0 and 10: 0.81 of the average of 0 and 10, less.
    assert float(done.stdout) == pytest.approx(5 * (1 - 0.9**2), rel=0.05)


STATISTICS = """
import torch
from bilateral.config import Adversary, Labels, Run
from bilateral.machine import Machine
from bilateral.data.batches import Batch
from bilateral.processes import joined
from bilateral.training.engine import Engine, Speed
from bilateral.training.learner import Learner
from bilateral.training.optimiser import build_optimiser
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm2d(1), nn.Linear(1, 3)
    def forward(self, images):
        return self.head(self.norm(images * 10).mean((2, 3)))

cpu = torch.device("cpu")
with joined(cpu) as processes:
    torch.manual_seed(0)
    model = Model()
    adversary = Adversary(loss="divergence", epsilon=1e-4, step_size=1e-4)
    run = Run(method="trades", adversary=adversary, labels=Labels(rule="one-hot"),
              data={"augment": "none"})
    optimiser = build_optimiser(model, run.optimiser, fused=False)
    speed = Speed.on(Machine(), cpu, processes)
    engine = Engine(Learner(model, optimiser), run, cpu, False, speed, image_size=4, classes=3,
                    processes=processes)
    pixels = torch.full((8, 1, 4, 4), 255 * processes.rank, dtype=torch.uint8)
    numbers = torch.arange(8) * 2 + processes.rank
    engine.take(Batch(pixels, torch.zeros(8, dtype=torch.int64), numbers), 0, 0, 1, 0.0)
    if processes.first:
        print(float(model.norm.running_mean))
"""


@pytest.mark.kills
@pytest.mark.filterwarnings("ignore")
def test_compiled_processes_agree_with_plain_ones(tmp_path):
    """What several GPUs do by default: DDP compiled, and nothing recompiles after two steps."""
    for name, compiling in (("plain", "off"), ("compiled", "on")):
        options = ["--machine.compile", compiling, "--optimiser.learning-rate", "0.01"]
        done = run(tmp_path / name, *options, processes=2, epochs=1)
        assert done.returncode == 0, done.stderr
    one, other = (
        json.loads(next((tmp_path / name).rglob("log.jsonl")).read_text())
        for name in ("plain", "compiled")
    )
    assert other["loss"] == pytest.approx(one["loss"], rel=2e-3)


def test_a_batch_that_does_not_divide_is_refused(tmp_path):
    done = run(tmp_path / "run", "--optimiser.batch-size", "33", processes=2)
    assert done.returncode != 0
    assert "a batch of 33 images does not divide into 2 equal parts" in done.stderr
    assert not list(tmp_path.rglob("config.json"))
