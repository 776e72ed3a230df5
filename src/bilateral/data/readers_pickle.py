"""The official CIFAR batches: pickles that Python 2 wrote with an old numpy.

A pickle is a program: it can call whatever it names, reserve memory for what it does not hold, and
build keys that take forever to hash. So no unpickler runs it: its operations are read one by one,
only those of a batch are accepted, and names and calls are merely recorded.
"""

import pickletools
from dataclasses import dataclass
from typing import Any

import numpy as np

from bilateral.data.datasets_entry import Bytes
from bilateral.errors import UserError

OPERATIONS = 2**20
"""The most operations of a batch; the 50,000 images of CIFAR-100 take 250 thousand."""

_ARRAY, _TYPE = "numpy.core.multiarray._reconstruct", "numpy.dtype"
_NAMES = (_ARRAY, "numpy.ndarray", _TYPE)
_SIZES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass(frozen=True)
class _Name:
    """A function or class that the pickle names."""

    text: str


@dataclass(eq=False)
class _Called:
    """What a call of a name would have made, with its arguments and state."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


class _Reading:
    """The stack and the memory of a pickle that is being read."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memory: dict[int, Any] = {}

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def take(self, operation: str, argument: Any) -> None:
        """One operation."""
        match operation:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "MARK":
                self.marks.append(len(self.stack))
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                self.stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[operation])
            case "BININT" | "BININT1" | "BININT2" | "INT" | "LONG1" | "BINUNICODE" | "UNICODE":
                self.stack.append(argument)
            case "SHORT_BINUNICODE" | "SHORT_BINBYTES" | "BINBYTES":
                self.stack.append(argument)
            case "SHORT_BINSTRING" | "BINSTRING" | "STRING":
                self.stack.append(argument.encode("latin-1"))
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self.memory[int(argument)] = self.stack[-1]
            case "MEMOIZE":
                self.memory[len(self.memory)] = self.stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                self.stack.append(self.memory[int(argument)])
            case "EMPTY_TUPLE" | "EMPTY_LIST" | "EMPTY_DICT":
                self.stack.append({"EMPTY_TUPLE": (), "EMPTY_LIST": []}.get(operation, {}))
            case "TUPLE":
                self.stack.append(tuple(self.since_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                size = _SIZES[operation]
                self.stack[-size:] = [tuple(self.stack[-size:])]
            case "LIST":
                self.stack.append(self.since_mark())
            case "APPEND" | "APPENDS":
                items = self.since_mark() if operation == "APPENDS" else [self.stack.pop()]
                self._top(list).extend(items)
            case "DICT":
                items = self.since_mark()
                self.stack.append({})
                self._put(items)
            case "SETITEM" | "SETITEMS":
                one = operation == "SETITEM"
                self._put([self.stack.pop(-2), self.stack.pop()] if one else self.since_mark())
            case "GLOBAL" | "INST":
                self.stack.append(_known(argument.replace(" ", ".")))
            case "STACK_GLOBAL":
                name = self.stack.pop()
                self.stack.append(_known(f"{self.stack.pop()!s:.100}.{name!s:.100}"))
            case "REDUCE":
                arguments = self.stack.pop()
                called = _Called(self._top(_Name).text, arguments)
                self.stack[-1] = called
            case "BUILD":
                state = self.stack.pop()
                self._top(_Called).state = state
            case _:
                raise ValueError(f"{operation} is not an operation of a batch")

    def _top(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise ValueError(f"an operation on {type(self.stack[-1]).__name__}")
        return self.stack[-1]

    def _put(self, items: list[Any]) -> None:
        """Keys must be text: hashing anything else may take forever."""
        keys, values = items[::2], items[1::2]
        if not all(isinstance(key, bytes | str) for key in keys):
            raise ValueError("a key that is not text")
        self._top(dict).update(zip(keys, values, strict=True))


def _known(name: str) -> _Name:
    if name not in _NAMES:
        raise ValueError(f"it asks for {name[:100]}, which is refused")
    return _Name(name)


def _value(content: bytes) -> Any:
    """What the pickle describes."""
    reading = _Reading()
    for number, (operation, argument, _) in enumerate(pickletools.genops(content)):
        if number == OPERATIONS:
            raise ValueError(f"more than {OPERATIONS:,} operations")
        reading.take(operation.name, argument)
    return reading.stack[-1]


def read_batch(content: bytes, labels_key: str, where: str) -> tuple[Bytes, list[Any]]:
    """The rows of a batch's array and its labels, neither of them checked for size or range."""
    try:
        batch = _value(content)
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
    state = array.state if isinstance(array, _Called) and array.name == _ARRAY else None
    match state:
        case (
            _,
            (int(rows), int(columns)),
            _Called(name="numpy.dtype", arguments=(b"u1", *_)),
            False,
            bytes(raw),
        ):
            if rows > 0 and columns > 0 and rows * columns == len(raw):
                return np.frombuffer(raw, dtype=np.uint8).reshape(rows, columns)
    raise UserError(f"{where} is not a CIFAR batch: its data is not an array of bytes")
