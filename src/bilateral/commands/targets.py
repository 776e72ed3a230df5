"""What commands that attack a model share: the guards' warnings about it, and printing them."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bilateral.budgets import fraction_text
from bilateral.errors import UserError
from bilateral.runs import RunFolder

if TYPE_CHECKING:
    import torch

    from bilateral.evaluation.target import Target


@contextmanager
def said_of(name: str) -> Iterator[None]:
    """Prefix errors with the name of what they are about, such as one of several models."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


def print_warning(message: str) -> None:
    """Print a warning on standard error."""
    print(f"bilateral: warning: {message}", file=sys.stderr, flush=True)


def other_budget(target: str, epsilon: float) -> list[str]:
    """A warning if a run is attacked by default at another budget than it was trained at."""
    folder = RunFolder(Path(target))
    if not folder.config.is_file():
        return []
    run = folder.read_run()
    own, here = fraction_text(run.adversary.epsilon), fraction_text(epsilon)
    if run.method == "undefended" or own == here:
        return []
    return [f"trained at {own}, attacked at {here} by default: --epsilon chooses another budget"]


def guarded(target: "Target", epsilon: float, device: "torch.device", force: bool) -> list[str]:
    """The guards' warnings about a target, from a few of its test images.

    `force` turns their refusals into warnings.
    """
    import torch

    from bilateral.data.batches import as_floats, channels_first
    from bilateral.data.readers_folder import has_test_set, location
    from bilateral.data.subsets import balanced_subset
    from bilateral.evaluation.guards import SAMPLE, guard
    from bilateral.evaluation.robustness import check_inputs

    split = target.split
    chosen = balanced_subset(split.labels, min(SAMPLE, len(split.labels)), seed=0)
    images = as_floats(channels_first(split.pixels[chosen]))
    labels = torch.from_numpy(split.labels)
    outputs = check_inputs(target.model, images[:1].to(device), labels)
    said = [
        *target.doubts,
        *guard(target.model, images.to(device), labels[chosen], epsilon, force, few=True),
    ]
    if outputs != len(split.classes):
        named = f"{target.data} has {len(split.classes)} classes"
        said.append(
            f"{named}, but the model has {outputs} outputs: does output 0 mean {split.classes[0]}?"
        )
    kind, _, path = target.data.partition(":")
    elsewhere = location(target.data) != location(target.trained_on)
    if kind == "folder" and elsewhere and not has_test_set(Path(path)):
        said.append(
            f"{target.data} has no val/ or test/: about a tenth of each class is attacked, "
            f"{len(split.labels):,} images, the part that training on it would hold out"
        )
    return said
