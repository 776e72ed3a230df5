"""The method inside anybody's loop: the paper's recipe step by step, and nothing left behind."""

import copy

import pytest
import torch

import bilateral
from bilateral.attacks.untouched import untouched
from bilateral.config import Adversary, Labels
from bilateral.errors import UserError
from bilateral.labels import soft_labels
from bilateral.method import perturb


def test_one_call_is_the_papers_recipe(linear, batch):
    """Random start in the ball, one step of epsilon to the MC class at the clean image."""
    images, labels = batch
    adversary = bilateral.BilateralAdversary(epsilon=8 / 255, ratio=9)
    adversarial, soft = adversary(linear, images, labels)
    logits = linear(images)
    torch.testing.assert_close(soft, soft_labels(logits, labels, Labels(ratio=9)))
    confusing = logits.scatter(1, labels[:, None], -torch.inf).argmax(1)
    # On a linear model the gradient's sign is known up to the softmax; the margin must move.
    gap = lambda z: (z.gather(1, confusing[:, None]) - z.gather(1, labels[:, None])).mean()  # noqa: E731
    assert gap(linear(adversarial)) > gap(logits)
    assert (adversarial - images).abs().max() <= 8 / 255 + 1e-6
    assert adversarial.min() >= 0 and adversarial.max() <= 1


def test_noise_follows_torchs_seed(linear, batch):
    adversary = bilateral.BilateralAdversary(target="none", epsilon=0.2, step_size=0.01)
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        results.append(adversary(linear, *batch)[0])
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize("batch_norm", ["eval", "train"])
@pytest.mark.parametrize("reference", ["clean", "start"])
def test_the_model_is_left_as_it_was(convolutional, batch, batch_norm, reference):
    model = convolutional.train()
    before = copy.deepcopy(model.state_dict())
    adversary = bilateral.BilateralAdversary(batch_norm=batch_norm, reference=reference)
    adversary(model, *batch)
    assert model.training and model.body[1].training and model.body[1].track_running_stats
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_start_reference_saves_a_forward(convolutional, batch):
    calls = []
    convolutional.register_forward_hook(lambda *_: calls.append(1))
    counts = []
    for reference in ("clean", "start"):
        calls.clear()
        bilateral.BilateralAdversary(reference=reference)(convolutional, *batch)
        counts.append(len(calls))
    assert counts == [2, 1]


def test_batch_norm_mode_is_what_was_asked(convolutional, batch):
    images = batch[0]
    convolutional.body[3].p = 0.0
    with untouched(convolutional), torch.no_grad():
        by_running = convolutional(images)
    with untouched(convolutional, "train"), torch.no_grad():
        by_batch = convolutional(images)
    convolutional.train()
    torch.testing.assert_close(convolutional(images), by_batch)
    assert not torch.allclose(by_running, by_batch)


@pytest.mark.parametrize("batch_norm", ["eval", "train"])
def test_the_adversary_reads_batch_norm_in_the_mode_asked_for(convolutional, batch, batch_norm):
    """The reference logits by hand, from running or from batch statistics; no dropout in either."""
    model, images = convolutional.train(), batch[0]
    adversary = Adversary(target="most-confusing", batch_norm=batch_norm)
    reference = perturb(model, *batch, adversary, Labels())[2]
    norm, maps = model.body[1], model.body[0](images)
    mean, variance = norm.running_mean, norm.running_var
    if batch_norm == "train":
        mean, variance = maps.mean((0, 2, 3)), maps.var((0, 2, 3), correction=0)
    maps = (maps - mean[:, None, None]) / (variance[:, None, None] + norm.eps).sqrt()
    maps = maps * norm.weight[:, None, None] + norm.bias[:, None, None]
    torch.testing.assert_close(reference, model.head(maps.relu().mean((2, 3))))


@pytest.mark.parametrize(
    ("fields", "rule", "read"),
    [
        ({}, "one-hot", False),
        ({}, "smoothing", False),
        ({"target": "random"}, "one-hot", False),
        ({"target": "least-likely"}, "one-hot", True),
        ({"loss": "divergence"}, "one-hot", True),
        ({"guide": 0.5}, "one-hot", True),
        ({}, "adversarial", True),
        ({}, "supplementary", True),
        ({"reference": "start"}, "adversarial", False),
    ],
)
def test_the_clean_image_is_read_where_target_loss_or_label_need_it(
    linear, batch, fields, rule, read
):
    reference = perturb(linear, *batch, Adversary(**fields), Labels(rule=rule))[2]
    assert (reference is not None) == read
    if read:
        torch.testing.assert_close(reference, linear(batch[0]))


def test_what_is_asked_for_goes_before_the_papers_values():
    adversary = bilateral.BilateralAdversary(epsilon=0.1, step_size=0.02, target="none", ratio=3)
    assert adversary.adversary == Adversary(epsilon=0.1, step_size=0.02, target="none")
    assert adversary.labels == Labels(ratio=3)
    plain = bilateral.BilateralAdversary(epsilon=0.1).adversary
    assert plain == Adversary(epsilon=0.1, step_size=0.1, target="most-confusing")


def test_images_in_another_unit_are_refused(linear, batch):
    with pytest.raises(UserError, match=r"floats in \[0, 1\]"):
        bilateral.BilateralAdversary()(linear, batch[0] * 255, batch[1])
    adversary = bilateral.BilateralAdversary()
    adversary(linear, *batch)
    for later in (batch[0] * 255, (batch[0] * 255).byte()):
        with pytest.raises(UserError, match=r"images must be floats in \[0, 1\]"):
            adversary(linear, later, batch[1])  # on a CPU every batch is looked at


@pytest.mark.parametrize("labels", ["floats", "one-hot", "fewer", "array"])
def test_labels_that_are_no_class_numbers_are_refused(labels, linear, batch):
    given = {
        "floats": batch[1].float(),
        "one-hot": torch.nn.functional.one_hot(batch[1]),
        "fewer": batch[1][:-1],
        "array": batch[1].numpy(),
    }[labels]
    with pytest.raises(UserError, match=r"class numbers|images but|not ndarray"):
        bilateral.BilateralAdversary()(linear, batch[0], given)


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8])
def test_labels_of_any_whole_numbers_do(kind, linear, batch):
    adversary = bilateral.BilateralAdversary(random_start=False)
    expected = adversary(linear, *batch)
    for found, usual in zip(adversary(linear, batch[0], batch[1].to(kind)), expected, strict=True):
        assert torch.equal(found, usual)


def test_the_public_names_can_be_found():
    for name in dir(bilateral):
        assert getattr(bilateral, name)
    assert {"BilateralAdversary", "Labels", "UserError", "evaluate"} <= set(dir(bilateral))
    logits, labels = torch.eye(3), torch.tensor([0, 1, 2])
    soft = bilateral.soft_labels(logits, labels, bilateral.Labels(ratio=9))
    assert torch.allclose(soft.sum(1), torch.ones(3)) and soft.argmax(1).tolist() == [0, 1, 2]
    assert "most-confusing" in repr(bilateral.BilateralAdversary())


def test_works_under_no_grad(linear, batch):
    with torch.no_grad():
        images, _ = bilateral.BilateralAdversary()(linear, *batch)
    assert not images.requires_grad


@pytest.mark.parametrize(
    "fields",
    [{"epsilon": 8}, {"ratio": 0.5}, {"steps": -1}, {"epsilon": 0}, {"targt": "none"}],
)
def test_bad_settings_are_refused(fields):
    with pytest.raises(UserError):
        bilateral.BilateralAdversary(**fields)
