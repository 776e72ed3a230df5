"""Guards: checks made before hours are spent on a number that would mean nothing.

A guard refuses what no attack could measure and warns of what a reader should know. All of them
together pass about a thousand images through the model.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bilateral.attacks.losses import image_gradient
from bilateral.attacks.untouched import untouched
from bilateral.budgets import parse_budget
from bilateral.errors import UserError
from bilateral.evaluation.isolation import DISTANCES, isolated
from bilateral.randomness import image_keys
from bilateral.results import near_chance, wilson_interval
from bilateral.runtime import exact_float32

SAMPLE = 128
"""How many images are checked, evenly spread over those given."""
REPEATED = 32
"""How many of them are passed twice, to see whether the outputs change."""
ALONE = 4
"""How many are passed one at a time, to see whether the rest of the batch matters."""
STILL = ISOLATED = 0.05
"""The tolerated shares of images without a gradient and of isolated ones, as in `diagnose`."""
FEWEST = 50
"""On fewer images than this, only the accuracy's interval is compared with guessing."""
GAIN = 0.2
"""How much accuracy another input range must gain to be suggested."""
SMALLEST_BUDGET = 0.1 / 255
"""8/255 divided by 255 once more lies below this; no budget in use does."""
EVERY_IMAGE = 0.5
"""From this budget on, every image can be turned into the same plain grey."""

NORMALISATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "scaled to [-1, 1]": ((0.5,), (0.5,)),
    "normalised by ImageNet's mean and std": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "normalised by CIFAR-10's mean and std": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "normalised by CIFAR-100's mean and std": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "normalised by SVHN's mean and std": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    "normalised by MNIST's mean and std": ((0.1307,), (0.3081,)),
    "scaled to 0..255": ((0.0,), (1 / 255,)),
}
"""Input ranges that data loaders often give to models in place of [0, 1]."""


def guard(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epsilon: float,
    force: bool = False,
    few: bool = False,
) -> list[str]:
    """Warnings about evaluating this model; UserError if the number would mean nothing.

    `force` turns refusals of the model into warnings; `few` also warns if the images are too few
    to show that the model has learnt anything. The model is left as it was found.
    """
    try:
        parse_budget(epsilon)
    except ValueError as error:
        raise UserError(f"epsilon {error}") from None
    places = torch.linspace(0, len(images) - 1, min(SAMPLE, len(images))).round().long()
    device = next(iter(model.parameters()), images).device
    images, labels = images[places.to(images.device)], labels[places.to(labels.device)]
    images, labels = images.to(device), labels.to(device)
    given = images.clone()
    outputs = _outputs(model, given)
    beside = _outputs(model, (images + DISTANCES[0]).clamp(0, 1))
    refusals = list(_refusals(outputs, beside, changed=not torch.equal(given, images)))
    if refusals and not force:
        raise UserError(f"{refusals[0]}, or force the evaluation (--force, force=True)")
    random = list(_randomness(model, images, outputs))
    return [
        *refusals,
        *_mode(model),
        *_budget(epsilon),
        *(random or _company(model, images, outputs)),
        *_neighbours(model, images, outputs),
        *_gradients(model, images, labels, None if random else outputs),
        *_accuracy(model, images, labels, outputs),
        *(_guessing(labels, outputs) if few else ()),
    ]


def _outputs(model: nn.Module, images: Tensor) -> Tensor:
    """The outputs in eval mode and float32."""
    with untouched(model), torch.no_grad(), exact_float32():
        outputs: Tensor = model(images)
        return outputs.float()


def _refusals(outputs: Tensor, beside: Tensor, changed: bool) -> Iterator[str]:
    if changed:
        yield (
            "the model changes its input in place: the images that attacks find would not be the "
            "ones that are judged; make it work on a copy"
        )
    elif bool(outputs.isnan().any()):
        yield "the model returns NaN on clean images; fix it first"
    elif bool(beside.isnan().any()):
        yield "the model returns NaN an eighth of a grey level away from clean images; fix it first"
    elif bool((outputs >= 0).all()) and bool(((outputs.sum(1) - 1).abs() < 1e-3).all()):
        yield (
            "the model returns probabilities (every row sums to 1), not logits: a softmax flattens "
            "the gradients that attacks follow; return its input instead"
        )


def _mode(model: nn.Module) -> Iterator[str]:
    """Whether the model is in train mode and has layers that behave differently in it."""
    layers = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    if any(isinstance(module, layers) and module.training for module in model.modules()):
        yield (
            "the model is in train mode: it is put in eval mode, where batch norm uses its "
            "running statistics and dropout is off"
        )


def _budget(epsilon: float) -> Iterator[str]:
    if epsilon < SMALLEST_BUDGET:
        yield (
            f"epsilon is {epsilon:.3g}, {255 * epsilon:.2g} of a grey level: "
            "was it divided by 255 twice?"
        )
    if epsilon >= EVERY_IMAGE:
        yield (
            f"epsilon is {epsilon:.3g}: every image can be turned into plain grey, so no model can "
            "be robust; budgets in use are about 8/255"
        )


