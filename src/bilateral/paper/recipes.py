"""A recipe for every model that the paper trains; each derives from another by small edits.

Names are `<data>-<method>[-<variant>][-long]`; `-long` is the paper's "+" (200 epochs). `-fast`,
`-strong` and `-wide` are ours, and `folder` is for a user's own pictures.
"""

from dataclasses import dataclass
from typing import Any

from bilateral.config import Adversary, Data, Labels, Optimiser, Run
from bilateral.errors import unknown
from bilateral.paper import beyond, own_pictures


@dataclass(frozen=True)
class Recipe:
    """A named run and a line about it."""

    summary: str
    run: Run


ONE_HOT = Labels(rule="one-hot")
SMOOTHED = Labels(rule="smoothing", budget=0.5)
LABEL_ADVERSARY = Labels(rule="adversarial", ratio=9)
LONG = (0.5, 0.75)


def one_step(pixels: int = 8, **fields: Any) -> Adversary:
    """One step of the whole budget, given in 255ths."""
    return Adversary(epsilon=pixels / 255, step_size=pixels / 255, **fields)


def multi_step(steps: int, step_pixels: float, pixels: int = 8, **fields: Any) -> Adversary:
    """PGD at a budget in 255ths: untargeted, from a random start."""
    return Adversary(epsilon=pixels / 255, steps=steps, step_size=step_pixels / 255, **fields)


MC = one_step(target="most-confusing")

# method name -> (summary, method, adversary, labels); each is trained on CIFAR-10 by the paper
_CIFAR10: dict[str, tuple[str, str, Adversary, Labels]] = {
    "undefended": ("ordinary training", "undefended", one_step(), ONE_HOT),
    "fgsm": (
        "one untargeted step, no random start (leaks labels)",
        "adversarial",
        one_step(random_start=False),
        ONE_HOT,
    ),
    "r-fgsm": ("one untargeted step, random start", "adversarial", one_step(), ONE_HOT),
    "ll": (
        "one step to the least likely class, no random start (leaks labels)",
        "adversarial",
        one_step(target="least-likely", random_start=False),
        ONE_HOT,
    ),
    "r-ll": (
        "one step to the least likely class, random start",
        "adversarial",
        one_step(target="least-likely"),
        ONE_HOT,
    ),
    "mc": (
        "one step to the most confusing class, no random start",
        "adversarial",
        one_step(target="most-confusing", random_start=False),
        ONE_HOT,
    ),
    "r-mc": ("one step to the most confusing class, random start", "adversarial", MC, ONE_HOT),
    "r-fgsm-ls": ("R-FGSM with label smoothing 0.5", "adversarial", one_step(), SMOOTHED),
    "r-mc-ls": ("R-MC with label smoothing 0.5", "adversarial", MC, SMOOTHED),
    "r-mc-la": (
        "the paper's method: R-MC with adversarial labels, ratio 9",
        "adversarial",
        MC,
        LABEL_ADVERSARY,
    ),
    **{
        f"r-mc-la-eps{pixels}": (
            f"R-MC-LA trained at {pixels}/255",
            "adversarial",
            one_step(pixels, target="most-confusing"),
            LABEL_ADVERSARY,
        )
        for pixels in (1, 2, 4, 12, 16)
    },
    "r-mc-la-sup": (
        "R-MC-LA with the appendix's label formula",
        "adversarial",
        MC,
        Labels(rule="supplementary", ratio=9),
    ),
    "madry": ("PGD adversarial training, 7 steps of 2", "adversarial", multi_step(7, 2), ONE_HOT),
    "madry-2x8": (
        "PGD adversarial training, 2 steps of 8",
        "adversarial",
        multi_step(2, 8),
        ONE_HOT,
    ),
    "madry-la": (
        "7 steps of 2 with adversarial labels",
        "adversarial",
        multi_step(7, 2),
        LABEL_ADVERSARY,
    ),
    "trades": (
        "TRADES: 10 steps of 2 on the divergence, weight 6",
        "trades",
        # TRADES starts from noise of 0.001, a thirty-second of the budget.
        multi_step(10, 2, loss="divergence", start_width=1 / 32, clip_start=True),
        ONE_HOT,
    ),
}

# name -> (summary, labels, adversary); beta is 11 on CIFAR-100 (appendix)
_CIFAR100: dict[str, tuple[str, Labels, Adversary]] = {
    "r-mc-la": ("the paper's method, ratio 11", Labels(ratio=11), MC),
    "r-mc-la9": (
        "R-MC-LA with the label's mass on nine wrong classes",
        Labels(ratio=11, top_k=9),
        MC,
    ),
    "madry": ("PGD adversarial training, 7 steps of 2", ONE_HOT, multi_step(7, 2)),
}

