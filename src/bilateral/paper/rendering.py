"""Measured rows of `results/<table>.json` as Markdown beside the paper's figures; no torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from bilateral.tables import percent, render

ABSENT = "-"
# Shown even where nobody has run it: a table that stops at PGD is not the truth about a model.
_ALWAYS_SHOWN = "autoattack"


def results_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table in per cent, and below it how each row was measured.

    A row is followed by the paper's where it has one; network and epochs may differ.
    """
    names = list(dict.fromkeys(name for row in rows for name in row["attacks"]))
    names = [name for name in names if name != _ALWAYS_SHOWN] + [_ALWAYS_SHOWN]
    head = ["accuracy (%)", "network", "epochs", "clean", *names, "images", "training (s)"]
    lines = []
    for row in rows:
        lines.append(_measured(row, names))
        if row["paper"]:
            lines.append(_printed(row["paper"], names))
    return "\n".join([render((head, lines), "markdown"), "", *map(_provenance, rows)])


def _measured(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    attacks = row["attacks"]
    counts = sorted({attack["images"] for attack in attacks.values()})
    return [
        f"`{row['recipe']}`",
        row["model"],
        str(row["epochs"]),
        percent(row["clean_accuracy"]),
        *(percent(attacks[name]["accuracy"]) if name in attacks else ABSENT for name in names),
        " or ".join(f"{count:,}" for count in counts) or ABSENT,
        f"{row['train_seconds']:,.0f}",
    ]


def _printed(paper: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    cells = [percent(paper[name]) if name in paper else ABSENT for name in ("clean", *names)]
    return ["as printed in the paper", paper["network"], str(paper["epochs"]), *cells, "", ""]


def _provenance(row: Mapping[str, Any]) -> str:
    word = "seed" if len(row["seeds"]) == 1 else "seeds"
    facts = [
        row["device"],
        f"commit {row['commit']}",
        f"{word} {', '.join(map(str, row['seeds']))}",
    ]
    note = f" Note: {row['note']}." if row.get("note") else ""
    return f"- `{row['recipe']}`, {row['model']}: {', '.join(facts)}; `{row['command']}`.{note}"
