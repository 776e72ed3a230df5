"""What every attack returns."""

from typing import NamedTuple

from torch import Tensor


class Attacked(NamedTuple):
    """What an attack found: the images, which of them fooled the model, and what it cost.

    `forwards` and `backwards` count images passed through the network. `reference` holds the
    logits that chose targets, where the attack computed them.
    """

    images: Tensor
    fooled: Tensor
    forwards: int
    backwards: int
    reference: Tensor | None = None
