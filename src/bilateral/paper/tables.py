"""Every table of the paper, and its figure, as data; no torch.

A row names the recipe of a model, a column what is measured on it, and both what the paper prints.
`bilateral reproduce` trains and measures what a table asks for. White-box columns are of the last
iterate (`-last`), the paper's protocol. A table that the paper prints with a column per
model (gradients) has a row per model here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

Images = Literal["all", "correct", "wrong"]
Value = Literal["min", "mean", "max"]

COSTLY = 1000
"""Images for attacks of a hundred gradients and more; the others see the whole test set."""


@dataclass(frozen=True)
class Clean:
    """Accuracy without an attack."""


@dataclass(frozen=True)
class Attack:
    """Accuracy under a white-box attack, by its name in `bilateral evaluate --attacks`."""

    name: str


@dataclass(frozen=True)
class Transfer:
    """Accuracy on images that an attack made on another model.

    The source is a recipe's model, or the row's own recipe trained from another seed.
    """

    attack: str
    source: str | None = None


@dataclass(frozen=True)
class Gradient:
    """The loss's gradient to the image: of which images, which value, in which pixel scale.

    The norm is squared, as the paper's.
    """

    images: Images
    value: Value
    scale: Literal["[-1, 1]", "[0, 255]"]


Measure = Clean | Attack | Transfer | Gradient


@dataclass(frozen=True)
class Column:
    """A column: its title in the paper, what it measures, and on how many images (none: all)."""

    title: str
    measure: Measure
    images: int | None = None


@dataclass(frozen=True)
class Row:
    """A row: its title in the paper, the recipe, and what is printed, by column title.

    Accuracies are in per cent. A row without a recipe is `quoted`: somebody else's model, which
    is not trained here. `fields` override the recipe's.
    """

    title: str
    recipe: str | None
    printed: Mapping[str, float]
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def quoted(self) -> bool:
        """Whether the figures are of a model from elsewhere."""
        return self.recipe is None


@dataclass(frozen=True)
class PaperTable:
    """A table: where it stands in the paper, its budget in 255ths, columns and rows."""

    name: str
    title: str
    where: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    pixels: int = 8
    is_figure: bool = False


CLEAN = Column("clean", Clean())
FGSM = Column("FGSM", Attack("fgsm-last"))
CE7 = Column("CE7", Attack("pgd7-last"))
CE20 = Column("CE20", Attack("pgd20-last"))
CW20 = Column("CW20", Attack("pgd20-cw-last"))
CE100 = Column("CE100", Attack("pgd100-last"), COSTLY)
CW100 = Column("CW100", Attack("pgd100-cw-last"), COSTLY)
CW200 = Column("CW200", Attack("pgd200-cw-last"), COSTLY)
CE1000 = Column("CE1000", Attack("pgd1000-last"), COSTLY)
CW1000 = Column("CW1000", Attack("pgd1000-cw-last"), COSTLY)
AUTOATTACK = Column("AutoAttack", Attack("autoattack"), COSTLY)
"""Ours, beside the paper's columns in every table of accuracies."""

UNDEFENDED = "cifar10-undefended"
FIGURE_STEPS = (2, 5, 10, 20, 50, 100, 200)
_IMAGES: tuple[Images, ...] = ("all", "correct", "wrong")
_VALUES: tuple[Value, ...] = ("min", "mean", "max")

Line = tuple[str, str | None, str] | tuple[str, str | None, str, dict[str, Any]]
"""A row's title, recipe, printed figures in the order of the columns, and fields.

A figure that the paper does not print is `-`; a row without figures is an empty text.
"""


def _table(
    name: str,
    where: str,
    title: str,
    columns: tuple[Column, ...],
    lines: Sequence[Line],
    pixels: int = 8,
    is_figure: bool = False,
) -> PaperTable:
    """A table from what is printed; one of accuracies gets our AutoAttack column at its end."""
    rows = []
    for row_title, recipe, figures, *fields in lines:
        texts = figures.split() or ["-"] * len(columns)
        cells = zip(columns, texts, strict=True)
        printed = {column.title: float(text) for column, text in cells if text != "-"}
        rows.append(Row(row_title, recipe, printed, *fields))
    if not any(isinstance(column.measure, Gradient) for column in columns):
        columns = (*columns, AUTOATTACK)
    return PaperTable(name, title, where, columns, tuple(rows), pixels, is_figure)


def _per_class(images: int) -> dict[str, Any]:
    return {"data.images_per_class": images}


