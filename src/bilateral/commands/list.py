"""`bilateral list`: recipes, models, data sets, attacks or tables, one per line."""

from collections.abc import Sequence

from bilateral.arguments import call
from bilateral.commands.printing import print_json
from bilateral.errors import UserError, unknown


def command(words: Sequence[str]) -> None:
    """`bilateral list KIND`: all names of a kind, each with its summary on one line."""
    kind = next((word for word in words if not word.startswith("-")), None)
    kinds = ("recipes", "models", "datasets", "attacks", "tables")

    def list_(json: bool = False) -> bool:
        """List recipes, models, datasets, attacks or tables, one per line.

        Args:
            json: print names and summaries as JSON.
        """
        return json

    as_json = call(
        list_, [word for word in words if word != kind], f"bilateral list {kind or 'KIND'}"
    )
    if kind is None:
        raise UserError(f"list needs one of: {', '.join(kinds)}")
    if kind not in kinds:
        raise unknown("list", kind, kinds)
    rows = [{"name": name, "summary": summary} for name, summary in _listing(kind)]
    if as_json:
        print_json(rows)
        return
    width = max(len(row["name"]) for row in rows)
    print("\n".join(f"{row['name']:<{width}}  {row['summary']}" for row in rows))


def _listing(kind: str) -> list[tuple[str, str]]:
    if kind == "recipes":
        from bilateral.paper.recipes import RECIPES

        return [(name, recipe.summary) for name, recipe in RECIPES.items()]
    if kind == "models":
        from bilateral.models import MODELS

        return [(name, model.summary) for name, model in MODELS.items()]
    if kind == "datasets":
        from bilateral.data.datasets import DATASETS

        return [(name, entry.summary) for name, entry in DATASETS.items()]
    if kind == "tables":
        from bilateral.paper.beyond import EVERY_TABLE

        return [(name, f"{table.where}: {table.title}") for name, table in EVERY_TABLE.items()]
    from bilateral.attacks.table import ATTACKS, ENSEMBLES, PATTERN, PATTERN_SUMMARY

    listed = [
        (name, attack.summary + ("; in the paper" if attack.in_paper else ""))
        for name, attack in ATTACKS.items()
    ]
    ensembles = [(name, ensemble.summary) for name, ensemble in ENSEMBLES.items()]
    return [*listed, (PATTERN, PATTERN_SUMMARY), *ensembles]
