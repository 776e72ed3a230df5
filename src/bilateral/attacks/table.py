"""The attacks that users can name, as settings; no torch.

`pgd20-cw` is the pattern `pgdK` with K = 20 and the suffix `-cw`; suffixes combine. `-last` after
a gradient attack is the paper's protocol: only the last iterate counts. An ensemble has several
members: each attacks the images that the ones before it did not break.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import ValidationError

from bilateral.attacks.settings import (
    APGD,
    CW_FAST,
    CW_FINE,
    FAB,
    SPSA,
    AttackSettings,
    DeepFool,
    OwnAttack,
    Square,
)
from bilateral.config import GradientAttack, Target
from bilateral.errors import UserError, unknown
from bilateral.models.own_code import source_digest

Members = dict[str, AttackSettings]


@dataclass(frozen=True)
class AttackEntry:
    """A named attack: what it is, and its settings for a budget."""

    summary: str
    settings: Callable[[float], AttackSettings]
    in_paper: bool = False


@dataclass(frozen=True)
class Ensemble:
    """Attacks run one after another, by their names in `ATTACKS`."""

    summary: str
    members: tuple[str, ...]


def _one_step(target: Target, random_start: bool) -> Callable[[float], GradientAttack]:
    return lambda epsilon: GradientAttack(
        epsilon=epsilon,
        step_size=epsilon,
        random_start=random_start,
        clip_start=True,
        target=target,
    )


def _pgd(steps: int, suffixes: tuple[str, ...] = ()) -> Callable[[float], GradientAttack]:
    pixels = [suffix.removeprefix("step") for suffix in suffixes if suffix.startswith("step")]
    starts = [int(suffix[1:]) for suffix in suffixes if suffix.startswith("x")]
    return lambda epsilon: GradientAttack(
        epsilon=epsilon,
        steps=steps,
        step_size=float(pixels[-1]) / 255 if pixels else epsilon / 4,
        random_start="nors" not in suffixes,
        clip_start=True,
        loss="margin" if "cw" in suffixes else "cross-entropy",
        target="random" if "rd" in suffixes else "none",
        restarts=starts[-1] if starts else 1,
    )


def _momentum(epsilon: float) -> GradientAttack:
    return GradientAttack(
        epsilon=epsilon, steps=10, step_size=epsilon / 10, random_start=False, momentum=1.0
    )


ATTACKS: dict[str, AttackEntry] = {
    "fgsm": AttackEntry("one step of epsilon", _one_step("none", False), True),
    "fgsm-rs": AttackEntry("FGSM from a random start", _one_step("none", True), True),
    "mc": AttackEntry(
        "one step to the most confusing class", _one_step("most-confusing", False), True
    ),
    "mc-rs": AttackEntry("MC from a random start", _one_step("most-confusing", True), True),
    "ll": AttackEntry("one step to the least likely class", _one_step("least-likely", False), True),
    "ll-rs": AttackEntry("LL from a random start", _one_step("least-likely", True), True),
    "pgd7": AttackEntry("PGD, 7 steps of epsilon/4, cross-entropy", _pgd(7), True),
    "pgd7-nors": AttackEntry("PGD-7 without random start", _pgd(7, ("nors",)), True),
    "pgd10": AttackEntry("PGD, 10 steps", _pgd(10), True),
    "pgd10-rd": AttackEntry("PGD-10 to a random class", _pgd(10, ("rd",)), True),
    "pgd10-step1.6": AttackEntry(
        "PGD-10, steps of 1.6/255: ImageNet", _pgd(10, ("step1.6",)), True
    ),
    "pgd10-step1.6-rd": AttackEntry(
        "the same to a random class", _pgd(10, ("step1.6", "rd")), True
    ),
    "pgd100-step1": AttackEntry("PGD-100, steps of 1/255: ImageNet", _pgd(100, ("step1",)), True),
    "pgd100-step1-rd": AttackEntry("the same to a random class", _pgd(100, ("step1", "rd")), True),
    "pgd20": AttackEntry("PGD, 20 steps", _pgd(20), True),
    "pgd20-cw": AttackEntry("PGD-20 on the margin (CW) loss", _pgd(20, ("cw",)), True),
    "pgd100": AttackEntry("PGD, 100 steps", _pgd(100), True),
    "pgd100-cw": AttackEntry("PGD-100 on the margin loss", _pgd(100, ("cw",)), True),
    "pgd100-rd": AttackEntry("PGD-100 to a random class", _pgd(100, ("rd",)), True),
    "pgd200-cw": AttackEntry("PGD-200 on the margin loss", _pgd(200, ("cw",)), True),
    "pgd1000": AttackEntry("PGD, 1000 steps", _pgd(1000), True),
    "pgd1000-cw": AttackEntry("PGD-1000 on the margin loss", _pgd(1000, ("cw",)), True),
    "mi-fgsm": AttackEntry("momentum, 10 steps of epsilon/10, decay 1", _momentum, True),
    "cw-l2": AttackEntry(
        "Carlini-Wagner, smallest L2: const 100, rate 0.1, 100 steps", lambda _: CW_FAST, True
    ),
    "cw-l2-fine": AttackEntry(
        "Carlini-Wagner, smallest L2: const 100, rate 0.01, 1000 steps", lambda _: CW_FINE, True
    ),
    "deepfool-l2": AttackEntry(
        "DeepFool, smallest L2: 50 steps, overshoot 0.02", lambda _: DeepFool(), True
    ),
    "apgd-ce": AttackEntry(
        "Auto-PGD on cross-entropy, 100 steps", lambda epsilon: APGD(epsilon=epsilon)
    ),
    "apgd-dlr": AttackEntry(
        "Auto-PGD on the difference of logits ratio",
        lambda epsilon: APGD(epsilon=epsilon, loss="dlr"),
    ),
    "apgd-t": AttackEntry(
        "Auto-PGD on the targeted DLR loss, 9 targets",
        lambda epsilon: APGD(epsilon=epsilon, loss="dlr-targeted"),
    ),
    "fab-t": AttackEntry(
        "FAB, 9 targets, 100 steps: walks along the boundary", lambda epsilon: FAB(epsilon=epsilon)
    ),
    "square": AttackEntry(
        "Square attack, 5000 queries, no gradients", lambda epsilon: Square(epsilon=epsilon)
    ),
    "spsa": AttackEntry(
        "SPSA, 100 steps of 128 samples, no gradients", lambda epsilon: SPSA(epsilon=epsilon)
    ),
}

ENSEMBLES: dict[str, Ensemble] = {
    "apgd": Ensemble("apgd-ce, then apgd-t: the quick one", ("apgd-ce", "apgd-t")),
    "autoattack": Ensemble(
        "apgd-ce, apgd-t, fab-t, square: AutoAttack's standard ensemble",
        ("apgd-ce", "apgd-t", "fab-t", "square"),
    ),
}

PATTERN = "pgdK[-cw][-rd][-nors][-stepS][-xN][-last]"
PATTERN_SUMMARY = (
    "any K; -cw: margin loss, -rd: random target, -nors: no random start, -stepS: steps of S/255, "
    "-xN: from N random starts, -last: only the last iterate counts (also after fgsm, mc, ll, "
    "their -rs, and mi-fgsm)"
)

_SUFFIX = r"cw|rd|nors|step[0-9]{1,3}(?:\.[0-9]+)?|x[1-9][0-9]{0,3}"
_PGD = re.compile(rf"pgd([1-9][0-9]{{0,4}})((?:-(?:{_SUFFIX}))*)")


def attack_named(name: str, epsilon: float) -> AttackSettings:
    """The settings behind the name of a single attack at a budget."""
    if ":" in name:
        return OwnAttack(epsilon=epsilon, target=name, digest=source_digest(name))
    settings = _tested_throughout(name.removesuffix("-last"), epsilon)
    if settings is not None and not name.endswith("-last"):
        return settings
    if isinstance(settings, GradientAttack):
        if settings.restarts > 1:
            raise UserError(f"attack {name}: -last is for one start and does not combine with -xN")
        return settings.with_fields(iterate="last")
    raise unknown("attack", name, [*ATTACKS, *ENSEMBLES, PATTERN])


def _tested_throughout(name: str, epsilon: float) -> AttackSettings | None:
    """The settings behind a name without `-last`."""
    if entry := ATTACKS.get(name):
        return entry.settings(epsilon)
    if match := _PGD.fullmatch(name):
        suffixes = tuple(match[2].split("-")[1:])
        if "nors" in suffixes and any(suffix.startswith("x") for suffix in suffixes):
            raise UserError(f"attack {name}: -xN asks for random starts, -nors for none")
        try:
            return _pgd(int(match[1]), suffixes)(epsilon)
        except ValidationError:  # of the numbers in a name, only S can be invalid
            raise UserError(
                f"attack {name}: -stepS is a step of S/255, S above 0 and at most 255"
            ) from None
    return None


def attack_members(name: str, epsilon: float) -> Members:
    """The settings of an ensemble's members; a single attack is its own member."""
    names = ENSEMBLES[name].members if name in ENSEMBLES else (name,)
    return {member: attack_named(member, epsilon) for member in names}


def attack_names(text: str) -> list[str]:
    """The names in a comma-separated list, without repeats; an unknown one is refused."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError("no attack named: --attacks takes a list such as fgsm,pgd20")
    for name in names:
        attack_members(name, 8 / 255)
    return list(dict.fromkeys(names))
