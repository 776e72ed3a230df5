"""Adversarial images kept on disk: a few for the page, or all of them for a reviewer."""

import io
import json
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bilateral.errors import UserError
from bilateral.evaluation.target import Target
from bilateral.runs import write_atomic

GALLERY_IMAGES = 24


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """An npz file, written whole."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_atomic(path, buffer.getvalue())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """An npz file of ours; nothing in it is executed."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # a flipped byte makes numpy and zipfile raise nearly anything
        raise UserError(f"{path} is damaged: not an npz file ({error})") from None


class Gallery:
    """The first images of each attack before and after, with what the model makes of them."""

    def __init__(self, target: Target, epsilon_text: str, digest: str) -> None:
        self.target, self.epsilon_text, self.digest = target, epsilon_text, digest
        self.kept: dict[str, dict[int, tuple[Tensor, Tensor]]] = {}

    def offer(self, attack: str, numbers: Tensor, clean: Tensor, adversarial: Tensor) -> None:
        """Keep images while there is room, and follow the kept ones through an ensemble."""
        kept = self.kept.setdefault(attack, {})
        for place, number in enumerate(numbers.tolist()):
            if number in kept or len(kept) < GALLERY_IMAGES:
                kept[number] = (clean[place].cpu(), adversarial[place].cpu())

    def write(self, labels: Tensor) -> None:
        """Write what was kept, beside what earlier calls left of other attacks."""
        path = self.target.folder.gallery
        arrays = read_arrays(path) if path.exists() else {}
        if str(arrays.get("weights_digest")) != self.digest:
            arrays = {"weights_digest": np.array(self.digest)}
        for attack, kept in self.kept.items():
            if not kept:
                continue
            name = f"{attack}@{self.epsilon_text.replace('/', '-')}"
            numbers = sorted(kept)
            for place, kind in enumerate(("clean", "adversarial")):
                images = torch.stack([kept[number][place] for number in numbers])
                with torch.no_grad():
                    confidence = self.target.model(images.to(labels.device)).float().softmax(1)
                arrays[f"{name}/{kind}"] = images.cpu().numpy()
                arrays[f"{name}/{kind}_confidence"] = confidence.cpu().numpy()
            arrays[f"{name}/labels"] = labels[numbers].cpu().numpy()
            arrays[f"{name}/numbers"] = np.array(numbers)
        if len(arrays) > 1:
            write_arrays(path, arrays)


class AdversarialImages:
    """All adversarial images of an attack by their numbers, for `bilateral verify`.

    `members` says which member of an ensemble made each.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path, self.about = path, about
        self.images: dict[int, np.ndarray] = {}
        self.members: dict[int, str] = {}

    @classmethod
    def open(cls, path: Path, attack: str, about: dict[str, Any]) -> Self:
        """What was kept before of the same attack on the same weights and data, if anything."""
        kept = cls(path, {"attack": attack, **about})
        if path.exists():
            stored = cls.read(path)
            if all(stored.about.get(key) == about[key] for key in ("weights_digest", "data")):
                kept.images, kept.members = stored.images, stored.members
        return kept

    @classmethod
    def read(cls, path: Path) -> Self:
        """A file of kept images."""
        if not path.is_file():
            raise UserError(f"no adversarial images at {path}")
        arrays = read_arrays(path)
        try:
            kept = cls(path, dict(json.loads(str(arrays["about"]))))
            numbers = arrays["numbers"].tolist()
            kept.images = dict(zip(numbers, arrays["images"], strict=True))
            kept.members = dict(zip(numbers, arrays["members"].tolist(), strict=True))
        except (KeyError, ValueError, TypeError) as error:
            raise UserError(f"{path} does not hold adversarial images ({error})") from None
        return kept

    def shows(self, number: int, robust: bool, member: str) -> bool:
        """Whether an image is kept that shows what a member's flag says of it."""
        return number in self.images and (robust or self.members[number] == member)

    def put(self, numbers: Tensor, images: Tensor, member: str) -> None:
        """Keep a batch; a later member of an ensemble replaces what an earlier one tried."""
        self.images |= dict(zip(numbers.tolist(), images.cpu().numpy(), strict=True))
        self.members |= dict.fromkeys(numbers.tolist(), member)

    def write(self) -> None:
        """Write all that is kept."""
        numbers = sorted(self.images)
        write_arrays(
            self.path,
            {
                "about": np.array(json.dumps(self.about)),
                "numbers": np.array(numbers),
                "members": np.array([self.members[number] for number in numbers]),
                "images": np.stack([self.images[number] for number in numbers]),
            },
        )
