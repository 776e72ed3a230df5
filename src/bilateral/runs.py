"""The run folder: its files, and the log that is cut back to the checkpoint; no torch."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bilateral.budgets import fraction_text
from bilateral.config import Run, Settings, flat, run_from_json
from bilateral.errors import UserError
from bilateral.reading import LIMIT, json_bytes, parse_json, read_plain
from bilateral.storage import append_line, digest_of, write_atomic, write_json

__all__ = [
    "RunFolder",
    "changed_settings",
    "check_trained",
    "file_digest",
    "no_model",
    "no_run",
    "run_said",
    "safe_name",
    "said_of_weights",
    "weights_file",
    "write_atomic",
    "write_json",
]
_SCHEMA = 3
"""Of `config.json`. Older ones chose the test pictures of a folder without `val/` differently."""
_ELSEWHERE = "on"


@dataclass(frozen=True)
class RunFolder:
    """`<out>/<name>/seed<k>/` and the files in it."""

    path: Path

    @property
    def config(self) -> Path:
        """The whole configuration, with versions."""
        return self.path / "config.json"

    @property
    def log(self) -> Path:
        """A line of JSON per epoch."""
        return self.path / "log.jsonl"

    @property
    def checkpoint(self) -> Path:
        """Everything needed to resume."""
        return self.path / "checkpoint.pt"

    @property
    def weights(self) -> Path:
        """The final weights; they exist only once training has ended."""
        return self.path / "model.safetensors"

    @property
    def evaluation(self) -> Path:
        """An entry for every (epsilon, images) evaluated."""
        return self.path / "evaluation.json"

    @property
    def diagnostics(self) -> Path:
        """Every check with its reading, and the verdict."""
        return self.path / "diagnostics.json"

    @property
    def curves(self) -> Path:
        """Accuracy against the budget and against the number of steps."""
        return self.path / "curves.json"

    @property
    def gallery(self) -> Path:
        """A few clean and adversarial images."""
        return self.path / "gallery.npz"

    def attack(self, name: str, epsilon_text: str) -> Path:
        """The robust flags of an attack at a budget; `8/255` is written `8-255` in the name."""
        return self.path / "attacks" / f"{_file_name(name, epsilon_text)}.json"

    def adversarial(self, name: str, epsilon_text: str) -> Path:
        """All adversarial images of an attack at a budget, if they were saved."""
        return self.path / "adversarial" / f"{_file_name(name, epsilon_text)}.npz"

    def on(self, data: str) -> "RunFolder":
        """The folder for results on other data, which must not replace those on the run's own."""
        digest = hashlib.sha256(data.encode(errors="surrogateescape")).hexdigest()[:8]
        return RunFolder(self.path / _ELSEWHERE / f"{safe_name(Path(data).name)[:60]}-{digest}")

    @property
    def trained(self) -> "RunFolder":
        """The run that this folder belongs to: itself, or the one whose results it holds."""
        above = RunFolder(self.path.parent.parent)
        return above if self.path.parent.name == _ELSEWHERE and above.config.is_file() else self

    def read_run(self) -> Run:
        """The configuration that was trained here."""
        if not self.config.is_file():
            raise no_run(self.path)
        return run_from_json(json_bytes(self.config), str(self.config))

    @property
    def versions(self) -> dict[str, str]:
        """Package, torch and device of the training; empty if its configuration has none."""
        said = parse_json(json_bytes(self.config), str(self.config))
        found = said.get("versions") if isinstance(said, dict) else None
        if not isinstance(found, dict):
            return {}
        return {str(name): str(value) for name, value in found.items()}

    @property
    def former_split(self) -> str:
        """How an older version chose a folder's test pictures for this run; empty if as now."""
        said = parse_json(json_bytes(self.config), str(self.config))
        schema = said.get("schema") if isinstance(said, dict) else None
        if schema == _SCHEMA:
            return ""
        return "names without their classes" if schema == 2 else "a seed"

    def prepare(self, run: Run, versions: dict[str, str]) -> Run:
        """Make the folder for a run, or check that the existing one holds the same run.

        Returns the run, with the digest of the weights that it started from if that is known.
        """
        if not self.config.exists():
            said = {"run": run.model_dump(mode="json"), "versions": versions}
            write_json(self.config, {"schema": _SCHEMA, **said})
            return run
        before = self.read_run()
        if changed := changed_settings(before, run):
            raise UserError(
                f"{self.path} holds another configuration ({'; '.join(changed)}); "
                "choose another --name, --out or --seed"
            )
        return run.with_fields(weights_digest=run.weights_digest or before.weights_digest)

    def cut_log(self, epochs: int) -> None:
        """Keep the lines of the first `epochs` epochs: later ones will be trained again."""
        if not self.log.exists():
            return
        kept = []
        for line in read_plain(self.log, LIMIT).splitlines(keepends=True):
            try:
                whole = line.endswith(b"\n") and parse_json(line, "")["epoch"] <= epochs
            except (UserError, KeyError, TypeError):
                whole = False
            if not whole:
                break
            kept.append(line)
        write_atomic(self.log, b"".join(kept))

    def records(self) -> list[dict[str, Any]]:
        """The epochs in the log."""
        lines = read_plain(self.log, LIMIT).splitlines() if self.log.exists() else []
        records = []
        for number, line in enumerate(lines, start=1):
            record = parse_json(line, f"{self.log}, line {number},")
            if not isinstance(record, dict):
                raise UserError(f"{self.log} is damaged: line {number} is not an epoch's record")
            records.append(record)
        return records

    def last_record(self) -> dict[str, Any]:
        """The last epoch in the log; empty if there is none."""
        records = self.records()
        return records[-1] if records else {}

    def kept_record(self) -> dict[str, Any]:
        """The last epoch that made the final weights; empty if there is none.

        A guard that stops goes back to before the collapse, and a run may keep earlier weights.
        """
        records = self.records()
        records = [one for one in records if one.get("kept")] or records
        return next((one for one in reversed(records) if not _discarded(one)), {})

    def guard_events(self, after: int = 0) -> list[str]:
        """What the guard reported in training, oldest first, without the first `after` epochs."""
        guards = [record.get("guard") for record in self.records()[after:]]
        events = [guard.get("event") for guard in guards if isinstance(guard, dict)]
        return [event for event in events if isinstance(event, str)]

    def append_log(self, record: dict[str, Any]) -> None:
        """Append an epoch to the log."""
        append_line(self.log, json.dumps(record, allow_nan=False))


