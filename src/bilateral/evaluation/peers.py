"""The same attacks in other packages, for comparison: pyautoattack and foolbox.

Neither is needed to evaluate; the extra `peers` installs both.
"""

import time
from collections.abc import Iterable
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bilateral.attacks.settings import CarliniWagner, DeepFool
from bilateral.attacks.table import attack_named
from bilateral.attacks.untouched import untouched
from bilateral.errors import UserError
from bilateral.evaluation.robustness import predictions
from bilateral.runtime import exact_float32, synchronise


class PeerResult(NamedTuple):
    """Which images survived a peer's attack, re-checked in float32, and its time."""

    robust: Tensor
    seconds: float
    batch_size: int
    distances: Tensor | None = None


def require_peers(names: Iterable[str]) -> None:
    """Refuse, before anything is timed, if one of these packages is missing."""
    for name in names:
        _peer(name)


def _peer(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise UserError(f"{name} is not installed: pip install foolbox pyautoattack") from None


def peer_autoattack(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epsilon: float,
    batch_size: int,
    attacks: tuple[str, ...] = ("apgd-ce", "apgd-t", "fab-t", "square"),
) -> PeerResult:
    """pyautoattack's ensemble of these members, in torch's default precision."""
    package = _peer("pyautoattack")
    with untouched(model):
        runner = package.AutoAttack(
            model,
            attacks=list(attacks),
            device=images.device,
            eps=epsilon,
            norm="Linf",
            seed=0,
            version="custom",
        )
        synchronise(images.device)
        started = time.monotonic()
        tried = runner.run_standard_evaluation(images, labels, batch_size=batch_size)
        synchronise(images.device)
        seconds = time.monotonic() - started
    tried = tried if isinstance(tried, Tensor) else tried[0]
    return PeerResult(_right(model, tried.to(images), labels, batch_size), seconds, batch_size)


def peer_pgd(
    model: nn.Module, images: Tensor, labels: Tensor, epsilon: float, batch_size: int, steps: int
) -> PeerResult:
    """foolbox's PGD: cross-entropy, random start, steps of a quarter of the budget."""
    foolbox = _peer("foolbox")
    attack = foolbox.attacks.LinfPGD(abs_stepsize=epsilon / 4, steps=steps, random_start=True)
    # foolbox returns (raw, clipped to the budget, fooled): the second is within the budget.
    tried, seconds = _foolbox(model, images, labels, attack, epsilon, batch_size)
    return PeerResult(_right(model, tried, labels, batch_size), seconds, batch_size)


def peer_minimum_norm(
    model: nn.Module, images: Tensor, labels: Tensor, name: str, batch_size: int
) -> PeerResult:
    """foolbox's CW-L2 and DeepFool with our settings; L2 distances, infinite where not fooled."""
    foolbox = _peer("foolbox")
    settings = attack_named(name, 1.0)
    if isinstance(settings, CarliniWagner):
        attack = foolbox.attacks.L2CarliniWagnerAttack(
            binary_search_steps=settings.binary_search_steps,
            steps=settings.steps,
            stepsize=settings.learning_rate,
            confidence=settings.confidence,
            initial_const=settings.constant,
            abort_early=False,
        )
    else:
        assert isinstance(settings, DeepFool)
        attack = foolbox.attacks.L2DeepFoolAttack(
            steps=settings.steps, candidates=settings.candidates, overshoot=settings.overshoot
        )
    with exact_float32():
        found, seconds = _foolbox(model, images, labels, attack, None, batch_size)
    right = _right(model, found, labels, batch_size)
    lengths = (found - images).flatten(1).norm(dim=1)
    return PeerResult(right, seconds, batch_size, torch.where(right, torch.inf, lengths))


def _foolbox(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    attack: Any,
    epsilon: float | None,
    batch_size: int,
) -> tuple[Tensor, float]:
    """The images that a foolbox attack returns, batch by batch, and its time."""
    with untouched(model):
        wrapped = _peer("foolbox").PyTorchModel(model, bounds=(0, 1), device=images.device)
        synchronise(images.device)
        started = time.monotonic()
        tried = [
            attack(wrapped, part, truth, epsilons=epsilon)[1]
            for part, truth in zip(
                torch.split(images, batch_size), torch.split(labels, batch_size), strict=True
            )
        ]
        synchronise(images.device)
        return torch.cat(tried), time.monotonic() - started


def _right(model: nn.Module, images: Tensor, labels: Tensor, batch_size: int) -> Tensor:
    parts = range(0, len(labels), batch_size)
    found = [predictions(model, images[start : start + batch_size]) for start in parts]
    return torch.cat(found) == labels
