"""What training computes in, by the device and by what its images are like."""

import json

import pytest
import torch

from bilateral.config import Data, Optimiser
from bilateral.data.datasets import Split
from bilateral.machine import Machine
from bilateral.paper.recipes import recipe_named
from bilateral.processes import Processes
from bilateral.runs import RunFolder
from bilateral.runtime import TINY, cpu_multiplies_bfloat16, trains_in_bfloat16
from bilateral.training.bench import noise
from bilateral.training.progress import TrainingProgress
from bilateral.training.trainer import Trainer, train

CPU = torch.device("cpu")
QUIET = TrainingProgress(quiet=True)
RUN = recipe_named("cifar10-r-mc-la").with_fields(
    data=Data(name="cifar10"),
    model="small-cnn",
    optimiser=Optimiser(batch_size=16),
    epochs=1,
    check_epochs=1,
)


def able(monkeypatch, **instructions):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: instructions, raising=False)


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, True),
        ({"avx512_bf16": False, "amx_bf16": True}, True),
        ({"avx512_bf16": False, "avx512_f": True}, False),
        ({}, False),
    ],
)
def test_a_cpu_pays_where_it_has_the_instructions(monkeypatch, instructions, expected):
    able(monkeypatch, **instructions)
    assert cpu_multiplies_bfloat16() is expected
    assert trains_in_bfloat16("auto", CPU, TINY + 1) is expected
    assert not trains_in_bfloat16("auto", CPU, TINY), "tiny images gain nothing"
    assert trains_in_bfloat16("bfloat16", CPU, TINY), "as asked for"
    assert not trains_in_bfloat16("float32", CPU, TINY + 1), "as asked for"


def test_an_older_torch_does_not_tell(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert not cpu_multiplies_bfloat16()


@pytest.mark.parametrize(
    ("side", "channels_last", "expected"),
    [(20, "auto", (True, True)), (20, "off", (True, False)), (8, "auto", (False, False))],
)
def test_a_cpu_that_has_bfloat16_trains_in_it(tmp_path, monkeypatch, side, channels_last, expected):
    """Images of some size alone; what lies in memory how follows, unless it is said."""
    able(monkeypatch, avx512_bf16=True)
    kinds, orders = set(), set()
    split: Split = noise(32, (side, side, 3), tuple("abcdefghij"))
    machine = Machine(channels_last=channels_last)
    folder = RunFolder(tmp_path / "seed0")
    folder.prepare(RUN, {})
    trainer = Trainer(RUN, folder, split, CPU, QUIET, machine)
    conv = next(one for one in trainer.learner.model.modules() if isinstance(one, torch.nn.Conv2d))

    def seen(module, _, output):
        kinds.add(output.dtype)
        orders.add(module.weight.is_contiguous(memory_format=torch.channels_last))

    conv.register_forward_hook(seen)
    trainer.fit()
    bfloat16, last = expected
    assert kinds == {torch.bfloat16 if bfloat16 else torch.float32}
    assert orders == {last}
    weights = trainer.learner.final_model.state_dict().values()
    assert all(tensor.dtype != torch.bfloat16 for tensor in weights)


def test_in_bfloat16_a_run_goes_on_as_if_it_had_never_stopped(tmp_path, monkeypatch, stopped_after):
    """Bit for bit on a CPU, as in float32."""
    able(monkeypatch, avx512_bf16=True)
    split = noise(64, (20, 20, 3), tuple("abcdefghij"))
    whole, broken = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "broken")
    run = RUN.with_fields(epochs=2, averaging=0.9)
    train(run, whole, split, CPU, QUIET)
    with stopped_after(3):
        train(run, broken, split, CPU, QUIET)
    assert not broken.weights.exists()
    train(run, broken, split, CPU, QUIET)
    assert broken.weights.read_bytes() == whole.weights.read_bytes()
    for folder in (whole, broken):
        assert json.loads(folder.config.read_text())["versions"]["precision"] == "bfloat16"
    plain = RunFolder(tmp_path / "plain")
    train(run.with_fields(precision="float32"), plain, split, CPU, QUIET)
    assert plain.weights.read_bytes() != whole.weights.read_bytes(), "bfloat16 was in use"


def test_a_run_that_goes_on_in_another_precision_says_so(tmp_path, monkeypatch, stopped_after):
    split, notes = noise(64, (20, 20, 3), tuple("abcdefghij")), []
    monkeypatch.setattr(TrainingProgress, "note", lambda _, said: notes.append(said))
    folder = RunFolder(tmp_path / "seed0")
    for has, looks in ((True, 1), (True, 1), (False, 1)):
        able(monkeypatch, avx512_bf16=has)
        with stopped_after(looks):
            train(RUN.with_fields(epochs=3), folder, split, CPU, QUIET)
    said = [note for note in notes if note.startswith("the checkpoint")]
    assert said == ["the checkpoint was trained in bfloat16; resuming in float32"]


def test_processes_compute_alike(tmp_path, monkeypatch):
    """Where one machine of several has no bfloat16 none uses it."""
    able(monkeypatch, avx512_bf16=True)
    split = noise(32, (20, 20, 3), tuple("abcdefghij"))
    assert Trainer(RUN, RunFolder(tmp_path), split, CPU, QUIET).bfloat16
    monkeypatch.setattr(Processes, "largest", lambda _, *values: [1 for _ in values])
    assert not Trainer(RUN, RunFolder(tmp_path), split, CPU, QUIET).bfloat16