def differences(one: Settings, other: Settings) -> list[str]:
    """The fields in which two values differ, as `field: one -> other`."""
    before = flat(one.model_dump())
    return [
        f"{key}: {field_text(key, before.get(key))} -> {field_text(key, value)}"
        for key, value in changed_fields(one, other).items()
    ]


def changed_settings(before: Run, run: Run) -> list[str]:
    """The fields in which a run differs from the one before it, as `field: one -> other`.

    How often a checkpoint is written does not count, as it changes no result; nor does the path of
    initial weights that are known to be the same, as they are not read again.
    """
    moved = run.weights_digest is not None and run.weights_digest == before.weights_digest
    same = run.with_fields(
        checkpoint_seconds=before.checkpoint_seconds,
        weights=before.weights if moved else run.weights,
        weights_digest=run.weights_digest or before.weights_digest,
    )
    return differences(before, same)


def check_trained(path: Path, about: Mapping[str, Any], run: Run) -> None:
    """Refuse a checkpoint or weights that record another run than this one.

    With a configuration that was copied or edited, their figures would have the wrong name. Files
    of earlier versions record no run.
    """
    if not (said := about.get("run")):
        return
    if changed := changed_settings(_placeless(run_said(said, str(path))), _placeless(run)):
        raise UserError(
            f"{path} was trained with another configuration than the config.json beside it "
            f"({'; '.join(changed)}): restore its own, or train under another --name"
        )


