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
    mapping,
    number,
    read_arrays,
    read_json,
    read_lines,
    rows,
    text,
)
from bilateral.runs import RunFolder

SCHEMA = 1
"""The newest schema that this page was written for."""
FILES = ("config.json", "log.jsonl", "evaluation.json", "gallery.npz", "diagnostics.json")
"""One of these, or a folder of attacks, makes a folder a run's."""


@dataclass(frozen=True)
class Gap:
    """What a page cannot show, why, and the command that would make it."""

    file: str
    problem: str
    command: str = ""


@dataclass
class RunFiles:
    """What a run folder holds; empty where it holds nothing."""

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

    def command(self, name: str, *words: str) -> str:
        """A command line on this folder."""
        return shlex.join(["bilateral", name, str(self.path), *words])


def gather(folders: Sequence[str]) -> list[RunFiles]:
    """The folders' files; a folder without any of them is refused."""
    paths = [Path(folder) for folder in folders]
    for path in paths:
        _check(path)
    return [_read(RunFolder(path), name) for path, name in zip(paths, _names(paths), strict=True)]


def _check(path: Path) -> None:
    if not path.is_dir():
        raise UserError(f"no run folder at {path}")
    if any((path / name).exists() for name in FILES) or (path / "attacks").is_dir():
        return
    below = sorted(found.parent for found in path.glob("*/config.json"))
    hint = f"; did you mean {below[0]}?" if below else f": it has none of {', '.join(FILES)}"
    raise UserError(f"{path} is not a run folder{hint}")


def _names(paths: Sequence[Path]) -> list[str]:
    """Short names, told apart: `<name>/seed<k>`, or the whole path where two would be the same."""
    whole = [path.resolve() for path in paths]
    short = [
        f"{path.parent.name}/{path.name}" if path.name.startswith("seed") else path.name
        for path in whole
    ]
    return [
        name if short.count(name) == 1 else str(path)
        for name, path in zip(short, paths, strict=True)
    ]


def _read(folder: RunFolder, name: str) -> RunFiles:
    files = RunFiles(folder.path, name)
    evaluate, diagnose = files.command("evaluate"), files.command("diagnose")
    config = _object(files, folder.config, "the configuration", "")
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
    files.diagnosis = _object(files, folder.diagnostics, "checks and verdict", diagnose)
    files.curves = _object(files, folder.curves, "curves", diagnose)
    files.gallery = _gallery(files, folder.gallery, evaluate)
    files.gaps += [*_attacks_apart(files), *_other_weights(files, evaluate, diagnose)]
    return files


def _object(files: RunFiles, path: Path, what: str, command: str) -> dict[str, Any]:
    """The object in a file, or a line about why there is none."""
    file = str(path.relative_to(files.path))
    if not path.exists():
        files.gaps.append(Gap(file, f"not there: {what} cannot be shown", command))
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
        said = f"written by a newer version (schema {schema:g}): what is understood is shown"
        files.gaps.append(Gap(file, said))
    return value


def _log(files: RunFiles, path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        if files.config:
            again = shlex.join(["bilateral", "train", str(files.path / "config.json")])
            files.gaps.append(Gap("log.jsonl", "not there: no training curves", again))
        return []
    try:
        found, bad = read_lines(path)
    except DamagedError as error:
        files.gaps.append(Gap("log.jsonl", f"damaged ({error})"))
        return []
    if bad:
        files.gaps.append(Gap("log.jsonl", f"{bad} damaged line{'s' * (bad > 1)} left out"))
    return found


def _gallery(files: RunFiles, path: Path, command: str) -> Arrays:
    if not path.exists():
        files.gaps.append(Gap("gallery.npz", "not there: no pictures", command))
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
    """Attacks of the evaluation without flags on disk: nobody can check or compare them."""
    kept = {(text(one.get("attack")), text(one.get("epsilon_text"))) for one in files.attacks}
    gaps = []
    for entry in files.entries:
        budget = text(entry.get("epsilon_text")) or ""
        for name in mapping(entry.get("attacks")):
            if (name, budget) not in kept:
                kept.add((name, budget))
                words = ("--attacks", name, "--epsilon", budget)
                again = files.command("evaluate", *words)
                gaps.append(Gap(f"attacks/ ({name} at {budget})", "no flags of this attack", again))
    return gaps


def _other_weights(files: RunFiles, evaluate: str, diagnose: str) -> list[Gap]:
    """Files about other weights than the evaluation's last entry."""
    current = text(files.entries[-1].get("weights_digest")) if files.entries else None
    said = "of other weights than the evaluation: made before the model was trained again?"
    gallery = files.gallery.get("weights_digest")
    found = [
        ("diagnostics.json", text(files.diagnosis.get("weights_digest")), diagnose),
        ("gallery.npz", None if gallery is None else str(gallery), evaluate),
    ]
    return [
        Gap(file, said, command)
        for file, digest, command in found
        if current and digest and digest != current
    ]
