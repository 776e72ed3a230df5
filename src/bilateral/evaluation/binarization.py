"""The binarization test of an attack (Zimmermann et al. 2022, arXiv 2206.13991).

For one image at a time the last linear layer is replaced by a two-class one: noise well inside the
ball is the first class, one known corner of the ball the second. An adversarial example is then
known to exist; if an attack misses it, its failure on the model itself proves nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bilateral.attacks import ball
from bilateral.attacks.targets import last_linear
from bilateral.attacks.untouched import untouched
from bilateral.randomness import derive, uniform
from bilateral.runtime import exact_float32

INNER_SHARE = 0.95
"""The noise of the first class fills this share of the ball."""
CLOSENESS = 0.9
"""How far the boundary lies from the first class's extreme (0) towards the known corner (1)."""
RIDGE = 1.0
"""What is added to the features' variances, as a multiple of their mean."""
_INNER, _CORNER, _GUESSES = 500, 501, 502

Attack = Callable[[nn.Module, Tensor, Tensor, float], Tensor]
"""(model, images, labels, epsilon) -> images."""


class BinarizationResult(NamedTuple):
    """The shares of images whose planted example the attack, and random corners, found."""

    success_rate: float
    random_rate: float
    images: int


class TwoClasses(nn.Module):
    """A model whose last linear layer is replaced by a two-class one on the same features."""

    def __init__(self, model: nn.Module, layer: nn.Linear, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.model, self.weight, self.bias = model, weight, bias
        self._layer = [layer]  # in a list, so that it is not registered twice

    def forward(self, images: Tensor) -> Tensor:
        """The two-class outputs, after whatever follows the model's last linear layer."""

        def replaced(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            score = inputs[0].to(self.weight.dtype) @ self.weight + self.bias
            return torch.stack([-score, score], 1)

        with _hook(self._layer[0], replaced):
            logits: Tensor = self.model(images)
            return logits


def binarization_test(
    model: nn.Module,
    images: Tensor,
    epsilon: float,
    attack: Attack,
    *,
    keys: Tensor,
    samples: int = 400,
) -> BinarizationResult:
    """Plant an example in the ball of each image and see whether the attack finds it.

    `samples` points of noise make the first class, and as many random corners are the baseline.
    Images whose corner cannot be separated from the noise are not counted.
    """
    found = guessed = planted = 0
    with untouched(model), exact_float32():
        with torch.no_grad():
            outputs = model(images)
        layer = last_linear(model, outputs.shape[1])
        for number in range(len(images)):
            clean, key = images[number : number + 1], keys[number : number + 1]
            two = _plant(model, layer, clean, epsilon, key, samples)
            if two is None:
                continue
            planted += 1
            label = torch.zeros(1, dtype=torch.int64, device=images.device)
            tried = attack(two, clean, label, epsilon)
            guesses = _corners(clean, epsilon, derive(key, _GUESSES), samples)
            with torch.no_grad():
                fooled = two(tried).argmax(1) == 1
                found += int(fooled & ball.inside(tried, clean, epsilon))
                guessed += int((two(guesses).argmax(1) == 1).any())
    return BinarizationResult(found / max(planted, 1), guessed / max(planted, 1), planted)


def _plant(
    model: nn.Module, layer: nn.Linear, clean: Tensor, epsilon: float, key: Tensor, samples: int
) -> TwoClasses | None:
    """The two-class model for one image; None if its corner is not an outlier.

    Fisher's discriminant separates the corner from the noise. The logits are scaled so that the
    clean image is as far from the boundary as it was in the model itself.
    """
    noise = 2 * uniform(derive(key, _INNER), (samples, *clean.shape[1:]))[0] - 1
    inner = (clean + INNER_SHARE * epsilon * noise.to(clean.dtype)).clamp(0, 1)
    corner = _corners(clean, epsilon, derive(key, _CORNER), 1)
    seen: list[Tensor] = []

    def keep(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.extend((inputs[0].detach(), output.detach()))

    with torch.no_grad(), _hook(layer, keep):
        model(torch.cat([corner, clean, inner]))
    features, logits = seen[0].double(), seen[1]
    centred = features - features[1:].mean(0)
    variances = centred[1:].T @ centred[1:] / len(inner)
    mean_variance = variances.diagonal().mean().clamp_min(1e-30)
    identity = torch.eye(len(variances), dtype=torch.float64, device=clean.device)
    direction = torch.linalg.solve(variances + RIDGE * mean_variance * identity, centred[0])
    scores = features @ direction
    extreme = scores[1:].max()
    boundary = extreme + CLOSENESS * (scores[0] - extreme)
    if not boundary > extreme:
        return None
    largest = logits[1].topk(2).values.double()
    scale = (largest[0] - largest[1]) / 2 / (boundary - scores[1])
    weight, bias = scale * direction, -scale * boundary
    return TwoClasses(model, layer, weight.to(clean.dtype), bias.to(clean.dtype))


def _corners(clean: Tensor, epsilon: float, key: Tensor, count: int) -> Tensor:
    """Random corners of the ball around one image, inside [0, 1]."""
    signs = torch.where(uniform(key, (count, *clean.shape[1:]))[0] < 0.5, -1.0, 1.0)
    return ball.project(clean + epsilon * signs.to(clean.dtype), clean, epsilon)


@contextmanager
def _hook(layer: nn.Linear, function: Callable[..., Tensor | None]) -> Iterator[None]:
    handle = layer.register_forward_hook(function)
    try:
        yield
    finally:
        handle.remove()
