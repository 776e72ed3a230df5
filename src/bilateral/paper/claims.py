"""What the paper claims in words, as checks on the measured tables; no torch.

A claim is a set of comparisons between cells of `results/<table>.json`. Its text says in points of
accuracy what "about", "far" or "hardly" mean. Wherever it makes sense the same
comparisons are made again with AutoAttack's figures (or APGD's, where both sides have only those).
"""

from collections.abc import Callable
from dataclasses import dataclass

from bilateral.paper.comparisons import (
    STRONGEST,
    Cell,
    Check,
    Comparison,
    above,
    beats,
    near,
    times_smaller,
    under,
)


@dataclass(frozen=True)
class Claim:
    """A claim, the tables it rests on, and its check on measured rows.

    `under_autoattack` is the same under the strongest attack; none where that makes no sense.
    """

    name: str
    text: str
    tables: tuple[str, ...]
    check: Check
    under_autoattack: Check | None = None


WITHOUT_START = ("fgsm-last", "mc-last", "ll-last")
WITH_START = ("fgsm-rs-last", "mc-rs-last", "ll-rs-last")
RANDOM_START_ROWS = ("FGSM", "R-FGSM", "LL", "R-LL", "MC", "R-MC")
STRENGTH_ROWS = ("R-FGSM", "R-LL", "R-MC")
OURS = tuple(f"R-MC-LA{plus} (eps {pixels})" for pixels in (8, 4) for plus in ("", "+"))
WHITE_BOX = {"FGSM": "fgsm-last", "CE20": "pgd20-last"}
BUDGET_COLUMNS = ("pgd20-last", "pgd20-cw-last", "pgd100-last", "pgd100-cw-last", "pgd200-cw-last")


def _leaks() -> Check:
    cells = [
        [Cell("random-start", row, column) for column in ("fgsm-last", "clean", "pgd7-last")]
        for row in ("FGSM", "LL")
    ]
    return Check(
        tuple(
            comparison
            for fgsm, clean, pgd7 in cells
            for comparison in (above(fgsm, clean), under(pgd7, 5))
        )
    )


def _strength(compared: Callable[[Cell, Cell], Comparison], place: int) -> Check:
    """FGSM beside MC (place 1) or LL (place 2), with and without random start."""
    return Check(
        tuple(
            compared(
                Cell("attack-strength", row, names[place]), Cell("attack-strength", row, names[0])
            )
            for row in STRENGTH_ROWS
            for names in (WITHOUT_START, WITH_START)
        )
    )


def _labels(column: str) -> Check:
    adversarial = beats("cifar10", "R-MC-LA", "R-MC-LS", column)
    return Check((*adversarial, *beats("cifar10", "R-MC-LS", "R-MC", column)))


def _fewer_steps(*columns: str) -> Check:
    table = "motivation-steps"
    return Check(
        tuple(near(Cell(table, "PGD2-8", name), Cell(table, "PGD7-2", name), 2) for name in columns)
    )


def _black_box(white_box: Callable[[str, str], Cell]) -> Check:
    """Every transfer to a row above its white-box cell."""
    return Check(
        tuple(
            above(Cell("black-box", row, f"{source} {attack}"), white_box(row, attack))
            for row in ("R-MC-LA", "R-MC-LA+")
            for source in ("undefended", "another R-MC-LA")
            for attack in ("FGSM", "CE20")
        ),
        partial=True,
    )


def _stronger_source() -> Check:
    return Check(
        tuple(
            above(
                Cell("black-box", row, f"undefended {attack}"),
                Cell("black-box", row, f"another R-MC-LA {attack}"),
            )
            for row in ("R-MC-LA", "R-MC-LA+")
            for attack in ("FGSM", "CE20")
        ),
        partial=True,
    )


def _gradients() -> Check:
    """The two data sets whose undefended model is trained here."""
    return Check(
        tuple(
            times_smaller(
                Cell("gradients", f"{data} {model}", "mean", unit=1),
                Cell("gradients", f"{data} undefended", "mean", unit=1),
                5,
            )
            for data in ("CIFAR10", "SVHN")
            for model in ("madry", "ours")
        ),
        partial=True,
    )


def _four_beats_eight(*columns: str) -> Check:
    short = beats("budget", "R-MC-LA (eps 4)", "R-MC-LA (eps 8)", *columns)
    long = beats("budget", "R-MC-LA+ (eps 4)", "R-MC-LA+ (eps 8)", *columns)
    return Check((*short, *long), partial=True)


