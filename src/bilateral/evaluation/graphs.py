"""Batches padded to few sizes on a GPU, and passes without gradients replayed as CUDA graphs.

Images leave a search as they break, and every new batch size costs cuDNN a new plan for each layer.
A search without gradients makes thousands of passes over a few hundred images, and launching one
kernel by kernel can take the host longer than the GPU needs to compute it.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

DEVICE = "cuda"
"""The device type on which passes can be captured."""
STEP, GRADIENT_STEP = 16, 64
"""Batches are padded to a multiple of these, without gradients and with them."""
LARGEST = 512
"""Larger batches keep the GPU busy for longer than their launches take."""
WORTH = 20
"""How often a size must occur before it is captured: a capture costs as much as many passes."""


def padded(count: int, step: int = STEP) -> int:
    """The size that `count` images are padded to: a power of two, or a multiple of `step`."""
    return 1 << (count - 1).bit_length() if count < step else -(-count // step) * step


class Replayed(nn.Module):
    """The same function as a frozen model in eval mode that treats every image by itself.

    On a GPU images are made channels-last, like the weights; otherwise cuDNN transposes the first
    layer's maps. Calls with gradients run the model itself, as do all calls once a capture has
    failed. A captured pass does not run the model's Python again.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._asked: Counter[tuple[Any, ...]] = Counter()
        self._captured: dict[tuple[Any, ...], _Captured] = {}
        self._pool: Any = None
        # Autocast keeps its copies of weights that need gradients outside of a graph's memory.
        self._possible = not any(weight.requires_grad for weight in model.parameters())

    def forward(self, images: Tensor) -> Tensor:
        """Logits, from a graph once one is captured for the size, layout and precision."""
        if images.device.type != DEVICE:
            logits: Tensor = self.model(images)
            return logits
        images = images.contiguous(memory_format=torch.channels_last)
        if self._replayable(images):
            key = _key(images)
            if key not in self._captured:
                self._asked[key] += 1
                if self._asked[key] == WORTH:
                    self._capture(key, images)
            if key in self._captured:
                return self._captured[key].replay(images)
        filled = padded(len(images), GRADIENT_STEP) - len(images) if len(images) else 0
        rows = torch.cat([images, images[:1].detach().expand(filled, -1, -1, -1)])
        logits = self.model(rows)
        return logits[: len(images)]

    def _replayable(self, images: Tensor) -> bool:
        small = 0 < len(images) <= LARGEST
        return self._possible and small and not torch.is_grad_enabled()

    def _capture(self, key: tuple[Any, ...], images: Tensor) -> None:
        """Capture a pass of a padded batch, or give up on graphs for good."""
        rows = torch.arange(padded(len(images)), device=images.device) % len(images)
        try:
            captured = _record(self.model, images[rows], self._pool)
        except RuntimeError:  # the model synchronises with the host, or memory ran out
            self._possible = False
            self._captured.clear()
        else:
            self._captured[key], self._pool = captured, captured.graph.pool()


@dataclass(frozen=True)
class _Captured:
    """A captured pass, and the memory that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    images: Tensor
    logits: Tensor

    def replay(self, images: Tensor) -> Tensor:
        """The logits of these images; the padding is left over from earlier calls."""
        self.images[: len(images)].copy_(images)
        self.graph.replay()
        return self.logits[: len(images)].clone()


def _key(images: Tensor) -> tuple[Any, ...]:
    """What is fixed in a captured pass: size, layout, type and precision."""
    kind = images.device.type
    precision = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    layout = (images.shape[1:], images.stride()[1:])
    return (padded(len(images)), *layout, images.dtype, images.device, precision)


def _record(model: nn.Module, images: Tensor, pool: Any) -> _Captured:
    """Warm up on a side stream, as CUDA graphs require, and capture one pass."""
    with torch.cuda.device(images.device):
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            for _ in range(3):
                model(images)
        here.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        before = generator.clone_state()
        try:
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                logits = model(images)
        except RuntimeError:
            generator.graphsafe_set_state(before)  # a failed capture leaves it in capture mode
            raise
        finally:
            torch.cuda.set_stream(here)  # a failed capture leaves its own stream set
    return _Captured(graph, images, logits)
