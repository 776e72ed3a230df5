"""The transfer matrix of `bilateral transfer` as heat maps of the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bilateral.errors import UserError
from bilateral.report.gather import RunFiles
from bilateral.report.reading import DamagedError, count, mapping, read_json, share, text


@dataclass(frozen=True)
class Heat:
    """Accuracy of targets (columns) on the images made on sources (rows) by one attack."""

    attack: str
    targets: list[str]
    rows: list[tuple[str, list[float | None]]]


@dataclass(frozen=True)
class TransferMatrix:
    """What `transfer.json` holds."""

    file: str
    budget: str
    data: str
    images: int | None
    clean: dict[str, float]
    heats: list[Heat]
    weights: dict[str, str]
    """The digest of each model's weights."""

    def refuse_others(self, runs: Sequence[RunFiles]) -> None:
        """Refuse a matrix that was measured before a run of the page was trained again."""
        known = {run.path.resolve(): run.weights for run in runs}
        for name, digest in self.weights.items():
            if (known.get(Path(name).resolve()) or digest) != digest:
                raise UserError(
                    f"--transfer {self.file} was measured on other weights of {name}; run "
                    "bilateral transfer again"
                )


def read_transfer(file: str) -> TransferMatrix:
    """The matrix in a file that the user named; a bad file raises UserError."""
    path = Path(file)
    if path.is_dir():
        path = path / "transfer.json"
    if not path.is_file():
        raise UserError(f"--transfer {file}: no {path.name} there; bilateral transfer writes one")
    try:
        value = mapping(read_json(path))
    except DamagedError as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    heats = []
    for attack, matrix in mapping(value.get("attacks")).items():
        sources = {source: mapping(row) for source, row in mapping(matrix).items()}
        targets = list(dict.fromkeys(target for row in sources.values() for target in row))
        if targets:
            cells = [
                (source, [share(row.get(target)) for target in targets])
                for source, row in sources.items()
            ]
            heats.append(Heat(attack, targets, cells))
    if not heats:
        raise UserError(f"{path} holds no transfer matrix: bilateral transfer writes one")
    clean = {
        name: found
        for name, one in mapping(value.get("clean")).items()
        if (found := share(one)) is not None
    }
    return TransferMatrix(
        file,
        text(value.get("epsilon_text")) or "?",
        text(value.get("data")) or "",
        count(value.get("images")),
        clean,
        heats,
        {
            name: digest
            for name, one in mapping(value.get("weights_digests")).items()
            if (digest := text(one))
        },
    )
