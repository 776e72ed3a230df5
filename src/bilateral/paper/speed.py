"""Times and rates in `results/bench/` as Markdown, and whether aims are met; no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bilateral.paper.recipes import recipe_named
from bilateral.paper.rendering import with_origins
from bilateral.runs import recipe_with
from bilateral.tables import ABSENT, percent, render

File = Mapping[str, Any]


@dataclass(frozen=True)
class AttackAim:
    """How many times as fast as a peer an attack should be on a kind of device."""

    attack: str
    device: str
    ratio: float
    robust: float = 0.0
    """the aim is for models that keep at least this accuracy: broken images cost little"""


ATTACK_AIMS = (
    AttackAim("autoattack", "GPU", 3.0, robust=0.35),
    AttackAim("autoattack", "CPU", 1.5),
    AttackAim("pgd20", "CPU", 1.5),
)
TRAINING_AIMS = {"wrn-28-10": (6000, 7500), "preact-resnet-18": (38000, 50000)}
"""Images a second on an H200, least and better, in batches that learn as well as the recipe's."""
ALLOWED_LOSS = 0.005
"""How much of any accuracy a larger batch may cost."""
_SAME_BENCH = ("model", "batch_size", "device")


def speed_table(files: Sequence[File]) -> str:
    """`results/bench/evaluate-*.json`: our time beside a peer's at its best batch size."""
    head = ["model", "attack", "images", "ours (s)", "accuracy (%)", "peer", "theirs (s)"]
    head += ["accuracy (%)", "ratio", "warm-up (s)", "device"]
    lines = [
        _speed(file, name, attack) for file in files for name, attack in file["attacks"].items()
    ]
    return with_origins(head, lines, files)


def training_speed_table(files: Sequence[File]) -> str:
    """`results/bench/train-*.json`: a row for all features, and for each one switched off."""
    head = ["model", "batch", "features", "images/s", "slowest to fastest round", "s an epoch"]
    head += ["TFLOP/s", "of matrix products (%)", "first step (s)"]
    lines = []
    for file in files:
        for name, row in file["features"].items():
            cells = [ABSENT] * 6 if row is None or "error" in row else _rates(row)
            lines.append([f"`{file['model']}`", f"{file['batch_size']}", name, *cells])
    return with_origins(head, lines, files, lambda file: f"{_recipe(file)}, {file['model']}")


def aims_table(
    evaluations: Sequence[File], trainings: Sequence[File], variants: Sequence[File]
) -> str:
    """Whatever has an aim: what was measured, the aim, and whether it is reached.

    `variants` are rows of `results/batch-size.json`: what each size of batch learns. What was
    measured several times is shown at its slowest.
    """
    head = ["what", "measured", "aim", "reached", "device", "commit"]
    lines = [
        [*line, file["device"].partition(":")[0], file["commit"]]
        for file in evaluations
        for line in _attack_aims(file)
    ]
    slowest: dict[tuple[str, ...], File] = {}
    for file in sorted(trainings, key=lambda file: -file["images_per_second"]):
        slowest[(_recipe(file), *(str(file[key]) for key in _SAME_BENCH))] = file
    for file in slowest.values():
        if file["model"] in TRAINING_AIMS and not file["device"].startswith("cpu"):  # of a GPU
            line = _training_aims(file, variants)
            lines.append([*line, file["device"], file["commit"]])
    return render((head, lines), "markdown")


