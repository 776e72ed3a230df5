"""Several attempts on the same images as rows of one batch: targets and starts of APGD and FAB.

Rows are attempt by attempt, the same images in each.
"""

import torch
from torch import Tensor

ROWS = {"cuda": 2048}
"""How many rows attempts on the same images may fill together, by device; a row is an attempt (a
start, a target class) on an image.

A GPU is busy only with many rows. Elsewhere one attempt comes after another, which costs less: an
image that the first one breaks never pays for the others. What a row does follows from its image
and its attempt alone, so which images break is the same either way.
"""


class Rows:
    """What a search knows of each row, as tensors of one length."""

    def keep(self, rows: Tensor) -> None:
        """Drop all other rows."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value[rows])


def broken_rows(broken: Tensor, attempts: int) -> tuple[Tensor, Tensor] | None:
    """Newly broken images' first broken rows, and all rows of the others; none if none broke."""
    images = len(broken) // attempts
    gone = broken.view(attempts, images).any(0)
    left = (~gone).nonzero().squeeze(1)
    if len(left) == images:
        return None
    stay = left + images * torch.arange(attempts, device=left.device)[:, None]
    return best_rows(broken.int(), attempts)[gone], stay.flatten()


def best_rows(values: Tensor, attempts: int) -> Tensor:
    """The row of largest value of each image, of equal ones that of the earliest attempt."""
    images = len(values) // attempts
    attempt = values.view(attempts, images).argmax(0)
    return attempt * images + torch.arange(images, device=values.device)


def likeliest_wrong(logits: Tensor, labels: Tensor, count: int) -> Tensor:
    """The wrong classes of largest logit of each image, at most `count`, the largest first."""
    wrong = logits.scatter(1, labels[:, None], -torch.inf)
    return wrong.topk(min(count, logits.shape[1] - 1)).indices
