"""`bilateral diagnose`: gradient magnitude, masking checks, curves, and a verdict."""

from collections.abc import Sequence
from typing import Annotated

import tyro

from bilateral.arguments import budget, call
from bilateral.commands.printing import print_json
from bilateral.evaluation.diagnosis import Diagnosis, Effort
from bilateral.runs import RunFolder, write_json
from bilateral.tables import Format, Table, render


def command(words: Sequence[str]) -> None:
    """`bilateral diagnose TARGET`."""
    call(diagnose_target, words, "bilateral diagnose")


def diagnose_target(
    target: Annotated[str, tyro.conf.Positional],
    /,
    sources: tuple[str, ...] = (),
    images: int = 200,
    epsilon: str | None = None,
    data: str | None = None,
    image_size: int | None = None,
    out: str | None = None,
    device: str | None = None,
    quiet: bool = False,
    json: bool = False,
    format: Format = "text",
    effort: Effort = Effort(),  # noqa: B008 a frozen value
) -> None:
    """Try to discredit a model's robust accuracy; writes diagnostics.json and curves.json.

    The verdict is holds, suspect or masked, with its reasons.

    Args:
        target: as for `bilateral evaluate`.
        sources: run folders or file.py:function whose adversarial images are tried too.
        images: a seeded, class-balanced subset of so many test images.
        epsilon: L-inf budget; 8/255 by default, 40/255 on the digits.
        data: a data set's name or folder:PATH; the run's own by default.
        image_size: resize and crop the pictures of folder:PATH to this.
        out: where results go; the run folder, or evaluations/<name>/ for other targets.
        device: the GPU if there is one.
        quiet: no progress.
        json: print diagnostics.json.
        format: how the table is printed.
        effort: how hard the checks try.
    """
    size = budget("--epsilon", epsilon)
    from rich.console import Console

    from bilateral.evaluation.campaign import Campaign
    from bilateral.evaluation.diagnostics import diagnose
    from bilateral.evaluation.target import find_target
    from bilateral.runtime import choose_device, limit_threads

    console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
    place = choose_device(device)
    found = find_target(target, data, image_size, out, place)
    limit_threads(place, found.split.image_values)
    models = [
        find_target(source, data or found.data, image_size, None, place).model for source in sources
    ]
    campaign = Campaign(found, size or found.epsilon, images, place)
    numbers = campaign.chosen()
    result = diagnose(
        found.model,
        campaign.images_of(numbers),
        campaign.labels[numbers],
        campaign.epsilon,
        sources=models,
        effort=effort,
        progress=lambda stage, done, total: console.print(f"{done}/{total} {stage}"),
    )
    write(found.folder, result)
    if json:
        print_json(result.model_dump(mode="json", by_alias=True))
        return
    print(render(readings_table(result), format))
    print(f"\nverdict: {result.verdict}")
    for reason in result.reasons:
        print(f"  {reason}")


def write(folder: RunFolder, result: Diagnosis) -> None:
    """`diagnostics.json` and `curves.json` into a folder."""
    write_json(folder.diagnostics, result.model_dump(mode="json", by_alias=True))
    write_json(folder.curves, {"schema": 1, **result.curves.model_dump(mode="json")})


def readings_table(result: Diagnosis) -> Table:
    """Every check: reading, limit, and whether it was raised."""
    head = ["check", "reading", "limit", "raised"]
    return head, [
        [
            reading.name,
            "not made" if reading.value is None else f"{reading.value:.4g}",
            f"{reading.limit:.4g}",
            reading.severity if reading.raised else "unsure: more images" if reading.unsure else "",
        ]
        for reading in result.readings
    ]
