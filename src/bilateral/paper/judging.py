"""The paper's claims judged on measured rows, as a table; no torch."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from bilateral.paper.claims import CLAIMS, Claim
from bilateral.paper.comparisons import Finding, Results, one_model_each
from bilateral.tables import Table


class Judgement(NamedTuple):
    """A claim and what was found."""

    claim: Claim
    finding: Finding
    under_autoattack: Finding | None


def findings(results: Results) -> list[Judgement]:
    """Every claim, judged on rows of one network: the one with most rows that has what it needs."""
    counted = Counter(str(row["model"]) for rows in results.values() for row in rows)
    by_model = [
        {name: [row for row in rows if row["model"] == model] for name, rows in results.items()}
        for model, _ in counted.most_common()
    ]
    return [_judge(claim, by_model) for claim in CLAIMS.values()]


def _judge(claim: Claim, by_model: Sequence[Results]) -> Judgement:
    strong = claim.under_autoattack
    cells = claim.check.cells + (strong.cells if strong else [])
    chosen = (one_model_each(rows, cells) for rows in by_model)
    rows = next((rows for rows in chosen if claim.check(rows).holds is not None), {})
    return Judgement(claim, claim.check(rows), None if strong is None else strong(rows))


def claims_table(results: Results) -> Table:
    """A row per claim: whether it holds, the figures, and the same under AutoAttack."""
    head = ["claim", "holds", "reading", "under AutoAttack"]
    rows = []
    for claim, finding, strong in findings(results):
        cells = [claim.text, _verdict(finding), finding.reading]
        if strong is None:
            cells.append("does not apply")
        elif strong.holds is None:
            cells.append(_verdict(strong))
        else:
            cells.append(f"{_verdict(strong)}: {strong.reading}")
        rows.append(cells)
    return head, rows


def _verdict(finding: Finding) -> str:
    if finding.holds is None:
        return "not measured"
    if not finding.holds:
        return "false"
    return f"true so far, {finding.missing} not measured" if finding.missing else "true"