def run_said(said: Any, source: str) -> Run:
    """The run that a weights file records; fields that no longer exist are left out."""
    known = _known(said, Run().model_dump(mode="json"))
    return run_from_json(json.dumps({"run": known}), source)


def _known(said: Any, usual: Any) -> Any:
    """Nested settings without the fields that `usual` lacks."""
    if not isinstance(said, dict) or not isinstance(usual, dict):
        return said
    return {key: _known(value, usual[key]) for key, value in said.items() if key in usual}


def _placeless(run: Run) -> Run:
    """The run without the folders of the user's own files: code and pictures may be moved."""
    file, colon, function = run.model.rpartition(":")
    own = f"{Path(file).name}:{function}" if colon and file.endswith(".py") else run.model
    pictures = "folder:" if run.data.name.startswith("folder:") else run.data.name
    data = run.data.model_copy(update={"name": pictures})
    return run.model_copy(update={"model": own, "data": data})


def said_of_weights(path: Path) -> dict[str, Any]:
    """What a weights file records about its model, read without torch; empty if nothing is."""
    try:
        if not path.is_file():
            return {}
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = parse_json(file.read(min(length, LIMIT)), str(path))
        said = parse_json(header["__metadata__"]["bilateral"].encode(), str(path))
    except (OSError, UserError, LookupError, TypeError, AttributeError):
        return {}
    return said if isinstance(said, dict) else {}


def changed_fields(one: Settings, other: Settings) -> dict[str, Any]:
    """The fields in which `other` differs, with its values."""
    before, after = flat(one.model_dump()), flat(other.model_dump())
    keys = before | after
    return {key: after.get(key) for key in keys if before.get(key) != after.get(key)}


def field_text(key: str, value: Any) -> str:
    """A field's value as it is printed."""
    of_images = key.endswith(("epsilon", "step_size")) and value is not None
    return fraction_text(value) if of_images else str(value)


def recipe_with(recipe: str, fields: Mapping[str, Any]) -> str:
    """A recipe and what differs from it: `digits-r-mc-la with method undefended`."""
    told = ", ".join(f"{key} {field_text(key, value)}" for key, value in fields.items())
    return f"{recipe} with {told}" if told else recipe


def no_run(path: Path, lacks: str = "config.json") -> UserError:
    """The error for a path that is not a run folder; it suggests one below the path."""
    below = [*path.glob("seed*/config.json"), *path.glob("*/seed*/config.json")]
    if below:
        return UserError(f"{path} is not a run folder; did you mean {min(below).parent}?")
    if path.is_dir():
        return UserError(f"{path} is not a run folder: it has no {lacks}")
    return UserError(f"no run folder at {path}")


def no_model(folder: RunFolder) -> UserError:
    """The error for a run that has not ended."""
    return UserError(f"{folder.path} has no model yet: train it to the end first")


def weights_file(given: str) -> Path:
    """The weights file that the user means: the file itself, or a run folder's final weights."""
    path = Path(given)
    folder = RunFolder(path)
    if path.is_dir() and not folder.weights.exists():
        raise no_model(folder) if folder.config.is_file() else no_run(path)
    return folder.weights if path.is_dir() or not (path.suffix or path.is_file()) else path


def file_digest(path: Path) -> str:
    """SHA-256 of a file of weights."""
    try:
        return digest_of(path)
    except OSError:
        raise UserError(f"no weights at {path}") from None


def _discarded(record: dict[str, Any]) -> bool:
    guard = record.get("guard")
    return isinstance(guard, dict) and bool(guard.get("discarded"))


def safe_name(text: str) -> str:
    """A model, attack or target as a file name: letters, digits and hyphens."""
    return "".join(letter if letter.isalnum() else "-" for letter in text).strip("-")


def _file_name(attack: str, epsilon_text: str) -> str:
    """An attack and its budget as a file name; an attack of the user's own is a path itself."""
    return f"{safe_name(attack)}@{epsilon_text.replace('/', '-')}"
