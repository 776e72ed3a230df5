"""Seeded, class-balanced subsets; numpy only."""

import hashlib
from dataclasses import replace

import numpy as np

from bilateral.data.datasets import Split
from bilateral.data.photographs import Photographs
from bilateral.errors import UserError


def balanced_subset(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """The numbers of `count` images, spread over the classes as evenly as possible; sorted.

    A smaller subset of the same seed is part of a larger one.
    """
    shuffled = np.random.default_rng(abs(seed)).permutation(len(labels))
    rank = np.empty(len(labels), dtype=np.int64)
    for value in np.unique(labels):
        members = shuffled[labels[shuffled] == value]
        rank[members] = np.arange(len(members))
    place = np.empty(len(labels), dtype=np.int64)
    place[shuffled] = np.arange(len(labels))
    return np.sort(np.lexsort((place, rank))[:count])


def chosen_images(split: Split, images: int | None, name: str) -> np.ndarray:
    """The numbers of all images of a split, or of a balanced subset of so many."""
    if images is None:
        return np.arange(len(split.labels))
    if not 0 < images <= len(split.labels):
        raise UserError(
            f"--images {images}: must be 1 to {len(split.labels)}, the test images of {name}"
        )
    return balanced_subset(split.labels, images, seed=0)


def data_digest(split: Split) -> str:
    """SHA-256 of a split's pixels and labels: what a measurement was made on.

    For photographs, of their files and the size at which they are read.
    """
    digest = hashlib.sha256(repr(split.pixels.shape).encode())
    if isinstance(split.pixels, Photographs):
        digest.update(split.pixels.digest.encode())
    else:
        digest.update(np.ascontiguousarray(split.pixels[:]).data)
    digest.update(np.ascontiguousarray(split.labels).data)
    return digest.hexdigest()


def per_class_subset(split: Split, per_class: int, seed: int) -> Split:
    """The split with so many images of each class."""
    fewest = int(np.bincount(split.labels, minlength=len(split.classes)).min())
    if per_class > fewest:
        raise UserError(f"--data.images-per-class {per_class}: a class has {fewest} images")
    return part_of(split, balanced_subset(split.labels, per_class * len(split.classes), seed))


def divided(split: Split, held_out: int, seed: int) -> tuple[Split, Split]:
    """A split without a balanced part of so many images, and that part."""
    if held_out >= len(split.labels):
        there = f"there are {len(split.labels)} images"
        raise UserError(f"--data.held-out {held_out} (yours or the recipe's): {there}; give fewer")
    numbers = balanced_subset(split.labels, held_out, seed)
    rest = np.setdiff1d(np.arange(len(split.labels)), numbers)
    return part_of(split, rest), part_of(split, numbers)


def part_of(split: Split, numbers: np.ndarray) -> Split:
    """The split with some of its images."""
    pixels = split.pixels
    some = pixels.subset(numbers) if isinstance(pixels, Photographs) else pixels[numbers]
    return replace(split, pixels=some, labels=split.labels[numbers])
