"""`MODEL_CARD.md`: what the model is for, what was measured of it, and what was not; no torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bilateral
from bilateral.budgets import fraction_text
from bilateral.config import Labels, Run
from bilateral.data.datasets import DATASETS
from bilateral.export.evidence import Evidence
from bilateral.export.files import ExportedFile
from bilateral.export.formats import FORMATS
from bilateral.export.limits import STRONGEST, limits
from bilateral.export.markdown import block, escaped, table
from bilateral.models import model_entry
from bilateral.paper.recipes import RECIPES
from bilateral.report.measures import doubts
from bilateral.results import Evaluation, Interval, wilson_interval
from bilateral.runs import differences
from bilateral.tables import percent

_SHOWN_CLASSES = 100


@dataclass(frozen=True)
class Subject:
    """The exported model; `about` is the metadata of its weights' file."""

    about: dict[str, Any]
    parameters: int
    weights_digest: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of an image."""
        return (self.about["channels"], *self.about["image_size"])


def model_card(subject: Subject, evidence: Evidence, files: Sequence[ExportedFile]) -> str:
    """The card as Markdown."""
    run = evidence.run
    sections = {
        "Files": _files(subject, files),
        "Intended use": _intended_use(subject, run),
        "Data": _data(subject, run),
        "Recipe": _recipe(run),
        "Architecture": _architecture(subject, run),
        "Training": _training(evidence),
        "Measured robustness": _robustness(evidence),
        "Verdict": _verdict(evidence),
        "Limits": "\n".join(f"- {line}" for line in limits(evidence)),
    }
    parts = [f"# Model card: {escaped(run.recipe)}, {escaped(run.model)}"]
    parts += [f"## {title}\n\n{text}" for title, text in sections.items()]
    return "\n\n".join(parts) + "\n"


def _files(subject: Subject, files: Sequence[ExportedFile]) -> str:
    rows = [[file.name, f"{file.bytes:,}", file.sha256] for file in files]
    parts = [table(["file", "bytes", "SHA-256"], rows)]
    for name in dict.fromkeys(file.format for file in files):
        of_format = [file for file in files if file.format == name]
        parts.append(_format(subject, name, of_format))
    return "\n\n".join(parts)


def _format(subject: Subject, name: str, files: Sequence[ExportedFile]) -> str:
    """What a format is, how it was checked, and how it is loaded."""
    entry, first = FORMATS[name], files[0]
    if "model.py" in entry.files and "model.py" not in [file.name for file in files]:
        model = escaped(subject.about["model"])
        return (
            f"`{name}`: the weights alone. Loading them needs the network's code, {model}; the "
            "other formats hold code and weights."
        )
    checked = (
        f"Loaded again after writing, its logits differ from the run's own by at most "
        f"{first.largest_difference:.1e} on {first.images} images ({escaped(first.images_from)})."
    )
    code = block(entry.loading_for(subject.shape), "python")
    return f"`{name}`: {entry.summary}; loading it needs {entry.needs}. {checked}\n\n{code}"


def _intended_use(subject: Subject, run: Run) -> str:
    channels, height, width = subject.shape
    own = run.data.name.startswith("folder:")
    resized = (
        f"resize it by bilinear interpolation until its shorter side has {height} pixels, crop the "
        f"central {height} x {width} (Pillow's `ImageOps.fit`), "
    )
    pictures = (
        "To prepare a picture: turn it upright (`ImageOps.exif_transpose`), lay it on white where "
        f"it is transparent, convert it to RGB, {resized if run.image_size else ''}divide by 255. "
    )
    return (
        "Research on adversarial robustness: as a baseline, as a target for new attacks, as a "
        f"source of transfer attacks. It classifies images like those of {escaped(run.data.name)} "
        f"into {len(subject.about['classes'])} classes and knows no others.\n\n"
        f"Input: float32 images in [0, 1], shape (N, {channels}, {height}, {width}); the "
        f"normalisation is inside. {pictures if own else ''}Output: logits, one for "
        "each class in the order below.\n\n"
        "Not meant for decisions about people, nor for any use where a wrong class does harm: "
        "every robustness figure below is for one kind of small perturbation only."
    )


def _data(subject: Subject, run: Run) -> str:
    names = subject.about["classes"]
    shown = ", ".join(escaped(str(name)) for name in names[:_SHOWN_CLASSES])
    if len(names) > _SHOWN_CLASSES:
        shown += f" and {len(names) - _SHOWN_CLASSES} more (all are in the exported file)"
    known = DATASETS.get(run.data.name)
    amount = run.data.images_per_class
    images = "all of the training set" if amount is None else f"{amount} of each class"
    if run.data.held_out:
        images += f", without {run.data.held_out:,} held out"
    further = [("CutMix", run.data.cutmix), ("varied", run.data.vary)]
    augmentation = [run.data.augment, *(f"{name} {share:g}" for name, share in further if share)]
    lines = [
        f"Data set: {escaped(run.data.name)}" + (f" ({escaped(known.summary)})" if known else ""),
        f"Training images: {images}",
        f"Augmentation: {', '.join(augmentation)}",
        f"Classes, in the order of the logits: {shown}",
    ]
    if run.weights is not None:
        source = "/".join(Path(run.weights).parts[-3:])
        lines.append(
            f"Training began with other weights, {escaped(source)}, and so used their data too"
        )
    return "\n".join(f"- {line}" for line in lines)


def _recipe(run: Run) -> str:
    adversary, labels, optimiser = run.adversary, run.labels, run.optimiser
    rows = [["recipe", run.recipe], ["method", run.method]]
    if run.method != "undefended":
        rows += [
            ["training budget (L-inf)", fraction_text(adversary.epsilon)],
            ["attack steps", f"{adversary.steps} of {fraction_text(adversary.step_size)}"],
            ["random start", "yes" if adversary.random_start else "no"],
            ["attack target", adversary.target],
        ]
    rows.append(["labels", _labels(labels)])
    if pull := _pull(run):
        rows.append(["pull of the adversarial and the clean prediction", pull])
    rows += [
        ["epochs", str(run.epochs)],
        ["batch size", str(optimiser.batch_size)],
        ["learning rate", f"{optimiser.learning_rate:g}, {optimiser.schedule}"],
        ["weight averaging", "none" if run.averaging is None else f"{run.averaging:g}"],
        ["seed", str(run.seed)],
    ]
    parts = [table(["setting", "value"], rows)]
    if run.recipe in RECIPES and (changed := differences(RECIPES[run.recipe].run, run)):
        parts.append("Differs from the recipe of that name in: " + escaped("; ".join(changed)))
    parts.append(
        "To train it again, save the following as `config.json` and give it to the package "
        "(paths in it are those of the machine it was trained on)."
    )
    parts.append(block("bilateral train config.json --out again", "console"))
    parts.append(block(json.dumps({"run": run.model_dump(mode="json")}, indent=1), "json"))
    return "\n\n".join(parts)


def _labels(labels: Labels) -> str:
    """The rule and its settings."""
    said: list[str] = [labels.rule]
    if labels.rule == "smoothing":
        said.append(f"budget {labels.budget:g}")
    elif labels.rule != "one-hot":
        said.append(f"ratio {'classes - 1' if labels.ratio is None else f'{labels.ratio:g}'}")
        said += [f"among {labels.top_k} wrong classes"] if labels.top_k else []
    said += [f"{labels.mix:g} of it uniform"] if labels.mix else []
    share = labels.averaged_share
    said += [f"{share:g} of it as the averaged weights predict"] if share else []
    return ", ".join(said)


def _pull(run: Run) -> str:
    """The loss's distance between the two predictions, if it has one."""
    settings = run.regulariser
    if run.method == "undefended" or (run.method == "adversarial" and settings.kind == "none"):
        return ""
    if settings.kind == "none":
        return f"divergence, weight {run.trades_weight:g}"
    rising = ", rising from zero over the run" if settings.rising else ""
    return f"{settings.kind}, of {settings.of}, weight {settings.weight:g}{rising}"


