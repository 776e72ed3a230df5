"""A claim checked without attacking again: saved adversarial images against the float32 model.

The claim is in the run folder's `attacks/<attack>@<epsilon>.json`: which of the images are broken.
Each of these must lie in the ball (tolerance 1e-6) and in [0, 1], and fool the model.
"""

from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from bilateral.attacks.ball import TOLERANCE
from bilateral.attacks.losses import fools
from bilateral.attacks.settings import CarliniWagner, DeepFool
from bilateral.attacks.table import attack_members
from bilateral.budgets import Fraction, fraction_text
from bilateral.complaints import first_complaint
from bilateral.data.device_images import DeviceImages
from bilateral.data.subsets import data_digest
from bilateral.errors import UserError
from bilateral.evaluation.attack_files import SAME
from bilateral.evaluation.keeping import AdversarialImages
from bilateral.evaluation.robustness import check_inputs, float32_logits
from bilateral.evaluation.target import Target
from bilateral.reading import read_record
from bilateral.results import AttackFile, Interval, Record, wilson_interval
from bilateral.runs import RunFolder
from bilateral.runtime import versions
from bilateral.weights import weights_digest


class Kept(BaseModel):
    """The description in a file of adversarial images."""

    attack: str
    epsilon: Fraction
    data: str
    weights_digest: str
    code_digest: str | None = None
    data_digest: str | None = None
    """These two are None if an older version saved the images."""


class Verification(Record):
    """What was found in a file of adversarial images; lists hold image numbers.

    An image counts as fooled if the model is wrong on it, and it is finite, in the ball and in
    [0, 1]. The smallest perturbation that an L2 attack found may lie outside the ball: such an
    image does not count as fooled, and was not claimed to be broken.
    """

    file: str
    target: str
    attack: str
    epsilon: float
    epsilon_text: str
    data: str
    images: int
    in_ball: int
    in_range: int
    finite: int
    fooled: int
    robust_accuracy: float
    robust_interval: Interval
    claimed_accuracy: float | None
    claimed_images: int
    """How many images have flags; only the saved ones are checked."""
    claim_holds: bool | None
    """Of the saved images; None if nothing is claimed about them."""
    outside_ball: list[int]
    outside_range: list[int]
    not_finite: list[int]
    not_fooled: list[int]
    claimed_robust: list[int]
    weights_digest: str
    versions: dict[str, str]


def kept_images(path: Path) -> tuple[AdversarialImages, Kept]:
    """The images of a file that `evaluate --save-adversarial` wrote, and its description."""
    stored = AdversarialImages.read(path)
    try:
        kept = Kept.model_validate(stored.about)
        if ":" not in kept.attack:  # a user's own attack is not needed, so not loaded
            attack_members(kept.attack, kept.epsilon)
    except ValidationError as error:
        raise UserError(f"{path} is damaged: {first_complaint(error)}") from None
    if not stored.images:
        raise UserError(f"{path} holds no images")
    return stored, kept


