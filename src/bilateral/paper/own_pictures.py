"""The recipe `folder`: a robust model of a user's own pictures, chosen by their size and number.

Not the paper's: noise of twice the budget and one untargeted step that is not projected (N-FGSM),
averaged weights, and a guard that acts, as nobody watches such a run. Labels are one-hot: with the
paper's the same run was less robust (`studies/own-digits.toml`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bilateral.budgets import fraction_text
from bilateral.config import Adversary, Data, Labels, Optimiser, Run
from bilateral.errors import UserError
from bilateral.runs import weights_file

if TYPE_CHECKING:
    from bilateral.data.survey import Survey

NAME = "folder"
SMALL = 64
"""Pixels of a side up to which images go to a network that does not shrink them at its start."""
CROPPED = 16
"""Pixels of a side from which images are cropped: a crop moves by up to 4, half of 8 pixels."""
SIZES = (32, SMALL, 128, 224)
"""What pictures of different size, or large ones, are resized to."""
FEW = 5000
"""Below so many pictures, photographs (those above `SMALL`) are shrunk to the smallest size, and a
small network is trained, for fewer epochs.

From some hundred a network for large images learns little in the time (`own-photographs.toml`), and
any network memorises them soon after it has learnt from them (`own-few.toml`).
"""
FEW_MODEL, FEW_EPOCHS, FEW_BATCH, UPDATES = "wrn-16-2", 50, 32, 500
"""Very few pictures are seen for more epochs, until there have been so many updates."""
TURN = 0.03
"""Few pictures are learnt with weights that turn, in half of the epochs (`own-turn.toml`);
a user's own network may have nothing to turn."""
BEGUN_EPOCHS = 60
"""With weights to begin with (`own-source.toml`); few pictures then come in batches of 128 too."""
SMALL_BUDGET, LARGE_BUDGET = 8 / 255, 4 / 255
"""CIFAR-10's usual budget, and half of it for photographs, where 8/255 is easily seen."""
LARGEST_BATCH, FEWEST_STEPS = 128, 4
IMAGES_SEEN, EPOCHS = 1_500_000, (30, 100)
"""Thirty epochs of CIFAR-10, in no fewer and no more epochs than these (`own-middle.toml`)."""
IMAGES_A_READING, LEAST_OFTEN = 25_000, 40
"""A reading of an acting guard takes about an eighth as long as an epoch of so many images.

Between two of them it also looks where the training attack's accuracy leaps.
"""

FOLDER = Run(
    data=Data(name="folder:PATH"),
    model="preact-resnet-18",
    adversary=Adversary(
        epsilon=SMALL_BUDGET, step_size=SMALL_BUDGET, start_width=2.0, projection="none"
    ),
    labels=Labels(rule="one-hot"),
    optimiser=Optimiser(schedule="triangular", weight_decay=5e-4),
    epochs=EPOCHS[0],
    averaging=0.999,
    guard="two-step",
)


def for_folder(given: Run) -> tuple[Run, "Survey"]:
    """The recipe for the folder that a run names, and the survey of that folder."""
    from bilateral.data.survey import survey_folder

    kind, _, path = given.data.name.partition(":")
    if given.data.name == FOLDER.data.name:
        raise UserError("the recipe folder needs --data folder:PATH, with one subfolder per class")
    if kind != NAME:
        name = given.data.name
        meant = f"did you mean folder:{name}?" if Path(name).is_dir() else ""
        hint = meant or "see `bilateral list recipes`"
        raise UserError(f"the recipe folder is for --data folder:PATH, not {name}; {hint}")
    survey = survey_folder(Path(path))
    return chosen(survey, given, network_of(given)), survey


@dataclass(frozen=True)
class Network:
    """A network of the table, and the image size that its weights were trained at."""

    model: str
    image_size: int


def network_of(given: Run) -> Network | None:
    """The network of the weights that a run is to begin with, where their file names it."""
    if given.weights is None:
        return None
    from bilateral.weights import about_of, check_network

    path = weights_file(given.weights)
    about = about_of(path)
    if about is None or not isinstance(model := about.get("model"), str):
        return None
    height, width = about["image_size"]
    if ":" in model or height != width:  # code is not run on a file's word
        return None
    check_network(path, model, about)
    return Network(model, height)


