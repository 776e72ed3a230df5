"""Small pictures inside the page: PNG as data URIs, each written once however often it is shown."""

import base64
import io
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

LARGEST = 96
"""Larger pictures are reduced to this many pixels a side."""


@dataclass
class Album:
    """The pictures of a page; equal pictures are stored once."""

    uris: list[str] = field(default_factory=list)
    characters: int = 0
    _places: dict[str, int] = field(default_factory=dict)

    def put(self, pixels: np.ndarray) -> int:
        """Add a picture, uint8 in HWC, and return its place."""
        uri = data_uri(pixels)
        if uri not in self._places:
            self._places[uri] = len(self.uris)
            self.uris.append(uri)
            self.characters += len(uri)
        return self._places[uri]


def data_uri(pixels: np.ndarray) -> str:
    """uint8 pixels in HWC as a PNG."""
    grey = pixels.shape[2] == 1
    buffer = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if grey else pixels).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def as_pixels(image: np.ndarray) -> np.ndarray:
    """A CHW image of floats in [0, 1] as HWC bytes of one or three channels."""
    channels = image if image.shape[0] in (1, 3) else image[:1]
    finite = np.nan_to_num(channels.astype(np.float64), nan=0.5, posinf=1.0, neginf=0.0)
    return np.rint(np.clip(finite, 0, 1) * 255).astype(np.uint8).transpose(1, 2, 0)


def reduced(pixels: np.ndarray, average: bool = True) -> np.ndarray:
    """A picture no larger than the page shows; unless averaged, single pixels keep their values."""
    height, width = pixels.shape[:2]
    if max(height, width) <= LARGEST:
        return pixels
    scale = LARGEST / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    filter = Image.Resampling.BOX if average else Image.Resampling.NEAREST
    grey = pixels.shape[2] == 1
    smaller = Image.fromarray(pixels[:, :, 0] if grey else pixels).resize(size, filter)
    found = np.asarray(smaller)
    return found[:, :, None] if grey else found


def magnified(change: np.ndarray, factor: float) -> np.ndarray:
    """A perturbation as a picture, magnified around mid-grey."""
    return as_pixels(0.5 + factor * change)
