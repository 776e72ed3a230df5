"""Evaluation in memory: flags that are true, statistics that are right, inputs that fit."""

import pytest
import torch
from torch import nn

import bilateral
from bilateral.attacks.table import attack_members
from bilateral.errors import UserError
from bilateral.evaluation.robustness import noise_keys, robust_flags
from bilateral.results import wilson_interval
from bilateral.weights import weights_digest


def test_linear_flags_equal_the_closed_form(two_classes, batch):
    """Two classes: an image is robust exactly if its margin exceeds epsilon ||w||_1."""
    images = 0.3 + 0.4 * torch.rand(300, 3, 6, 6, generator=torch.Generator().manual_seed(4))
    labels = two_classes(images).argmax(1)
    labels[:30] = 1 - labels[:30]
    epsilon = 0.02
    logits = two_classes(images).detach()
    margin = logits[torch.arange(300), labels] - logits[torch.arange(300), 1 - labels]
    weights = two_classes.head.weight.detach()
    robust = margin > epsilon * (weights[0] - weights[1]).abs().sum()
    result = bilateral.evaluate(two_classes, images, labels, "fgsm,pgd20,pgd20-cw", epsilon)
    assert 30 < int(robust.sum()) < 240
    for attack in result.attacks.values():
        assert attack.robust == robust.tolist()
    assert result.clean_accuracy == pytest.approx(0.9)
    assert result.worst_case_accuracy == pytest.approx(float(robust.float().mean()))
    left = f"{100 * result.worst_case_accuracy:.1f} %"
    told = ["300 images at 5.1/255", "clean 90.0 %", f"fgsm {left}"]
    assert str(result).splitlines() == [
        *told,
        f"pgd20 {left}",
        f"pgd20-cw {left}",
        f"worst case {left}",
    ]


def test_worst_case_is_over_attacks_image_by_image(convolutional):
    images = torch.rand(200, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    labels = convolutional(images).argmax(1)
    result = bilateral.evaluate(convolutional, images, labels, "ll,mc-rs,pgd10", 0.02)
    flags = [attack.robust for attack in result.attacks.values()]
    together = [all(image) for image in zip(*flags, strict=True)]
    assert result.worst_case_accuracy == sum(together) / 200
    assert sum(row.images for row in result.per_class) == 200


def test_attacks_can_be_a_list(linear, batch):
    result = bilateral.evaluate(linear, *batch, attacks=["fgsm", "pgd2"], epsilon=0.01)
    assert list(result.attacks) == ["fgsm", "pgd2"]


def test_batch_size_does_not_change_flags(convolutional):
    images = torch.rand(60, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    labels = convolutional(images).argmax(1)
    runs = [
        bilateral.evaluate(convolutional, images, labels, "pgd10", 0.02, batch_size=size)
        for size in (7, 60)
    ]
    assert runs[0].attacks["pgd10"].robust == runs[1].attacks["pgd10"].robust


def test_wilson_interval_known_values():
    assert wilson_interval(50, 100) == pytest.approx((0.4038315, 0.5961685), abs=1e-6)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611251), abs=1e-6)
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x * 255, y), r"floats in \[0, 1\]"),
        (
            lambda x, y: ((x * 255).to(torch.uint8), y),
            "these are torch.uint8, .*divide them by 255",
        ),
        (lambda x, y: (x - 0.5, y), r"floats in \[0, 1\]"),
        (lambda x, y: (x[:0], y[:0]), "no images"),
        (lambda x, y: (x, y[:-1]), "16 images but 15 labels"),
        (lambda x, y: (x, y.float()), r"class numbers.* torch.float32 of shape \(16,\)"),
        (lambda x, y: (x, y[:, None]), r"class numbers.* of shape \(16, 1\)"),
        (lambda x, y: (x.numpy(), y), "images must be a torch.Tensor, not ndarray"),
        (lambda x, y: (x, y.tolist()), "labels must be a torch.Tensor, not list"),
        (lambda x, y: (x, y + 3), "but the model has 5 classes"),
        (lambda x, y: (x[:, :2], y), "does not take images of shape"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(linear, batch, change, message):
    with pytest.raises(UserError, match=message):
        bilateral.evaluate(linear, *change(*batch), attacks="fgsm")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epsilon": "eight"}, "epsilon: 'eight' is not a number or a fraction"),
        ({"epsilon": 8}, "did you mean 8/255"),
        ({"attacks": lambda *_: None}, "your own is file.py:function"),
    ],
)
def test_settings_that_do_not_fit_are_refused(linear, batch, fields, message):
    with pytest.raises(UserError, match=message):
        bilateral.evaluate(linear, *batch, **{"attacks": "fgsm", **fields})


