"""The transfer matrix of `bilateral transfer` as a heat map of the page."""

from dataclasses import dataclass
from pathlib import Path

from bilateral.errors import UserError
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

    budget: str
    images: int | None
    clean: dict[str, float]
    heats: list[Heat]


def read_transfer(file: str) -> TransferMatrix:
    """The matrix in a file that the user named; a bad file is the user's to mend."""
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
        text(value.get("epsilon_text")) or "?", count(value.get("images")), clean, heats
    )