def _randomness(model: nn.Module, images: Tensor, outputs: Tensor) -> Iterator[str]:
    first, again = (_outputs(model, images[:REPEATED]) for _ in range(2))
    if float((first - again).abs().max()) > 1e-5 * float(outputs.abs().max()):
        yield (
            "outputs change from call to call: the model is randomised, so attacks that sample it "
            "once overstate its robustness; the number needs expectation over transformation"
        )


def _company(model: nn.Module, images: Tensor, outputs: Tensor) -> Iterator[str]:
    """Whether an image gives the same outputs alone, in a batch, and in the batch reversed."""
    turned = _outputs(model, images.flip(0)).flip(0)
    alone = torch.cat(
        [_outputs(model, images[place : place + 1]) for place in range(min(ALONE, len(images)))]
    )
    if _differ(alone, outputs[: len(alone)]) or _differ(turned, outputs):
        yield (
            "outputs depend on the other images of a batch: accuracies change with --batch-size, "
            "and an attack on one image affects the others"
        )


def _neighbours(model: nn.Module, images: Tensor, outputs: Tensor) -> Iterator[str]:
    """Whether the model answers differently right next to the test images than at them."""
    keys = image_keys(0, torch.arange(len(images), device=images.device))
    flags = isolated(lambda given: _outputs(model, given), images, keys, outputs)
    if _surely(flags, ISOLATED):
        yield (
            f"outputs jump between {100 * _share(flags):.0f} % of {len(images)} images and points "
            "up to half a grey level away: the model recognises the images or has a discontinuity "
            "there, so attacks do not see what gives the clean accuracy; run diagnose"
        )


def _gradients(
    model: nn.Module, images: Tensor, labels: Tensor, outputs: Tensor | None
) -> Iterator[str]:
    """Images at which the cross-entropy has no gradient at all, so that attacks cannot move."""
    inputs = images.detach().clone().requires_grad_()
    with untouched(model), torch.enable_grad(), exact_float32():
        logits = model(inputs.clone()).float()  # on a copy: the model may change it in place
        loss = F.cross_entropy(logits, labels, reduction="none")
        try:
            gradient = image_gradient(loss, inputs)
        except UserError as error:  # attacks that need one refuse; square and spsa do not
            yield str(error)
            return
    if outputs is not None and _differ(logits.detach(), outputs):
        yield (
            "outputs differ when gradients are enabled: attacks see another model than the one "
            "that is judged"
        )
    still = gradient.flatten(1).nan_to_num(0.0).abs().amax(1) == 0
    if _surely(still, STILL):
        yield (
            f"gradients are zero or NaN on {100 * _share(still):.0f} % of {len(labels)} images: "
            "cross-entropy attacks cannot move there; run diagnose before believing the number"
        )


def _share(flags: Tensor) -> float:
    return float(flags.float().mean())


def _surely(flags: Tensor, limit: float) -> bool:
    """Whether significantly more than this share of the images is flagged."""
    return wilson_interval(int(flags.sum()), len(flags))[0] > limit


def _accuracy(model: nn.Module, images: Tensor, labels: Tensor, outputs: Tensor) -> Iterator[str]:
    """Clean accuracy near chance, and whether another input range explains it."""
    if len(labels) < FEWEST:
        return
    accuracy, classes = _share_right(outputs, labels), outputs.shape[1]
    chance = near_chance(accuracy, classes)
    if chance:
        yield (
            f"clean accuracy is {100 * accuracy:.1f} % on {len(labels)} images, near chance for "
            f"{classes} classes: there is little to attack"
        )
    if accuracy > 1 - GAIN:
        return
    tried = {
        name: _share_right(_outputs(model, given), labels) for name, given in _other_ranges(images)
    }
    best = max(tried, key=lambda name: tried[name])
    above_chance = chance and not near_chance(tried[best], classes)
    if tried[best] >= accuracy + GAIN or (above_chance and tried[best] > 2 * accuracy):
        yield (
            f"the model seems to expect another input range: {100 * accuracy:.1f} % are right "
            f"with images in [0, 1], but {100 * tried[best]:.1f} % with images {best}; "
            "put that step into the model"
        )


def _guessing(labels: Tensor, outputs: Tensor) -> Iterator[str]:
    """A sample so small that guessing might get as many right."""
    if len(labels) >= FEWEST:
        return
    right, classes = int((outputs.argmax(1) == labels).sum()), outputs.shape[1]
    if wilson_interval(right, len(labels))[0] <= 1 / classes:
        yield (
            f"clean accuracy is {100 * right / len(labels):.1f} % on {len(labels)} images: too few "
            f"to distinguish it from guessing among {classes} classes; use more images"
        )


def _differ(one: Tensor, other: Tensor) -> bool:
    """Whether outputs differ by more than rounding, which also depends on the batch size."""
    return float((one - other).abs().max()) > 1e-2 * float(other.abs().max())


def _share_right(outputs: Tensor, labels: Tensor) -> float:
    return float((outputs.argmax(1) == labels).float().mean())


def _other_ranges(images: Tensor) -> Iterator[tuple[str, Tensor]]:
    for name, (mean, std) in NORMALISATIONS.items():
        if len(mean) in (1, images.shape[1]):
            shift, scale = (images.new_tensor(values).view(1, -1, 1, 1) for values in (mean, std))
            yield name, (images - shift) / scale
