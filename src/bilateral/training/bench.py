"""How fast a recipe trains here, compared with the rate of the machine's own matrix products."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from bilateral.config import Run
from bilateral.data.batches import Batch
from bilateral.data.datasets import Split, entry_named, load_training
from bilateral.machine import Machine
from bilateral.models import build_model
from bilateral.processes import Processes
from bilateral.runs import RunFolder
from bilateral.runtime import synchronise, trains_in_bfloat16, versions
from bilateral.tables import rate
from bilateral.training.engine import Speed
from bilateral.training.progress import TrainingProgress
from bilateral.training.step import forwards_per_image
from bilateral.training.trainer import Trainer

Note = Callable[[str], None]
LITTLE = 1e14
"""Floating-point operations that any CPU does within the hour."""


def bench_split(run: Run) -> tuple[Split, int]:
    """The images to measure on, and how many an epoch has.

    A named data set is replaced by noise of its shape: the cost of a step does not depend on its
    pixels.
    """
    if run.data.name.startswith("folder:"):
        split = load_training(run)
        return split, len(split.labels)
    entry = entry_named(run.data.name)
    count = 16 * run.optimiser.batch_size
    return noise(count, entry.image_shape, entry.classes), entry.counts["train"]


def noise(count: int, shape: tuple[int, int, int], classes: tuple[str, ...]) -> Split:
    """Random pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)
    return Split(pixels, np.arange(count, dtype=np.int64) % len(classes), classes)


def bench_train(
    run: Run,
    split: Split,
    images_an_epoch: int,
    device: torch.device,
    machine: Machine,
    without: tuple[str, ...] = (),
    seconds: float = 10.0,
    note: Note = lambda _: None,
) -> dict[str, Any]:
    """Images a second with every feature on, then with each of `without` switched off."""
    bfloat16 = trains_in_bfloat16(run.precision, device, split.image_values)
    matrix_rate = matmul_tflops(device, bfloat16)
    note(f"matrix products: {rate(matrix_rate)} TFLOP/s")
    # On a CPU the layout follows the precision: fixed here, so that one feature alone is switched.
    last = Speed.on(machine, device, Processes(), bfloat16).channels_last
    machine = machine.with_fields(channels_last="on" if last else "off")
    rows: dict[str, dict[str, Any]] = {}
    for feature in ("", *without):
        name = f"without {feature}" if feature else "all"
        try:
            row = _measure(*_switched_off(run, machine, feature), split, device, seconds)
        except RuntimeError as error:  # for example out of memory without bfloat16
            if not feature:
                raise
            rows[name] = {"error": str(error).splitlines()[0]}
            note(f"{name}: failed ({rows[name]['error']})")
            continue
        row["tflops"] = row["images_per_second"] * flops_per_image(run, split) / 1e12
        row["share_of_matrix_rate"] = row["tflops"] / matrix_rate
        row["epoch_seconds"] = images_an_epoch / row["images_per_second"]
        rows[name] = row
        note(
            f"{name}: {row['images_per_second']:,.0f} images/s, {rate(row['tflops'])} TFLOP/s, "
            f"first step after {row['first_step_seconds']:.1f} s"
        )
    return {
        "recipe": run.recipe,
        "model": run.model,
        "batch_size": run.optimiser.batch_size,
        "reference": run.adversary.reference,
        **rows["all"],
        "matmul_tflops": matrix_rate,
        "features": rows,
        "device": versions(device)["device"],
        "torch": torch.__version__,
    }


def _switched_off(run: Run, machine: Machine, feature: str) -> tuple[Run, Machine]:
    """A feature is a field of `Machine`, or the precision of the run."""
    if feature == "bfloat16":
        return run.with_fields(precision="float32"), machine
    field = feature.replace("-", "_")
    return run, machine.with_fields(**{field: "off"}) if feature else machine


def _measure(
    run: Run, machine: Machine, split: Split, device: torch.device, seconds: float
) -> dict[str, Any]:
    torch.compiler.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    folder = RunFolder(Path("unused"))  # nothing is written
    started = time.monotonic()
    trainer = Trainer(run, folder, split, device, TrainingProgress(quiet=True), machine)
    batches = _forever(trainer)
    for _ in range(5):  # compile, search for algorithms, capture
        trainer.take(*next(batches))
    synchronise(device)
    warm_up = time.monotonic() - started
    rounds: list[float] = []
    steps = max(1, round(0.2 * trainer.batches.steps))
    begun = time.monotonic()
    while len(rounds) < 3 or time.monotonic() - begun < seconds:
        at = time.monotonic()
        for _ in range(steps):
            trainer.take(*next(batches))
        synchronise(device)
        rounds.append(steps * trainer.batches.batch_size / (time.monotonic() - at))
    return {
        "images_per_second": float(np.median(rounds)),
        "slowest_round": min(rounds),
        "fastest_round": max(rounds),
        "rounds": len(rounds),
        "first_step_seconds": trainer.first_step_seconds,
        "warm_up_seconds": warm_up,
        "peak_memory_gib": (
            torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
        ),
    }


def _forever(trainer: Trainer) -> Iterator[tuple[Batch, int]]:
    epoch = 0
    while True:
        for batch in trainer.batches.epoch(epoch):
            yield batch, epoch
        epoch += 1


def flops_per_image(run: Run, split: Split) -> float:
    """Floating-point operations of a step per image: its forward passes times those of one."""
    height, width, channels = split.pixels.shape[1:]
    with torch.device("meta"):
        model = build_model(run.model, len(split.classes), channels, (height, width)).eval()
        images = torch.empty(1, channels, height, width)
    return forward_flops(model, images) * forwards_per_image(run)


def least_seconds(run: Run, split: Split, device: torch.device) -> float:
    """A lower bound on a run's time: its arithmetic at the machine's own rate.

    Zero for a run of so little arithmetic that the rate is not worth measuring.
    """
    images = len(split.labels) - run.data.held_out
    if run.data.images_per_class is not None:
        images = min(images, run.data.images_per_class * len(split.classes))
    operations = run.epochs * images * flops_per_image(run, split)
    if operations < LITTLE:
        return 0.0
    rate = matmul_tflops(device, trains_in_bfloat16(run.precision, device, split.image_values))
    return operations / (1e12 * rate)


def forward_flops(model: nn.Module, images: torch.Tensor) -> float:
    """Floating-point operations of a forward pass, counted by torch."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(images)
    return float(counter.get_total_flops())


def matmul_tflops(device: torch.device, bfloat16: bool) -> float:
    """The rate that products of large matrices reach here, in bfloat16 or in float32."""
    size = 8192 if device.type == "cuda" else 1024
    dtype = torch.bfloat16 if bfloat16 else torch.float32
    one, other = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    rates = []
    for _ in range(6):
        synchronise(device)
        started = time.monotonic()
        for _ in range(10):
            one @ other
        synchronise(device)
        rates.append(10 * 2 * size**3 / (time.monotonic() - started) / 1e12)
    return float(np.median(rates[1:]))
