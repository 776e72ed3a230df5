"""`bilateral evaluate`: attack a trained model and record what is left of it."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import tyro

from bilateral.arguments import budget, call
from bilateral.attacks.table import attack_names
from bilateral.commands.printing import print_json
from bilateral.errors import UserError
from bilateral.results import Evaluation
from bilateral.tables import Format, evaluation_table, render

if TYPE_CHECKING:
    import torch

    from bilateral.evaluation.target import Target


def command(words: Sequence[str]) -> None:
    """`bilateral evaluate TARGET`."""

    def evaluate(
        target: Annotated[str, tyro.conf.Positional],
        /,
        attacks: str = "fgsm,pgd20,pgd20-cw",
        images: int | None = None,
        epsilon: str | None = None,
        batch_size: int | None = None,
        data: str | None = None,
        image_size: int | None = None,
        out: str | None = None,
        save_adversarial: bool = False,
        force: bool = False,
        device: str | None = None,
        quiet: bool = False,
        json: bool = False,
        format: Format = "text",
    ) -> None:
        """Attack a trained model and record accuracy, flags and cost in its folder.

        Goes on where it was interrupted; what was measured before is not measured again.

        Args:
            target: a run folder, or file.py:function / package.module:function that returns a
                model taking images in [0, 1] and returning logits (then --data says on what).
            attacks: comma-separated names from `bilateral list attacks`.
            images: a seeded, class-balanced subset of so many test images; all without it.
            epsilon: L-inf budget; 8/255 by default, 40/255 on the digits.
            batch_size: images attacked together.
            data: a data set's name or folder:PATH; the run's own by default.
            image_size: resize and crop the pictures of folder:PATH to this.
            out: where results go; the run folder, or evaluations/<name>/ for other targets.
            save_adversarial: keep all adversarial images in <out>/adversarial/, for
                `bilateral verify`.
            force: go on where a guard refuses the model.
            device: the GPU if there is one.
            quiet: no progress.
            json: print this evaluation's entry as JSON.
            format: how the table is printed.
        """
        size = budget("--epsilon", epsilon)
        entry = evaluate_run(
            target,
            attacks,
            images,
            size,
            batch_size,
            data,
            image_size,
            out,
            device,
            quiet,
            save_adversarial,
            force,
        )
        if json:
            print_json(entry.model_dump(mode="json"))
        else:
            print(render(evaluation_table(entry), format))

    call(evaluate, words, "bilateral evaluate")


def evaluate_run(
    target: str,
    attacks: str,
    images: int | None = None,
    epsilon: float | None = None,
    batch_size: int | None = None,
    data: str | None = None,
    image_size: int | None = None,
    out: str | None = None,
    device: str | None = None,
    quiet: bool = False,
    save_adversarial: bool = False,
    force: bool = False,
) -> Evaluation:
    """Evaluate a target and return the entry of this call."""
    names = attack_names(attacks)
    if batch_size is not None and batch_size < 1:
        raise UserError(f"--batch-size {batch_size}: at least one image")
    from bilateral.evaluation.campaign import evaluate_target
    from bilateral.evaluation.progress import EvaluationProgress
    from bilateral.evaluation.target import find_target
    from bilateral.runtime import choose_device, limit_threads

    place = choose_device(device)
    found = find_target(target, data, image_size, out, place)
    limit_threads(place, found.split.pixels[0].size)
    size = epsilon or found.epsilon
    for message in _guard(found, size, place, force):
        print_warning(message)
    with EvaluationProgress(quiet) as progress:
        return evaluate_target(
            found, names, size, images, place, batch_size, progress.show, save_adversarial
        )


def print_warning(message: str) -> None:
    """What a guard has to say, on standard error."""
    print(f"bilateral: warning: {message}", file=sys.stderr, flush=True)


def _guard(target: "Target", epsilon: float, device: "torch.device", force: bool) -> list[str]:
    """What the guards say of a target, on a few of its test images."""
    import torch

    from bilateral.data.batches import as_floats
    from bilateral.data.subsets import balanced_subset
    from bilateral.evaluation.guards import SAMPLE, guard
    from bilateral.evaluation.robustness import check_inputs

    split = target.split
    chosen = balanced_subset(split.labels, min(SAMPLE, len(split.labels)), seed=0)
    images = as_floats(torch.from_numpy(split.pixels[chosen].transpose(0, 3, 1, 2)))
    labels = torch.from_numpy(split.labels)
    check_inputs(target.model, images[:1].to(device), labels)
    return guard(target.model, images.to(device), labels[chosen], epsilon, force)
