"""Run folders as train, evaluate and diagnose leave them, made without training anything."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from bilateral.paper.recipes import recipe_named
from bilateral.results import wilson_interval

DIGITS = [str(number) for number in range(10)]
EPSILON, BUDGET = 40 / 255, "40/255"
ACCURACIES = {"fgsm": 0.8325, "pgd20": 0.7375, "pgd20-cw": 0.6925, "autoattack": 0.6375}
HOSTILE = {
    "markup": "<script>document.title='run'</script>",
    "image": "<img src=x onerror=\"document.title='run'\">",
    "ends": "</script><script>document.title='run'</script><!--",
    "quotes": "\"' onfocus='document.title=1' autofocus='",
    "emoji": "🐈‍⬛ 😀",
    "arabic": "قطة سوداء",
    "mathematics": "$x_1$ and $\\frac{1}",
    "braces": "{{ 7 * 7 }} {% raw %}",
    "separator": "line\u2028end",
    "ampersand": "salt & pepper &lt;b&gt;",
}


def write(path: Path, value: Any) -> None:
    """A JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def attack(accuracy: float, images: int = 400, classes: int = 10, **more: Any) -> dict[str, Any]:
    """An attack's line in an evaluation."""
    right = round(accuracy * images)
    row = images // classes
    return {
        "accuracy": accuracy,
        "interval": list(wilson_interval(right, images)),
        "images": images,
        "seconds": 12.5,
        "forwards": 21 * images,
        "backwards": 20 * images,
        "members": {},
        "mean_distance": None,
        "accuracy_at_radius": {},
        "confusion": [
            [
                row - 4 if one == other else 4 * (other == (one + 1) % classes)
                for other in range(classes)
            ]
            for one in range(classes)
        ],
        **more,
    }


