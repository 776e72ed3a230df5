"""CIFAR-10 from the cache as lossless sprites in two folders, each small enough for one call.

`python studies/lease/sprites.py FIRST SECOND`; what is in both, put together, is read by
`bilateral data fetch cifar10 --source FOLDER`.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from bilateral.data.datasets import entry_named, load
from bilateral.data.datasets_entry import SPLITS, DatasetEntry, Split, SplitName
from bilateral.data.readers import SpritePack

PACK = SpritePack()


def write_sprites(
    entry: DatasetEntry, splits: dict[SplitName, Split], first: Path, second: Path
) -> None:
    """The sprites of a data set, half of them in each folder, and its labels in the second."""
    sprites = {}
    for split in SPLITS:
        start = 0
        for file, count in PACK.sprites(entry, split).items():
            sprites[file] = splits[split].pixels[start : start + count]
            start += count
        np.save(second / f"{split}-labels.npy", np.asarray(splits[split].labels, np.uint8))
    for number, (file, pixels) in enumerate(sprites.items()):
        folder = first if 2 * number < len(sprites) else second
        picture = Image.fromarray(_sprite(np.asarray(pixels)))
        picture.save(folder / file, lossless=True, exact=True, quality=75, method=4)


def _sprite(pixels: np.ndarray) -> np.ndarray:
    """Images side by side, `PACK.tiles` a row, the last row filled up with black."""
    count, height, width, channels = pixels.shape
    rows = -(-count // PACK.tiles)
    tiles = np.zeros((rows * PACK.tiles, height, width, channels), np.uint8)
    tiles[:count] = pixels
    grid = tiles.reshape(rows, PACK.tiles, height, width, channels).swapaxes(1, 2)
    return grid.reshape(rows * height, PACK.tiles * width, channels)


if __name__ == "__main__":
    folders = [Path(word) for word in sys.argv[1:]]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    write_sprites(
        entry_named("cifar10"), {split: load("cifar10", split) for split in SPLITS}, *folders
    )
