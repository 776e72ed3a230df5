"""A run folder's files as plain values, with a list of what is missing or damaged."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bilateral.errors import UserError
from bilateral.report.reading import (
    Arrays,
    DamagedError,
    count,
    mapping,
    number,
    read_arrays,
    read_json,
    read_lines,
    rows,
    text,
)
from bilateral.runs import RunFolder, changed_settings, no_run, run_said, said_of_weights

SCHEMA = 3
"""The newest schema that this page was written for."""
DIGESTS = ("weights_digest", "code_digest")
"""Which model a record belongs to; the code's is for a user's own model."""
FILES = ("config.json", "log.jsonl", "evaluation.json", "gallery.npz", "diagnostics.json")
"""A folder with any of these, or with attacks/, is accepted as a run folder."""
OUTSIDE = "FILE.py:FUNCTION"
"""Placeholder for a model from outside this package, which no file of its folder names."""


@dataclass(frozen=True)
class Gap:
    """What a page cannot show, why, and the command that would make it."""

    file: str
    problem: str
    command: str = ""


@dataclass
class RunFiles:
    """What a run folder holds; empty where a file is missing."""

    path: Path
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    attacks: list[dict[str, Any]] = field(default_factory=list)
    diagnosis: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, Any] = field(default_factory=dict)
    gallery: Arrays = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    weights: str | None = None
    """The digest of the weights that all of this belongs to, if any file records it."""

    outside: bool = False

    def command(self, name: str, *words: str) -> str:
        """A command line for this folder, or for the model from outside that it has results of."""
        target = [str(self.path)]
        if self.outside and name != "report":
            data = text(next(iter([*self.entries, *self.attacks]), {}).get("data")) or "DATA"
            run = RunFolder(self.path).trained.path
            target = [OUTSIDE if run == self.path else str(run)]
            target += [] if "--data" in words else ["--data", data]
            words = words if run != self.path else (*words, "--out", str(self.path))
        return shlex.join(["bilateral", name, *target, *words])


def gather(folders: Sequence[str]) -> list[RunFiles]:
    """The folders' files; a folder without any of them is refused."""
    paths = [Path(folder) for folder in folders]
    for path in paths:
        _check(path)
    return [_read(RunFolder(path), name) for path, name in zip(paths, _names(paths), strict=True)]


def _check(path: Path) -> None:
    if any((path / name).exists() for name in FILES) or (path / "attacks").is_dir():
        return
    raise no_run(
        path, f"{', '.join(FILES[:-1])} or {FILES[-1]}"
    )  # an evaluation's folder needs no config.json


def _names(paths: Sequence[Path]) -> list[str]:
    """Unique short names: `<name>/seed<k>`, or the whole path if two would be the same."""
    short = [_short(path.resolve()) for path in paths]
    return [
        name if short.count(name) == 1 else str(path)
        for name, path in zip(short, paths, strict=True)
    ]


def _short(path: Path) -> str:
    if (run := RunFolder(path).trained.path) != path:
        return f"{_short(run)} on {path.name}"
    return f"{path.parent.name}/{path.name}" if path.name.startswith("seed") else path.name


def _read(folder: RunFolder, name: str) -> RunFiles:
    files = RunFiles(folder.path, name)
    trained = (folder.config, folder.log, folder.checkpoint, folder.weights)
    files.outside = not any(path.exists() for path in trained)
    evaluate = files.command("evaluate")
    config = {} if files.outside else _object(files, folder.config, "the configuration", "")
    files.config, files.versions = mapping(config.get("run")), mapping(config.get("versions"))
    if config and not files.config:
        files.gaps.append(Gap("config.json", "holds no configuration under `run`"))
    files.epochs = _log(files, folder.log)
    evaluation = _object(files, folder.evaluation, "accuracy under attack", evaluate)
    files.entries = rows(evaluation.get("entries"))
    if evaluation and not files.entries:
        files.gaps.append(Gap("evaluation.json", "holds no entries", evaluate))
    for path in sorted(folder.path.glob("attacks/*.json")):
        found = _object(files, path, "the flags of an attack", evaluate)
        if found:
            files.attacks.append(found)
    evaluate, diagnose = files.command("evaluate"), files.command("diagnose")
    files.diagnosis = _object(files, folder.diagnostics, "checks, verdict and curves", diagnose)
    files.curves = _object(files, folder.curves, "curves", diagnose)
    files.gallery = _gallery(files, folder.gallery, evaluate)
    said = said_of_weights(folder.trained.weights)
    files.gaps += _trained_otherwise(files, mapping(said.get("run")))
    files.gaps += _leave_out_other_weights(files, evaluate, diagnose, said)
    files.gaps += _attacks_apart(files)
    return files


def _object(files: RunFiles, path: Path, what: str, command: str) -> dict[str, Any]:
    """The object in a file; if it cannot be read, a gap says why."""
    file = str(path.relative_to(files.path))
    if not path.exists():
        files.gaps.append(Gap(file, f"missing, so {what} cannot be shown", command))
        return {}
    try:
        value = read_json(path)
    except DamagedError as error:
        files.gaps.append(Gap(file, f"damaged ({error})", command))
        return {}
    if not isinstance(value, dict):
        files.gaps.append(Gap(file, "damaged (not a JSON object)", command))
        return {}
    schema = number(value.get("schema"))
    if schema is not None and schema > SCHEMA:
        said = f"written by a newer version (schema {schema:g}): only known fields are shown"
        files.gaps.append(Gap(file, said))
    return value


