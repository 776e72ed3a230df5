"""Checks of the images and labels given to an attack, each refused in one line."""

from torch import Tensor

from bilateral.errors import UserError


def check_batch(images: Tensor, labels: Tensor) -> None:
    """Refuse anything but tensors, and labels that are not one class number per image."""
    for name, value in (("images", images), ("labels", labels)):
        if not isinstance(value, Tensor):
            raise UserError(f"{name} must be a torch.Tensor, not {type(value).__name__}")
    if labels.dim() != 1 or labels.is_floating_point():
        raise UserError(
            "labels must be class numbers, one integer per image; "
            f"these are {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if len(labels) != len(images):
        raise UserError(f"{len(images)} images but {len(labels)} labels")


def check_images(images: Tensor) -> None:
    """Refuse images that are not floats in [0, 1]: every budget is in that unit."""
    if not len(images):
        return
    low, high = float(images.min()), float(images.max())
    if low != low:
        count = int(images.isnan().flatten(1).any(1).sum())
        raise UserError(f"images must be floats in [0, 1]; {count:,} of these hold NaN")
    if not images.is_floating_point() or low < 0 or high > 1:
        hint = ": divide them by 255" if low >= 0 and 1 < high <= 255 else ""
        raise UserError(
            f"images must be floats in [0, 1]; these are {images.dtype}, {low:.9g} to {high:.9g}"
            f"{hint}"
        )
