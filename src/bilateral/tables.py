"""Measurements as tables: text for the terminal, Markdown, CSV and LaTeX; no torch."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from string import ascii_uppercase
from typing import Any, Literal

from bilateral.results import Comparison, Evaluation, Interval

Table = tuple[list[str], list[list[str]]]
ABSENT = "-"
"""A cell that was not measured."""
WIDTH = 80
"""Columns of a terminal."""
Format = Literal["text", "markdown", "csv", "latex"]


def percent(share: float) -> str:
    """A fraction as a percentage, as printed."""
    return f"{100 * share:.1f}"


def _interval(interval: Interval) -> str:
    return f"{percent(interval[0])} to {percent(interval[1])}"


def rate(tflops: float) -> str:
    """TFLOP/s as they are printed: a CPU with a small network has thousandths of one."""
    return f"{tflops:.1f}" if tflops >= 10 else f"{tflops:.3g}"


def _distance(mean: float | None) -> str:
    return "" if mean is None else f"{mean:.3f}"


def evaluation_table(entry: Evaluation) -> Table:
    """One model: a row per attack; mean L2 distances of minimum-norm attacks in a column."""
    head = ["attack", "accuracy (%)", "95 % interval", "images", "seconds"]
    rows = [["clean", percent(entry.clean_accuracy), _interval(entry.clean_interval), "", ""]]
    for name, attack in entry.attacks.items():
        rows.append(
            [
                f"{name} at {entry.epsilon_text}",
                percent(attack.accuracy),
                _interval(attack.interval),
                str(attack.images),
                f"{attack.seconds:.1f}",
            ]
        )
    worst, interval = percent(entry.worst_case_accuracy), _interval(entry.worst_case_interval)
    rows.append(["worst case", worst, interval, str(entry.images), ""])
    distances = [attack.mean_distance for attack in entry.attacks.values()]
    if any(mean is not None for mean in distances):
        head.append("mean L2")
        for row, mean in zip(rows, [None, *distances, None], strict=True):
            row.append(_distance(mean))
    return head, rows


def comparison_table(entries: Mapping[str, Evaluation]) -> Table:
    """Several models under the same attacks: a row per model, accuracies in per cent."""
    first = next(iter(entries.values()))
    head = ["accuracy (%)", "clean", *(f"{name} at {first.epsilon_text}" for name in first.attacks)]
    rows = [
        [
            name,
            percent(entry.clean_accuracy),
            *(percent(entry.attacks[attack].accuracy) for attack in first.attacks),
        ]
        for name, entry in entries.items()
    ]
    return head, rows


def bench_table(rows: Mapping[str, Mapping[str, Any]]) -> Table:
    """Our time and a peer's: a row per attack; minimum-norm attacks with their mean distance."""
    by_length = any("mean_distance" in row for row in rows.values())
    length = ["mean L2"] if by_length else []
    head = ["attack", "seconds", "accuracy (%)", *length]
    head += ["peer", "seconds", "accuracy (%)", *length, "ratio"]
    lines = []
    for name, row in rows.items():
        ours = [f"{row['seconds']:.1f}", percent(row["accuracy"])]
        theirs = [row["peer"], f"{row['peer_seconds']:.1f}"]
        theirs.append("" if row["peer_accuracy"] is None else percent(row["peer_accuracy"]))
        if by_length:
            ours.append(_distance(row.get("mean_distance")))
            theirs.append(_distance(row.get("peer_mean_distance")))
        lines.append([name, *ours, *theirs, f"{row['ratio']:.2f}"])
    return head, lines


def bench_train_table(result: Mapping[str, Any]) -> Table:
    """Training throughput: a row with every feature on, and one with each switched off."""
    head = ["features", "images/s", "s an epoch", "TFLOP/s", "of matrix rate (%)", "GiB", "start s"]
    return head, [
        [
            name,
            f"{row['images_per_second']:,.0f}",
            f"{row['epoch_seconds']:.2f}",
            rate(row["tflops"]),
            percent(row["share_of_matrix_rate"]),
            "" if row["peak_memory_gib"] is None else f"{row['peak_memory_gib']:.1f}",
            f"{row['warm_up_seconds']:.1f}",
        ]
        if "error" not in row
        else [name, row["error"], *[""] * 5]
        for name, row in result["features"].items()
    ]


def paired_table(comparison: Comparison) -> Table:
    """Runs on the same images: a row per run, tested against the first."""
    head = ["run", "accuracy (%)", "95 % interval", "only first", "only this", "McNemar p"]
    rows = []
    for line in comparison.runs:
        test = line.against_first
        cells = ["", "", ""]
        if test is not None:
            cells = [str(test.only_first), str(test.only_second), f"{test.p_value:.2g}"]
        rows.append([line.run, percent(line.accuracy), _interval(line.interval), *cells])
    return head, rows


def lettered(names: Iterable[str]) -> dict[str, str]:
    """A letter for every name, in their order; numbers if there are more names than letters."""
    found = list(dict.fromkeys(names))
    few = len(found) <= len(ascii_uppercase)
    return {
        name: ascii_uppercase[place] if few else str(place + 1) for place, name in enumerate(found)
    }


def narrow(table: Table) -> tuple[list[str], Table]:
    """A table for a terminal of 80 columns: row names that are too long move into a legend.

    Returns the legend's lines, and the table with letters in place of the names.
    """
    head, rows = table
    if max(map(len, render(table).splitlines())) <= WIDTH:
        return [], table
    letters = lettered(row[0] for row in rows)
    legend = [f"{letter}  {name}" for name, letter in letters.items()]
    return [*legend, ""], (head, [[letters[row[0]], *row[1:]] for row in rows])


def render(table: Table, format: Format = "text") -> str:
    """A table in one of the formats; numbers are aligned to the right in text."""
    head, rows = table
    if format == "csv":
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows([head, *rows])
        return buffer.getvalue().rstrip("\n")
    if format == "markdown":
        rule = ["---"] + ["---:"] * (len(head) - 1)
        return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *rows])
    if format == "latex":
        body = " \\\\\n".join(" & ".join(map(_latex, row)) for row in [head, *rows])
        return f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}\n{body} \\\\\n\\end{{tabular}}"
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return "\n".join(_text_line(row, widths) for row in [head, *rows])


def _text_line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [row[0].ljust(widths[0])]
    cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return "  ".join(cells).rstrip()


def _latex(text: str) -> str:
    for letter in "%_&#":
        text = text.replace(letter, "\\" + letter)
    return text
