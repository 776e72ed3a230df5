"""The copy that attacks search on is the same function, and only the model itself decides."""

import pytest
import torch
from torch import nn

from bilateral.attacks.table import attack_named
from bilateral.evaluation.graphs import Replayed
from bilateral.evaluation.robustness import noise_keys, robust_flags
from bilateral.evaluation.search import Search, prepare_search
from bilateral.models import build_model


def with_statistics(name, channels=3):
    """A model whose batch norms have seen something."""
    torch.manual_seed(0)
    model = build_model(name, 10, channels)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -1, 1)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.uniform_(module.bias, -1, 1)
    return model.eval()


@pytest.mark.parametrize(
    ("name", "left"),
    [("small-cnn", 0), ("preact-resnet-18", 9), ("wrn-10-1", 4), ("resnet-50", 0)],
)
def test_folding_keeps_the_function_and_drops_batch_norms(name, left):
    """What feeds a shortcut too cannot be folded; the rest is."""
    model = with_statistics(name)
    images = torch.rand(6, 3, 32, 32)
    fast = prepare_search(model, images).model
    norms = [m for m in fast.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == left
    with torch.no_grad():
        torch.testing.assert_close(fast(images), model(images), rtol=1e-3, atol=1e-3)
    assert any(isinstance(m, nn.BatchNorm2d) for m in model.modules())  # the model is untouched
    assert not any(parameter.requires_grad for parameter in fast.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_the_copy_is_in_eval_mode_whatever_the_model_is_in():
    model, images = with_statistics("small-cnn"), torch.rand(4, 3, 8, 8)
    with torch.no_grad():
        expected = model(images)
    fast = prepare_search(model.train(), images).model
    assert not any(module.training for module in fast.modules() if list(module.parameters()))
    assert all(module.training for module in model.modules())
    with torch.no_grad():
        torch.testing.assert_close(fast(images), expected, rtol=1e-3, atol=1e-3)


def test_a_search_in_bfloat16_asks_for_more_than_its_rounding(linear):
    """Logits that come from bfloat16 are wrong by a 256th and more."""
    assert Search(linear, bfloat16=False).slack == 0
    assert 2**-8 < Search(linear, bfloat16=True).slack < 0.1


def test_bfloat16_is_for_gpus_unless_asked_for():
    model, images = with_statistics("small-cnn"), torch.rand(4, 3, 8, 8)
    assert not prepare_search(model, images).bfloat16
    assert prepare_search(model, images, "bfloat16").bfloat16


@pytest.mark.parametrize("name", ["small-cnn", "preact-resnet-18"])
def test_convolutions_hold_what_autocast_would_make_of_them(name):
    """The same numbers without a cast at every call; the head keeps its precision."""
    model, images = with_statistics(name), torch.rand(4, 3, 16, 16)
    fast, plain = (prepare_search(model, images, kind).model for kind in ("bfloat16", "float32"))
    kinds = {type(m): m.weight.dtype for m in fast.modules() if isinstance(m, nn.Conv2d)}
    assert kinds == {nn.Conv2d: torch.bfloat16}
    assert fast.head.weight.dtype == torch.float32
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    gradients = []
    for copy in (fast, plain):
        inputs = images.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            logits = copy(inputs)
        assert logits.dtype == torch.float32
        gradients.append((logits.detach(), *torch.autograd.grad(logits[:, 0].sum(), inputs)))
    for held, cast in zip(*gradients, strict=True):
        assert torch.equal(held, cast)


def test_a_model_from_outside_is_left_to_autocast(convolutional, batch):
    search = prepare_search(convolutional, batch[0], "bfloat16")
    assert search.bfloat16
    assert {weight.dtype for weight in search.model.parameters()} == {torch.float32}


@pytest.mark.parametrize(("known", "gpu"), [(True, True), (False, True), (True, False)])
def test_on_a_gpu_the_packages_own_models_alone_search_in_bfloat16(
    convolutional, monkeypatch, known, gpu
):
    """Logits of other models may come in bfloat16 themselves, and tie."""
    monkeypatch.setattr("bilateral.evaluation.search.has_bfloat16", lambda _: gpu)
    model = with_statistics("small-cnn") if known else convolutional
    assert prepare_search(model, torch.rand(4, 3, 8, 8)).bfloat16 is (known and gpu)


def test_graphs_are_for_gpus():
    model, images = with_statistics("small-cnn"), torch.rand(4, 3, 8, 8)
    assert not isinstance(prepare_search(model, images).model, Replayed)


def test_a_model_that_cannot_be_copied_is_searched_itself(linear, batch):
    linear.cache = linear(batch[0])  # torch refuses to copy what has a graph behind it
    for precision in ("auto", "bfloat16"):
        search = prepare_search(linear, batch[0], precision)
        assert search.model is linear and search.precision == "float32"


def test_only_what_fools_the_model_itself_counts(linear, batch):
    """A copy that is fooled by everything must not make the model look broken."""
    images = batch[0]
    labels = linear(images).argmax(1)

    class Fooled(nn.Module):
        def forward(self, x):
            return -linear(x)

    settings, keys = attack_named("pgd5", 1e-4), noise_keys(torch.arange(16))
    alone = robust_flags(linear, images, labels, settings, keys)
    misled = robust_flags(
        linear, images, labels, settings, keys, search=Search(Fooled(), bfloat16=False)
    )
    assert torch.equal(alone.robust, misled.robust)
    assert misled.robust.all()


def test_flags_in_bfloat16_agree_with_float32():
    """bfloat16 may only miss images within rounding of the edge."""
    model = with_statistics("small-cnn", channels=1)
    images = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():  # without this every image gets the same class
        model.head.bias -= model(images).mean(0)
    labels = model(images).argmax(1)
    settings, keys = attack_named("pgd10", 0.01), noise_keys(torch.arange(64))
    flags = [
        robust_flags(
            model, images, labels, settings, keys, search=prepare_search(model, images, precision)
        ).robust
        for precision in ("float32", "bfloat16")
    ]
    assert 0.1 < float(flags[0].float().mean()) < 0.9
    assert int((flags[0] != flags[1]).sum()) <= 2


class Stem(nn.Module):
    """A convolution that feeds a batch norm and what follows: it must not be folded."""

    def __init__(self, scale):
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.norm.running_var.fill_(0.04)
        self.head, self.scale = nn.Linear(4, 10), scale

    def forward(self, images):
        features = self.convolution(images)
        return self.scale * self.head((features + self.norm(features)).mean((2, 3)))


@pytest.mark.parametrize("scale", [1.0, 1e-5, 1e-12])
def test_small_logits_do_not_hide_a_wrong_fold(scale):
    model, images = Stem(scale).eval(), torch.rand(6, 1, 8, 8)
    found = prepare_search(model, images).model
    torch.testing.assert_close(found(images), model(images), rtol=1e-4, atol=1e-4 * scale)


def test_a_copy_of_its_own_making_is_not_searched():
    class Odd(Stem):
        def __deepcopy__(self, memory):
            return Stem(2.0)

    model = Odd(1.0).eval()
    assert prepare_search(model, torch.rand(6, 1, 8, 8)).model is model


def test_weights_that_are_computed_from_others_are_not_folded():
    layer = nn.utils.parametrizations.weight_norm(nn.Conv2d(1, 4, 3))
    model = nn.Sequential(layer, nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10)).eval()
    images = torch.rand(6, 1, 8, 8)
    found = prepare_search(model, images).model
    torch.testing.assert_close(found(images), model(images), rtol=1e-4, atol=1e-4)
