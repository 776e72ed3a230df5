"""The losses of attacks, each written out in Python's floats."""

import math

import pytest
import torch

from bilateral.attacks.losses import cross_entropy, divergence, dlr, dlr_targeted, margin

LABELS = torch.arange(12)


def logits_of(classes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(12, classes, generator=generator)


def softmax(row):
    total = sum(math.exp(value) for value in row)
    return [math.exp(value) / total for value in row]


def written_out(formula, logits, *others):
    rows = zip(logits.tolist(), *(other.tolist() for other in others), strict=True)
    return torch.tensor([formula(*row) for row in rows])


def test_divergence_is_from_the_clean_prediction_to_the_one_here():
    """KL(clean || here), which is not KL(here || clean); the clean side gets no gradient."""
    here, clean = logits_of(5).requires_grad_(), logits_of(5, seed=1).requires_grad_()

    def kl(row, reference):
        pairs = zip(softmax(reference), softmax(row), strict=True)
        return sum(p * math.log(p / q) for p, q in pairs)

    found = divergence(here, clean)
    torch.testing.assert_close(found.detach(), written_out(kl, here, clean))
    moved, still = torch.autograd.grad(found.sum(), [here, clean], allow_unused=True)
    assert moved.abs().max() > 0 and still is None


def test_cross_entropy_grows_away_from_the_label_and_towards_the_target():
    logits, labels, targets = logits_of(5), LABELS % 5, (LABELS + 2) % 5
    away = written_out(lambda row, label: -math.log(softmax(row)[label]), logits, labels)
    towards = written_out(lambda row, target: math.log(softmax(row)[target]), logits, targets)
    torch.testing.assert_close(cross_entropy(logits, labels, None), away)
    torch.testing.assert_close(cross_entropy(logits, labels, targets), towards)


@pytest.mark.parametrize("classes", [2, 3, 4, 10])
def test_dlr_written_out(classes):
    """Equation 6 of Croce & Hein; of two classes there is no third largest logit."""
    logits, labels = logits_of(classes), LABELS % classes

    def ratio(row, label):
        gap = max(row[:label] + row[label + 1 :]) - row[label]
        ranked = sorted(row, reverse=True)
        return gap if classes == 2 else gap / (ranked[0] - ranked[2])

    torch.testing.assert_close(dlr(logits, labels), written_out(ratio, logits, labels))


@pytest.mark.parametrize("classes", [2, 3, 4, 10])
def test_targeted_dlr_written_out(classes):
    """Equation 7; it needs four classes."""
    logits, labels, targets = logits_of(classes), LABELS % classes, (LABELS + 1) % classes

    def ratio(row, label, target):
        gap, ranked = row[target] - row[label], sorted(row, reverse=True)
        return gap if classes < 4 else gap / (ranked[0] - (ranked[2] + ranked[3]) / 2)

    expected = written_out(ratio, logits, labels, targets)
    torch.testing.assert_close(dlr_targeted(logits, labels, targets), expected)


def test_margin_written_out():
    logits, labels, targets = logits_of(5), LABELS % 5, (LABELS + 2) % 5
    free = written_out(
        lambda row, label: max(row[:label] + row[label + 1 :]) - row[label], logits, labels
    )
    torch.testing.assert_close(margin(logits, labels, None), free)
    assert free.min() < 2 < free.max()
    torch.testing.assert_close(margin(logits, labels, None, 2.0), free.clamp_max(2))
    aimed = written_out(lambda row, label, to: row[to] - row[label], logits, labels, targets)
    torch.testing.assert_close(margin(logits, labels, targets), aimed)
