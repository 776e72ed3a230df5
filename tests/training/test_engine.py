"""The fast step computes what the plain one does; the twin is the model in another mode."""

import copy
import logging

import numpy as np
import pytest
import torch

from bilateral.config import Adversary, Data, Labels
from bilateral.data.batches import augment, augmentation_keys
from bilateral.data.datasets import Split
from bilateral.data.mixing import cut_and_mix, drawn_boxes
from bilateral.errors import TrainingError, UserError
from bilateral.machine import Machine
from bilateral.paper.recipes import recipe_named
from bilateral.processes import Processes
from bilateral.randomness import image_keys, purpose_key, uniform
from bilateral.runs import RunFolder
from bilateral.runtime import compiled
from bilateral.training.engine import _NOISE, Engine, Speed, Totals
from bilateral.training.progress import TrainingProgress
from bilateral.training.step import StepLoss
from bilateral.training.trainer import Trainer, train
from bilateral.training.twin import twin_of

CPU = torch.device("cpu")
QUIET = TrainingProgress(quiet=True)
PLAIN = Machine(compile="off", graphs="off", channels_last="off", fused="off")
TINY = recipe_named("digits-r-mc-la").with_fields(
    data=Data(name="digits", augment="crop-flip"), epochs=3, averaging=0.9, check_epochs=0
)
# A low rate: at a high one rounding alone soon leads to another adversarial class.
TINY = TINY.with_fields(optimiser=TINY.optimiser.with_fields(batch_size=16, learning_rate=0.02))


@pytest.fixture(scope="module")
def split():
    generator = np.random.default_rng(0)
    labels = np.arange(128) % 10
    pixels = generator.integers(0, 128, (128, 8, 8, 1)) + 12 * labels[:, None, None, None]
    return Split(pixels.astype(np.uint8), labels.astype(np.int64), tuple("0123456789"))


def losses(split, run, machine, tmp_path, steps=20, device=CPU):
    """The loss of each step, and the trainer after them."""
    trainer = Trainer(run, RunFolder(tmp_path / "run"), split, device, QUIET, machine)
    found = []
    while len(found) < steps:
        epoch = trainer.step // trainer.batches.steps
        for batch in trainer.batches.epoch(epoch):
            trainer.engine.clear()
            trainer.take(batch, epoch)
            found.append(float(trainer.engine.totals[0]))
    return found[:steps], trainer


def test_the_twin_shares_the_weights_and_keeps_its_mode(convolutional):
    convolutional.train()
    twin = twin_of(convolutional)
    assert not twin.training and convolutional.training
    assert not any(parameter.requires_grad for parameter in twin.parameters())
    assert all(parameter.requires_grad for parameter in convolutional.parameters())
    with torch.no_grad():
        for parameter in convolutional.parameters():
            parameter.add_(1.0)
        for buffer in convolutional.buffers():
            buffer.add_(1)
    for (name, own), other in zip(
        twin.state_dict().items(), convolutional.state_dict().values(), strict=True
    ):
        assert torch.equal(own, other), name


def test_a_twin_in_train_mode_moves_no_statistics(batch):
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(batch[0].shape[1]), torch.nn.Dropout(0.5))
    twin = twin_of(model, "train")
    seen = twin(batch[0])
    torch.testing.assert_close(
        seen.mean(dim=(0, 2, 3)), torch.zeros(seen.shape[1]), atol=1e-5, rtol=0
    )
    assert torch.equal(model[0].running_mean, torch.zeros(seen.shape[1]))
    assert model[0].num_batches_tracked == 0
    assert not twin[1].training


def test_twins_of_tied_weights_stay_tied():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight
    twin = twin_of(model)
    assert twin[0].weight.data_ptr() == twin[1].weight.data_ptr() == model[0].weight.data_ptr()


# The compiler's own imports use what torch itself calls deprecated.
compiling = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore::UserWarning")


