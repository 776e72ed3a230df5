"""`gallery.npz`: a few images before and after every attack, for the report's page."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bilateral.arrays import read_npz
from bilateral.data.subsets import balanced_subset
from bilateral.errors import UserError
from bilateral.evaluation.keeping import write_arrays
from bilateral.evaluation.robustness import float32_logits
from bilateral.evaluation.target import Target
from bilateral.labels import soft_labels
from bilateral.results import MemberFlags

GALLERY_IMAGES = 24


class Example(NamedTuple):
    """An image before and after an attack, and the attack's member that made the latter."""

    clean: np.ndarray
    adversarial: np.ndarray
    member: str


class Gallery:
    """A few images before and after each attack, with the model's confidences.

    `numbers` are the same for every attack, however many images are evaluated: a class-balanced
    subset of all. The file is of one model on one data set; that of another model replaces it.
    """

    def __init__(self, target: Target, about: dict[str, Any]) -> None:
        self.target, self.budget = target, about["epsilon_text"].replace("/", "-")
        self.labels = target.split.labels
        self.numbers = frozenset(balanced_subset(self.labels, GALLERY_IMAGES, seed=0).tolist())
        self.kept: dict[str, dict[int, Example]] = {}
        self._changed: set[str] = set()
        own = {key: about[key] for key in ("weights_digest", "code_digest", "data_digest")}
        path = target.folder.gallery
        stored = read_npz(path) if path.exists() else {}
        if all(str(stored.get(key, "")) == value for key, value in own.items()):
            self.arrays = stored
        else:
            self.arrays = {key: np.array(value) for key, value in own.items() if value}
            self.arrays["classes"] = np.array(target.split.classes)
        shape = tuple(target.split.pixels.shape[1:])
        for attack in self._attacks():
            if not self._is_whole(attack, (shape[2], *shape[:2])):
                raise UserError(f"{path} is damaged: invalid arrays for {attack[:60]}; remove it")

    def begin(self, attack: str, members: dict[str, MemberFlags]) -> None:
        """Start from the examples that earlier calls kept of images whose flags are known.

        If a member broke an image as part of another attack, that example is used here too.
        """
        known = {(number, name) for name, flags in members.items() for number in flags.images}
        broken: dict[int, str] = {}
        for name, flags in members.items():
            for number, robust in zip(flags.images, flags.robust, strict=True):
                if not robust:
                    broken.setdefault(number, name)
        kept = {
            number: example
            for number, example in self._stored(attack).items()
            if (number, example.member) in known
        }
        for other in self._attacks():
            for number, example in self._stored(other).items():
                if number not in kept and broken.get(number) == example.member:
                    kept[number] = example
                    self._changed.add(attack)
        self.kept[attack] = kept

    def wanted(self, numbers: Tensor) -> Tensor:
        """The places in a batch of the images that the gallery keeps."""
        kept = [place for place, number in enumerate(numbers.tolist()) if number in self.numbers]
        return torch.tensor(kept, dtype=torch.int64)

    def offer(
        self, attack: str, member: str, numbers: Tensor, clean: Tensor, adversarial: Tensor
    ) -> None:
        """Keep the gallery's images from a batch; a later member's replace an earlier one's."""
        for place in self.wanted(numbers).tolist():
            before, after = clean[place].cpu().numpy(), adversarial[place].cpu().numpy()
            self.kept[attack][int(numbers[place])] = Example(before, after, member)
            self._changed.add(attack)

    def write(self) -> None:
        """Write the attacks that have changed, keeping the stored images of all others."""
        if not self._changed:
            return
        for attack in sorted(self._changed):
            if self.kept[attack]:
                self._describe(attack)
        self._changed.clear()
        write_arrays(self.target.folder.gallery, self.arrays)

    def _describe(self, attack: str) -> None:
        """Set an attack's arrays: images, confidences, and the labels that training would fit."""
        numbers = sorted(self.kept[attack])
        examples = [self.kept[attack][number] for number in numbers]
        labels, rule = self.labels[numbers], self.target.label_rule
        arrays = {
            "numbers": np.array(numbers),
            "labels": labels,
            "members": np.array([example.member for example in examples]),
            "clean": np.stack([example.clean for example in examples]),
            "adversarial": np.stack([example.adversarial for example in examples]),
        }
        device = next(iter(self.target.model.parameters()), torch.empty(0)).device
        for kind in ("clean", "adversarial"):
            images = torch.from_numpy(arrays[kind]).to(device)
            logits = float32_logits(self.target.model, images).float().cpu()
            arrays[f"{kind}_confidence"] = logits.softmax(1).numpy()
            if kind == "clean" and rule is not None:
                fitted = soft_labels(logits, torch.from_numpy(labels), rule)
                arrays["training_labels"] = fitted.numpy()
        name = f"{attack}@{self.budget}"
        self.arrays |= {f"{name}/{kind}": array for kind, array in arrays.items()}

    def _attacks(self) -> list[str]:
        """The attacks at this budget that have stored images."""
        end = f"@{self.budget}/numbers"
        return [key.removesuffix(end) for key in self.arrays if key.endswith(end)]

    def _is_whole(self, attack: str, shape: tuple[int, ...]) -> bool:
        """Whether an attack's arrays are complete, of equal length, with images of this shape."""
        kinds = {"numbers": "iu", "members": "U", "clean": "f", "adversarial": "f"}
        arrays = {kind: self.arrays.get(f"{attack}@{self.budget}/{kind}") for kind in kinds}
        numbers = arrays["numbers"]
        if numbers is None or numbers.ndim != 1 or not self.numbers.issuperset(numbers.tolist()):
            return False
        for kind, letters in kinds.items():
            array, wanted = arrays[kind], (() if kind in ("numbers", "members") else shape)
            if array is None or array.dtype.kind not in letters:
                return False
            if array.shape != (len(numbers), *wanted):
                return False
        return True

    def _stored(self, attack: str) -> dict[int, Example]:
        """The stored examples of an attack, by image number."""
        name = f"{attack}@{self.budget}"
        if f"{name}/members" not in self.arrays:
            return {}
        rows = (self.arrays[f"{name}/{kind}"] for kind in ("clean", "adversarial", "members"))
        examples = (Example(clean, after, str(by)) for clean, after, by in zip(*rows, strict=True))
        return dict(zip(self.arrays[f"{name}/numbers"].tolist(), examples, strict=True))
