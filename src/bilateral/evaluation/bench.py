"""How fast attacks run here, compared with the peers' on the same images and model."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from bilateral.attacks.table import ENSEMBLES, attack_members, attack_named
from bilateral.evaluation.campaign import Campaign
from bilateral.evaluation.peers import (
    PeerResult,
    peer_autoattack,
    peer_minimum_norm,
    peer_pgd,
    require_peers,
)
from bilateral.evaluation.search import Precision
from bilateral.evaluation.target import Target
from bilateral.runtime import synchronise

Note = Callable[[str], None]
MINIMUM_NORM = ("cw-l2", "cw-l2-fine", "deepfool-l2")


class OurResult(NamedTuple):
    """Which images survived our attack, its time, and the distances of a minimum-norm attack."""

    robust: torch.Tensor
    seconds: float
    distances: torch.Tensor | None


def ours(campaign: Campaign, name: str) -> OurResult:
    """Time our attack on the campaign's images, without reading or writing flags."""
    numbers = campaign.chosen()
    left, distances = numbers, []
    synchronise(campaign.device)
    started = time.monotonic()
    for settings in attack_members(name, campaign.epsilon).values():
        survivors = []
        for start in range(0, len(left), campaign.batch_size):
            part = left[start : start + campaign.batch_size]
            found = campaign.attack(part, settings)
            survivors.append(part[found.robust])
            if found.distances is not None:
                distances.append(found.distances)
        left = torch.cat(survivors) if survivors else left
    synchronise(campaign.device)
    seconds = time.monotonic() - started
    return OurResult(
        torch.isin(numbers, left), seconds, torch.cat(distances) if distances else None
    )


def bench_evaluate(
    target: Target,
    attacks: list[str],
    epsilon: float,
    images: int | None,
    device: torch.device,
    batch_size: int | None = None,
    peer_batch_sizes: tuple[int, ...] = (250, 500, 1000),
    precision: Precision = "auto",
    compile: bool = False,
    note: Note = lambda _: None,
) -> dict[str, Any]:
    """Our and the peer's time and accuracy for each attack; the peer's at its best batch size.

    Our search first warms up on a few images, which is when a compiled search is compiled; that
    time is reported separately.
    """
    require_peers({"pyautoattack" if name in ENSEMBLES else "foolbox" for name in attacks})
    campaign = Campaign(target, epsilon, images, device, batch_size, precision, compile)
    target.model.eval()
    numbers = campaign.chosen()
    inputs, labels = campaign.images_of(numbers), campaign.labels[numbers]
    sizes = sorted({min(size, len(labels)) for size in peer_batch_sizes})
    started = time.monotonic()
    for name in ("apgd-ce", "square", "fab-t"):
        _warm_up(campaign, name)
    warm_up_seconds = time.monotonic() - started
    note(f"warm-up: {warm_up_seconds:.1f} s")
    rows = {}
    for name in attacks:

        def peer(size: int, name: str = name) -> PeerResult:
            model = target.model
            if name in MINIMUM_NORM:
                return peer_minimum_norm(model, inputs, labels, name, size)
            if name.startswith("pgd"):
                steps = int(name.removeprefix("pgd"))
                return peer_pgd(model, inputs, labels, epsilon, size, steps)
            members = tuple(attack_members(name, epsilon))
            return peer_autoattack(model, inputs, labels, epsilon, size, members)

        own = ours(campaign, name)
        note(f"{name}: ours {own.seconds:.1f} s, {_said(own)}")
        results = []
        for size in sizes:
            results.append(peer(size))
            note(f"{name}: peer {results[-1].seconds:.1f} s at batch {size}, {_said(results[-1])}")
        best = min(results, key=lambda result: result.seconds)
        rows[name] = {
            "images": len(labels),
            "seconds": own.seconds,
            "accuracy": float(own.robust.float().mean()),
            "batch_size": campaign.batch_size,
            "peer": "pyautoattack" if name in ENSEMBLES else "foolbox",
            "peer_seconds": best.seconds,
            # The peer's minimum-norm attacks have no budget: distances are compared.
            "peer_accuracy": (None if name in MINIMUM_NORM else float(best.robust.float().mean())),
            "peer_batch_size": best.batch_size,
            "peer_seconds_by_batch_size": {str(r.batch_size): r.seconds for r in results},
            "ratio": best.seconds / own.seconds,
        }
        if own.distances is not None and best.distances is not None:
            both = own.distances.isfinite() & best.distances.isfinite() & (own.distances > 0)
            rows[name] |= {
                "mean_distance": float(own.distances[both].mean()),
                "peer_mean_distance": float(best.distances[both].mean()),
                "found": int(own.distances.isfinite().sum()),
                "peer_found": int(best.distances.isfinite().sum()),
            }
    return {
        **campaign.common,
        "target": target.name,
        "compiled": compile,
        "warm_up_seconds": warm_up_seconds,
        "attacks": rows,
    }


def _said(result: OurResult | PeerResult) -> str:
    """What both sides measure: accuracy, or the mean distance for attacks without a budget."""
    if result.distances is None:
        return f"{100 * float(result.robust.float().mean()):.1f} %"
    found = result.distances[result.distances.isfinite() & (result.distances > 0)]
    return f"mean L2 {float(found.mean()):.3f}" if len(found) else "nothing found"


def _warm_up(campaign: Campaign, name: str) -> None:
    """A few steps of an attack at two batch sizes."""
    fewer = {"steps": 2, "queries": 3, "targets": 1}
    settings = attack_named(name, campaign.epsilon)
    known = settings.model_dump()
    settings = settings.with_fields(**{key: fewer[key] for key in fewer if key in known})
    for count in (7, 64):
        campaign.attack(campaign.chosen()[:count], settings)
