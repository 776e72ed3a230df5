"""`bilateral demo`: the paper's method and an undefended twin on the digits."""

from collections.abc import Sequence
from pathlib import Path

from bilateral.arguments import call
from bilateral.commands.evaluate import Options, evaluate_run
from bilateral.commands.printing import print_json
from bilateral.commands.train import train_run
from bilateral.paper.recipes import recipe_named
from bilateral.tables import comparison_table, render


def command(words: Sequence[str]) -> None:
    """`bilateral demo`."""

    def demo(
        out: str = "demo", device: str | None = None, quiet: bool = False, json: bool = False
    ) -> None:
        """Train R-MC-LA and an undefended twin on the digits, and attack both at 40/255.

        Args:
            out: where the two runs go.
            device: the GPU if there is one.
            quiet: no progress.
            json: print both evaluations as JSON.
        """
        entries = {}
        for name in ("digits-undefended", "digits-r-mc-la"):
            run = recipe_named(name)
            trained = train_run(run, Path(out) / name, device, quiet)
            options = Options(
                trained["folder"], attacks="fgsm,pgd20,pgd20-cw", device=device, quiet=quiet
            )
            entries[name] = evaluate_run(options)
        if json:
            print_json({name: entry.model_dump(mode="json") for name, entry in entries.items()})
            return
        print(f"both runs are in {out}/; next: bilateral train cifar10-r-mc-la --help\n")
        print(render(comparison_table(entries), "text"))

    call(demo, words, "bilateral demo")