def verify_images(
    stored: AdversarialImages,
    kept: Kept,
    target: Target,
    device: torch.device,
    batch_size: int = 250,
) -> Verification:
    """Check every saved image against the target's model."""
    digest = weights_digest(target.model)
    if digest != kept.weights_digest:
        raise UserError(
            f"{stored.path} was made against other weights ({kept.weights_digest[:12]}) "
            f"than those of {target.name} ({digest[:12]})"
        )
    if kept.code_digest not in (None, target.code_digest):  # same weights, other code
        raise UserError(
            f"{stored.path} was made against other code than that of {target.name}: its source, "
            "its modules' attributes or its predictions have changed; evaluate it again"
        )
    numbers = sorted(stored.images)
    known = DeviceImages(target.split, device)
    labels = known.labels
    check_inputs(target.model, known.floats(torch.zeros(1, dtype=torch.int64)), labels)
    _check_numbers(stored, numbers, known)
    if kept.data_digest not in (None, data_digest(target.split)):
        raise UserError(
            f"{stored.path} was made from other images of {kept.data} than those of {target.data}"
        )
    near, ranged, finite, wrong = (torch.zeros(len(numbers), dtype=torch.bool) for _ in range(4))
    for start in range(0, len(numbers), batch_size):
        part = numbers[start : start + batch_size]
        images = torch.from_numpy(np.stack([stored.images[number] for number in part])).to(device)
        places = slice(start, start + len(part))
        clean = known.floats(torch.tensor(part, device=device))
        finite[places] = images.flatten(1).isfinite().all(1).cpu()
        near[places] = ((images - clean).flatten(1).abs().amax(1) <= kept.epsilon + TOLERANCE).cpu()
        ranged[places] = ((images >= 0) & (images <= 1)).flatten(1).all(1).cpu()
        wrong[places] = fools(float32_logits(target.model, images), labels[part]).cpu()
    fooled = wrong & near & ranged & finite
    flags = _flags(stored, kept)
    claim = {number: flags[number] for number in numbers if number in flags}
    unconfirmed, refuted = _disagreements(claim, numbers, fooled)
    bounded = ":" in kept.attack or not any(
        isinstance(settings, CarliniWagner | DeepFool)
        for settings in attack_members(kept.attack, kept.epsilon).values()
    )
    feasible = ranged & finite & (near if bounded else torch.ones_like(near))
    sound = bool(feasible.all()) and not unconfirmed and not refuted
    robust = len(numbers) - int(fooled.sum())
    return Verification(
        file=str(stored.path),
        target=target.name,
        attack=kept.attack,
        epsilon=kept.epsilon,
        epsilon_text=fraction_text(kept.epsilon),
        data=target.data,
        images=len(numbers),
        in_ball=int(near.sum()),
        in_range=int(ranged.sum()),
        finite=int(finite.sum()),
        fooled=int(fooled.sum()),
        robust_accuracy=robust / len(numbers),
        robust_interval=wilson_interval(robust, len(numbers)),
        claimed_accuracy=sum(claim.values()) / len(claim) if claim else None,
        claimed_images=len(flags),
        claim_holds=None if sound and not claim else sound,
        outside_ball=_where(~near, numbers),
        outside_range=_where(~ranged, numbers),
        not_finite=_where(~finite, numbers),
        not_fooled=unconfirmed,
        claimed_robust=refuted,
        weights_digest=digest,
        versions=versions(device),
    )


def _check_numbers(stored: AdversarialImages, numbers: list[int], known: DeviceImages) -> None:
    """Refuse images whose numbers or shape are not those of this data set."""
    if not all(isinstance(number, int) and 0 <= number < len(known) for number in numbers):
        raise UserError(
            f"{stored.path} numbers its images {numbers[0]} to {numbers[-1]}, "
            f"but there are {len(known)} test images"
        )
    first = stored.images[numbers[0]]
    if first.dtype != np.float32 or first.shape != known.image_shape:
        raise UserError(
            f"{stored.path} holds {first.dtype} images of shape {first.shape}, but the test "
            f"images are float32 of {known.image_shape} (--image-size sets the size at which "
            "folder:PATH is read)"
        )


def _flags(stored: AdversarialImages, kept: Kept) -> dict[int, bool]:
    """The robust flags of the attack; empty if the folder has none of the same model and data."""
    folder = RunFolder(stored.path.resolve().parent.parent)
    path = folder.attack(kept.attack, fraction_text(kept.epsilon))
    if not path.is_file():
        return {}
    file = read_record(path, AttackFile)
    said = kept.model_dump(include=set(SAME), exclude_none=True)
    if any(getattr(file, key) != value for key, value in said.items()):
        return {}
    return dict(zip(file.images, file.robust, strict=True))


def _disagreements(
    claim: dict[int, bool], numbers: list[int], fooled: Tensor
) -> tuple[list[int], list[int]]:
    """The images claimed broken that are not, and those claimed robust that are broken."""
    found = dict(zip(numbers, fooled.tolist(), strict=True))
    unconfirmed = [number for number, robust in claim.items() if not robust and not found[number]]
    refuted = [number for number, robust in claim.items() if robust and found[number]]
    return unconfirmed, refuted


def _where(flags: Tensor, numbers: list[int]) -> list[int]:
    return [number for number, flag in zip(numbers, flags.tolist(), strict=True) if flag]