def chosen(survey: "Survey", given: Run, network: Network | None = None) -> Run:
    """The recipe for such pictures, by the data, image size, model and weights of `given`.

    With weights to begin with, `network` decides model and image size. The caller then replaces
    what is chosen by whatever was given explicitly.
    """
    images = survey.images
    if given.data.images_per_class is not None:
        images = min(images, given.data.images_per_class * survey.classes)
    few, begun = images < FEW, given.weights is not None
    size = given.image_size or (network.image_size if network else _image_size(survey, images))
    large = size is not None and size > SMALL
    small = FEW_MODEL if few else "preact-resnet-18"
    photographs = large or survey.side > SMALL
    budget = LARGE_BUDGET if photographs else SMALL_BUDGET
    batch = _batch_size(images, FEW_BATCH if few and not begun else LARGEST_BATCH)
    rate = FOLDER.optimiser.learning_rate * batch / LARGEST_BATCH
    epochs = min(max(round(IMAGES_SEEN / images), EPOCHS[0]), EPOCHS[1])
    turning = few and not (begun or large) and given.model == FOLDER.model
    if few:
        enough = FEW_EPOCHS // 2 if turning else FEW_EPOCHS
        epochs = BEGUN_EPOCHS if begun else max(enough, -(-UPDATES // (images // batch)))
    optimiser = FOLDER.optimiser.with_fields(
        batch_size=batch, learning_rate=rate, turn=TURN if turning else None
    )
    augment = "resized-crop-flip" if photographs else "crop-flip"
    if (size or survey.side) < CROPPED:
        augment = "none"
    return FOLDER.with_fields(
        recipe=NAME,
        data=FOLDER.data.with_fields(name=given.data.name, augment=augment),
        model=network.model if network else "resnet-50" if large else small,
        image_size=size,
        adversary=FOLDER.adversary.with_fields(epsilon=budget, step_size=budget),
        optimiser=optimiser,
        epochs=epochs,
        check_epochs=min(max(round(IMAGES_A_READING / images), 1), LEAST_OFTEN),
    )


def _image_size(survey: "Survey", images: int) -> int | None:
    """None where all are small and alike: then they are read as they are."""
    if survey.size is not None and max(survey.size) <= SMALL:
        return None
    if survey.side > SMALL and images < FEW:
        return SIZES[0]
    return max((size for size in SIZES if size <= survey.side), default=SIZES[0])


def _batch_size(images: int, size: int) -> int:
    """`size`, or a power of two that leaves some steps to an epoch; of very few images, all."""
    while size > max(images // FEWEST_STEPS, 8):
        size //= 2
    return min(size, images)


def described(run: Run, survey: "Survey") -> str:
    """What is trained on what, in one line."""
    adversary, labels = run.adversary, run.labels
    seen = f"shorter side {survey.side} pixels"
    if survey.size is not None:
        seen = "{} x {} pixels".format(*survey.size)
    size = f"{run.image_size} x {run.image_size}" if run.image_size else "as they are"
    rule = f"{labels.rule} labels"
    if labels.rule in ("adversarial", "supplementary"):
        ratio = "classes - 1" if labels.ratio is None else f"{labels.ratio:g}"
        rule += f" (ratio {ratio})"
    of_each = run.data.images_per_class
    part = f", {of_each:,} of each for training" if of_each else ""
    turn = run.optimiser.turn
    steps = f"convolutions turn by {turn:g}, " if turn else ""
    return (
        f"{survey.images:,} pictures in {survey.classes} classes ({seen}){part}, "
        f"{survey.test_images:,} more for test: {run.model}, images "
        f"{size}, budget {fraction_text(adversary.epsilon)}, {rule}, "
        f"epochs {run.epochs}, batches of {run.optimiser.batch_size}, {steps}guard {run.guard}; "
        "every choice is an option (--help)"
    )
