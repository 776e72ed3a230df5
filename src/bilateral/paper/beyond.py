"""Recipes beyond the paper, for models that hold under AutoAttack, and the table of their figures.

They learn from clean images, and pull the logits of clean and attacked images towards each other
with a weight that grows over the run (after NuAT; FGSM-PGI and LIET do the same). `FAST` is NuAT's
pull in a minute; `STRONG` has softer labels, more time, and CutMix, with which held-out readings do
not fall at the end. One-step training does not always survive so long a run, so its guard acts.
"""

from bilateral.config import Adversary, Data, Labels, Optimiser, Regulariser, Run
from bilateral.errors import unknown
from bilateral.paper.tables import CLEAN, TABLES, Attack, Column, PaperTable, Row

_BASE = Run(
    model="preact-resnet-18-silu",
    method="trades",
    labels=Labels(rule="one-hot"),
    optimiser=Optimiser(
        batch_size=512, learning_rate=0.4, schedule="triangular", weight_decay=5e-4
    ),
)

FAST = _BASE.with_fields(
    adversary=Adversary(start_width=0.5, start_corners=True, target="none"),
    regulariser=Regulariser(kind="nuclear", of="logits", rising=True, weight=11.0),
    averaging=0.995,
    check_epochs=12,
    epochs=30,
)
"""`nuat` of `studies/fast.toml`, for as many epochs as an H200 does in a minute."""

STRONG = _BASE.with_fields(
    data=Data(cutmix=0.5),
    labels=Labels(rule="one-hot", mix=0.45),
    regulariser=Regulariser(kind="squared", of="logits", rising=True, weight=2.0),
    averaging=0.998,
    guard="two-step",
    check_epochs=5,
    epochs=130,
)
"""`cutmix-last` of `studies/longest.toml` on all images, with a guard that acts."""

WIDE = STRONG.with_fields(
    data=Data(cutmix=0.5, vary=0.5),
    model="wrn-28-10-silu",
    optimiser=STRONG.optimiser.with_fields(turn=0.015),
    check_epochs=10,
    epochs=40,
)
"""STRONG with weights that turn, varied images and fewer epochs, in the paper's network."""

RUNS: dict[str, tuple[str, Run]] = {
    "cifar10-fast": (
        "CIFAR-10, beyond the paper: NuAT's regulariser and start, a minute on one H200",
        FAST,
    ),
    "cifar10-strong": (
        "CIFAR-10, beyond the paper: a growing pull between predictions, soft labels, CutMix, "
        "four minutes on one H200",
        STRONG,
    ),
    "cifar10-wide": (
        "CIFAR-10, beyond the paper: WRN-28-10, weights that turn, varied images, ten minutes on "
        "one H200",
        WIDE,
    ),
    "cifar100-strong": (
        "CIFAR-100: the same as cifar10-strong, not tried yet",
        STRONG.with_paths({"data.name": "cifar100"}),
    ),
    "svhn-strong": (
        "SVHN: the same as cifar10-strong, not mirrored, not tried yet",
        STRONG.with_paths({"data.name": "svhn", "data.augment": "crop"}),
    ),
}
"""Name -> summary and run."""

TABLE = PaperTable(
    "beyond",
    "what our own recipes keep, AutoAttack on the whole test set",
    "our own table",
    (CLEAN, Column("PGD-20", Attack("pgd20")), Column("AutoAttack", Attack("autoattack"))),
    (
        Row("cifar10-fast", "cifar10-fast", {}),
        Row("cifar10-strong", "cifar10-strong", {}),
        Row("cifar10-wide", "cifar10-wide", {}),
        Row("svhn-strong", "svhn-strong", {}),
        Row("cifar100-strong", "cifar100-strong", {}),
    ),
)

EVERY_TABLE = {**TABLES, TABLE.name: TABLE}
"""The paper's and ours."""


def table_named(name: str) -> PaperTable:
    """A table by its name on the command line."""
    if table := EVERY_TABLE.get(name):
        return table
    raise unknown("table", name, EVERY_TABLE)
