"""How fast attacks run here, beside the peers' on the same images and model."""

import time
from collections.abc import Callable
from typing import Any

import torch

from bilateral.attacks.table import attack_members
from bilateral.evaluation.campaign import Campaign
from bilateral.evaluation.peers import PeerResult, peer_autoattack, peer_pgd
from bilateral.evaluation.robustness import noise_keys, robust_flags
from bilateral.evaluation.target import Target
from bilateral.runtime import synchronise

Note = Callable[[str], None]


def ours(campaign: Campaign, name: str) -> tuple[torch.Tensor, float]:
    """Our attack on the campaign's images, timed, nothing read from or written to disk."""
    numbers = torch.from_numpy(campaign.numbers).to(campaign.device)
    left = numbers
    synchronise(campaign.device)
    started = time.monotonic()
    for settings in attack_members(name, campaign.epsilon).values():
        survivors = []
        for start in range(0, len(left), campaign.batch_size):
            part = left[start : start + campaign.batch_size]
            found = robust_flags(
                campaign.target.model,
                campaign.images_of(part),
                campaign.labels[part],
                settings,
                noise_keys(part),
                campaign.bfloat16,
                campaign.epsilon,
            )
            survivors.append(part[found.robust])
        left = torch.cat(survivors) if survivors else left
    synchronise(campaign.device)
    return torch.isin(numbers, left), time.monotonic() - started


def bench_evaluate(
    target: Target,
    attacks: list[str],
    epsilon: float,
    images: int | None,
    device: torch.device,
    batch_size: int | None = None,
    peer_batch_sizes: tuple[int, ...] = (250, 500, 1000),
    note: Note = lambda _: None,
) -> dict[str, Any]:
    """Ours and the peer's time and accuracy for each attack; the peer at its best batch size.

    Both are warmed up by one small batch first; nothing is compiled on either side.
    """
    campaign = Campaign(target, epsilon, images, device, batch_size)
    target.model.eval()
    numbers = torch.from_numpy(campaign.numbers).to(device)
    inputs, labels = campaign.images_of(numbers), campaign.labels[numbers]
    sizes = sorted({min(size, len(labels)) for size in peer_batch_sizes})
    warm = Campaign(target, epsilon, min(16, len(labels)), device)
    rows = {}
    for name in attacks:

        def peer(size: int, count: int, name: str = name) -> PeerResult:
            model, x, y = target.model, inputs[:count], labels[:count]
            if name.startswith("pgd"):
                return peer_pgd(model, x, y, epsilon, size, int(name.removeprefix("pgd")))
            return peer_autoattack(model, x, y, epsilon, size, tuple(attack_members(name, epsilon)))

        quick = "apgd-ce" if name in ("apgd", "autoattack") else name
        ours(warm, quick)
        robust, seconds = ours(campaign, name)
        note(f"{name}: ours {seconds:.1f} s, {100 * float(robust.float().mean()):.1f} %")
        results = []
        for size in sizes:
            results.append(peer(size, len(labels)))
            note(
                f"{name}: peer {results[-1].seconds:.1f} s at batch {size}, "
                f"{100 * float(results[-1].robust.float().mean()):.1f} %"
            )
        best = min(results, key=lambda result: result.seconds)
        rows[name] = {
            "images": len(labels),
            "seconds": seconds,
            "accuracy": float(robust.float().mean()),
            "batch_size": campaign.batch_size,
            "peer": "foolbox" if name.startswith("pgd") else "pyautoattack",
            "peer_seconds": best.seconds,
            "peer_accuracy": float(best.robust.float().mean()),
            "peer_batch_size": best.batch_size,
            "peer_seconds_by_batch_size": {str(r.batch_size): r.seconds for r in results},
            "ratio": best.seconds / seconds,
        }
    return {**campaign.common, "target": target.name, "attacks": rows}
