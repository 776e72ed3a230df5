"""The processes of a run under `torchrun`, one per device; without it there is one.

The process group is torch's own. Only the first process prints and writes.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from bilateral.errors import UserError
from bilateral.storage import writing_to


@dataclass(frozen=True)
class Processes:
    """This process among those of the run."""

    rank: int = 0
    world: int = 1
    host_group: Any = None
    """A group that communicates between CPUs, so that no device has to wait for it."""

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.world > 1:
            values = values.clone()
            distributed.all_reduce(values)
        return values

    def average(self, tensors: list[Tensor]) -> None:
        """Replace each tensor by its mean over all processes."""
        if self.world == 1 or not tensors:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        distributed.all_reduce(flat)
        flat /= self.world
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def largest(self, *numbers: int) -> list[int]:
        """The largest of each number over all processes, by which all stop at the same step."""
        if self.world == 1:
            return list(numbers)
        agreed = torch.tensor(numbers)
        distributed.all_reduce(agreed, distributed.ReduceOp.MAX, group=self.host_group)
        return [int(number) for number in agreed]

    @contextmanager
    def writing_to(self, folder: Path) -> Iterator[None]:
        """Hold a folder's lock in the first process; if it is refused, all processes raise."""
        if self.world == 1:
            with writing_to(folder):
                yield
            return
        with ExitStack() as stack:
            refusal = ""
            if self.first:
                try:
                    stack.enter_context(writing_to(folder))
                except (UserError, OSError) as error:
                    refusal = str(error)
            if told := self.gather(refusal)[0]:
                raise UserError(told)
            yield

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes in the order of their ranks, returned to each of them."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        distributed.all_gather_object(values, value, group=self.host_group)
        return values


def is_lost_process(error: RuntimeError) -> bool:
    """Whether an error says that another process of the group is gone; gloo has no type for it."""
    known = distributed.is_available() and isinstance(error, distributed.DistError)
    return known or "gloo" in str(error)


@contextmanager
def joined(device: torch.device) -> Iterator[Processes]:
    """The processes that torchrun started, as a group; one process without it."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Processes()
        return
    if not distributed.is_available():
        raise UserError("this torch was built without torch.distributed: one process only")
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]
    from torch.distributed.rendezvous import rendezvous

    backend = "nccl" if device.type == "cuda" else "gloo"
    bound = device if device.type == "cuda" else None
    # Restarted workers may share torchrun's store with the attempt before, whose addresses in it
    # must not be mistaken for their own.
    store, rank, world = next(rendezvous("env://"))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    distributed.init_process_group(
        backend,
        store=PrefixStore(f"attempt{attempt}", store),
        rank=rank,
        world_size=world,
        device_id=bound,
    )
    try:
        host_group = distributed.new_group(backend="gloo") if backend != "gloo" else None
        yield Processes(rank, world, host_group)
        distributed.barrier(group=host_group)
    finally:
        gc.collect()  # frees what refers to the group, or it would outlive its threads
        distributed.destroy_process_group()