MOMENTUM = {"weight_perturbation": 0.01, "weight_perturbation_along": "momentum"}
MIXED = {"data.cutmix": 0.5, "adversary.target": "none", "labels.rule": "one-hot"}
NUAT = {"method": "trades", "regulariser.kind": "nuclear", "regulariser.weight": 1.0}
NUAT |= {"regulariser.of": "logits", "regulariser.rising": True}
VARIANTS = [
    {},
    {"labels.averaged_share": 0.5},
    {"adversary.batch_norm": "train"},
    {"adversary.prior_start": True},
    MIXED | {"data.vary": 1.0},
    MIXED | {"adversary.prior_start": True},
    MOMENTUM,
    NUAT,
    {"optimiser.turn": 0.02},
]


def same_losses(split, run, fast_machine, tmp_path, device=CPU):
    """Tight enough that stale weights in the attack or another batch-norm mode would be seen."""
    plain, one = losses(split, run, PLAIN, tmp_path, device=device)
    fast, other = losses(split, run, fast_machine, tmp_path, device=device)
    np.testing.assert_allclose(fast, plain, rtol=2e-3)
    assert min(plain) < plain[0] - 0.05
    for own, theirs in zip(
        one.learner.final_model.parameters(), other.learner.final_model.parameters(), strict=True
    ):
        torch.testing.assert_close(own, theirs, atol=5e-3, rtol=0)
    return other.engine


@pytest.mark.kills
@compiling
@pytest.mark.parametrize("fields", VARIANTS)
def test_the_compiled_step_tracks_the_plain_one(split, tmp_path, fields):
    same_losses(split, TINY.with_paths(fields), PLAIN.with_fields(compile="on"), tmp_path)