# methods of `_CIFAR10`; digits are not mirrored, and the learning rate starts at 0.01
_SVHN = ("undefended", "r-mc-la", "r-mc-la-eps4", "madry")

_IMAGENET = Run(
    data=Data(name="folder:imagenet", augment="resized-crop-flip"),
    model="resnet-50",
    image_size=224,
    # One step of 16 leaks labels (section "ImageNet Dataset"), so two of 8.
    adversary=multi_step(2, 8, 16, target="most-confusing"),
    labels=Labels(ratio=100),
    optimiser=Optimiser(batch_size=256, weight_decay=1e-4, milestones=(0.3, 0.6, 0.9)),
    epochs=100,
)

_DIGITS = Run(
    data=Data(name="digits", augment="none"),
    check_epochs=5,  # an epoch of so few images costs no more than a reading
    model="small-cnn",
    adversary=one_step(40, target="most-confusing"),
    labels=LABEL_ADVERSARY,
    optimiser=Optimiser(batch_size=64),
    epochs=30,
)


def _table() -> dict[str, Recipe]:
    recipes = {
        "digits-undefended": Recipe(
            "ordinary training on the digits",
            _DIGITS.with_fields(method="undefended", labels=ONE_HOT),
        ),
        "digits-r-mc-la": Recipe("the paper's method on the digits, 40/255", _DIGITS),
        "digits-madry": Recipe(
            "PGD adversarial training on the digits, 7 steps of 10 at 40/255",
            _DIGITS.with_fields(adversary=multi_step(7, 10, 40), labels=ONE_HOT),
        ),
    }
    for name, (summary, method, adversary, labels) in _CIFAR10.items():
        recipes[f"cifar10-{name}"] = Recipe(
            f"CIFAR-10: {summary}",
            Run.model_validate({"method": method, "adversary": adversary, "labels": labels}),
        )
    for name, (summary, labels, adversary) in _CIFAR100.items():
        data = Data(name="cifar100")
        recipes[f"cifar100-{name}"] = Recipe(
            f"CIFAR-100: {summary}", Run(data=data, labels=labels, adversary=adversary)
        )
    for name in _SVHN:
        recipe = recipes[f"cifar10-{name}"]
        optimiser = recipe.run.optimiser.with_fields(learning_rate=0.01)
        data = Data(name="svhn", augment="crop")
        recipes[f"svhn-{name}"] = Recipe(
            recipe.summary.replace("CIFAR-10", "SVHN"),
            recipe.run.with_fields(data=data, optimiser=optimiser),
        )
    for name in [name for name in recipes if not name.startswith("digits")]:
        recipe = recipes[name]
        optimiser = recipe.run.optimiser.with_fields(milestones=LONG)
        recipes[f"{name}-long"] = Recipe(
            f"{recipe.summary}; 200 epochs",
            recipe.run.with_fields(epochs=200, optimiser=optimiser),
        )
    for depth in (50, 101, 152):
        recipes[f"imagenet-r-mc-la-resnet{depth}"] = Recipe(
            f"ImageNet, ResNet-{depth}: R-MC-LA at 16/255, two steps of 8, ratio 100",
            _IMAGENET.with_fields(model=f"resnet-{depth}"),
        )
    recipes["imagenet-madry-resnet50"] = Recipe(
        "ImageNet, ResNet-50: PGD adversarial training at 16/255, 10 steps of 3",
        _IMAGENET.with_fields(adversary=multi_step(10, 3, 16), labels=ONE_HOT),
    )
    # Ours come first: they are what most users want of so long a list.
    ours = {name: Recipe(summary, run) for name, (summary, run) in beyond.RUNS.items()}
    ours[own_pictures.NAME] = Recipe(
        "your own pictures (--data folder:PATH): wide noise, one step, the rest by their size and "
        "number",
        own_pictures.FOLDER,
    )
    return {
        name: Recipe(recipe.summary, recipe.run.with_fields(recipe=name))
        for name, recipe in {**ours, **recipes}.items()
    }


RECIPES: dict[str, Recipe] = _table()


def recipe_named(name: str) -> Run:
    """The run that a recipe's name stands for."""
    if recipe := RECIPES.get(name):
        return recipe.run
    raise unknown("recipe", name, RECIPES)
