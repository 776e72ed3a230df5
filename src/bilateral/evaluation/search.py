"""The model that attacks search on: the same function, faster.

What a search finds is re-checked on the model itself in float32, so it may work on a copy with
batch norms folded away, compiled, in bfloat16, and replayed as a CUDA graph.
"""

import copy
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from bilateral.attacks.untouched import untouched
from bilateral.evaluation.graphs import Replayed
from bilateral.models.network import Network
from bilateral.runtime import compiled, exact_float32, has_bfloat16

SLACK = 0.02
"""Share of the largest logit. On 1,000 CIFAR-10 images 13 of 486 breaks in bfloat16 did not hold in
float32 without it, and the float32 model had to search for these again (docs/log.md)."""
Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class Search:
    """A copy of the model to attack, and whether it is to be called under bfloat16 autocast."""

    model: nn.Module
    bfloat16: bool

    @property
    def slack(self) -> float:
        """The margin by which an image must fool: more than bfloat16 rounds the logits by."""
        return SLACK if self.bfloat16 else 0.0

    @property
    def precision(self) -> str:
        """The precision as it is recorded with a measurement."""
        return "bfloat16" if self.bfloat16 else "float32"


def prepare_search(
    model: nn.Module, images: Tensor, precision: Precision = "auto", compile: bool = False
) -> Search:
    """A copy that is faster to search on; `images` are a few to check it with.

    `auto` is bfloat16 on a GPU for models whose logits stay float32: logits in bfloat16 tie,
    which weakens a margin attack, and a re-check cannot make up for a weak search.
    A compiled copy has a dynamic batch size: batches shrink as images break.
    """
    try:
        frozen = copy.deepcopy(model).requires_grad_(False).eval()
    except (RuntimeError, TypeError):  # a model that holds a graph or a lock cannot be copied
        return Search(model, bfloat16=False)
    if not _same_function(frozen, model, images):  # the model defines its own way of copying
        return Search(model, bfloat16=False)
    fold_batch_norms(frozen, images)
    known = isinstance(model, Network)
    automatic = has_bfloat16(images.device) and known
    bfloat16 = precision == "bfloat16" or (precision == "auto" and automatic)
    if bfloat16 and known:
        _hold_in_bfloat16(frozen, images.device)
    if compile:
        frozen = compiled(frozen, dynamic=True)
    if known and images.is_cuda:  # a user's own model may do things in Python at every call
        frozen = Replayed(frozen)
    return Search(frozen, bfloat16)


def _same_function(frozen: nn.Module, model: nn.Module, images: Tensor) -> bool:
    few = _around(images)
    with untouched(model), torch.no_grad(), exact_float32():
        return _as_good(frozen(few.clone()), model(few.clone()))


def _hold_in_bfloat16(frozen: nn.Module, device: torch.device) -> None:
    """Convert convolutions once, as autocast would at every call; the head stays in float32."""
    layout = torch.channels_last if device.type == "cuda" else torch.preserve_format
    for module in frozen.modules():
        if isinstance(module, nn.Conv2d):
            module.to(dtype=torch.bfloat16, memory_format=layout)  # type: ignore[call-overload]


def fold_batch_norms(frozen: nn.Module, images: Tensor) -> None:
    """Fold batch norms of a model in eval mode into the convolutions before them.

    A pair is folded only if the logits stay the same: the modules do not show what a convolution
    feeds besides its batch norm (a shortcut, say).
    """
    few = _around(images)
    with torch.no_grad(), exact_float32():
        expected = frozen(few.clone())
        for convolution, parent, name in _folds(frozen, few):
            norm, before = getattr(parent, name), (convolution.weight, convolution.bias)
            try:
                fused = fuse_conv_bn_eval(convolution, norm)
                convolution.weight, convolution.bias = fused.weight, fused.bias
            except (AttributeError, KeyError, RuntimeError):
                continue  # its weights are computed from other parameters
            setattr(parent, name, nn.Identity())
            if not _as_good(frozen(few.clone()), expected):
                convolution.weight, convolution.bias = before
                setattr(parent, name, norm)
    frozen.requires_grad_(False)


def _around(images: Tensor) -> Tensor:
    """A few images with and without noise: a copy must also be right where attacks will go."""
    few = images[:4]
    noise = torch.rand(few.shape, generator=torch.Generator().manual_seed(0)).to(few)
    return torch.cat([few, (few + 0.1 * (noise - 0.5)).clamp(0, 1)])


def _as_good(logits: Tensor, expected: Tensor) -> bool:
    """Whether logits are equal up to rounding, relative to the spread of a row."""
    finite = expected.nan_to_num(0.0, 0.0, 0.0)
    spread = float((finite.amax(1) - finite.amin(1)).max())
    return bool(torch.allclose(logits, expected, rtol=0, atol=1e-3 * spread, equal_nan=True))


def _folds(model: nn.Module, images: Tensor) -> list[tuple[nn.Conv2d, nn.Module, str]]:
    """Convolutions whose output goes directly into a batch norm, with that batch norm's place."""
    made: dict[int, nn.Conv2d] = {}
    kept: list[Tensor] = []  # so that no other tensor gets the same id
    found: dict[nn.Module, nn.Conv2d] = {}

    def convolved(module: nn.Module, inputs: Any, output: Tensor) -> None:
        made[id(output)] = cast(nn.Conv2d, module)
        kept.append(output)

    def normalised(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        # Without running statistics it normalises by the batch, which no convolution can do.
        if id(inputs[0]) in made and cast(nn.BatchNorm2d, module).running_mean is not None:
            found[module] = made[id(inputs[0])]

    modules = list(model.modules())
    hooks = [m.register_forward_hook(convolved) for m in modules if isinstance(m, nn.Conv2d)]
    hooks += [
        m.register_forward_pre_hook(normalised) for m in modules if isinstance(m, nn.BatchNorm2d)
    ]
    with untouched(model):
        model(images)
    for hook in hooks:
        hook.remove()
    return [
        (found[child], parent, name)
        for parent in modules
        for name, child in parent.named_children()
        if child in found
    ]
