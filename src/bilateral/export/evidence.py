"""What a run folder's files say of its model: training, robustness, verdict; no torch.

Measurements of other weights, or of another version of the model's own code, are left out, and so
are files that cannot be read; each omission is reported.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from bilateral.config import Run
from bilateral.errors import UserError
from bilateral.evaluation.diagnosis import Diagnosis
from bilateral.reading import read_record
from bilateral.results import Evaluation, EvaluationFile
from bilateral.runs import RunFolder


@dataclass(frozen=True)
class Evidence:
    """What is known of the exported weights; `remarks` are what is missing and why."""

    run: Run
    versions: dict[str, str] = field(default_factory=dict)
    last_epoch: dict[str, Any] = field(default_factory=dict)
    evaluations: tuple[Evaluation, ...] = ()
    diagnosis: Diagnosis | None = None
    remarks: tuple[str, ...] = ()


def read_evidence(folder: RunFolder, weights_digest: str, code_digest: str = "") -> Evidence:
    """The folder's measurements of these weights and this code."""
    remarks: list[str] = []
    entries = []
    found = _evaluations(folder, remarks)
    newest = {entry.data: entry.data_digest for entry in found}
    for entry in found:
        where = f"the evaluation at {entry.epsilon_text} on {entry.images} images of {entry.data}"
        if entry.data_digest != newest[entry.data]:
            remarks.append(f"{where} is of other images of that name: its figures are not shown")
        elif entry.weights_digest != weights_digest:
            remarks.append(f"{where} is of other weights: its figures are not shown")
        elif entry.code_digest != code_digest:
            remarks.append(f"{where} is of other code of the model: its figures are not shown")
        else:
            entries.append(entry)
    with suppress(UserError, OSError):
        remarks += [f"during training, {event}" for event in folder.guard_events()]
    diagnosis = _diagnosis(folder, remarks)
    if diagnosis is not None and diagnosis.weights_digest != weights_digest:
        remarks.append("diagnostics.json is of other weights: its verdict is not shown")
        diagnosis = None
    elif diagnosis is not None and diagnosis.code_digest != code_digest:
        remarks.append("diagnostics.json is of other code of the model: its verdict is not shown")
        diagnosis = None
    if diagnosis is not None and diagnosis.data_digest not in (
        "",
        newest.get(diagnosis.data, diagnosis.data_digest),
    ):
        remarks.append("diagnostics.json is of other images of that name: its verdict is not shown")
        diagnosis = None
    return Evidence(
        run=folder.read_run(),
        versions=folder.versions,
        last_epoch=_last_epoch(folder),
        evaluations=tuple(entries),
        diagnosis=diagnosis,
        remarks=tuple(remarks),
    )


def _evaluations(folder: RunFolder, remarks: list[str]) -> list[Evaluation]:
    if not folder.evaluation.exists():
        remarks.append("bilateral evaluate was not run: there is no evaluation.json")
        return []
    try:
        return read_record(folder.evaluation, EvaluationFile).entries
    except UserError as error:
        remarks.append(f"evaluation.json cannot be read ({error})")
        return []


def _diagnosis(folder: RunFolder, remarks: list[str]) -> Diagnosis | None:
    if not folder.diagnostics.exists():
        remarks.append("bilateral diagnose was not run: the figures have not been challenged")
        return None
    try:
        return read_record(folder.diagnostics, Diagnosis)
    except UserError as error:
        remarks.append(f"diagnostics.json cannot be read ({error})")
        return None


def _last_epoch(folder: RunFolder) -> dict[str, Any]:
    """The last epoch that made these weights, if the log can be read."""
    try:
        return folder.kept_record()
    except (UserError, OSError):
        return {}
