"""Stateless random numbers: uniform, independent of batch and order, the same everywhere."""

import torch

from bilateral.randomness import derive, image_keys, integers, purpose_key, uniform


def test_numbers_are_uniform():
    draws = uniform(image_keys(purpose_key(0, 1), torch.arange(2000)), (50,)).double()
    assert draws.min() >= 0 and draws.max() < 1
    counts = torch.histc(draws.flatten(), 20, 0, 1)
    chi_square = ((counts - 5000) ** 2 / 5000).sum()
    assert chi_square < 43.8  # 99.9 % of 19 degrees of freedom
    neighbours = torch.corrcoef(torch.stack([draws[:, 0], draws[:, 1], draws.roll(1, 0)[:, 0]]))
    assert (neighbours - torch.eye(3)).abs().max() < 0.08


def test_an_image_keeps_its_noise_in_any_batch():
    numbers = torch.arange(100)
    together = uniform(image_keys(7, numbers), (3, 4, 4))
    order = torch.randperm(100)
    assert torch.equal(uniform(image_keys(7, numbers[order]), (3, 4, 4)), together[order])
    assert torch.equal(uniform(image_keys(7, numbers[42:43]), (3, 4, 4)), together[42:43])


def test_purposes_epochs_and_restarts_differ():
    numbers = torch.arange(4)
    keys = [image_keys(purpose_key(0, 4, epoch), numbers) for epoch in (0, 1)]
    draws = [uniform(key, (64,)) for key in (*keys, derive(keys[0], 1), derive(keys[0], 2))]
    for one in range(4):
        for other in range(one):
            assert (draws[one] - draws[other]).abs().mean() > 0.2


def test_known_values_do_not_change():
    """Noise is part of a run's result: another hash would change every resumed run."""
    draws = uniform(image_keys(purpose_key(0, 4, 0), torch.tensor([0, 49999])), (2,))
    assert [f"{value:.6f}" for value in draws.flatten().tolist()] == KNOWN


def test_integers_cover_their_range():
    assert sorted(set(integers(image_keys(3, torch.arange(500)), 9).tolist())) == list(range(9))


KNOWN = ["0.430508", "0.049309", "0.558683", "0.157771"]