def _architecture(subject: Subject, run: Run) -> str:
    about = subject.about
    outside = ":" in run.model
    what = "code from outside this package" if outside else model_entry(run.model).summary
    normalisation = about.get("normalisation")
    if normalisation:
        inside = f"(images - {normalisation['mean']}) / {normalisation['std']}"
    else:
        inside = "whatever the model's own code does"
    lines = [
        f"Network: {escaped(run.model)} ({escaped(what)})",
        f"Parameters: {subject.parameters:,}, float32",
        f"Normalisation, inside the model: {escaped(inside)}",
        f"Weights: {_weights(run)}, with their own batch-norm statistics",
        f"Digest of the weights: {subject.weights_digest}",
    ]
    return "\n".join(f"- {line}" for line in lines)


def _weights(run: Run) -> str:
    """Which weights of the run these are."""
    if run.keep == "best":
        kept, images = "averaged ones" if run.averaging else "those", f"{run.images_read:,}"
        return f"{kept} of the epoch at which most of {images} held-out images withstood PGD-10"
    return "averaged" if run.averaging else "those of the last step"


def _training(evidence: Evidence) -> str:
    last, versions = evidence.last_epoch, evidence.versions
    lines = [
        f"Device: {escaped(versions.get('device', 'not recorded'))}",
        f"Versions: bilateral {escaped(versions.get('bilateral', 'not recorded'))}, "
        f"torch {escaped(versions.get('torch', 'not recorded'))}; "
        f"exported by bilateral {bilateral.__version__}",
    ]
    readings = {
        "Epochs behind these weights": ("epoch", "{:,}"),
        "Training time of these (s)": ("seconds", "{:,.0f}"),
        "Loss in the last of them": ("loss", "{:.4f}"),
        "Accuracy on clean training images in the last of them": ("clean_accuracy", "{:.1f} %"),
        "Accuracy on adversarial ones": ("adversarial_accuracy", "{:.1f} %"),
    }
    for title, (name, form) in readings.items():
        value = last.get(name)
        if isinstance(value, int | float):
            lines.append(f"{title}: {form.format(100 * value if '%' in form else value)}")
    if not last:
        lines.append("The log of the epochs is missing or cannot be read")
    return "\n".join(f"- {line}" for line in lines)


