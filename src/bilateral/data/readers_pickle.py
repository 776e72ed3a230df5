"""The official CIFAR batches: pickles that Python 2 wrote with an old numpy.

A pickle can call whatever it names, so this unpickler knows three names, those of an array, and
gives inert stand-ins for them: nothing outside this module is looked up or called.
"""

import io
import pickle
from typing import Any

import numpy as np

from bilateral.data.datasets_entry import Bytes
from bilateral.errors import UserError


class _Inert:
    """Takes any arguments and any state, and only keeps them."""

    arguments: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Array(_Inert):
    pass


class _Type(_Inert):
    pass


_STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, refused") from None


def read_batch(content: bytes, labels_key: str, where: str) -> tuple[Bytes, list[Any]]:
    """The rows of a batch's array and its labels, neither of them checked for size or range."""
    try:
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises nearly anything
        reason = str(error) or type(error).__name__
        raise UserError(f"{where} is not a CIFAR batch: {reason}") from None
    if not isinstance(batch, dict):
        raise UserError(
            f"{where} is not a CIFAR batch: a dict expected, {type(batch).__name__} found"
        )
    array, labels = batch.get(b"data"), batch.get(labels_key.encode())
    if not isinstance(labels, list):
        raise UserError(f"{where} is not a CIFAR batch: no list of {labels_key}")
    return _bytes_of(array, where), labels


def _bytes_of(array: Any, where: str) -> Bytes:
    state = array.state if isinstance(array, _Array) else None
    match state:
        case (_, (int(rows), int(columns)), _Type(arguments=(b"u1", *_)), False, bytes(raw)):
            if rows > 0 and columns > 0 and rows * columns == len(raw):
                return np.frombuffer(raw, dtype=np.uint8).reshape(rows, columns)
    raise UserError(f"{where} is not a CIFAR batch: its data is no array of bytes")
