"""Weights on disk: what was written is what is read, and what was changed since is refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from bilateral.errors import UserError
from bilateral.weights import read_about, read_weights, write_weights

ABOUT = {"classes": ["a", "b"], "channels": 1, "image_size": [8, 8]}


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).half()


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    write_weights(path, network(0), ABOUT)
    return path


def rewrite(path: Path, about: dict | None = None, **tensors: torch.Tensor) -> None:
    """Other tensors, or another account of them, under the digest that was there."""
    with safe_open(path, "pt") as file:
        kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        told = json.loads(file.metadata()["bilateral"])
    changed = {name.replace("_", ".", 1): value for name, value in tensors.items()}
    save_file({**kept, **changed}, path, {"bilateral": json.dumps({**told, **(about or {})})})


def test_what_was_written_is_read(written: Path) -> None:
    model = network(1)
    read_weights(written, model)
    for name, value in network(0).state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    assert read_about(written) == ABOUT, "the digest is the file's own business"
    rewrite(written)
    read_weights(written, model)


def test_a_changed_account_is_refused(written: Path) -> None:
    """Classes in another order would make every prediction wrong, with the same weights."""
    rewrite(written, {"classes": ["b", "a"]})
    with pytest.raises(UserError, match="its SHA-256 is not the one"):
        read_weights(written, network(1))


def test_a_changed_weight_is_refused_and_nothing_is_loaded(written: Path) -> None:
    model = network(1)
    before = model[0].weight.clone()
    rewrite(written, **{"0_weight": network(2)[0].weight.detach()})
    with pytest.raises(UserError, match="its SHA-256 is not the one"):
        read_weights(written, model)
    assert torch.equal(model[0].weight, before)


def test_the_same_bytes_as_another_type_are_refused(written: Path) -> None:
    """Half precision read as bfloat16: finite, of the right shape, and nonsense."""
    rewrite(written, **{"0_weight": network(0)[0].weight.detach().view(torch.bfloat16)})
    with pytest.raises(UserError, match="its SHA-256 is not the one"):
        read_weights(written, network(1))


def test_another_shape_is_refused(written: Path) -> None:
    wider = nn.Sequential(nn.Conv2d(1, 2, 5), nn.BatchNorm2d(2)).half()
    with pytest.raises(UserError, match=r"1 tensors differ, first 0.weight \(\(2, 1, 3, 3\) in"):
        read_weights(written, wider)
