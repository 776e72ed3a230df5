"""Seeded damage: bytes flipped, cut, moved and doubled, lengths made absurd, JSON made strange."""

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

Mutate = Callable[[Random, bytes], bytes]

EDGE = 512
"""Headers and directories lie at the ends of a file: half of all damage goes there."""
LENGTHS = [0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1]
LENGTHS += [2**40, 2**62, 2**63 - 1, 2**64 - 1]
STRANGE: list[Any] = [None, True, False, -1, 0, 2, 0.5, -0.0, 1e308, -1e308, 10**30, 10**400, ""]
STRANGE += ["x", "x" * 5000, "\ud800", "\0", "../../x", "/dev/zero", "os:abort", [], {}, [[]]]
STRANGE += [{"": {}}, [1, "a", None], float("nan"), float("inf")]


def _place(random: Random, content: bytes) -> int:
    edge = min(EDGE, len(content))
    near = [random.randrange(edge), len(content) - 1 - random.randrange(edge)]
    return random.choice([*near, random.randrange(len(content)), random.randrange(len(content))])


def _flip(random: Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice([1, 1, 1, 2, 8])):
        changed[_place(random, content)] ^= 1 << random.randrange(8)
    return bytes(changed)


def _overwrite(random: Random, content: bytes) -> bytes:
    start, size = _place(random, content), random.choice([1, 4, 16, 64])
    new = random.choice([random.randbytes(size), bytes(size), b"\xff" * size])
    return content[:start] + new + content[start + size :]


def _length(random: Random, content: bytes) -> bytes:
    start, size = _place(random, content), random.choice([1, 2, 4, 8])
    number = random.choice(LENGTHS) % 2 ** (8 * size)
    new = number.to_bytes(size, random.choice(["little", "big"]))
    return content[:start] + new + content[start + size :]


def _cut(random: Random, content: bytes) -> bytes:
    return content[: _place(random, content)]


def _remove(random: Random, content: bytes) -> bytes:
    start = _place(random, content)
    return content[:start] + content[start + random.choice([1, 7, 64, 512]) :]


def _repeat(random: Random, content: bytes) -> bytes:
    start, size = _place(random, content), random.choice([1, 8, 64, 512])
    return content[:start] + content[start : start + size] * random.choice([2, 3, 50]) + content


def _splice(random: Random, content: bytes) -> bytes:
    start, other, size = _place(random, content), _place(random, content), random.choice([8, 256])
    return content[:start] + content[other : other + size] + content[start + size :]


def _append(random: Random, content: bytes) -> bytes:
    return content + random.choice([b"\0", random.randbytes(100), content])


DAMAGE: list[Mutate] = [_flip, _flip, _overwrite, _length, _length, _cut, _remove, _repeat]
DAMAGE += [_splice, _append]


def damage(random: Random, content: bytes) -> bytes:
    """One to three faults somewhere in the bytes."""
    for _ in range(random.choice([1, 1, 2, 3])):
        content = random.choice(DAMAGE)(random, content) if content else content
    return content


def strange_json(random: Random, content: bytes) -> bytes:
    """Well-formed JSON of which one to three values are others, gone, or nested absurdly."""
    value = json.loads(content)
    for _ in range(random.choice([1, 1, 2, 3])):
        value = _strange(random, value)
    text = json.dumps(value)
    if random.random() < 0.05:
        deep = random.choice([100, 1000, 100_000])
        text = text.replace("[", "[" * deep, 1) if random.random() < 0.5 else "[" * deep
    return text.encode()


def _stranger(random: Random) -> Any:
    return copy.deepcopy(random.choice(STRANGE))


def _strange(random: Random, value: Any) -> Any:
    if not isinstance(value, dict | list) or not value or random.random() < 0.2:
        return _stranger(random)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key, action = random.choice(keys), random.random()
    if action < 0.15:
        del value[key]
    elif action < 0.3 and isinstance(value, list):
        value.insert(key, random.choice([copy.deepcopy(value[key]), _stranger(random)]))
    elif action < 0.3:
        value[random.choice(["", "x", "schema", f"{key}x"])] = _stranger(random)
    else:
        value[key] = _strange(random, value[key])
    return value
