"""Starts from the last epoch's perturbations: in the right frame, in the checkpoint, refused."""

import copy

import numpy as np
import pytest
import torch
from pydantic import ValidationError

import bilateral
from bilateral.attacks.ball import random_start
from bilateral.config import Adversary, Data, Labels, Optimiser, Run
from bilateral.data.batches import augmentation_keys, moves
from bilateral.data.datasets import Split
from bilateral.data.mixing import drawn_boxes
from bilateral.errors import UserError
from bilateral.machine import Machine
from bilateral.paper.recipes import recipe_named
from bilateral.processes import Processes
from bilateral.randomness import image_keys, purpose_key
from bilateral.runs import RunFolder
from bilateral.training.engine import _NOISE
from bilateral.training.priors import Priors, priors_of
from bilateral.training.progress import TrainingProgress
from bilateral.training.trainer import Trainer, train

CPU = torch.device("cpu")
QUIET = TrainingProgress(quiet=True)
EPSILON, STEP = 0.1, 0.03
LINEAR = """
import torch
from torch import nn
def build(channels):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, 2, bias=False))
    row = 0.05 * torch.randn(64 * channels, generator=torch.Generator().manual_seed(0))
    model[1].weight.data = torch.stack([row, -row])  # no gradient is lost in rounding
    return model
"""
TINY = recipe_named("digits-r-mc-la").with_fields(
    data=Data(name="digits", augment="crop-flip"), epochs=3, check_epochs=0
)
TINY = TINY.with_fields(
    optimiser=TINY.optimiser.with_fields(batch_size=16),
    adversary=TINY.adversary.with_fields(step_size=20 / 255, prior_start=True),
)


@pytest.fixture(scope="module")
def split():
    """48 images, a few of them black or white, so that the pixel range matters."""
    pixels = np.random.default_rng(0).integers(0, 256, (48, 8, 8, 3))
    pixels[:4], pixels[4:8] = 0, 255
    labels = (np.arange(48) % 2).astype(np.int64)
    return Split(pixels.astype(np.uint8), labels, ("a", "b"))


@pytest.fixture
def still(tmp_path):
    """One untargeted step on a linear model that does not learn: every gradient is known."""
    (tmp_path / "own.py").write_text(LINEAR)

    def run(augment="crop-flip", **fields):
        adversary = {"epsilon": EPSILON, "step_size": STEP, "prior_start": True, **fields}
        return Run(
            model=f"{tmp_path}/own.py:build",
            data=Data(name="digits", augment=augment),
            adversary=Adversary(**adversary),
            labels=Labels(rule="one-hot"),
            optimiser=Optimiser(batch_size=16, learning_rate=1e-12),
            epochs=3,
            check_epochs=0,
        )

    return run


def attacked(trainer, epochs):
    """Epoch, images, starts, ends and labels of every attack, by the image's number."""
    engine, seen = trainer.engine, []
    twin, attack = engine._twin, engine._attack
    starts = []
    twin.register_forward_pre_hook(lambda _, inputs: starts.append(inputs[0].detach().clone()))

    def watched(part):
        starts.clear()
        perturbed = attack(part)
        images, labels, numbers = part[:3]
        rows = zip(numbers.tolist(), images, starts[0], perturbed.images, labels, strict=True)
        seen.extend((epoch, *row) for row in rows)
        return perturbed

    engine._attack = watched
    for epoch in range(epochs):
        for batch in trainer.batches.epoch(epoch):
            trainer.take(batch, epoch)
    return seen


def cropped(canvas, shift, mirror):
    """A canvas (C, H, W) as augmentation shows it, NaN where there is nothing, pixel by pixel."""
    _, height, width = canvas.shape
    shown = torch.full_like(canvas, torch.nan)
    for row in range(height):
        for column in range(width):
            source = (row + shift[0], (width - 1 - column if mirror else column) + shift[1])
            if 0 <= source[0] < height and 0 <= source[1] < width:
                shown[:, row, column] = canvas[:, source[0], source[1]]
    return shown


def uncropped(canvas, shown, shift, mirror):
    """The canvas with what was shown written back where it came from."""
    _, height, width = canvas.shape
    for row in range(height):
        for column in range(width):
            source = (row + shift[0], (width - 1 - column if mirror else column) + shift[1])
            if 0 <= source[0] < height and 0 <= source[1] < width:
                canvas[:, source[0], source[1]] = shown[:, row, column]


