"""The nuclear norm by products of matrices, against singular values; the guided distance."""

import pytest
import torch

from bilateral.attacks.losses import change
from bilateral.config import Regulariser
from bilateral.regularisers import nuclear_norm, regularisation


def predictions(images=64, classes=10, scale=2.0, seed=0):
    """Differences of two sets of predictions: every row sums to zero, so the rank is not full."""
    generator = torch.Generator().manual_seed(seed)
    one, other = (scale * torch.randn(images, classes, generator=generator) for _ in range(2))
    return one, other


@pytest.mark.parametrize("shape", [(64, 10), (128, 100), (5, 3), (16, 2)])
def test_it_is_the_sum_of_singular_values(shape):
    one, other = predictions(*shape)
    matrix = one.softmax(1) - other.softmax(1)
    expected = torch.linalg.svdvals(matrix).sum()
    torch.testing.assert_close(nuclear_norm(matrix), expected, rtol=5e-3, atol=1e-5)


def test_small_singular_values_count():
    """A two-hundredth of the largest: too few iterations leave its inverse root half way."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(n, 10, generator=generator))[0] for n in (64, 10))
    values = torch.full((10,), 0.005)
    values[0] = 1.0
    found = nuclear_norm(left @ values.diag() @ right.T)
    torch.testing.assert_close(found, values.sum(), rtol=5e-3, atol=0)


def test_its_gradient_is_that_of_the_singular_values():
    one, other = predictions()
    matrix = (one.softmax(1) - other.softmax(1)).requires_grad_()
    (found,) = torch.autograd.grad(nuclear_norm(matrix), matrix)
    (expected,) = torch.autograd.grad(torch.linalg.svdvals(matrix)[:-1].sum(), matrix)
    assert torch.nn.functional.cosine_similarity(found.flatten(), expected.flatten(), 0) > 0.999
    torch.testing.assert_close(found, expected, rtol=0.05, atol=5e-3)


def test_equal_predictions_cost_nothing():
    one, _ = predictions()
    for kind in ("squared", "nuclear"):
        logits = one.clone().requires_grad_()
        loss = regularisation(logits, one, Regulariser(kind=kind))
        (gradient,) = torch.autograd.grad(loss, logits)
        assert float(loss.detach()) == pytest.approx(0, abs=1e-6) and gradient.isfinite().all()


def test_both_sides_are_pulled_to_each_other():
    one, other = (side.requires_grad_() for side in predictions())
    for kind in ("squared", "nuclear"):
        loss = regularisation(one, other, Regulariser(kind=kind, weight=2.0))
        for side in torch.autograd.grad(loss, [one, other]):
            assert side.abs().max() > 0


def test_the_squared_distance_written_out():
    one, other = predictions(8, 4)
    p, q = one.softmax(1), other.softmax(1)
    expected = torch.stack([((a - b) ** 2).sum() for a, b in zip(p, q, strict=True)])
    torch.testing.assert_close(change(one, other), expected)
    found = regularisation(one, other, Regulariser(kind="squared", weight=5.0))
    torch.testing.assert_close(found, 5 * expected.mean())


def test_logits_are_compared_as_they_are():
    """NuAT's: before the softmax."""
    one, other = predictions(scale=5.0)
    settings = Regulariser(kind="nuclear", weight=3.0, of="logits")
    expected = 3 * torch.linalg.svdvals(one - other).sum() / len(one)
    torch.testing.assert_close(regularisation(one, other, settings), expected, rtol=5e-3, atol=0)
    squared = regularisation(one, other, settings.with_fields(kind="squared"))
    torch.testing.assert_close(squared, 3 * (one - other).pow(2).sum(1).mean())


@pytest.mark.parametrize("kind", ["squared", "nuclear"])
def test_a_weight_that_rises_is_a_share_of_itself(kind):
    one, other = predictions()
    whole = regularisation(one, other, Regulariser(kind=kind))
    rising = Regulariser(kind=kind, rising=True)
    for share in (0.0, 0.25, 1.0):
        found = regularisation(one, other, rising, torch.tensor(share))
        torch.testing.assert_close(found, share * whole)
    assert torch.equal(regularisation(one, other, Regulariser(kind=kind), 0.25), whole)


@pytest.mark.parametrize("shape", [(128, 10), (128, 100), (16, 2), (4, 10)])
def test_low_precision_around_it_does_not_reach_it(shape):
    """A training step runs under autocast; an inverse square root in bfloat16 is nonsense."""
    one, other = predictions(*shape)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = regularisation(one, other, Regulariser(kind="nuclear", weight=1.0))
    expected = torch.linalg.svdvals(one.softmax(1) - other.softmax(1)).sum() / len(one)
    torch.testing.assert_close(found, expected, rtol=5e-3, atol=1e-5)
