"""The limits of what was measured, in plain words; no torch."""

from bilateral.budgets import fraction_text
from bilateral.export.evidence import Evidence
from bilateral.export.markdown import escaped
from bilateral.results import Evaluation
from bilateral.tables import percent

STRONGEST = "autoattack"


def limits(evidence: Evidence) -> list[str]:
    """A line each, as Markdown; the most serious first."""
    entries = evidence.evaluations
    lines = []
    if not entries:
        lines.append(
            "The robustness of these weights has not been measured. Nothing is claimed: treat the "
            "model as not robust until `bilateral evaluate` has been run."
        )
    lines += _weak(entries)
    lines += [_strength(entry, entries) for entry in entries if not _only_weak(entry, entries)]
    lines += [
        f"The evaluation {_where(entry)} warned: {escaped(warning)}."
        for entry in entries
        for warning in entry.warnings
    ]
    if evidence.diagnosis is not None and evidence.diagnosis.verdict != "holds":
        lines.append(
            f"The verdict is {evidence.diagnosis.verdict}: stronger attacks may leave less than "
            "the table says."
        )
    lines += [f"{escaped(remark)}." for remark in evidence.remarks]
    if evidence.run.method == "undefended":
        lines.append("It was trained on clean images only: it is a baseline for comparison.")
    else:
        budget = fraction_text(evidence.run.adversary.epsilon)
        lines.append(f"It was trained against perturbations of at most {budget} (L-inf).")
    if entries:
        lines.append(f"Threat model measured: {_threat_models(entries)}.")
    lines += [
        "Not measured: larger budgets, other norms than those named, patches, rotations and other "
        "geometric changes, blur, noise and other corruptions, other data sets, poisoned "
        "training data.",
        "Attacks give upper bounds: a stronger attack can only lower them, and none of this is a "
        "proof.",
    ]
    return lines


def _where(entry: Evaluation) -> str:
    return f"at {escaped(entry.epsilon_text)} on {entry.images:,} images of {escaped(entry.data)}"


def _beside(entry: Evaluation, entries: tuple[Evaluation, ...]) -> list[Evaluation]:
    """The evaluations by AutoAttack of the same data and budget."""
    here = (entry.data, entry.epsilon_text)
    strong = [other for other in entries if STRONGEST in other.attacks]
    return [other for other in strong if (other.data, other.epsilon_text) == here]


def _only_weak(entry: Evaluation, entries: tuple[Evaluation, ...]) -> bool:
    """Whether an evaluation's attacks have nothing by AutoAttack beside them."""
    return bool(entry.attacks) and not _beside(entry, entries)


def _weak(entries: tuple[Evaluation, ...]) -> list[str]:
    """One line for all evaluations without AutoAttack."""
    where = [_where(entry) for entry in entries if _only_weak(entry, entries)]
    if not where:
        return []
    return [
        f"AutoAttack was not run {', nor '.join(where)}: the figures are upper bounds by weaker "
        "attacks, and some models that looked robust under them have lost half of that accuracy "
        "under AutoAttack."
    ]


def _strength(entry: Evaluation, entries: tuple[Evaluation, ...]) -> str:
    where = _where(entry)
    if STRONGEST in entry.attacks:
        return f"AutoAttack was run {where}; the worst case includes it."
    if not entry.attacks:
        return f"No attack was run {where}: the figures are of clean images."
    most = max(_beside(entry, entries), key=lambda other: other.images)
    left = percent(most.attacks[STRONGEST].accuracy)
    return (
        f"The figures {where} are upper bounds by weaker attacks: AutoAttack left {left} % of "
        f"{most.images:,} images."
    )


def _threat_models(entries: tuple[Evaluation, ...]) -> str:
    """An attacker who knows everything, by norm and budget."""
    budgets = dict.fromkeys(entry.epsilon_text for entry in entries if entry.attacks)
    kinds = [f"each pixel by at most {escaped(text)} (L-inf)" for text in budgets]
    attacks = [attack for entry in entries for attack in entry.attacks.values()]
    radii = dict.fromkeys(radius for attack in attacks for radius in attack.accuracy_at_radius)
    kinds += [f"the whole image by at most {escaped(radius)} (L2)" for radius in radii]
    if not kinds:
        return "none, clean images only"
    return "an attacker who knows the model and changes " + ", or ".join(kinds)
