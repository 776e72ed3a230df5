"""Adversarial labels: the paper's main formula, the appendix's, top-k, smoothing and one-hot.

With s_k = v_k - v_MC + gamma, the main formula at its largest budget epsilon_y is
y'_k = s_k / (sum s + beta max s), and y'_c takes the rest: y'_c = beta max s / (...).
v_k = -log p_k, so v_k - v_MC is a difference of logits and the softmax is never computed.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from bilateral.config import Labels


def default_ratio(classes: int) -> float:
    """The ratio for data that the paper does not use: it keeps the true class at half or more.

    classes - 1, except that two classes get 2: a ratio of 1 would make both classes equal.
    """
    return float(max(classes - 1, 2))


def soft_labels(logits: Tensor, labels: Tensor, settings: Labels) -> Tensor:
    """The label distributions that a training step fits, as float32 of the logits' shape.

    Labels of mixed images are distributions already, for rules that do not need the true class.
    """
    return (1 - settings.mix) * _by_rule(logits, labels, settings) + settings.mix / logits.shape[1]


def _by_rule(logits: Tensor, labels: Tensor, settings: Labels) -> Tensor:
    classes = logits.shape[1]
    truth = labels if labels.is_floating_point() else F.one_hot(labels, classes).float()
    if settings.rule == "one-hot":
        return truth
    if settings.rule == "smoothing":
        return truth * (1 - settings.budget) + (1 - truth) * settings.budget / (classes - 1)
    logits = logits.detach().to(torch.float32)
    sharing = _sharing_classes(logits, labels, settings.top_k)
    if settings.rule == "adversarial":
        confusing = logits.masked_fill(~sharing, -torch.inf).amax(1, keepdim=True)
        shares = confusing - logits + settings.gamma
    else:
        # The most confusing class can have a loss of 0 in float32; a share must stay positive.
        shares = (-F.log_softmax(logits, 1)).clamp_min(1e-12)
    shares = shares.masked_fill(~sharing, 0)
    ratio = settings.ratio if settings.ratio is not None else default_ratio(classes)
    # Scaled by its largest, a row of shares cannot overflow whatever the logits are.
    shares = shares / shares.amax(1, keepdim=True)
    return (shares + ratio * truth) / (shares.sum(1, keepdim=True) + ratio)


def _sharing_classes(logits: Tensor, labels: Tensor, top_k: int | None) -> Tensor:
    """Which classes get a share: all wrong ones, or the `top_k` of largest loss."""
    wrong = torch.ones_like(logits, dtype=torch.bool)
    wrong.scatter_(1, labels[:, None], False)
    if top_k is None or top_k >= logits.shape[1] - 1:
        return wrong
    least = logits.masked_fill(~wrong, torch.inf).topk(top_k, 1, largest=False).indices
    return torch.zeros_like(wrong).scatter_(1, least, True)


def soft_cross_entropy(logits: Tensor, soft_labels: Tensor) -> Tensor:
    """Mean cross-entropy against label distributions, in float32."""
    return -(soft_labels * F.log_softmax(logits.float(), 1)).sum(1).mean()
