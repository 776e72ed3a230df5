"""Several attempts on the same images as rows of one batch: targets and starts of APGD and FAB.

Rows are ordered by attempt, with the same images in each.
"""

import torch
from torch import Tensor

ROWS = {"cuda": 2048}
"""How many rows a batch of attempts on the same images may have, by device; a row is an attempt (a
start, a target class) on an image.

A GPU is busy only with many rows. Elsewhere attempts run one after another, which costs less: an
image that the first one breaks skips the rest. A row depends on its image and its attempt alone, so
the same images break either way.
"""


class Rows:
    """The state of each row of a search, as tensors of equal length."""

    def keep(self, rows: Tensor) -> None:
        """Drop all other rows."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value[rows])


def broken_rows(broken: Tensor, attempts: int) -> tuple[Tensor, Tensor] | None:
    """The first broken row of each broken image, and all rows of the rest; None if none broke."""
    images = len(broken) // attempts
    gone = broken.view(attempts, images).any(0)
    left = (~gone).nonzero().squeeze(1)
    if len(left) == images:
        return None
    stay = left + images * torch.arange(attempts, device=left.device)[:, None]
    return best_rows(broken.int(), attempts)[gone], stay.flatten()


def best_rows(values: Tensor, attempts: int) -> Tensor:
    """The row of largest value of each image; among equal ones, that of the earliest attempt."""
    images = len(values) // attempts
    attempt = values.view(attempts, images).argmax(0)
    return attempt * images + torch.arange(images, device=values.device)


def likeliest_wrong(logits: Tensor, labels: Tensor, count: int) -> Tensor:
    """The wrong classes of largest logit of each image, at most `count`, in descending order."""
    wrong = logits.scatter(1, labels[:, None], -torch.inf)
    return wrong.topk(min(count, logits.shape[1] - 1)).indices
