"""The images of a split as evaluation asks for them: by number, as floats on the device.

A split in memory lives on the device as uint8. Photographs are decoded batch by batch, the
expected next one while the device works on the last.
"""

from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from bilateral.data.batches import as_floats, channels_first
from bilateral.data.datasets_entry import Bytes, Index, Split


class DeviceImages:
    """`labels` of all images, and the images themselves by their numbers."""

    def __init__(self, split: Split, device: torch.device) -> None:
        self.device = device
        self.labels = torch.from_numpy(split.labels).to(device)
        height, width, channels = split.pixels.shape[1:]
        self.image_shape = (channels, height, width)
        self._split = split
        self._kept = None if split.streamed else self._on_device(split.pixels[:])
        self._decoding: dict[tuple[int, ...], Future[Bytes]] = {}
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="ahead")

    def __len__(self) -> int:
        return len(self.labels)

    def floats(self, numbers: Tensor) -> Tensor:
        """Images in [0, 1], float32 NCHW."""
        if self._kept is not None:
            return as_floats(self._kept[numbers])
        expected = self._decoding.get(tuple(numbers.tolist()))
        pixels = expected.result() if expected else self._decode(numbers.cpu().numpy())
        return as_floats(self._on_device(pixels))

    def expect(self, numbers: Tensor) -> None:
        """Begin to decode images that will be asked for soon.

        The latest two batches are held, so the next one can be expected while one is in use.
        """
        key = tuple(numbers.tolist())
        if self._kept is None and key not in self._decoding:
            self._decoding[key] = self._ahead.submit(self._decode, numbers.cpu().numpy())
        while len(self._decoding) > 2:
            self._decoding.pop(next(iter(self._decoding))).cancel()

    def _decode(self, numbers: Index) -> Bytes:
        return self._split.pixels[numbers]

    def _on_device(self, pixels: Bytes) -> Tensor:
        """uint8 NHWC as uint8 NCHW."""
        return channels_first(pixels).to(self.device)