_TABLES = (
    _table(
        "motivation-steps",
        "Table 1",
        "PGD adversarial training with 7 steps of 2 and with 2 steps of 8, CIFAR-10",
        (
            *(CLEAN, FGSM, Column("PGD2-8", Attack("pgd2-step8-last"))),
            *(Column("PGD7-2", Attack("pgd7-last")), Column("PGD20-2", Attack("pgd20-last"))),
            Column("PGD100-2", Attack("pgd100-last"), COSTLY),
        ),
        [
            ("PGD7-2", "cifar10-madry", "88.0 57.0 53.0 51.2 47.6 47.2"),
            ("PGD2-8", "cifar10-madry-2x8", "88.2 56.9 53.2 50.5 46.7 46.2"),
        ],
    ),
    _table(
        "motivation-gradients",
        "Table 2",
        "gradient magnitude without and with adversarial training, CIFAR-10",
        tuple(
            Column(f"{images} {value}", Gradient(images, value, "[-1, 1]"))
            for images, value in product(_IMAGES, _VALUES)
        ),
        [
            ("undefended", UNDEFENDED, "3.0e-32 395.0 4.5e4 3.0e-32 23.6 7.0e3 264.1 7.4e3 4.5e4"),
            (
                "adversarially trained",
                "cifar10-madry",
                "2.6e-26 3.8 236.2 2.6e-26 0.4 85.9 0.2 28.9 236.2",
            ),
        ],
    ),
    _table(
        "random-start",
        "Table 3",
        "one-step adversarial training with and without random start, CIFAR-10",
        (
            *(CLEAN, Column("FGSM w.o. RS", Attack("fgsm-last"))),
            Column("FGSM RS", Attack("fgsm-rs-last")),
            Column("CE7 w.o. RS", Attack("pgd7-nors-last")),
            Column("CE7 RS", Attack("pgd7-last")),
            Column("black", Transfer("fgsm", UNDEFENDED)),
        ),
        [
            ("FGSM", "cifar10-fgsm", "55.2 99.1 68.6 0.0 0.0 56.2"),
            ("R-FGSM", "cifar10-r-fgsm", "89.8 55.8 63.6 46.4 48.0 88.0"),
            ("LL", "cifar10-ll", "92.6 97.9 86.2 0.0 0.0 80.9"),
            ("R-LL", "cifar10-r-ll", "91.4 46.6 56.6 34.1 36.0 88.2"),
            ("MC", "cifar10-mc", "86.4 70.7 73.0 37.6 40.3 84.3"),
            ("R-MC", "cifar10-r-mc", "89.9 62.6 70.2 46.8 48.4 87.1"),
        ],
    ),
    _table(
        "attack-strength",
        "Table 4",
        "strength of the one-step attacks FGSM, MC and LL, CIFAR-10",
        tuple(
            Column(f"{attack.upper()} {start}", Attack(f"{attack}{suffix}-last"))
            for attack in ("fgsm", "mc", "ll")
            for start, suffix in (("w.o. RS", ""), ("RS", "-rs"))
        ),
        [
            ("R-FGSM", "cifar10-r-fgsm", "55.8 63.6 55.4 63.6 75.5 79.8"),
            ("R-LL", "cifar10-r-ll", "46.6 56.6 44.0 55.6 70.7 76.4"),
            ("R-MC", "cifar10-r-mc", "62.6 70.2 63.9 71.3 80.1 83.8"),
        ],
    ),
    _table(
        "cifar10",
        "Table 5",
        "R-MC-LA and its variants under white-box attacks, CIFAR-10",
        (CLEAN, FGSM, CE7, CE20),
        [
            ("R-FGSM", "cifar10-r-fgsm", "89.8 55.8 48.0 42.9"),
            ("R-FGSM-LS", "cifar10-r-fgsm-ls", "89.1 62.0 54.6 49.0"),
            ("R-MC", "cifar10-r-mc", "89.9 62.6 48.4 43.4"),
            ("R-MC-LS", "cifar10-r-mc-ls", "91.1 70.6 59.2 53.3"),
            ("R-MC-LS+", "cifar10-r-mc-ls-long", "91.8 71.4 62.7 55.9"),
            ("R-MC-LA", "cifar10-r-mc-la", "90.7 69.6 59.9 55.3"),
            ("R-MC-LA+", "cifar10-r-mc-la-long", "91.2 70.7 63.0 57.8"),
            ("Madry", None, "87.3 56.1 50.0 45.8"),
            ("Madry*", "cifar10-madry", "88.0 57.0 51.2 47.6"),
            ("Madry-LA", "cifar10-madry-la", "86.8 63.4 57.8 53.2"),
            ("Madry-LA+", "cifar10-madry-la-long", "87.5 65.9 61.3 57.5"),
        ],
    ),
    _table(
        "steps-figure",
        "Figure 1",
        "accuracy against the number of attack steps, by training budget, CIFAR-10",
        (
            # One step is FGSM, as in all tables: no random start, a step of the whole budget.
            *(CLEAN, Column("1", Attack("fgsm-last"))),
            *(
                Column(str(steps), Attack(f"pgd{steps}-last"), COSTLY if steps >= 100 else None)
                for steps in FIGURE_STEPS
            ),
        ),
        [
            ("R-MC-LA (eps 1)", "cifar10-r-mc-la-eps1", ""),
            ("R-MC-LA (eps 2)", "cifar10-r-mc-la-eps2", ""),
            ("R-MC-LA (eps 4)", "cifar10-r-mc-la-eps4", ""),
            ("R-MC-LA (eps 8)", "cifar10-r-mc-la", ""),
            ("R-MC-LA (eps 12)", "cifar10-r-mc-la-eps12", ""),
            # Not in the figure: a sentence on ImageNet says that 12 and 16 leak on CIFAR-10 too.
            ("R-MC-LA (eps 16)", "cifar10-r-mc-la-eps16", ""),
        ],
        is_figure=True,
    ),
    # The two columns of 1000 steps are a sentence below the table, about one of its rows.
    _table(
        "budget",
        "Table 6",
        "training budgets 8 and 4 under white-box attacks, CIFAR-10",
        (CLEAN, CE20, CW20, CE100, CW100, CW200, CE1000, CW1000),
        [
            ("R-MC-LA (eps 8)", "cifar10-r-mc-la", "90.8 54.6 53.7 52.9 51.9 51.7 - -"),
            ("R-MC-LA+ (eps 8)", "cifar10-r-mc-la-long", "91.0 57.5 56.2 55.2 53.8 53.6 - -"),
            ("R-MC-LA (eps 4)", "cifar10-r-mc-la-eps4", "93.0 63.1 61.5 60.1 58.0 57.6 - -"),
            (
                "R-MC-LA+ (eps 4)",
                "cifar10-r-mc-la-eps4-long",
                "92.9 66.9 64.2 63.7 60.7 60.3 61.4 59.3",
            ),
            ("Madry*", "cifar10-madry", "88.0 47.6 48.6 47.2 48.1 48.1 - -"),
        ],
    ),
    _table(
        "black-box",
        "Table 7",
        "images made on another model, CIFAR-10",
        (
            *(CLEAN, Column("undefended FGSM", Transfer("fgsm", UNDEFENDED))),
            Column("undefended CE20", Transfer("pgd20", UNDEFENDED)),
            Column("another R-MC-LA FGSM", Transfer("fgsm")),
            Column("another R-MC-LA CE20", Transfer("pgd20")),
        ),
        [
            ("R-MC-LA", "cifar10-r-mc-la", "90.7 87.8 88.8 74.4 71.0"),
            ("R-MC-LA+", "cifar10-r-mc-la-long", "91.2 88.5 89.9 74.6 74.4"),
        ],
    ),
    _table(
        "svhn",
        "Table 8",
        "training budgets 8 and 4 under white-box attacks, SVHN",
        (CLEAN, FGSM, CE20, CE100, CW100),
        [
            ("R-MC-LA (eps 8)", "svhn-r-mc-la", "94.1 66.9 46.7 42.0 40.9"),
            ("R-MC-LA+ (eps 8)", "svhn-r-mc-la-long", "94.1 69.8 53.9 50.3 48.9"),
            ("R-MC-LA (eps 4)", "svhn-r-mc-la-eps4", "95.7 72.6 54.4 47.2 45.7"),
            ("R-MC-LA+ (eps 4)", "svhn-r-mc-la-eps4-long", "95.5 74.2 63.0 59.1 58.5"),
            ("Madry*", "svhn-madry", "91.8 61.0 43.2 42.1 43.4"),
        ],
    ),
    _table(
        "imagenet",
        "Table 9",
        "R-MC-LA at 16/255 by depth of the network, ImageNet",
        (
            *(CLEAN, Column("CE10-nt", Attack("pgd10-step1.6-last"))),
            Column("CE100-nt", Attack("pgd100-step1-last"), COSTLY),
            Column("CE10-rd", Attack("pgd10-step1.6-rd-last")),
            Column("CE100-rd", Attack("pgd100-step1-rd-last"), COSTLY),
        ),
        [
            ("R-MC-LA-R50", "imagenet-r-mc-la-resnet50", "58.9 14.9 4.0 45.8 24.5"),
            ("R-MC-LA-R101", "imagenet-r-mc-la-resnet101", "61.9 18.0 6.3 45.8 26.0"),
            ("R-MC-LA-R152", "imagenet-r-mc-la-resnet152", "63.9 19.8 7.4 46.5 26.6"),
            ("ALP-IncepV3", None, "72.0 - - 27.9 -"),
            ("feature denoising-R152", None, "62.3 17.1 7.3 52.5 41.7"),
        ],
        pixels=16,
    ),
    _table(
        "other-attacks",
        "Table 10 (appendix)",
        "R-MC-LA+ at training budget 4 and TRADES under other attacks, CIFAR-10",
        (
            *(CLEAN, FGSM, CE1000, Column("MI", Attack("mi-fgsm-last"))),
            Column("Ori-CW", Attack("cw-l2"), COSTLY),
            Column("Ori-CW fine", Attack("cw-l2-fine"), COSTLY),
            Column("DF-l2", Attack("deepfool-l2"), COSTLY),
        ),
        [
            ("R-MC-LA+", "cifar10-r-mc-la-eps4-long", "92.8 75.6 61.4 65.5 65.4 88.2 77.8"),
            # One figure is printed for Ori-CW. The text says that R-MC-LA+ is better but for
            # DF-l2, which is so only if that figure is of the finer setting.
            ("TRADES", None, "84.9 61.1 56.4 58.0 - 81.2 81.6"),
            ("TRADES (ours)", "cifar10-trades", ""),
        ],
    ),
    _table(
        "data-size",
        "Table 11 (appendix)",
        "R-MC-LA by training images per class, CIFAR-10",
        (CLEAN, FGSM, CE20, CE100, CW100),
        [
            ("R-MC-LA (5K)", "cifar10-r-mc-la", "90.7 69.6 55.3 53.8 52.8"),
            ("R-MC-LA (2K)", "cifar10-r-mc-la", "85.6 56.1 42.8 41.1 40.2", _per_class(2000)),
            ("R-MC-LA (0.5K)", "cifar10-r-mc-la", "73.3 33.7 25.1 24.5 24.0", _per_class(500)),
        ],
    ),
    _table(
        "cifar100",
        "Table 12 (appendix)",
        "R-MC-LA, with the label's mass on nine classes, and Madry's, CIFAR-100",
        (CLEAN, FGSM, CE20, CE100, CW100),
        [
            ("R-MC-LA", "cifar100-r-mc-la", "68.7 30.5 23.2 22.7 20.6"),
            ("R-MC-LA+", "cifar100-r-mc-la-long", "66.2 31.3 23.1 22.4 20.0"),
            ("R-MC-LA9", "cifar100-r-mc-la9", "68.7 33.7 23.1 22.0 20.1"),
            ("R-MC-LA9+", "cifar100-r-mc-la9-long", "68.2 36.9 26.7 25.3 22.1"),
            ("Madry*", "cifar100-madry", "61.9 28.8 23.7 23.4 24.5"),
        ],
    ),
    _table(
        "gradients",
        "Table 13 (appendix)",
        "gradient magnitude on three data sets",
        (
            Column("max", Gradient("all", "max", "[0, 255]")),
            Column("mean", Gradient("all", "mean", "[0, 255]")),
        ),
        [
            ("CIFAR10 undefended", UNDEFENDED, "349.9 2.3"),
            ("CIFAR10 madry", "cifar10-madry", "1.8 0.022"),
            ("CIFAR10 ours", "cifar10-r-mc-la", "1.6 0.0098"),
            ("SVHN undefended", "svhn-undefended", "267.9 0.77"),
            ("SVHN madry", "svhn-madry", "15.3 0.12"),
            ("SVHN ours", "svhn-r-mc-la", "3.4 0.022"),
            ("ImageNet undefended", None, "0.48 0.0044"),
            ("ImageNet madry", "imagenet-madry-resnet50", "0.004 0.000038"),
            ("ImageNet ours", "imagenet-r-mc-la-resnet50", "0.084 0.00014"),
        ],
    ),
    _table(
        "label-formulas",
        "Table 14 (appendix)",
        "the main and the supplementary label formula, CIFAR-10",
        (CLEAN, FGSM, CE20, CE100, CW100),
        [
            ("R-MC-LA (main)", "cifar10-r-mc-la", "90.8 69.3 54.6 52.9 51.9"),
            ("R-MC-LA+ (main)", "cifar10-r-mc-la-long", "91.0 70.3 57.5 55.2 53.8"),
            ("R-MC-LA (sup)", "cifar10-r-mc-la-sup", "90.2 70.9 53.2 51.1 49.9"),
            ("R-MC-LA+ (sup)", "cifar10-r-mc-la-sup-long", "91.5 71.4 57.2 54.1 51.5"),
        ],
    ),
)

TABLES: dict[str, PaperTable] = {table.name: table for table in _TABLES}
