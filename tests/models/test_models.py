"""The networks against their published sizes and the rules every model keeps."""

import math
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bilateral.errors import UserError
from bilateral.models import MODELS, build_model, model_entry
from bilateral.models.network import Network
from bilateral.models.normalise import Normalise
from bilateral.models.preact_resnet import PreActivationBlock
from bilateral.models.resnet import Bottleneck
from bilateral.models.wide_resnet import AuthorsBlock

CHEAP = ["small-cnn", "preact-resnet-18", "wrn-10-1"]


def fresh(name: str, classes: int = 10, channels: int = 3) -> Network:
    """A model with settled batch-norm statistics, in eval mode."""
    torch.manual_seed(0)
    model = build_model(name, classes, channels)
    assert isinstance(model, Network)
    with torch.no_grad():
        model(torch.rand(8, channels, 16, 16))
    return model.eval()


def on_meta(name: str, classes: int, channels: int = 3) -> nn.Module:
    with torch.device("meta"):
        return build_model(name, classes, channels)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "millions"),
    [
        ("wrn-28-10", 10, 36.48),
        ("wrn-34-10", 10, 46.16),
        ("wrn-authors", 10, 45.90),
        ("preact-resnet-18", 10, 11.17),
        ("resnet-50", 1000, 25.56),
        ("resnet-101", 1000, 44.55),
        ("resnet-152", 1000, 60.19),
    ],
)
def test_parameter_count_is_the_published_one(name: str, classes: int, millions: float) -> None:
    assert round(parameters(on_meta(name, classes)) / 1e6, 2) == millions


def test_small_cnn_is_small() -> None:
    assert 50_000 <= parameters(on_meta("small-cnn", 10, channels=1)) <= 150_000


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(32, 32), (64, 64), (33, 47)])
def test_every_model_takes_any_channels_classes_and_size(
    name: str, channels: int, size: tuple[int, int]
) -> None:
    model = on_meta(name, classes=7, channels=channels)
    assert model(torch.rand(2, channels, *size, device="meta")).shape == (2, 7)


@pytest.mark.parametrize("name", [*MODELS, "wrn-16-4"])
def test_every_model_ends_in_its_head(name: str) -> None:
    model = on_meta(name, classes=7)
    images = torch.rand(2, 3, 32, 32, device="meta")
    assert isinstance(model.head, nn.Linear)
    assert model.head.out_features == 7
    model.head = nn.Identity()
    assert model(images).shape == model.features(images).shape  # type: ignore[operator]


@pytest.mark.parametrize("name", CHEAP)
@pytest.mark.parametrize("size", [8, 32])
def test_logits_and_gradients_are_finite(name: str, size: int) -> None:
    torch.manual_seed(0)
    model = build_model(name, classes=10)
    images = torch.rand(4, 3, size, size, requires_grad=True)
    logits = model(images)
    assert logits.shape == (4, 10)
    assert logits.isfinite().all()
    logits.square().sum().backward()
    gradients = [images.grad, *(parameter.grad for parameter in model.parameters())]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("name", CHEAP)
def test_the_model_normalises_its_own_input(name: str) -> None:
    model = fresh(name)
    images = torch.rand(3, 3, 16, 16)
    logits = model(images)
    body_logits = model.head(model.body((images - 0.5) / 0.5).mean(dim=(2, 3)))
    torch.testing.assert_close(logits, body_logits)


def test_normalise_is_per_channel_and_not_trained() -> None:
    layer = Normalise((0.5, 0.4, 0.3), (0.2, 0.25, 0.5))
    images = torch.rand(2, 3, 4, 4)
    expected = torch.empty_like(images)
    for channel, (mean, std) in enumerate([(0.5, 0.2), (0.4, 0.25), (0.3, 0.5)]):
        expected[:, channel] = (images[:, channel] - mean) / std
    torch.testing.assert_close(layer(images), expected)
    assert not list(layer.parameters())
    assert set(layer.state_dict()) == {"mean", "std"}


def test_default_normalisation_is_the_papers_range() -> None:
    ends = torch.tensor([0.0, 1.0]).view(1, 2, 1, 1)
    assert Normalise()(ends).flatten().tolist() == [-1.0, 1.0]


@pytest.mark.parametrize("name", CHEAP)
def test_channels_last_gives_the_same_logits_and_stays_channels_last(name: str) -> None:
    model = fresh(name)
    images = torch.rand(4, 3, 16, 16)
    expected = model(images)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = images.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-5)
    maps = model.body(model.normalise(images))
    assert maps.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["small-cnn", "wrn-10-1"])
def test_the_model_compiles_to_one_graph(name: str) -> None:
    model = fresh(name)
    images = torch.rand(2, 3, 8, 8)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), model(images))


def test_the_authors_block_compiles_and_stays_channels_last() -> None:
    block = AuthorsBlock(8, 16, 2).eval()
    block.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    maps = torch.randn(2, 8, 6, 6).contiguous(memory_format=torch.channels_last)
    output = block(maps)
    assert output.is_contiguous(memory_format=torch.channels_last)
    compiled = torch.compile(block, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(maps), output)


def test_an_image_does_not_depend_on_its_batch() -> None:
    model = fresh("wrn-10-1")
    images = torch.rand(5, 3, 16, 16)
    torch.testing.assert_close(model(images)[2:3], model(images[2:3]), rtol=1e-4, atol=1e-5)


def test_initialisation_is_he_by_fan_out() -> None:
    torch.manual_seed(0)
    model = build_model("wrn-10-2", classes=10)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d) and layer.weight.numel() > 4000:
            fan_out = layer.out_channels * math.prod(layer.kernel_size)
            assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.05)
        elif isinstance(layer, nn.BatchNorm2d):
            assert (layer.weight == 1).all()
            assert (layer.bias == 0).all()
    assert isinstance(model, Network)
    assert (model.head.bias == 0).all()


