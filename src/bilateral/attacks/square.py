"""Square attack (Andriushchenko et al. 2020, arXiv 1912.00049, L-inf): random search by squares.

Every image stays at corners of its ball: vertical stripes at first, then a square at a random
place is set to one sign per channel, and kept where that increases the margin. No gradients.
"""

import math

import torch
from torch import Tensor, nn

from bilateral.attacks import ball, losses
from bilateral.attacks.outcome import Attacked
from bilateral.attacks.settings import Square
from bilateral.randomness import derive, fresh_keys, integers, uniform

HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""The queries, out of ten thousand, after which the squares' share of the pixels halves."""
_START = 400  # the first of the numbers from which searches derive their keys


def square(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    settings: Square,
    keys: Tensor | None = None,
) -> Attacked:
    """Attack `images` inside the ball of `settings.epsilon`.

    An image leaves the batch the moment a query fools the model, and that query is returned; of
    a survivor it is the one of largest margin. `keys` decide stripes, places and signs image by
    image. The caller puts the model into eval mode and chooses the precision by autocast.
    """
    clean = images.detach()
    if keys is None:
        keys = fresh_keys(len(images), images.device)
    with torch.no_grad():
        reference = model(clean).float()
        result, fooled = clean.clone(), reference.argmax(1) != labels
        largest_margin = torch.full_like(reference[:, 0], -torch.inf)
        forwards = len(labels)
        for restart in range(settings.restarts):
            left = (~fooled).nonzero().squeeze(1)
            if not len(left):
                break
            restart_keys = derive(keys[left], _START + restart)
            found, margins, queries = _search(
                model, clean[left], labels[left], settings, restart_keys
            )
            better = margins > largest_margin[left]
            result[left[better]] = found[better]
            largest_margin[left] = torch.maximum(largest_margin[left], margins)
            fooled[left] = margins == torch.inf
            forwards += queries
    return Attacked(result, fooled, forwards, 0, reference)


def side_length(query: int, settings: Square, height: int, width: int) -> int:
    """The side of the squares of a query: the root of their share of the pixels, rounded."""
    halvings = sum(query * 10_000 > after * settings.queries for after in HALVINGS)
    side = round(math.sqrt(settings.p_init / 2**halvings * height * width))
    return min(max(side, 1), height, width)


def _search(
    model: nn.Module, clean: Tensor, labels: Tensor, settings: Square, keys: Tensor
) -> tuple[Tensor, Tensor, int]:
    """One search: the best images, their margins (infinite where they fool), the images queried."""
    height, width = clean.shape[2:]
    current = _stripes(clean, settings.epsilon, keys)
    best = torch.full(labels.shape, -torch.inf, device=clean.device)
    result, margins = current.clone(), torch.full_like(best, torch.inf)
    place = torch.arange(len(labels), device=labels.device)
    forwards = 0
    for query in range(settings.queries):
        if query:
            side = side_length(query, settings, height, width)
            window, proposal = _propose(clean, current, side, settings.epsilon, derive(keys, query))
            before = current[window]
            current[window] = proposal
        logits = model(current).float()
        forwards += len(logits)
        broken = logits.argmax(1) != labels
        margin = losses.margin(logits, labels, None)
        kept = broken | (margin > best)
        best = torch.where(kept, margin, best)
        if query:
            current[window] = torch.where(kept[:, None, None, None], proposal, before)
        stay = (~broken).nonzero().squeeze(1)
        if len(stay) < len(broken):
            result[place[broken]] = current[broken]
            place, clean, labels, keys = place[stay], clean[stay], labels[stay], keys[stay]
            current, best = current[stay], best[stay]
        if not len(stay):
            break
    result[place], margins[place] = current, best
    return result, margins, forwards


def _stripes(clean: Tensor, epsilon: float, keys: Tensor) -> Tensor:
    """The start: a random sign for every column of every channel."""
    signs = 2 * integers(keys, 2, (clean.shape[1], 1, clean.shape[3])) - 1
    return _corner(clean, epsilon, signs)


def _corner(clean: Tensor, epsilon: float, signs: Tensor) -> Tensor:
    """The corner of the ball that the signs point to."""
    return ball.project(clean + epsilon * signs.to(clean.dtype), clean, epsilon)


def _propose(
    clean: Tensor, current: Tensor, side: int, epsilon: float, keys: Tensor
) -> tuple[tuple[Tensor, ...], Tensor]:
    """A square at a random place of each image, as an index, and its new pixels.

    Where the drawn signs would change nothing, the sign of one random channel is turned, so that
    no query is spent on an image already known.
    """
    count, channels, height, width = clean.shape
    images, colours, offsets = (
        torch.arange(size, device=clean.device) for size in (count, channels, side)
    )
    draws = uniform(keys, (3 + channels,))
    top = (draws[:, :1] * (height - side + 1)).long() + offsets
    left = (draws[:, 1:2] * (width - side + 1)).long() + offsets
    window = (
        images[:, None, None, None],
        colours[:, None, None],
        top[:, None, :, None],
        left[:, None, None, :],
    )
    centre = clean[window]
    signs = torch.where(draws[:, 3:] < 0.5, -1, 1)[:, :, None, None]
    unchanged = (_corner(centre, epsilon, signs) == current[window]).flatten(1).all(1)
    turned = unchanged[:, None] & (colours == (draws[:, 2:3] * channels).long())
    signs = torch.where(turned[:, :, None, None], -signs, signs)
    return window, _corner(centre, epsilon, signs)
