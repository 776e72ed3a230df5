"""Square attack (Andriushchenko et al. 2020, arXiv 1912.00049, L-inf): random search by squares.

Every image stays at corners of its ball: vertical stripes at first, then a square at a random
place is set to one sign per channel, and kept where that increases the margin. No gradients.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bilateral.attacks import ball, losses
from bilateral.attacks.outcome import Attacked
from bilateral.attacks.settings import Square
from bilateral.randomness import derive, fresh_keys, integers, uniform

HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""The queries, out of ten thousand, after which the squares' share of the pixels halves."""
LOOK = {"cuda": 10}
"""After how many queries the host checks which images are broken, by device; elsewhere after each.

The check waits for the GPU. Until then a broken image is queried in vain; nothing else changes.
"""
DRAWN = 50
"""The number of queries whose squares are drawn at once."""
_START = 400  # the first of the numbers from which searches derive their keys


def square(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    settings: Square,
    keys: Tensor | None = None,
    slack: float = 0.0,
) -> Attacked:
    """Attack `images` inside the ball of `settings.epsilon`.

    An image leaves the batch once a query fools the model (see `LOOK`), and that query is returned;
    for a survivor it is the one of largest margin. `keys` determine each image's stripes, places
    and signs. The caller puts the model into eval mode and chooses the precision by autocast.
    """
    clean = images.detach()
    if keys is None:
        keys = fresh_keys(len(images), images.device)
    with torch.no_grad():
        reference = model(clean).float()
        result, fooled = clean.clone(), losses.fools(reference, labels, slack)
        largest_margin = torch.full_like(reference[:, 0], -torch.inf)
        forwards = len(labels)
        for restart in range(settings.restarts):
            left = (~fooled).nonzero().squeeze(1)
            if not len(left):
                break
            restart_keys = derive(keys[left], _START + restart)
            found, margins, queries = _search(
                model, clean[left], labels[left], settings, restart_keys, slack
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
    model: nn.Module,
    clean: Tensor,
    labels: Tensor,
    settings: Square,
    keys: Tensor,
    slack: float,
) -> tuple[Tensor, Tensor, int]:
    """One search: the best images, their margins (infinite where they fool), the images queried."""
    look, forwards = LOOK.get(clean.device.type, 1), 0
    low, high = (ball.project(clean + end, clean, settings.epsilon) for end in (-1, 1))
    current = _stripes(low, high, keys)
    best = torch.full(labels.shape, -torch.inf, device=clean.device)
    result, margins = current.clone(), torch.full_like(best, torch.inf)
    place, fooled = torch.arange(len(labels), device=labels.device), torch.zeros_like(best) > 0
    for query in range(settings.queries):
        if query % DRAWN == 0:
            squares = _draw(query, settings, clean, keys)
        proposal = _propose(current, low, high, squares, query % DRAWN) if query else current
        logits = model(proposal).float()
        forwards += len(logits)
        margin, broken = losses.margin(logits, labels, None), losses.fools(logits, labels, slack)
        kept = (broken | (margin > best)) & ~fooled
        best = torch.where(kept, margin, best)
        current = torch.where(ball.per_image(kept, current), proposal, current)
        fooled = fooled | broken
        if (query + 1) % look and query + 1 < settings.queries:
            continue
        stay = (~fooled).nonzero().squeeze(1)
        if len(stay) == len(fooled):
            continue
        result[place[fooled]] = current[fooled]
        if not len(stay):
            return result, margins, forwards
        place, clean, labels, keys = place[stay], clean[stay], labels[stay], keys[stay]
        low, high, current, best = low[stay], high[stay], current[stay], best[stay]
        squares, fooled = squares.keep(stay), fooled[stay]
    result[place], margins[place] = current, best
    return result, margins, forwards


def _stripes(low: Tensor, high: Tensor, keys: Tensor) -> Tensor:
    """The start: a random end of the ball for every column of every channel."""
    return torch.where(integers(keys, 2, (low.shape[1], 1, low.shape[3])) > 0, high, low)


@dataclass(frozen=True)
class _Squares:
    """Masks of the next queries' squares, by query and by image.

    The rows and the columns of a square, the channels that it sets to the ball's upper end, and
    the one channel that is set to its other end if that would change nothing.
    """

    rows: Tensor
    columns: Tensor
    raised: Tensor
    turned: Tensor

    def keep(self, images: Tensor) -> "_Squares":
        """The squares of some images."""
        masks = (self.rows, self.columns, self.raised, self.turned)
        return _Squares(*(mask[:, images] for mask in masks))


def _draw(first: int, settings: Square, clean: Tensor, keys: Tensor) -> _Squares:
    """The squares of the queries from `first` on, drawn at once for fewer launches on a GPU."""
    channels, height, width = clean.shape[1:]
    queries = range(first, first + DRAWN)
    sides = [side_length(query, settings, height, width) for query in queries]
    side = torch.tensor(sides, device=clean.device)[:, None, None]
    draws = uniform(derive(keys, first), (DRAWN, 3 + channels)).transpose(0, 1)

    def span(draw: Tensor, size: int) -> Tensor:
        """`side` consecutive places out of `size`."""
        start = (draw * (size - side + 1)).long()
        place = torch.arange(size, device=clean.device)
        return (place >= start) & (place < start + side)

    turned = torch.arange(channels, device=clean.device) == (draws[..., 2:3] * channels).long()
    return _Squares(
        rows=span(draws[..., :1], height)[:, :, None, :, None],
        columns=span(draws[..., 1:2], width)[:, :, None, None],
        raised=(draws[..., 3:] >= 0.5)[..., None, None],
        turned=turned[..., None, None],
    )


def _propose(current: Tensor, low: Tensor, high: Tensor, squares: _Squares, query: int) -> Tensor:
    """The current images, in each a square set to one end of the ball per channel.

    Where that would change nothing, one random channel is set to its other end, so that no query
    is spent on an image already known.
    """
    inside = squares.rows[query] & squares.columns[query]
    raised = squares.raised[query]
    changes = (torch.where(raised, high, low) != current) & inside
    unchanged = ~changes.flatten(1).any(1)
    raised = raised ^ (squares.turned[query] & ball.per_image(unchanged, current))
    return torch.where(inside, torch.where(raised, high, low), current)