@pytest.mark.parametrize(
    ("augment", "fields"),
    [
        ("crop-flip", {}),
        ("none", {}),
        ("crop", {"random_start": False}),
        ("crop-flip", {"start_width": 2.0, "projection": "none"}),
        ("crop-flip", {"clip_start": True, "start_width": 0.5}),
        ("crop-flip", {"steps": 2, "step_size": STEP / 2}),
    ],
)
def test_an_attack_starts_where_the_last_one_on_its_pixels_ended(
    split, still, tmp_path, augment, fields
):
    """Each start and end of three epochs against a slow record of every picture's own frame."""
    run = still(augment, **fields)
    trainer = Trainer(run, RunFolder(tmp_path / "run"), split, CPU, QUIET)
    weight = trainer.learner.model[1].weight.detach()
    towards = (weight[1] - weight[0]).sign().view(3, 8, 8)
    adversary, width = run.adversary, EPSILON * run.adversary.start_width
    record = torch.full((48, 3, 8, 8), torch.nan)
    tolerance = 0.51 * width / 127  # bytes
    found = attacked(trainer, 3)
    assert len(found) == 3 * 48
    for epoch, number, image, start, end, label in found:
        numbers = torch.tensor([number])
        keys = torch.tensor(augmentation_keys(run.seed, epoch, 0))
        ((shift,), (mirror,)) = moves(numbers, run.data, keys)
        expected = image + cropped(record[number], shift.tolist(), bool(mirror))
        if adversary.clip_start:
            expected = expected.clamp(0, 1)
        first = image[None]
        if adversary.random_start:
            noise = image_keys(purpose_key(run.seed, _NOISE, epoch), numbers)
            first = random_start(first, width, noise, adversary.clip_start)
        expected = torch.where(expected.isnan(), first[0], expected)
        torch.testing.assert_close(start, expected, atol=tolerance, rtol=0)
        moved = expected
        for _ in range(adversary.steps):
            moved = moved + adversary.step_size * (towards if label == 0 else -towards)
            if adversary.projection == "ball":
                moved = torch.min(torch.max(moved, image - EPSILON), image + EPSILON).clamp(0, 1)
        torch.testing.assert_close(end, moved, atol=tolerance, rtol=0)
        kept = (moved - image).clamp(-width, width)
        uncropped(record[number], kept, shift.tolist(), bool(mirror))
        # The bytes that are kept go on, or the roundings of three epochs would add up.
        record[number] = (record[number] * 127 / width).round() * width / 127
    settled = record[~record.isnan()].abs()
    assert settled.max() <= width + 1e-6
    whole = trainer.learner.priors.kept * width / 127
    whole[trainer.learner.priors.kept == -128] = torch.nan
    torch.testing.assert_close(whole, record, atol=2 * tolerance, rtol=0, equal_nan=True)


def test_over_epochs_the_perturbation_grows_to_the_corner(split, still, tmp_path):
    """Small steps on a model that stands still: what fresh noise forgets, a prior keeps."""
    ends = {}
    for prior in (False, True):
        run = still("none", prior_start=prior)
        trainer = Trainer(run, RunFolder(tmp_path / "run"), split, CPU, QUIET)
        last = [row for row in attacked(trainer, 8) if row[0] == 7 and row[1] >= 8]
        ends[prior] = torch.stack([(end - image).abs() for _, _, image, _, end, _ in last])
    at_the_edge = [float((ends[prior] > 0.99 * EPSILON).float().mean()) for prior in (False, True)]
    # A step of 0.03 from uniform noise reaches 0.1 from 0.15 of all starts.
    assert at_the_edge[0] == pytest.approx(0.15, abs=0.04)
    assert at_the_edge[1] > 0.85, "the rest is cut off by the pixel range"