def _attack_aims(file: File) -> list[list[str]]:
    device = "CPU" if file["device"].startswith("cpu") else "GPU"
    lines = []
    for aim in ATTACK_AIMS:
        attack = file["attacks"].get(aim.attack)
        if attack is None or aim.device != device:
            continue
        search = file.get("search_precision", file.get("search", ""))
        what = f"{aim.attack}, {file['model']}, {attack['images']:,} images, search in {search}"
        left = f"{percent(attack['accuracy'])} and {percent(attack['peer_accuracy'])} %"
        measured = (
            f"{attack['seconds']:.1f} s, {attack['peer']} {attack['peer_seconds']:.1f} s: "
            f"{attack['ratio']:.2f} times as fast, leaving {left}; "
            f"{file['warm_up_seconds']:.1f} s of warm-up not counted"
        )
        reached = _reached(attack["ratio"] >= aim.ratio)
        if attack["accuracy"] < aim.robust:
            reached = f"does not count: under {percent(aim.robust)} % robust"
        lines.append([what, measured, f"{aim.ratio:g} times", reached])
    return lines


def _training_aims(file: File, variants: Sequence[File]) -> list[str]:
    rate, (least, better) = file["images_per_second"], TRAINING_AIMS[file["model"]]
    what = f"training {_recipe(file)}, {file['model']}, batches of {file['batch_size']}"
    reached = f"{_reached(rate >= least)}; {_reached(rate >= better)}"
    measured = f"{rate:,.0f} images a second"
    said, as_well = _learning(file, variants)
    if not as_well:
        reached = f"does not count ({reached})"
    measured += f"; {said}" if said else ""
    return [what, measured, f"{least:,}; better {better:,}", reached]


def _recipe(file: File) -> str:
    """The recipe, with the fields that differ from it and have no column of their own."""
    fields = dict(file.get("fields", {}))
    for shown in ("model", "optimiser.batch_size"):
        fields.pop(shown, None)
    return recipe_with(f"`{file['recipe']}`", fields)


def _learning(file: File, variants: Sequence[File]) -> tuple[str, bool]:
    """Whether the file's batch size learns as well as the recipe's: in words, and as a fact."""
    usual, own = recipe_named(file["recipe"]).optimiser.batch_size, file["batch_size"]
    if own == usual:
        return "", True
    known = [row for row in variants if row["model"] == file["model"]]
    before: File = next((row["by_seed"] for row in known if row["batch_size"] == usual), {})
    same = [row for row in known if row["batch_size"] == own]
    if not same or not before:
        return f"whether batches of {own} learn as well was not measured", False

    def costs(row: File) -> list[float]:
        after = row["by_seed"]
        return [_mean(values) - _mean(after[name]) for name, values in before.items()]

    best = min(same, key=lambda row: max(costs(row)))
    if max(costs(best)) <= ALLOWED_LOSS:
        ways = f", the best of {len(same)} ways" if len(same) > 1 else ""
        return f"learns as well as batches of {usual}: {best['variant']}{ways}", True
    lost = [
        f"{percent(cost)} points {name}" for name, cost in zip(before, costs(best), strict=True)
    ]
    return f"batches of {own} cost {' and '.join(lost)} compared with {usual}", False


def _speed(file: File, name: str, attack: File) -> list[str]:
    return [
        f"`{file['recipe']}`",
        name,
        f"{attack['images']:,}",
        f"{attack['seconds']:.1f}",
        percent(attack["accuracy"]),
        attack["peer"],
        f"{attack['peer_seconds']:.1f} (batch {attack['peer_batch_size']:,})",
        percent(attack["peer_accuracy"]),
        f"{attack['ratio']:.2f}",
        f"{file['warm_up_seconds']:.1f}",
        file["device"],
    ]


def _rates(row: File) -> list[str]:
    spread = ABSENT
    if row.get("slowest_round") is not None:
        spread = f"{row['slowest_round']:,.0f} to {row['fastest_round']:,.0f}"
    return [
        f"{row['images_per_second']:,.0f}",
        spread,
        f"{row['epoch_seconds']:.2f}",
        f"{row['tflops']:.0f}" if row["tflops"] >= 10 else f"{row['tflops']:.2g}",
        percent(row["share_of_matrix_rate"]),
        f"{row['first_step_seconds']:.1f}",
    ]


def _reached(met: bool) -> str:
    return "met" if met else "missed"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