@pytest.mark.gpu
@compiling
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("fields", [*VARIANTS, {"weight_perturbation": 0.01}])
def test_a_captured_step_tracks_the_plain_one(split, tmp_path, fields, monkeypatch):
    """Every feature on, in float32: a graph of stale weights or momenta would leave the losses."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    run = TINY.with_paths({**fields, "precision": "float32"})
    engine = same_losses(split, run, Machine(), tmp_path, torch.device("cuda"))
    assert engine._graph is not None and engine.speed == Speed(True, True, True, True)


def test_half_of_the_label_is_what_the_average_believes_before_the_step(split, tmp_path):
    run = TINY.with_paths({"labels.averaged_share": 0.5})
    _, trainer = losses(split, run, PLAIN, tmp_path, steps=3)
    seen, add_gradients = [], trainer.engine._add_gradients

    def kept(perturbed, images, labels):
        believed = copy.deepcopy(trainer.learner.averaged.model)(images).softmax(1)
        seen.append((perturbed.soft_labels, believed, labels))
        return add_gradients(perturbed, images, labels)

    trainer.engine._add_gradients = kept
    trainer.take(next(trainer.batches.epoch(0)), 0)
    ((mixed, believed, labels),) = seen
    rest = 2 * mixed - believed  # the rule's own label: ratio 9 makes the true class 1/2 or more
    torch.testing.assert_close(rest.sum(1), torch.ones(len(rest)))
    assert rest.min() > -1e-5 and rest.gather(1, labels[:, None]).min() > 0.5 - 1e-5


def seen_in_a_step(split, run, machine, tmp_path, epoch):
    """The first batch of an epoch, and the images and labels that its step learns from."""
    trainer = Trainer(run, RunFolder(tmp_path / "run"), split, CPU, QUIET, machine)
    seen, add_gradients = [], trainer.engine._add_gradients

    def kept(perturbed, images, labels):
        seen.append((images, labels))
        return add_gradients(perturbed, images, labels)

    trainer.engine._add_gradients = kept
    batch = next(trainer.batches.epoch(epoch))
    trainer.take(batch, epoch)
    images, labels = (torch.cat(parts) for parts in zip(*seen, strict=True))
    return batch, images, labels


@pytest.mark.parametrize("parts", [1, 4])
def test_a_step_learns_from_mixed_images(split, tmp_path, parts):
    """Half of them, each with the one before it in the batch, by boxes of the epoch."""
    run, machine = TINY.with_paths(MIXED), PLAIN.with_fields(accumulate=parts)
    shares = []
    for epoch in (0, 1):
        batch, images, labels = seen_in_a_step(split, run, machine, tmp_path, epoch)
        keys = torch.tensor(augmentation_keys(run.seed, epoch, 0))
        plain = augment(batch, run.data, 8, keys)
        boxes = drawn_boxes(image_keys(keys[:1], batch.numbers), 0.5, 8, 8)
        expected = cut_and_mix(plain, batch.labels, 10, boxes)
        torch.testing.assert_close((images, labels), expected)
        assert 2 < int((images != plain).flatten(1).any(1).sum()) < 14
        shares.append(labels.amax(1))
    assert not torch.equal(*shares), "other boxes in the next epoch"


def test_a_step_without_mixing_learns_from_whole_images(split, tmp_path):
    batch, images, labels = seen_in_a_step(split, TINY, PLAIN, tmp_path, 0)
    keys = torch.tensor(augmentation_keys(TINY.seed, 0, 0))
    torch.testing.assert_close(images, augment(batch, TINY.data, 8, keys))
    assert torch.equal(labels, batch.labels)


def test_the_tolerance_would_catch_a_wrong_step(split, tmp_path, monkeypatch):
    """Stale weights in the attack, another batch-norm mode, another start each move the losses."""
    plain, _ = losses(split, TINY, PLAIN, tmp_path)
    others = [
        losses(split, TINY.with_fields(adversary=adversary), PLAIN, tmp_path)[0]
        for adversary in (
            TINY.adversary.with_fields(batch_norm="train"),
            TINY.adversary.with_fields(prior_start=True),
        )
    ]
    monkeypatch.setattr(
        "bilateral.training.engine.twin_of",
        lambda model, _: copy.deepcopy(model).requires_grad_(False).eval(),
    )
    stale, _ = losses(split, TINY, PLAIN, tmp_path)
    for wrong in (*others, stale):
        assert max(abs(np.array(wrong) / np.array(plain) - 1)) > 4e-3


@pytest.mark.kills
@compiling
def test_nothing_may_recompile_after_the_first_steps(split, tmp_path):
    machine = PLAIN.with_fields(compile="on")
    _, trainer = losses(split, TINY, machine, tmp_path, steps=3)
    batch = next(trainer.batches.epoch(0))
    smaller = batch._replace(
        pixels=batch.pixels[:7], labels=batch.labels[:7], numbers=batch.numbers[:7]
    )
    with pytest.raises(RuntimeError, match="recompile"):
        trainer.take(smaller, 0)


@pytest.mark.parametrize(
    "fields", [{}, {"weight_perturbation": 0.01, "weight_perturbation_along": "momentum"}]
)
def test_a_batch_in_parts_gives_the_same_gradients(fields, tmp_path, split):
    """On a model without batch norm, whose statistics would be those of the parts."""
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
        "def build(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), "
        "nn.Linear(32, 10))\n"
    )
    run = TINY.with_fields(model=f"{tmp_path}/own.py:build", **fields)
    whole, one = losses(split, run, PLAIN, tmp_path)
    parts, other = losses(split, run, PLAIN.with_fields(accumulate=4), tmp_path)
    np.testing.assert_allclose(parts, whole, rtol=1e-4)
    models = one.learner.model, other.learner.model
    for own, theirs in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(own, theirs, atol=1e-5, rtol=1e-4)
    with pytest.raises(UserError, match="does not divide into 3 equal parts"):
        losses(split, run, PLAIN.with_fields(accumulate=3), tmp_path)


def test_every_epoch_draws_other_noise(split, tmp_path):
    """An attack looks at clean + noise first; the noise is of (seed, epoch, image)."""
    run = TINY.with_fields(
        data=Data(name="digits", augment="none"),
        adversary=TINY.adversary.with_fields(reference="start", clip_start=False),
    )
    trainer = Trainer(run, RunFolder(tmp_path / "run"), split, CPU, QUIET, PLAIN)
    engine, budget, noise = trainer.engine, run.adversary.epsilon, ({}, {})
    attack, forward = engine._attack, engine._twin.forward

    def attacked(part):
        starts = []
        engine._twin.forward = lambda tensor: (starts.append(tensor.detach()), forward(tensor))[1]
        result = attack(part)
        found = (starts[0] - part.images) / budget
        noise[epoch].update(zip(part.numbers.tolist(), found, strict=True))
        return result

    engine._attack = attacked
    for epoch in (0, 1):
        for batch in trainer.batches.epoch(epoch):
            trainer.take(batch, epoch)
    keys = [image_keys(purpose_key(run.seed, _NOISE, epoch), torch.arange(128)) for epoch in (0, 1)]
    for number in noise[0]:
        for epoch in (0, 1):
            expected = 2 * uniform(keys[epoch][number, None], (1, 8, 8))[0] - 1
            torch.testing.assert_close(noise[epoch][number], expected, atol=1e-4, rtol=0)
    assert len(noise[0]) == 128


def test_dropout_follows_from_the_seed_and_the_step(split, tmp_path, monkeypatch):
    """Other units at every step and in every process; the same ones when a run goes on."""

    def drawn(run, rank=0):
        trainer = Trainer(run, RunFolder(tmp_path / "run"), split, CPU, QUIET, PLAIN)
        engine, seen = trainer.engine, []
        monkeypatch.setattr(engine, "_compute", lambda batch: seen.append(torch.rand(4).tolist()))
        monkeypatch.setattr(engine, "processes", Processes(rank, 2))
        batch = next(trainer.batches.epoch(0))
        for step in (1, 2, 3):
            engine.take(batch, 0, 0, step, 0.1)
        return seen

    first = drawn(TINY)
    torch.rand(17)  # whatever was drawn meanwhile
    assert drawn(TINY) == first
    others = [*first, *drawn(TINY, rank=1), *drawn(TINY.with_fields(seed=TINY.seed + 1))]
    assert len({tuple(numbers) for numbers in others}) == 9


def test_the_first_bad_step_is_told(split, tmp_path):
    """What comes after a loss that is not finite is nonsense as well."""
    engine = Trainer(TINY, RunFolder(tmp_path / "run"), split, CPU, QUIET, PLAIN).engine
    for step, loss in enumerate((1.0, 2.0, torch.nan, 3.0, torch.inf), start=1):
        assert Totals.read(engine).bad_step == (-1 if step < 4 else 3)
        engine._numbers[4] = step
        engine._count([StepLoss(torch.tensor(loss), None, torch.tensor(2))])
    found = Totals.read(engine)
    assert (found.bad_step, found.clean_correct, found.adversarial_correct) == (3, 0, 10)
    engine.clear()
    assert Totals.read(engine) == Totals(0.0, 0.0, 0.0, -1)


@pytest.mark.parametrize(("rank", "kept"), [(0, [1.5, 2.0, 3.0]), (1, [0.0, 0.0, 0.0])])
def test_an_interrupted_epochs_sums_go_on_in_one_process(split, tmp_path, rank, kept):
    """They are of all processes: a second one that took them over would count them twice."""
    engine = Trainer(TINY, RunFolder(tmp_path / "run"), split, CPU, QUIET, PLAIN).engine
    engine.processes = Processes(rank, 2)
    engine.totals += 7
    engine.go_on([1.5, 2.0, 3.0])
    assert engine.totals.tolist() == [*kept, -1]


def test_a_step_trains_the_model_and_then_the_average(split, tmp_path):
    """In train mode whatever the mode was; the average follows what the step has made."""
    trainer = Trainer(TINY, RunFolder(tmp_path / "run"), split, CPU, QUIET, PLAIN)
    model, average = trainer.learner.model.eval(), trainer.engine.averaged
    before = copy.deepcopy(model.state_dict())
    trainer.take(next(trainer.batches.epoch(0)), 0)
    assert all(module.training for module in model.modules())
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            expected = before[name] + 9 / 11 * (value - before[name])
            torch.testing.assert_close(average.model.state_dict()[name], expected)
            if name.endswith(("weight", "running_mean")):
                assert not torch.equal(value, before[name]), name


def test_out_of_memory_says_what_to_lower_and_goes_on(split, tmp_path, monkeypatch):
    whole, folder = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "run")
    train(TINY, whole, split, CPU, QUIET)
    take, calls = Engine.take, []

    def full(self, *arguments):
        calls.append(1)
        if len(calls) == 12:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        take(self, *arguments)

    monkeypatch.setattr(Engine, "take", full)
    often = TINY.with_fields(checkpoint_seconds=0.0)
    with pytest.raises(TrainingError, match=r"--machine.accumulate 2 .* resumes from the last"):
        train(often, folder, split, CPU, QUIET)
    state = torch.load(folder.checkpoint, weights_only=True)
    assert state["step"] == 11
    train(often, folder, split, CPU, QUIET)
    assert folder.weights.read_bytes() == whole.weights.read_bytes()


def test_speed_features_are_for_a_gpu_unless_asked_for(monkeypatch):
    gpu = torch.device("cuda")
    assert not Speed.on(Machine(), gpu, Processes()).compile, "there is no Triton here"
    monkeypatch.setattr("bilateral.training.engine.has_triton", lambda: True)
    assert Speed.on(Machine(), gpu, Processes()) == Speed(True, True, True, True)
    assert Speed.on(Machine(), CPU, Processes()) == Speed(False, False, False, False)
    assert Speed.on(Machine(compile="on", graphs="on"), CPU, Processes()) == Speed(
        True, False, False, False
    )
    assert not Speed.on(Machine(), gpu, Processes(0, 2)).graphs
    assert not Speed.on(Machine(fused="off"), gpu, Processes()).graphs


@pytest.mark.parametrize("method", ["trades", "adversarial"])
def test_a_rising_weight_begins_with_nothing(split, tmp_path, method):
    """The second of 24 steps has a twenty-fourth of it; both distances there are of one model."""
    fields = {"kind": "squared", "weight": 1.0, "rising": True}
    run = TINY.with_fields(method=method, regulariser=fields)
    heavier = run.with_fields(regulariser={**fields, "weight": 25.0})
    flat = run.with_fields(regulariser={**fields, "rising": False, "weight": 1 / 24})
    ways = [losses(split, each, PLAIN, tmp_path, steps=2)[0] for each in (run, heavier)]
    assert ways[0][0] == ways[1][0] and ways[0][1] < ways[1][1]
    none = run.with_fields(regulariser={"kind": "none"}, trades_weight=1e-9)
    assert losses(split, none, PLAIN, tmp_path, steps=1)[0][0] == pytest.approx(ways[0][0])
    trainer = Trainer(run, RunFolder(tmp_path / "risen"), split, CPU, QUIET, PLAIN)
    other = Trainer(flat, RunFolder(tmp_path / "flat"), split, CPU, QUIET, PLAIN)
    batch = next(trainer.batches.epoch(0))
    for each in (trainer, other):
        each.learner.step = 1
        each.take(batch, 0)
    assert trainer.total_steps == 24
    torch.testing.assert_close(trainer.engine.totals[0], other.engine.totals[0])


@pytest.mark.parametrize(
    ("fields", "counted"),
    [
        ({}, (True, True)),
        ({"adversary": Adversary(target="none"), "labels": Labels(rule="one-hot")}, (False, True)),
        ({"method": "undefended"}, (True, False)),
        (
            {"adversary": Adversary(reference="start"), "regulariser": {"kind": "squared"}},
            (False, True),
        ),
    ],
)
def test_what_is_counted(split, tmp_path, fields, counted):
    _, trainer = losses(split, TINY.with_fields(**fields), PLAIN, tmp_path, steps=1)
    assert trainer.engine.counts == counted
    assert [float(total) > 0 for total in trainer.engine.totals[1:3]] == list(counted)


@pytest.mark.kills
@compiling
def test_what_was_compiled_is_kept_for_the_next_start(split, tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("BILATERAL_DATA", str(tmp_path / "cache"))
    torch.compiler.reset()
    _, trainer = losses(split, TINY, PLAIN.with_fields(compile="on"), tmp_path, steps=1)
    assert list((tmp_path / "cache" / "compiled").rglob("*.py"))
    assert trainer.first_step_seconds > 0
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")


def test_what_the_compiler_cannot_bound_is_not_told(monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "unused")
    logger = logging.getLogger("torch.utils._sympy.interp")
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    monkeypatch.setattr(torch, "compile", lambda module, dynamic: module)
    compiled(torch.nn.Identity(), dynamic=True)
    assert logger.level == logging.ERROR