@pytest.mark.parametrize("parts", [1, 4])
def test_a_mixed_image_starts_where_the_attacks_on_both_ended(split, still, tmp_path, parts):
    """Bytes that tell images apart: in its box a start has those of the image before it."""
    run = still("none").with_paths({"data.cutmix": 1.0, "optimiser.batch_size": 48})
    machine = Machine(accumulate=parts)
    trainer = Trainer(run, RunFolder(tmp_path / "run"), split, CPU, QUIET, machine)
    names = torch.arange(48, dtype=torch.int8)
    trainer.learner.priors.kept.copy_(names.view(48, 1, 1, 1).expand(48, 3, 8, 8))
    found = attacked(trainer, 1)
    numbers = torch.tensor([row[1] for row in found])
    image, start, end = (torch.stack([row[place] for row in found]) for place in (2, 3, 4))
    boxes = drawn_boxes(image_keys(augmentation_keys(run.seed, 0, 0)[0], numbers), 1.0, 8, 8)
    shown = torch.where(boxes, names[numbers.roll(1)][:, None, None], names[numbers][:, None, None])
    assert 0.1 < float(boxes.float().mean()) < 0.6
    unit = EPSILON / 127
    inside = ((image > EPSILON) & (image < 1 - EPSILON)).all(1)  # else the pixel range cuts
    torch.testing.assert_close((start - image)[:, 0][inside], (shown * unit)[inside])
    kept = trainer.learner.priors.kept[numbers]
    torch.testing.assert_close(
        kept[:, 0][boxes], names[numbers][:, None, None].expand(48, 8, 8)[boxes]
    )
    reached = ((end - image) / unit).round()[:, 0].to(torch.int8)
    assert torch.equal(kept[:, 0][~boxes], reached[~boxes])
    assert (kept != names[numbers].view(48, 1, 1, 1)).any(), "the attack went on"


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 5, 7)])
def test_what_is_kept_comes_back_within_a_byte(shape):
    generator = torch.Generator().manual_seed(0)
    priors = Priors(10, shape, EPSILON, CPU)
    numbers, keys = torch.tensor([7, 2, 5, 0]), torch.tensor(augmentation_keys(3, 1, 0))
    made = moves(numbers, Data(augment="crop-flip"), keys)
    given = (2 * torch.rand(4, *shape, generator=generator) - 1) * EPSILON
    assert priors.start(numbers, made).isnan().all(), "nothing is known yet"
    priors.keep(numbers, made, given)
    back = priors.start(numbers, made)
    inside = ~back.isnan()
    torch.testing.assert_close(back[inside], given[inside], atol=0.51 * EPSILON / 127, rtol=0)
    reached = [(shape[1] - abs(r)) * (shape[2] - abs(c)) for r, c in made.shifts.tolist()]
    assert inside[:, 0].flatten(1).sum(1).tolist() == reached
    untouched = [number for number in range(10) if number not in numbers]
    assert (priors.kept[untouched] == -128).all()


def test_no_value_is_read_by_the_host():
    """On the meta device there are none to read; a CUDA graph could not be captured either."""
    meta = torch.device("meta")
    priors, numbers = Priors(10, (3, 8, 8), EPSILON, meta), torch.zeros(4, dtype=int, device=meta)
    keys = torch.zeros(3, dtype=torch.int64, device=meta)
    made = moves(numbers, Data(augment="crop-flip"), keys)
    start = priors.start(numbers, made)
    assert start.shape == (4, 3, 8, 8) and start.dtype == torch.float32
    priors.keep(numbers, made, start)
    with pytest.raises(RuntimeError, match="meta"):
        float(start.sum())


def test_corners_are_kept_exactly_and_nothing_wider():
    priors, numbers = Priors(2, (1, 1, 3), EPSILON, CPU), torch.arange(2)
    made = moves(numbers, Data(augment="none"), torch.zeros(3, dtype=torch.int64))
    given = torch.tensor([EPSILON, -EPSILON, 5 * EPSILON]).view(1, 1, 1, 3).expand(2, 1, 1, 3)
    priors.keep(numbers, made, given)
    corners = torch.tensor([EPSILON, -EPSILON, EPSILON])
    torch.testing.assert_close(priors.start(numbers, made)[0, 0, 0], corners)
    poisoned = given.clone()
    poisoned[0] = torch.nan
    priors.keep(numbers, made, poisoned)
    assert torch.isfinite(priors.start(numbers, made)).all(), "a loss that is not finite stops"


def digits(count=128):
    generator = np.random.default_rng(0)
    labels = np.arange(count) % 10
    pixels = generator.integers(0, 128, (count, 8, 8, 1)) + 12 * labels[:, None, None, None]
    return Split(pixels.astype(np.uint8), labels.astype(np.int64), tuple("0123456789"))