def silenced(block: nn.Module, last: nn.Conv2d | nn.BatchNorm2d) -> nn.Module:
    """The block with its residual branch switched off: what is left is the shortcut."""
    nn.init.zeros_(last.weight)
    return block.eval()


def test_pre_activation_shortcut_is_the_input_or_a_projection_of_the_activated_input() -> None:
    maps = torch.randn(2, 4, 6, 6)
    block = PreActivationBlock(4, 4, 1)
    assert torch.equal(silenced(block, block.convolution2)(maps), maps)
    block = PreActivationBlock(4, 8, 2)
    assert block.shortcut is not None
    expected = F.conv2d(block.activation1.eval()(maps), block.shortcut.weight, stride=2)
    torch.testing.assert_close(silenced(block, block.convolution2)(maps), expected)


def test_authors_shortcut_is_pooled_and_padded_with_zero_channels() -> None:
    maps = torch.randn(2, 4, 6, 6)
    block = AuthorsBlock(4, 8, 2)
    output = silenced(block, block.convolution2)(maps)
    pooled = maps.view(2, 4, 3, 2, 3, 2).mean(dim=(3, 5))
    torch.testing.assert_close(output[:, 2:6], pooled)
    assert (output[:, :2] == 0).all()
    assert (output[:, 6:] == 0).all()


def test_authors_first_block_carries_the_activated_input_on() -> None:
    maps = torch.randn(2, 4, 6, 6)
    block = AuthorsBlock(4, 8, 1)
    output = silenced(block, block.convolution2)(maps)
    activated = F.leaky_relu(maps / math.sqrt(1 + 1e-3), 0.1)
    torch.testing.assert_close(output[:, 2:6], activated)
    block = AuthorsBlock(4, 4, 1)
    assert torch.equal(silenced(block, block.convolution2)(maps), maps)


def test_authors_network_is_as_released() -> None:
    model = on_meta("wrn-authors", classes=10)
    blocks = [layer for layer in model.modules() if isinstance(layer, AuthorsBlock)]
    widths = [block.convolution2.out_channels for block in blocks]
    assert widths == [160] * 5 + [320] * 5 + [640] * 5
    assert [block.stride for block in blocks] == [1] * 5 + [2, 1, 1, 1, 1] * 2
    assert [block.is_first for block in blocks] == [True] + [False] * 14
    norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    slopes = [layer.negative_slope for layer in model.modules() if isinstance(layer, nn.LeakyReLU)]
    assert len(norms) == len(slopes) == 31
    assert {norm.eps for norm in norms} == {1e-3}
    assert set(slopes) == {0.1}
    assert not any(isinstance(layer, nn.ReLU) for layer in model.modules())


def test_bottleneck_strides_in_the_middle_and_starts_as_its_shortcut() -> None:
    block = Bottleneck(16, 16, 1).eval()
    maps = torch.randn(2, 16, 6, 6)
    assert torch.equal(block(maps), maps.relu())
    model = on_meta("resnet-50", classes=10)
    strides = [
        (layer.convolution1.stride, layer.convolution2.stride, layer.convolution3.stride)
        for layer in model.modules()
        if isinstance(layer, Bottleneck) and len(layer.shortcut)
    ]
    assert strides == [((1, 1), (stride, stride), (1, 1)) for stride in (1, 2, 2, 2)]


def test_resolution_falls_as_published() -> None:
    images = torch.rand(1, 3, 224, 224, device="meta")
    body = on_meta("resnet-50", classes=10).body
    assert isinstance(body, nn.Sequential)
    assert body[:5](images).shape == (1, 256, 56, 56)
    assert body(images).shape == (1, 2048, 7, 7)
    small = images[..., :32, :32]
    for name, shape in [("wrn-28-10", (1, 640, 8, 8)), ("preact-resnet-18", (1, 512, 4, 4))]:
        assert on_meta(name, classes=10).body(small).shape == shape  # type: ignore[operator]


def test_importing_the_table_does_not_import_torch() -> None:
    code = (
        "import sys, bilateral.models, bilateral.models.external;"
        "bilateral.models.model_entry('wrn-16-8'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("wrn28-10", "wrn-28-10"),
        ("wrn-28x10", "wrn-28-10"),
        ("preact-resnet18", "preact-resnet-18"),
        ("resnet50", "resnet-50"),
        ("small_cnn", "small-cnn"),
    ],
)
def test_an_unknown_name_gets_the_nearest_ones(name: str, near: str) -> None:
    with pytest.raises(UserError, match=f"unknown model '{name}'; nearest: .*{near}"):
        build_model(name, classes=10)


@pytest.mark.parametrize("name", ["wrn-27-10", "wrn-4-10", "wrn-0-1", "wrn-30-2"])
def test_a_wide_resnet_of_impossible_depth_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"must be 6k \+ 4"):
        build_model(name, classes=10)


def test_a_wide_resnet_without_width_is_refused() -> None:
    with pytest.raises(UserError, match="at least 1"):
        build_model("wrn-28-0", classes=10)


def test_any_wide_resnet_has_its_depth_and_width() -> None:
    assert model_entry("wrn-40-2").settings == {"depth": 40, "width": 2}
    model = on_meta("wrn-40-2", classes=10)
    convolutions = [
        layer
        for layer in model.modules()
        if isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3)
    ]
    # The name counts the projections of the three stages as layers, but not the linear one.
    assert len(convolutions) + 3 == 40
    assert convolutions[-1].out_channels == 128
