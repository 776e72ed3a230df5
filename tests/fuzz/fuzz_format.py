"""What a format of files is to a fuzz campaign: a whole file, ways to damage it, and its reader."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from mutation import Mutate, damage

Read = Callable[[bytes, Path], None]


@dataclass(frozen=True)
class Format:
    """`read` raises UserError where it refuses, and AssertionError where what it got is wrong.

    `inside` are ways to damage what lies below a checksum or a packing, which damage at random
    would never get past.
    """

    name: str
    prepare: Callable[[Path], bytes]
    read: Read
    inside: tuple[Mutate, ...] = ()

    def damaged(self, random: Random, whole: bytes) -> bytes:
        """One damaged file."""
        return random.choice([damage, *self.inside])(random, whole)