def test_a_budget_may_be_written_as_on_the_command_line(linear, batch):
    written, plain = (
        bilateral.evaluate(linear, *batch, "fgsm", epsilon) for epsilon in ("8/255", 8 / 255)
    )
    assert written.epsilon == plain.epsilon
    assert written.attacks["fgsm"].robust == plain.attacks["fgsm"].robust


def test_one_output_is_no_classifier(batch):
    images, labels = batch
    one = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(images[0].numel(), 1))
    for attack in (
        lambda: bilateral.evaluate(one, images, labels * 0, "fgsm"),
        lambda: bilateral.BilateralAdversary()(one, images, labels * 0),
    ):
        with pytest.raises(UserError, match="one output: give"):
            attack()


def test_a_function_is_no_model(linear, batch):
    with pytest.raises(UserError, match=r"must be a torch\.nn\.Module, not function"):
        bilateral.evaluate(lambda images: linear(images), *batch, attacks="fgsm")


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8])
def test_labels_of_any_whole_numbers_do(linear, batch, kind):
    images, _ = batch
    labels = linear(images).argmax(1)  # right to begin with, so that there is something to attack
    found = bilateral.evaluate(linear, images, labels.to(kind), "fgsm,apgd", 1 / 255)
    expected = bilateral.evaluate(linear, images, labels, "fgsm,apgd", 1 / 255)
    assert 0 < expected.worst_case_accuracy < 1
    for name, attack in expected.attacks.items():
        assert found.attacks[name].robust == attack.robust


def test_digest_follows_the_weights(linear):
    before = weights_digest(linear)
    assert before == weights_digest(linear)
    with torch.no_grad():
        linear.head.bias[0] += 1e-6
    assert weights_digest(linear) != before


class Unsure(nn.Module):
    """NaN for its best class on all that is not a clean image of 17 grey levels."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        logits = self.model(images)
        rough = ((images * 16 - (images * 16).round()).abs() > 1e-3).flatten(1).any(1)
        best = nn.functional.one_hot(logits.argmax(1), logits.shape[1]).bool()
        return logits.masked_fill(best & rough[:, None], torch.nan)


def test_nan_is_no_right_answer(linear):
    images = torch.randint(17, (40, 3, 6, 6), generator=torch.Generator().manual_seed(0)) / 16
    labels = linear(images).argmax(1)
    keys = noise_keys(torch.arange(40))
    settings = attack_members("fgsm-rs", 8 / 255)["fgsm-rs"]
    found = robust_flags(Unsure(linear.eval()), images, labels, settings, keys)
    assert not bool(found.robust.any())
    assert not bool((found.predictions == labels).any())


def test_somebodys_attack_cannot_change_the_labels_it_is_judged_by(linear, tmp_path):
    (tmp_path / "own.py").write_text(
        "def plain(model, images, labels, epsilon):\n    return images\n"
        "def sly(model, images, labels, epsilon):\n    labels += 1\n    labels %= 5\n"
        "    return images\n"
    )
    images = torch.rand(40, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    labels = linear(images).argmax(1)
    for name in ("plain", "sly"):
        found = bilateral.evaluate(linear.eval(), images, labels, f"{tmp_path}/own.py:{name}")
        assert found.worst_case_accuracy == 1


def test_images_of_other_kinds_are_judged_as_float32(linear):
    images = torch.rand(40, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    labels = linear(images).argmax(1)
    expected = bilateral.evaluate(linear.eval(), images, labels, "pgd5")
    for given in (images.double(), images.clone().requires_grad_()):
        found = bilateral.evaluate(linear.eval(), given, labels, "pgd5")
        assert found.attacks["pgd5"].robust == expected.attacks["pgd5"].robust