def _four_is_best(column: str) -> Check:
    others = [f"R-MC-LA (eps {pixels})" for pixels in (1, 2, 8, 12)]
    best = "R-MC-LA (eps 4)"
    return Check(
        tuple(
            comparison
            for other in others
            for comparison in beats("steps-figure", best, other, column)
        )
    )


def _margin_loss() -> Check:
    return Check(
        tuple(
            above(Cell("budget", row, "pgd100-last"), Cell("budget", row, "pgd100-cw-last"))
            for row in OURS
        ),
        partial=True,
    )


def _more_steps(column: str) -> Check:
    return Check(
        tuple(
            near(Cell("budget", row, column), Cell("budget", row, "pgd200-cw-last"), 2)
            for row in (*OURS, "Madry*")
        ),
        partial=True,
    )


def _one_step_is_enough(column: str) -> Check:
    short = beats("cifar10", "R-MC-LA", "Madry-LA", column)
    return Check((*short, *beats("cifar10", "R-MC-LA+", "Madry-LA+", column)), partial=True)


def _long(column: str) -> Check:
    pairs = [("cifar10", row, f"{row}+") for row in ("R-MC-LS", "R-MC-LA", "Madry-LA")]
    pairs += [("budget", f"R-MC-LA (eps {n})", f"R-MC-LA+ (eps {n})") for n in (8, 4)]
    return Check(
        tuple(one for table, short, long in pairs for one in beats(table, long, short, column)),
        partial=True,
    )


def _nine_classes(short: str, *long: str) -> Check:
    rows = beats("cifar100", "R-MC-LA9", "R-MC-LA", short)
    return Check((*rows, *beats("cifar100", "R-MC-LA9+", "R-MC-LA+", *long)), partial=True)


def _formulas(*columns: str) -> Check:
    short = beats("label-formulas", "R-MC-LA (main)", "R-MC-LA (sup)", *columns)
    long = beats("label-formulas", "R-MC-LA+ (main)", "R-MC-LA+ (sup)", *columns)
    return Check((*short, *long), partial=True)