@pytest.mark.parametrize("steps", [3, 8, 13])
def test_stopping_and_going_on_equals_never_having_stopped(tmp_path, stopped_after, steps):
    """Before the first prior is used, between two epochs, and in the middle of one."""
    whole, broken = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "broken")
    train(TINY, whole, digits(), CPU, QUIET)
    with stopped_after(steps):
        train(TINY, broken, digits(), CPU, QUIET)
    kept = torch.load(broken.checkpoint, weights_only=True)["priors"]
    assert kept.dtype == torch.int8 and (kept != -128).any()
    train(TINY, broken, digits(), CPU, QUIET)
    assert broken.weights.read_bytes() == whole.weights.read_bytes()


def test_priors_change_what_is_learnt(tmp_path):
    """Or the tests of going on would prove nothing."""
    weights = []
    for prior in (True, False):
        run = TINY.with_fields(adversary=TINY.adversary.with_fields(prior_start=prior), epochs=2)
        folder = RunFolder(tmp_path / str(prior))
        train(run, folder, digits(), CPU, QUIET)
        weights.append(folder.weights.read_bytes())
    assert weights[0] != weights[1]


def test_the_guard_goes_back_to_the_priors_of_the_good_epoch(tmp_path):
    trainer = Trainer(TINY, RunFolder(tmp_path), digits(), CPU, QUIET)
    stream = trainer.batches.epoch(0)
    trainer.take(next(stream), 0)
    good, address = copy.deepcopy(trainer.learner.state()), trainer.learner.priors.kept.data_ptr()
    trainer.take(next(stream), 0)
    assert not torch.equal(trainer.learner.priors.kept, good["priors"])
    trainer.learner.go_on(good)
    assert torch.equal(trainer.learner.priors.kept, good["priors"])
    assert trainer.learner.priors.kept.data_ptr() == address, "a captured graph writes there"
    trainer.take(next(stream), 0)
    assert not torch.equal(trainer.learner.priors.kept, good["priors"]), (
        "and leaves the good state alone"
    )


@pytest.mark.parametrize("damage", ["shape", "kind", "none"])
def test_a_checkpoint_with_other_priors_is_refused(tmp_path, damage):
    folder = RunFolder(tmp_path / "run")
    trainer = Trainer(TINY, folder, digits(), CPU, QUIET)
    folder.prepare(TINY, {})
    kept = trainer.learner.priors.kept
    trainer.learner.priors.kept = {"shape": kept[:1], "kind": kept.float(), "none": None}[damage]
    trainer._save()
    with pytest.raises(UserError, match="no longer fits the model"):
        train(TINY, folder, digits(), CPU, QUIET)


def test_a_batch_in_parts_keeps_the_same_priors(split, still, tmp_path):
    kept = []
    for parts in (1, 4):
        machine = Machine(accumulate=parts)
        trainer = Trainer(still(), RunFolder(tmp_path / "run"), split, CPU, QUIET, machine)
        attacked(trainer, 2)
        kept.append(trainer.learner.priors.kept)
    assert torch.equal(*kept)


def test_where_there_are_none(split):
    run = TINY.with_fields(method="undefended", labels=Labels(rule="one-hot"))
    assert priors_of(split, run, CPU, Processes()) is None
    plain = TINY.with_fields(adversary=TINY.adversary.with_fields(prior_start=False))
    assert priors_of(split, plain, CPU, Processes()) is None


def test_they_have_the_shape_of_the_images(split):
    """Channels first, as a batch has them; the pictures themselves have them last."""
    wide = Split(np.zeros((5, 4, 6, 3), np.uint8), split.labels[:5], split.classes)
    priors = priors_of(wide, TINY, CPU, Processes())
    assert priors is not None and priors.kept.shape == (5, 3, 4, 6)


def test_what_cannot_keep_them_is_refused(split, tmp_path):
    with pytest.raises(UserError, match="needs one process"):
        priors_of(split, TINY, CPU, Processes(rank=0, world=2))

    class Streamed:
        shape, nbytes = (48, 8, 8, 3), 0

    streamed = Split(Streamed(), split.labels, split.classes)
    with pytest.raises(UserError, match="does not fit in memory"):
        priors_of(streamed, TINY, CPU, Processes())
    with pytest.raises(ValidationError, match="must not resize"):
        TINY.with_fields(data=Data(name="folder:x", augment="resized-crop-flip"))
    with pytest.raises(UserError, match="knows images by number"):
        bilateral.BilateralAdversary(prior_start=True)