def entry(classes: list[str], accuracies: dict[str, float], images: int = 400) -> dict[str, Any]:
    """An evaluation."""
    worst = min(accuracies.values())
    return {
        "epsilon": EPSILON,
        "epsilon_text": BUDGET,
        "images": images,
        "data": "digits",
        "data_digest": "d" * 64,
        "search": "float32",
        "clean_accuracy": 0.985,
        "clean_interval": list(wilson_interval(394, images)),
        "clean_confusion": np.diag([images // len(classes)] * len(classes)).tolist(),
        "attacks": {
            name: attack(accuracy, images, len(classes)) for name, accuracy in accuracies.items()
        },
        "worst_case_accuracy": worst,
        "worst_case_interval": list(wilson_interval(round(worst * images), images)),
        "per_class": [
            {
                "name": name,
                "images": images // len(classes),
                "clean_accuracy": 0.975,
                "worst_case_accuracy": place / len(classes),
            }
            for place, name in enumerate(classes)
        ],
        "weights_digest": "w" * 64,
        "versions": {"torch": "2"},
    }


def diagnosis(verdict: str = "holds") -> dict[str, Any]:
    """What diagnose writes, with a reading raised where the verdict says so."""
    raised = verdict != "holds"
    offsets = np.linspace(-1, 1, 11)
    edges = [place / 10 for place in range(11)]
    return {
        "schema": 1,
        "verdict": verdict,
        "reasons": ["pgd-apgd-gap 0.12 (limit 0.06): overstated"] if raised else [],
        "readings": [
            {
                "name": "zero-gradients",
                "value": 0.0125,
                "limit": 0.05,
                "raised": False,
                "severity": "masked",
                "raised_if": "the gradient is zero",
                "meaning": "nothing moves",
            },
            {
                "name": "pgd-apgd-gap",
                "value": 0.12,
                "limit": 0.06,
                "raised": raised,
                "severity": verdict if raised else "suspect",
                "raised_if": "the gap is wide",
                "meaning": "overstated",
            },
        ],
        "gradient_magnitude": [
            {
                "norm": "l2",
                "scale": "[0, 1]",
                "all": {"images": 200, "min": 0.125, "mean": 0.5, "max": 3.0},
                "correct": {"images": 190, "min": 0.125, "mean": 0.4375, "max": 2.0},
                "wrong": {"images": 10, "min": 1.0, "mean": 2.5, "max": 3.0},
            }
        ],
        "histograms": [
            {"name": "log10 of the gradient's l2 norm", "edges": edges, "counts": list(range(10))},
            {"name": "gap of the two largest logits", "edges": edges, "counts": list(range(10))},
        ],
        "loss_surface": {
            "images": 32,
            "offsets": offsets.tolist(),
            "loss": (1 + offsets[:, None] + 0.1 * offsets[None] ** 2).tolist(),
        },
        "curves": curves(),
        "reliability": [
            {
                "name": name,
                "edges": edges,
                "images": [0, *[10] * 9],
                "confidence": [None, *[0.15 + 0.1 * place for place in range(9)]],
                "accuracy": [None, *[factor * (0.15 + 0.1 * place) for place in range(9)]],
                "expected_calibration_error": 0.0375,
            }
            for name, factor in (("clean", 1.0), ("pgd20", 0.5))
        ],
        "accuracies": {"clean": 0.985, "pgd": 0.735, "apgd": 0.645, "white-box": 0.64},
        "images": 200,
        "epsilon": EPSILON,
        "epsilon_text": BUDGET,
        "effort": {"steps": 20},
        "seconds": 7.0,
        "weights_digest": "w" * 64,
        "versions": {},
    }


def curves() -> dict[str, Any]:
    """Accuracy against the budget and against the steps."""
    budgets = [(0.0, 0.985), (20 / 255, 0.9125), (40 / 255, 0.7375), (80 / 255, 0.0625), (1.0, 0.0)]
    return {
        "epsilon": [{"epsilon": epsilon, "accuracy": left} for epsilon, left in budgets],
        "steps": [
            {"steps": steps, "accuracy": left}
            for steps, left in ((0, 0.985), (1, 0.8425), (10, 0.7475), (50, 0.7325))
        ],
    }


def gallery(
    classes: list[str], attacks: list[str], shape: tuple[int, int, int], count: int, seed: int
) -> dict[str, np.ndarray]:
    """A few pictures; odd ones are fooled into the next class."""
    random = np.random.default_rng(seed)
    labels = np.arange(count) % len(classes)
    clean = random.random((count, *shape)).astype(np.float32)
    before = np.full((count, len(classes)), 0.01, np.float32)
    before[np.arange(count), labels] = 0.9
    after = before.copy()
    fooled = np.arange(count) % 2 == 1
    after[fooled, labels[fooled]] = 0.2
    after[fooled, (labels[fooled] + 1) % len(classes)] = 0.7
    training = np.full((count, len(classes)), 0.5 / (len(classes) - 1), np.float32)
    training[np.arange(count), labels] = 0.5
    arrays = {"weights_digest": np.array("w" * 64), "classes": np.array(classes)}
    for name in attacks:
        signs = np.sign(random.random(clean.shape) - 0.5)
        moved = np.clip(clean + EPSILON * signs, 0, 1).astype(np.float32)
        arrays |= {
            f"{name}@40-255/clean": clean,
            f"{name}@40-255/adversarial": moved,
            f"{name}@40-255/clean_confidence": before,
            f"{name}@40-255/adversarial_confidence": after,
            f"{name}@40-255/labels": labels,
            f"{name}@40-255/numbers": np.arange(count) * 7,
            f"{name}@40-255/training_labels": training,
        }
    return arrays


def make_run(
    path: Path,
    *,
    classes: list[str] = DIGITS,
    accuracies: dict[str, float] = ACCURACIES,
    verdict: str = "holds",
    shape: tuple[int, int, int] = (1, 8, 8),
    count: int = 6,
    epochs: int = 30,
    seed: int = 0,
) -> Path:
    """A run folder with every file that a page reads."""
    run = recipe_named("digits-r-mc-la").model_dump(mode="json") | {"epochs": epochs}
    write(
        path / "config.json",
        {"schema": 1, "run": run, "versions": {"torch": "2.6", "device": "cpu"}},
    )
    lines = []
    for epoch in range(1, epochs + 1):
        line: dict[str, Any] = {"epoch": epoch, "step": 22 * epoch, "learning_rate": 0.1}
        line |= {"loss": 2 / epoch, "clean_accuracy": 1 - 0.5 / epoch, "seconds": 0.5 * epoch}
        line |= {"adversarial_accuracy": 0.9 - 0.5 / epoch, "images_per_second": 2000.0}
        if epoch % 5 == 0:
            line["check"] = {"clean": 0.98, "fgsm": 0.9, "pgd10": 0.8 - 0.5 / epoch}
        lines.append(json.dumps(line))
    (path / "log.jsonl").write_text("\n".join(lines) + "\n")
    write(path / "evaluation.json", {"schema": 1, "entries": [entry(classes, accuracies)]})
    for name, accuracy in accuracies.items():
        file = {"schema": 1, "attack": name, "epsilon": EPSILON, "epsilon_text": BUDGET}
        file |= {"settings": {name: {"steps": 20}}, "data": "digits", "images": list(range(400))}
        file |= {"accuracy": accuracy, "seconds": 12.5, "forwards": 8400, "backwards": 8000}
        write(path / "attacks" / f"{name}@40-255.json", file)
    write(path / "diagnostics.json", diagnosis(verdict))
    write(path / "curves.json", {"schema": 1, **curves()})
    np.savez_compressed(
        path / "gallery.npz", **gallery(classes, list(accuracies)[:2], shape, count, seed)
    )
    return path


def transfer(path: Path, names: list[str]) -> Path:
    """A transfer.json between models of these names."""
    matrix = {
        source: {target: 0.125 if source == target else 0.875 for target in names}
        for source in names
    }
    value = {"schema": 1, "epsilon": EPSILON, "epsilon_text": BUDGET, "images": 360}
    value |= {"clean": dict.fromkeys(names, 0.985), "attacks": {"fgsm": matrix, "pgd20": matrix}}
    write(path, value)
    return path
