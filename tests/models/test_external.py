"""Models and functions of the user's own, and timm's."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from bilateral.errors import UserError
from bilateral.models import build_model
from bilateral.models.external import load_function
from bilateral.models.normalise import Normalise

Write = Callable[..., Path]

NETWORK = """
from torch import nn

class Network(nn.Module):
    def __init__(self, **given):
        super().__init__()
        self.given = given
"""


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Loading adds to `sys.path` and `sys.modules`; undo both after every test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [name for name in sys.modules if name.startswith(("own_", "bilateral_file_"))]:
        del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = "own.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


def normalisation(model: nn.Module) -> Normalise:
    layer = next(model.children())
    assert isinstance(layer, Normalise)
    return layer


def given(target: str, **arguments: Any) -> Any:
    return build_model(target, **arguments).given


def refusal(target: str) -> str:
    """The one line with which a target is refused."""
    with pytest.raises(UserError) as caught:
        build_model(target, classes=10)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_function_is_given_what_it_takes(write: Write) -> None:
    path = write(
        NETWORK
        + "def none(): return Network()\n"
        + "def classes(classes): return Network(classes=classes)\n"
        + "def keyword(*, channels, width=3): return Network(channels=channels, width=width)\n"
        + "def everything(**rest): return Network(**rest)\n"
    )
    arguments = {"classes": 7, "channels": 1, "image_size": (8, 9)}
    assert given(f"{path}:none", **arguments) == {}
    assert given(f"{path}:classes", **arguments) == {"classes": 7}
    assert given(f"{path}:keyword", **arguments) == {"channels": 1, "width": 3}
    assert given(f"{path}:everything", **arguments) == arguments


def test_an_unknown_image_size_leaves_the_functions_default(write: Write) -> None:
    path = write(NETWORK + "def own(image_size=32): return Network(image_size=image_size)\n")
    assert given(f"{path}:own", classes=7) == {"image_size": 32}
    assert given(f"{path}:own", classes=7, image_size=64) == {"image_size": 64}


def test_a_class_builds_its_own_model(write: Write) -> None:
    path = write(NETWORK)
    assert given(f"{path}:Network", classes=7) == {"classes": 7, "channels": 3}


def test_a_real_model_from_a_file_gives_logits(write: Write) -> None:
    path = write(
        "from torch import nn\n"
        "def linear(classes, channels, image_size):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(channels * image_size**2, classes))\n"
    )
    model = build_model(f"{path}:linear", classes=7, channels=1, image_size=8)
    assert model(torch.rand(2, 1, 8, 8)).shape == (2, 7)


def test_a_file_finds_its_neighbours(write: Write) -> None:
    write("WIDTH = 5", "own_neighbour.py")
    path = write("def own():\n    from own_neighbour import WIDTH\n    return WIDTH\n")
    assert load_function(f"{path}:own")() == 5


def test_a_file_may_define_dataclasses(write: Write) -> None:
    path = write(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass, KW_ONLY\n"
        "@dataclass\nclass Width:\n    _: KW_ONLY\n    value: int = 5\n"
    )
    assert load_function(f"{path}:Width")().value == 5


def test_a_changed_file_is_read_again(write: Write) -> None:
    path = write("def own(): return 1")
    assert load_function(f"{path}:own")() == 1
    write("def own(): return 'two'")
    assert load_function(f"{path}:own")() == "two"


def test_a_module_is_found_from_the_current_folder(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(NETWORK + "def own(classes): return Network(classes=classes)", "own_package/nets.py")
    monkeypatch.chdir(tmp_path)
    assert given("own_package.nets:own", classes=7) == {"classes": 7}


def test_a_relative_path_is_a_file(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("def own(): return 1", "folder/own.py")
    monkeypatch.chdir(tmp_path)
    assert load_function("folder/own.py:own")() == 1


def test_what_is_not_a_target_is_refused() -> None:
    for target in ("own.py:", ":own"):
        assert "file.py:function" in refusal(target)
    assert refusal("own.py") == "which function of own.py builds the model? write own.py:FUNCTION"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing.py"
    assert refusal(f"{path}:own") == f"no such file: {path}"
    assert refusal(f"{tmp_path}:own") == f"no such file: {tmp_path}"


def test_a_missing_module_is_named() -> None:
    message = refusal("no_such_package.nets:own")
    assert message.startswith("importing no_such_package.nets failed: ModuleNotFoundError")


def test_a_missing_function_is_named_with_those_there_are(write: Write) -> None:
    path = write("def one(): ...\ndef two(): ...\n")
    assert refusal(f"{path}:three") == f"{path} has no function 'three'; it has one, two"
    path = write("")
    assert refusal(f"{path}:three") == f"{path} has no function 'three'"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise ValueError('first\\nsecond')", "ValueError: first second"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def own(:", "SyntaxError: invalid syntax"),
        ("raise SystemExit(1)", "SystemExit: 1"),
        ("assert False", "AssertionError"),
    ],
)
def test_an_exception_while_importing_is_one_line(write: Write, text: str, reason: str) -> None:
    path = write(text)
    assert refusal(f"{path}:own").startswith(f"importing {path} failed: {reason}")
    assert "bilateral_file_own" not in sys.modules


def test_what_cannot_be_called_is_refused(write: Write) -> None:
    path = write("own = 5")
    assert refusal(f"{path}:own") == f"{path}:own is not a function but of type int"


def test_a_function_that_needs_something_else_is_refused(write: Write) -> None:
    path = write("def own(depth, classes): ...")
    message = refusal(f"{path}:own")
    assert "missing a required argument: 'depth'" in message
    assert "is given classes, channels" in message


def test_a_function_that_fails_is_refused(write: Write) -> None:
    path = write("def own(): raise KeyError('a')")
    assert refusal(f"{path}:own") == f"{path}:own failed: KeyError: 'a'"


def test_a_function_must_return_a_module(write: Write) -> None:
    path = write("def own(): return 5")
    assert refusal(f"{path}:own") == f"{path}:own returned int, not a torch.nn.Module"


class FakeTimm(ModuleType):
    """A timm whose models flatten the image; `vit` is built for one size."""

    def __init__(self) -> None:
        super().__init__("timm")
        self.calls: list[dict[str, Any]] = []

    def create_model(self, name: str, **arguments: Any) -> nn.Module:
        self.calls.append({"name": name, **arguments})
        if name not in ("cnn", "vit", "bare"):
            raise RuntimeError(f"Unknown model ({name})")
        model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        model.append(nn.Linear(arguments["in_chans"], arguments["num_classes"]))
        if name != "bare":
            model.default_cfg = {  # type: ignore[assignment]
                "mean": (0.5, 0.4, 0.3),
                "std": (0.2, 0.25, 0.3),
                "fixed_input_size": name == "vit",
            }
        return model


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> FakeTimm:
    fake = FakeTimm()
    monkeypatch.setitem(sys.modules, "timm", fake)
    return fake


def test_without_timm_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # None in sys.modules makes the import fail as if timm were not there.
    monkeypatch.setitem(sys.modules, "timm", None)
    assert "pip install timm" in refusal("timm:resnet18")


def test_a_broken_timm_is_not_called_missing(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("import no_such_module", "timm.py")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    assert refusal("timm:cnn") == (
        "importing timm failed: ModuleNotFoundError: No module named 'no_such_module'"
    )


def test_a_timm_model_is_fresh_and_normalised_as_timm_says(timm: FakeTimm) -> None:
    model = build_model("timm:cnn", classes=7, image_size=16)
    assert timm.calls == [{"name": "cnn", "pretrained": False, "num_classes": 7, "in_chans": 3}]
    _, body = model.children()
    images = torch.rand(2, 3, 16, 16)
    mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.25, 0.3])
    expected = body((images - mean.view(3, 1, 1)) / std.view(3, 1, 1))
    torch.testing.assert_close(model(images), expected)


def test_other_channels_get_the_average_normalisation(timm: FakeTimm) -> None:
    model = build_model("timm:cnn", classes=7, channels=1)
    assert normalisation(model).mean.flatten().tolist() == pytest.approx([0.4])
    assert normalisation(model).std.flatten().tolist() == pytest.approx([0.25])
    assert model(torch.rand(2, 1, 16, 16)).shape == (2, 7)


def test_a_timm_model_without_settings_gets_the_default(timm: FakeTimm) -> None:
    model = build_model("timm:bare", classes=7)
    assert normalisation(model).mean.flatten().tolist() == [0.5]


def test_a_timm_model_of_fixed_size_is_built_for_the_images(timm: FakeTimm) -> None:
    build_model("timm:vit", classes=7, image_size=32)
    assert timm.calls[-1]["img_size"] == 32
    build_model("timm:vit", classes=7)
    assert "img_size" not in timm.calls[-1]


def test_an_unknown_timm_model_is_refused(timm: FakeTimm) -> None:
    assert refusal("timm:none") == "timm:none failed: RuntimeError: Unknown model (none)"