def _robustness(evidence: Evidence) -> str:
    if not evidence.evaluations:
        return "Not measured: there are no figures for these weights."
    entries = sorted(evidence.evaluations, key=lambda entry: STRONGEST not in entry.attacks)
    rows = [row for entry in entries for row in _rows(entry)]
    head = ["data", "attack", "budget", "images", "accuracy (%)", "95 % interval"]
    said = (
        "Accuracies on test images, in per cent with 95 % Wilson intervals. An image counts as "
        "broken if any tested point fools the float32 model; the worst case counts it as broken "
        "if any of the attacks does."
    )
    if any(name.endswith("-last") for entry in entries for name in entry.attacks):
        said += (
            " Of an attack whose name ends in `-last` only the last point counts, as in the "
            "paper: it leaves more than the same attack without `-last`."
        )
    return f"{said}\n\n{table(head, rows)}"


def _rows(entry: Evaluation) -> list[list[str]]:
    budget = f"{entry.epsilon_text} L-inf"
    lines: list[tuple[str, str, int, float, Interval]] = [
        ("clean", "", entry.images, entry.clean_accuracy, entry.clean_interval)
    ]
    for name, attack in entry.attacks.items():
        lines.append((name, budget, attack.images, attack.accuracy, attack.interval))
        # Attacks that seek the smallest L2 change also say what holds at L2 radii.
        for radius, accuracy in attack.accuracy_at_radius.items():
            interval = wilson_interval(round(accuracy * attack.images), attack.images)
            lines.append((name, f"{radius} L2", attack.images, accuracy, interval))
    worst = (entry.images, entry.worst_case_accuracy, entry.worst_case_interval)
    lines.append(("worst case", budget, *worst))
    return [
        [
            entry.data,
            name,
            allowed,
            f"{images:,}",
            percent(accuracy),
            f"{percent(interval[0])} to {percent(interval[1])}",
        ]
        for name, allowed, images, accuracy, interval in lines
    ]


def _verdict(evidence: Evidence) -> str:
    diagnosis = evidence.diagnosis
    if diagnosis is None:
        return "None: there is no diagnosis of these weights (see the limits)."
    meaning = {
        "holds": "no check of `bilateral diagnose` discredits the figures",
        "suspect": "some checks of `bilateral diagnose` give reason for doubt",
        "masked": "gradients are masked: the figures of gradient attacks are not to be believed",
    }[diagnosis.verdict]
    if diagnosis.of_pgd_alone:
        meaning = "the figures under PGD are too high; no check discredits those under APGD"
    lines = [
        f"**{diagnosis.verdict}**: {meaning} (at {escaped(diagnosis.epsilon_text)} on "
        f"{diagnosis.images:,} images)."
    ]
    reasons = list(diagnosis.reasons)
    if diagnosis.verdict == "holds":
        reasons += doubts(diagnosis.model_dump())
    if reasons:
        lines.append("\n".join(f"- {escaped(reason)}" for reason in reasons))
    left = diagnosis.accuracies.get("apgd")
    if left is not None and diagnosis.images:
        low, high = wilson_interval(round(left * diagnosis.images), diagnosis.images)
        lines.append(
            f"APGD, which the diagnosis runs, left {percent(left)} % of these images (95 % "
            f"interval {percent(low)} to {percent(high)})."
        )
    return "\n\n".join(lines)
