"""Penalties that pull the adversarial prediction to the clean one: GAT's and NuAT's distances.

Sriramanan et al. 2020 (guided) and 2021 (nuclear norm). Both train on clean images and give both
predictions gradients: method = trades. With the loss on attacked images instead, the clean
prediction is that of the reference forward pass, which the label needs anyway: it costs nothing and
gets no gradient.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from bilateral.config import Regulariser

Summed = Callable[[Tensor], Tensor]
"""The sum of a tensor over all processes that share a batch."""

_ITERATIONS, _RIDGE = 20, 1e-6


def alone(values: Tensor) -> Tensor:
    """The sum if one process has the whole batch."""
    return values


def regularisation(
    logits: Tensor,
    reference: Tensor,
    settings: Regulariser,
    risen: Tensor | float = 1.0,
    summed: Summed = alone,
) -> Tensor:
    """The weighted distance of the predictions, a mean over the batch.

    `risen` is the share of its final value that a rising weight has reached. If processes share a
    batch, the mean of their results is that of the whole batch.
    """
    one, other = logits.float(), reference.float()
    if settings.of == "probabilities":
        one, other = F.softmax(one, 1), F.softmax(other, 1)
    apart = one - other
    weight = settings.weight * risen if settings.rising else settings.weight
    if settings.kind == "squared":
        return weight * apart.pow(2).sum(1).mean()
    return weight * nuclear_norm(apart, summed) / len(logits)


def nuclear_norm(matrix: Tensor, summed: Summed = alone) -> Tensor:
    """The sum of the singular values of a tall matrix, by matrix products alone.

    A singular value decomposition waits for the host, so a CUDA graph cannot hold it. The norm's
    gradient is the polar factor P, and sum(matrix * P) has the norm's value as well; P follows
    from the inverse square root of the Gram matrix, by the coupled Newton iteration. If several
    processes share the matrix's rows, each gets its own rows' part of that sum.
    """
    # In bfloat16 the iteration fails: it inverts a nearly singular matrix.
    with torch.no_grad(), torch.autocast(matrix.device.type, enabled=False):
        gram = summed(matrix.T @ matrix)
        size = gram.diagonal().sum().clamp_min(1e-30)
        one = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        square, inverse = gram / size + _RIDGE * one, one
        for _ in range(_ITERATIONS):
            factor = 1.5 * one - 0.5 * inverse @ square
            square, inverse = square @ factor, factor @ inverse
        polar = matrix @ (inverse / size.sqrt())
    return (matrix * polar).sum()
