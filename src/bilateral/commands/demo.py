"""`bilateral demo`: the paper's method and an undefended twin on the digits."""

import sys
from collections.abc import Sequence
from pathlib import Path

from bilateral.arguments import call
from bilateral.commands.diagnose import Options as DiagnoseOptions
from bilateral.commands.diagnose import diagnose_target
from bilateral.commands.evaluate import Options, evaluate_run
from bilateral.commands.printing import print_json
from bilateral.commands.report import write_report
from bilateral.commands.train import train_run
from bilateral.evaluation.diagnosis import Effort
from bilateral.paper.recipes import recipe_named
from bilateral.tables import comparison_table, percent, render

RUNS = ("digits-undefended", "digits-r-mc-la")
EFFORT = Effort(apgd_steps=20, queries=300, restarts=3, binarization_images=10)
"""Effort of the checks: enough for a first look, within the demo's minute."""


def command(words: Sequence[str]) -> None:
    """`bilateral demo`."""

    def demo(
        out: str = "demo", device: str | None = None, quiet: bool = False, json: bool = False
    ) -> None:
        """Train R-MC-LA and an undefended twin on the digits, and attack both at 40/255.

        Both are diagnosed with little effort and shown on one page.

        Args:
            out: where the two runs and report.html go.
            device: cpu, cuda, cuda:1, ...; the GPU if there is one.
            quiet: no progress.
            json: print both evaluations as JSON.
        """
        entries, diagnosed, folders = {}, {}, []
        for number, name in enumerate(RUNS, start=1):
            run = recipe_named(name)
            if not quiet:
                there = (Path(out) / name / f"seed{run.seed}" / "model.safetensors").exists()
                doing = "trained already:" if there else "training"
                print(f"{doing} {name} ({number} of {len(RUNS)})", file=sys.stderr, flush=True)
            trained = train_run(run, Path(out) / name, device, quiet)
            options = Options(
                trained["folder"], attacks="fgsm,pgd20,pgd20-cw", device=device, quiet=quiet
            )
            entries[name] = evaluate_run(options)
            diagnosed[name] = diagnose_target(
                DiagnoseOptions(
                    trained["folder"], images=200, device=device, quiet=quiet, effort=EFFORT
                )
            )
            folders.append(trained["folder"])
        page = write_report(folders, str(Path(out) / "report.html"))["report"]
        if json:
            print_json({name: entry.model_dump(mode="json") for name, entry in entries.items()})
            return
        print(render(comparison_table(entries), "text"))
        print()
        for name, found in diagnosed.items():
            apgd = percent(found.accuracies["apgd"])
            print(f"{name}: APGD, a stronger attack, leaves {apgd} % of {found.images} images;")
            print(f"  verdict on the figures above, from a quick diagnosis: {found.verdict}")
            for reason in found.reasons:
                print(f"  {reason}")
        print(f"\nopen {page} in a browser; both runs are beside it")
        print("next, on a GPU: bilateral data fetch cifar10 && bilateral train cifar10-fast")

    call(demo, words, "bilateral demo")
