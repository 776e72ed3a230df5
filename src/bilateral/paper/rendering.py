"""What lies in `results/` as Markdown: rows beside the paper's, parity and speed; no torch.

Below every table stands how its rows were measured.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bilateral.tables import percent, render

Row = Mapping[str, Any]

ABSENT = "-"
# Shown even where nobody has run it: a table that stops at PGD is not the truth about a model.
_ALWAYS_SHOWN = "autoattack"


def results_table(rows: Sequence[Row]) -> str:
    """`results/<table>.json`: accuracies in per cent.

    A row is followed by the paper's where it has one; network and epochs may differ. An attack on
    fewer images than the row's other attacks says on how many.
    """
    names = list(dict.fromkeys(name for row in rows for name in row["attacks"]))
    names = [name for name in names if name != _ALWAYS_SHOWN] + [_ALWAYS_SHOWN]
    head = ["accuracy (%)", "network", "epochs", "clean", *names, "images", "training (s)"]
    lines = []
    for row in rows:
        lines.append(_measured(row, names))
        if row["paper"]:
            lines.append(_printed(row["paper"], names))
    return _with_provenance(head, lines, rows)


def parity_table(rows: Sequence[Row]) -> str:
    """`results/parity.json`: our attacks beside a peer's on the same model and images.

    Attacks that seek the smallest perturbation are compared by its mean length, others by the
    accuracy they leave. A row without either was not measured.
    """
    head = ["model", "attack", "measured", "ours", "theirs", "peer", "images", "found"]
    return _with_provenance(head, [_parity(row) for row in rows], rows)


def speed_table(files: Sequence[Row]) -> str:
    """`results/bench/evaluate-*.json`: our time beside a peer's at its best batch size."""
    head = ["model", "attack", "images", "ours (s)", "accuracy (%)", "peer", "theirs (s)"]
    head += ["accuracy (%)", "ratio", "warm-up (s)", "device"]
    lines = [
        _speed(file, name, attack) for file in files for name, attack in file["attacks"].items()
    ]
    return _with_provenance(head, lines, files)


def _measured(row: Row, names: Sequence[str]) -> list[str]:
    attacks = row["attacks"]
    images = max((attack["images"] for attack in attacks.values()), default=None)

    def cell(name: str) -> str:
        if name not in attacks:
            return ABSENT
        count = attacks[name]["images"]
        return percent(attacks[name]["accuracy"]) + (f" ({count:,})" if count != images else "")

    return [
        f"`{row['recipe']}`",
        row["model"],
        str(row["epochs"]),
        percent(row["clean_accuracy"]),
        *map(cell, names),
        _count(images),
        f"{row['train_seconds']:,.0f}",
    ]


def _printed(paper: Row, names: Sequence[str]) -> list[str]:
    cells = [percent(paper[name]) if name in paper else ABSENT for name in ("clean", *names)]
    return ["as printed in the paper", paper["network"], str(paper["epochs"]), *cells, "", ""]


def _parity(row: Row) -> list[str]:
    measured, figures = "not measured", [ABSENT, ABSENT]
    if row["mean_distance"] is not None:
        measured = "mean L2 distance"
        figures = [f"{row[key]:.4f}" for key in ("mean_distance", "peer_mean_distance")]
    elif row["accuracy"] is not None:
        measured = "accuracy (%)"
        figures = [percent(row[key]) for key in ("accuracy", "peer_accuracy")]
    found = ABSENT if row["found"] is None else f"{row['found']:,} / {row['peer_found']:,}"
    name = f"`{row['recipe']}`"
    return [name, row["attack"], measured, *figures, row["peer"], _count(row["images"]), found]


def _speed(file: Row, name: str, attack: Row) -> list[str]:
    return [
        f"`{file['recipe']}`",
        name,
        _count(attack["images"]),
        f"{attack['seconds']:.1f}",
        percent(attack["accuracy"]),
        attack["peer"],
        f"{attack['peer_seconds']:.1f} (batch {attack['peer_batch_size']:,})",
        percent(attack["peer_accuracy"]),
        f"{attack['ratio']:.2f}",
        f"{file['warm_up_seconds']:.1f}",
        file["device"],
    ]


def _count(images: int | None) -> str:
    return ABSENT if images is None else f"{images:,}"


def _with_provenance(head: list[str], lines: list[list[str]], rows: Sequence[Row]) -> str:
    """A table, and below it a line for each way in which its rows were measured."""
    origins = dict.fromkeys(map(_provenance, rows))
    return "\n".join([render((head, lines), "markdown"), "", *origins])


def _provenance(row: Row) -> str:
    facts = [row["device"], f"commit {row['commit']}"]
    if seeds := row.get("seeds"):
        facts.append(f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}")
    note = f" Note: {row['note']}." if row.get("note") else ""
    return f"- `{row['recipe']}`, {row['model']}: {', '.join(facts)}; `{row['command']}`.{note}"