_CLAIMS = (
    Claim(
        "label-leaking",
        "FGSM and LL without random start leak labels: more accurate under FGSM than on clean "
        "images, and under 5 % at CE7",
        ("random-start",),
        _leaks(),
        Check(tuple(under(Cell("random-start", row, STRONGEST), 5) for row in ("FGSM", "LL"))),
    ),
    Claim(
        "mc-beats-ll",
        "R-MC beats R-LL under FGSM and CE7",
        ("random-start",),
        Check(beats("random-start", "R-MC", "R-LL", "fgsm-last", "pgd7-last")),
        Check(beats("random-start", "R-MC", "R-LL", STRONGEST)),
    ),
    Claim(
        "labels",
        "adversarial labels beat smoothed ones, and these beat one-hot labels, under CE20",
        ("cifar10",),
        _labels("pgd20-last"),
        _labels(STRONGEST),
    ),
    Claim(
        "mc-as-strong-as-fgsm",
        "MC is about as strong an attack as FGSM: less than 3 points apart",
        ("attack-strength",),
        _strength(lambda mc, fgsm: near(mc, fgsm, 3), 1),
    ),
    Claim(
        "ll-is-weak",
        "LL is a far weaker attack than FGSM: it leaves more than 10 points more",
        ("attack-strength",),
        _strength(lambda ll, fgsm: above(ll, fgsm, 10), 2),
    ),
    Claim(
        "fewer-steps",
        "training with PGD2-8 about equals PGD7-2: less than 2 points apart under PGD20-2 and "
        "PGD100-2",
        ("motivation-steps",),
        _fewer_steps("pgd20-last", "pgd100-last"),
        _fewer_steps(STRONGEST),
    ),
    Claim(
        "black-box",
        "black-box attacks are weaker than the same white-box attack on R-MC-LA",
        ("black-box", "cifar10"),
        _black_box(lambda row, attack: Cell("cifar10", row, WHITE_BOX[attack])),
        _black_box(lambda row, attack: Cell("black-box", row, STRONGEST)),
    ),
    Claim(
        "black-box-source",
        "another R-MC-LA is a stronger black-box source than an undefended model",
        ("black-box",),
        _stronger_source(),
    ),
    Claim(
        "gradients",
        "adversarial training shrinks gradients by one or two orders: the mean squared norm is "
        "more than 5 times smaller (the paper's own on SVHN by 6)",
        ("gradients",),
        _gradients(),
    ),
    Claim(
        "budget-4-beats-8",
        "training at 4/255 beats training at 8/255 under CE and CW at 8/255, 20 to 200 steps",
        ("budget",),
        _four_beats_eight(*BUDGET_COLUMNS),
        _four_beats_eight(STRONGEST),
    ),
    Claim(
        "budget-4-is-best",
        "4/255 is the best training budget of 1, 2, 4, 8 and 12 under CE100",
        ("steps-figure",),
        _four_is_best("pgd100-last"),
        _four_is_best(STRONGEST),
    ),
    *(
        Claim(
            f"budget-{pixels}-collapses",
            f"training with one step of {pixels}/255 collapses: under 10 % at CE100",
            ("steps-figure",),
            Check((under(Cell("steps-figure", f"R-MC-LA (eps {pixels})", "pgd100-last"), 10),)),
            Check((under(Cell("steps-figure", f"R-MC-LA (eps {pixels})", STRONGEST), 10),)),
        )
        for pixels in (12, 16)
    ),
    Claim(
        "margin-loss",
        "CW100 is stronger than CE100 on R-MC-LA",
        ("budget",),
        _margin_loss(),
    ),
    Claim(
        "margin-loss-madry",
        "CW100 is not stronger than CE100 on Madry's: it leaves at most 0.5 points less",
        ("budget",),
        Check(
            (
                above(
                    Cell("budget", "Madry*", "pgd100-cw-last"),
                    Cell("budget", "Madry*", "pgd100-last"),
                    -0.5,
                ),
            )
        ),
    ),
    Claim(
        "thousand-steps",
        "CW1000 adds little to CW200: less than 2 points (under AutoAttack: it adds as little)",
        ("budget",),
        _more_steps("pgd1000-cw-last"),
        _more_steps(STRONGEST),
    ),
    Claim(
        "beats-madry",
        "R-MC-LA beats PGD adversarial training on CIFAR-10 under FGSM, CE7 and CE20",
        ("cifar10",),
        Check(beats("cifar10", "R-MC-LA", "Madry*", "fgsm-last", "pgd7-last", "pgd20-last")),
        Check(beats("cifar10", "R-MC-LA", "Madry*", STRONGEST)),
    ),
    Claim(
        "beats-madry-svhn",
        "R-MC-LA beats PGD adversarial training on SVHN under FGSM and CE20",
        ("svhn",),
        Check(beats("svhn", "R-MC-LA (eps 8)", "Madry*", "fgsm-last", "pgd20-last")),
        Check(beats("svhn", "R-MC-LA (eps 8)", "Madry*", STRONGEST)),
    ),
    Claim(
        "one-step-is-enough",
        "R-MC-LA beats Madry-LA under CE20",
        ("cifar10",),
        _one_step_is_enough("pgd20-last"),
        _one_step_is_enough(STRONGEST),
    ),
    Claim(
        "long-training",
        "long training beats short under CE20",
        ("cifar10", "budget"),
        _long("pgd20-last"),
        _long(STRONGEST),
    ),
    Claim(
        "nine-classes",
        "R-MC-LA9 gains on CIFAR-100 under FGSM, after long training also under CE20",
        ("cifar100",),
        _nine_classes("fgsm-last", "fgsm-last", "pgd20-last"),
        _nine_classes(STRONGEST, STRONGEST),
    ),
    Claim(
        "label-formula",
        "the main label formula beats the supplementary one under CE20, CE100 and CW100",
        ("label-formulas",),
        _formulas("pgd20-last", "pgd100-last", "pgd100-cw-last"),
        _formulas(STRONGEST),
    ),
    Claim(
        "random-start",
        "random start hardly matters to an attack of several steps: less than 3 points at CE7",
        ("random-start",),
        Check(
            tuple(
                near(
                    Cell("random-start", row, "pgd7-last"),
                    Cell("random-start", row, "pgd7-nors-last"),
                    3,
                )
                for row in RANDOM_START_ROWS
            )
        ),
    ),
)

CLAIMS: dict[str, Claim] = {claim.name: claim for claim in _CLAIMS}
