"""The gallery: adversarial examples of the runs as values for the page's script."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bilateral.report.gather import RunFiles
from bilateral.report.measures import class_names
from bilateral.report.pictures import Album, as_pixels, magnified, reduced
from bilateral.report.reading import Arrays, text

CHARACTERS = 4_000_000
"""About the most characters that a page's pictures take, whatever their number and size."""
EXAMPLES = 360
"""The most examples on a page."""
CLASSES = 10
"""How many classes get bars: the likeliest ones."""


def gallery(runs: Sequence[RunFiles], characters: int = CHARACTERS) -> dict[str, Any]:
    """Pictures, names and examples; runs and attacks take turns until the page is full."""
    album, left_out = Album(), 0
    examples: list[dict[str, Any]] = []
    streams = [_examples(place, run, album) for place, run in enumerate(runs)]
    waiting = [stream for run in streams for stream in run]
    while waiting:
        going_on = []
        for stream in waiting:
            if album.characters >= characters or len(examples) >= EXAMPLES:
                left_out += sum(1 for _ in stream)
                continue
            example = next(stream, None)
            if example is not None:
                examples.append(example())
                going_on.append(stream)
        waiting = going_on
    examples.sort(key=lambda one: (one["run"], one["attack"], one["number"]))
    return {
        "pictures": album.uris,
        "runs": [run.name for run in runs],
        "data": [_data(run) for run in runs],
        "classes": [class_names(run) for run in runs],
        "examples": examples,
        "left_out": left_out,
    }


def _data(run: RunFiles) -> str:
    """The name of the data of a run's pictures; empty if no evaluation is on the same data."""
    digest = str(run.gallery.get("data_digest", ""))
    named = (entry.get("data") for entry in run.entries if entry.get("data_digest") == digest)
    return next(filter(None, map(text, named)), "") if digest else ""


def _examples(place: int, run: RunFiles, album: Album) -> list[Iterator[Any]]:
    """For each attack of a run, an iterator over functions that make its examples."""
    attacks = dict.fromkeys(name.rpartition("/")[0] for name in run.gallery if "/" in name)
    found = []
    for attack in attacks:
        arrays = {
            name.rpartition("/")[2]: array
            for name, array in run.gallery.items()
            if name.rpartition("/")[0] == attack
        }
        if _whole(arrays):
            found.append(_of_attack(place, attack, arrays, album))
    return found


def _whole(arrays: Arrays) -> bool:
    """Whether all arrays of an attack exist and fit each other."""
    names = ("clean", "adversarial", "clean_confidence", "adversarial_confidence", "labels")
    if not all(name in arrays for name in names):
        return False
    clean, adversarial, before, after, labels = (arrays[name] for name in names)
    return bool(
        clean.ndim == 4
        and clean.shape == adversarial.shape
        and all(clean.shape)
        and before.ndim == 2
        and before.shape == after.shape
        and before.shape[1] > 0
        and labels.shape == clean.shape[:1] == before.shape[:1]
        and all(array.dtype.kind == "f" for array in (clean, adversarial, before, after))
        and labels.dtype.kind in "iu"
        and labels.min() >= 0
        and labels.max() < before.shape[1]
    )


def _of_attack(place: int, attack: str, arrays: Arrays, album: Album) -> Iterator[Any]:
    name, _, budget = attack.rpartition("@")
    change = arrays["adversarial"].astype(np.float64) - arrays["clean"]
    peak = float(np.nan_to_num(np.abs(change)).max())
    factor = 0.5 / peak if peak > 0 else 1.0
    count, classes = arrays["clean_confidence"].shape
    training = arrays.get("training_labels")
    if training is None or training.shape != (count, classes) or training.dtype.kind != "f":
        training = None
    numbers = arrays.get("numbers")
    if numbers is None or numbers.shape != (count,) or numbers.dtype.kind not in "iu":
        numbers = np.arange(count)

    def example(row: int) -> dict[str, Any]:
        label = int(arrays["labels"][row])
        before, after = arrays["clean_confidence"][row], arrays["adversarial_confidence"][row]
        trained = None if training is None else training[row]
        return {
            "run": place,
            "attack": name or attack,
            "budget": re.sub(r"(?<=\d)-", "/", budget),  # 8-255, but 5e-05
            "number": int(numbers[row]),
            "label": label,
            "clean": album.put(reduced(as_pixels(arrays["clean"][row]))),
            "change": album.put(reduced(magnified(change[row], factor), average=False)),
            "adversarial": album.put(reduced(as_pixels(arrays["adversarial"][row]))),
            "factor": f"{factor:.3g}",
            "before": [int(before.argmax()), _rounded(before.max())],
            "after": [int(after.argmax()), _rounded(after.max())],
            "bars": _bars(label, trained, before, after),
        }

    return ((lambda row=row: example(row)) for row in range(count))


def _bars(
    label: int, trained: np.ndarray | None, before: np.ndarray, after: np.ndarray
) -> list[list[float | int | None]]:
    """Class, original label, training label, confidence before and after: the likeliest classes."""
    weight = np.maximum(before, after)
    if trained is not None:
        weight = np.maximum(weight, trained)
    weight = np.nan_to_num(weight)
    weight[label] = np.inf
    chosen = sorted(np.argsort(-weight, kind="stable")[:CLASSES].tolist())
    return [
        [
            number,
            1 if number == label else 0,
            None if trained is None else _rounded(trained[number]),
            _rounded(before[number]),
            _rounded(after[number]),
        ]
        for number in chosen
    ]


def _rounded(value: float) -> float:
    return round(float(np.nan_to_num(value)), 4)