def _log(files: RunFiles, path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        if files.config:
            again = shlex.join(["bilateral", "train", str(files.path / "config.json")])
            files.gaps.append(Gap("log.jsonl", "missing, so no training curves", again))
        return []
    try:
        found, bad = read_lines(path)
    except DamagedError as error:
        files.gaps.append(Gap("log.jsonl", f"damaged ({error})"))
        return []
    if bad:
        files.gaps.append(Gap("log.jsonl", f"{bad} damaged line{'s' * (bad > 1)} left out"))
    epochs, last = count(files.config.get("epochs")) or 0, mapping(found[-1]) if found else {}
    done = count(last.get("epoch")) or len(found)
    if done < epochs and not mapping(last.get("guard")).get("discarded"):  # a guard's stop
        said = f"{done} of {epochs} epochs: training has not ended"
        files.gaps.append(Gap("log.jsonl", said, _going_on(files)))
    return found


def _going_on(files: RunFiles) -> str:
    """The command that resumes training in this folder; empty if `train` would not choose it."""
    path = files.path.resolve()
    if path.name != f"seed{count(files.config.get('seed'))}":
        return ""
    words = ["--out", str(path.parent.parent), "--name", path.parent.name]
    return shlex.join(["bilateral", "train", str(path / "config.json"), *words])


def _gallery(files: RunFiles, path: Path, command: str) -> Arrays:
    if not path.exists():
        files.gaps.append(Gap("gallery.npz", "missing, so no pictures", command))
        return {}
    try:
        found, bad = read_arrays(path)
    except DamagedError as error:
        files.gaps.append(Gap("gallery.npz", f"damaged ({error})", command))
        return {}
    if bad:
        files.gaps.append(Gap("gallery.npz", f"damaged in {', '.join(bad)}", command))
    return found


def _attacks_apart(files: RunFiles) -> list[Gap]:
    """Attacks of the evaluation without flags on disk: they cannot be checked or compared."""
    kept = {(text(one.get("attack")), text(one.get("epsilon_text"))) for one in files.attacks}
    gaps = []
    for entry in files.entries:
        budget = text(entry.get("epsilon_text")) or ""
        for name in mapping(entry.get("attacks")):
            if (name, budget) not in kept:
                kept.add((name, budget))
                words = ["--attacks", name, "--epsilon", budget]
                images = count(mapping(entry["attacks"][name]).get("images"))
                words += ["--images", str(images)] if images else []
                again = files.command("evaluate", *words)
                gaps.append(Gap(f"attacks/ ({name} at {budget})", "no flags of this attack", again))
    return gaps


def _trained_otherwise(files: RunFiles, said: dict[str, Any]) -> list[Gap]:
    """Show the configuration that the weights record, if config.json holds another one."""
    try:
        before, run = run_said(said, "weights"), run_said(files.config, "config.json")
        changed = changed_settings(before, run) if said and files.config else []
    except UserError:  # of another version, or damaged
        changed = []
    if not changed:
        return []
    files.config = before.model_dump(mode="json")
    fields = "; ".join(changed)
    problem = f"not what the weights were trained with ({fields}): theirs is shown"
    return [Gap("config.json", problem)]


def _leave_out_other_weights(
    files: RunFiles, evaluate: str, diagnose: str, said: dict[str, Any]
) -> list[Gap]:
    """Keep only records of one model and, for each data set's name, of one set of images.

    The model is that of the weights in the folder; if these do not say, of the last entry, or else
    of the diagnosis or the first attack. The images are the last entry's.
    """
    records = (said, *files.entries[-1:], files.diagnosis, *files.attacks)
    files.weights = current = next(filter(None, map(_weights, records)), None)
    code = next((_code(one) for one in records[1:] if _weights(one) == current), None)
    images = {text(one.get("data")): text(one.get("data_digest")) for one in files.entries}
    gaps = []

    def is_other(record: dict[str, Any], file: str, command: str) -> bool:
        """Whether a record is of other weights, or of other code or images if it says which."""
        digest, written = _weights(record), _code(record)
        seen = text(record.get("data_digest")) or None
        if current and digest and digest != current:
            what = "weights than the model's"
        elif current and digest and written not in (None, code):
            what = "code of the model than now" + (", or on other data" if files.outside else "")
        elif seen not in (None, images.get(text(record.get("data")), seen)):
            what = "images under the same name"
        else:
            return False
        gaps.append(Gap(file, f"left out: made with other {what}", command))
        return True

    def kept(found: list[dict[str, Any]], file: str) -> list[dict[str, Any]]:
        return [one for one in found if not is_other(one, f"{file} ({_described(one)})", evaluate)]

    files.entries = kept(files.entries, "evaluation.json")
    files.attacks = kept(files.attacks, "attacks/")
    if is_other(files.diagnosis, "diagnostics.json", diagnose):
        files.diagnosis = {}
    if not files.diagnosis:  # nothing else says whose curves they are
        files.curves = {}
    digests = {key: str(files.gallery[key]) for key in DIGESTS if key in files.gallery}
    if is_other(digests, "gallery.npz", evaluate):
        files.gallery = {}
    return gaps


def _weights(record: dict[str, Any]) -> str | None:
    return text(record.get("weights_digest"))


def _code(record: dict[str, Any]) -> str | None:
    """The digest of the code that a record is of; older diagnoses have none."""
    return text(record.get("code_digest"))


def _described(record: dict[str, Any]) -> str:
    """An entry or the file of an attack in a few words."""
    budget = text(record.get("epsilon_text")) or "?"
    images = count(record.get("images"))
    several = f", {images:,} images" if images else ""
    return f"{text(record.get('attack')) or text(record.get('data')) or '?'} at {budget}{several}"
