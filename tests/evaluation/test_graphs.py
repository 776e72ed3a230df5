"""Replayed passes are the model's own, padded; what cannot be replayed reaches the model."""

import pytest
import torch
from torch import nn

from bilateral.evaluation import graphs
from bilateral.evaluation.graphs import LARGEST, STEP, WORTH, Replayed, padded
from bilateral.evaluation.search import prepare_search
from bilateral.models import build_model


class Asked(nn.Module):
    """A model that writes down the sizes of the batches it computes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 4).requires_grad_(False)
        self.sizes = []

    def forward(self, images):
        self.sizes.append(len(images))
        return self.layer(images.flatten(1))


class Tape:
    """What a GPU replays, computed again: a graph for a machine without one."""

    def __init__(self, model, images, logits):
        self.model, self.images, self.logits = model, images, logits

    def replay(self):
        self.logits.copy_(self.model.layer(self.images.flatten(1)))

    def pool(self):
        return self


@pytest.fixture
def recorded(monkeypatch):
    """The sizes of the passes recorded, on the CPU."""
    sizes = []

    def record(model, images, pool):
        assert (pool is None) == (not sizes)
        sizes.append(len(images))
        logits = model.layer(images.flatten(1))
        return graphs._Captured(Tape(model, images, logits), images, logits)

    monkeypatch.setattr(graphs, "_record", record)
    monkeypatch.setattr(graphs, "DEVICE", "cpu")
    return sizes


def some(count, seed=0):
    return torch.rand(count, 3, 2, 2, generator=torch.Generator().manual_seed(seed))


def test_sizes_are_powers_of_two_and_then_multiples():
    assert [padded(count) for count in (1, 2, 3, 5, 17, 31)] == [1, 2, 4, 8, 32, 32]
    assert [padded(STEP * n + 1) for n in (1, 2, 11)] == [STEP * n for n in (2, 3, 12)]
    assert all(padded(STEP * n) == STEP * n for n in range(1, 17))


@torch.no_grad()
def test_a_size_asked_for_often_is_recorded_once(recorded):
    model = Asked()
    replayed = Replayed(model)
    for call in range(WORTH + 10):
        images = some(40 + call % 8, seed=call)
        assert torch.equal(replayed(images), model.layer(images.flatten(1)))
    assert len(model.sizes) == WORTH - 1
    assert recorded == [48]
    for call in range(WORTH):
        images = some(5, seed=call)
        assert torch.equal(replayed(images), model.layer(images.flatten(1)))
    assert recorded == [48, 8]


@torch.no_grad()
def test_what_comes_back_is_not_overwritten_by_the_next_replay(recorded):
    replayed = Replayed(Asked())
    for _ in range(WORTH):
        replayed(some(40))
    first = replayed(some(40))
    kept = first.clone()
    replayed(some(40, seed=1))
    assert torch.equal(first, kept)


def test_another_precision_is_another_graph_and_another_layout_is_not(recorded):
    replayed, images = Replayed(Asked()), some(40)
    with torch.no_grad():
        for _ in range(WORTH):
            replayed(images)
        for _ in range(WORTH):
            replayed(images.to(memory_format=torch.channels_last))
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(WORTH):
                logits = replayed(images)
    assert logits.dtype == torch.bfloat16
    assert recorded == [48] * 2


def test_gradients_and_large_batches_reach_the_model(recorded):
    model = Asked()
    replayed, images = Replayed(model), some(8).requires_grad_()
    for _ in range(WORTH + 1):
        logits = replayed(images)
    assert torch.autograd.grad(logits.sum(), images)[0].abs().sum() > 0
    with torch.no_grad():
        for _ in range(WORTH + 1):
            replayed(some(LARGEST + 1))
    assert not recorded
    assert len(model.sizes) == 2 * (WORTH + 1)


def test_sizes_with_gradients_are_few_and_the_rows_are_the_images_own(recorded):
    """Every size of batch costs a GPU new plans; what fills a batch up gets no gradient."""
    model, images = Asked(), some(130).requires_grad_()
    replayed = Replayed(model)
    for count in (130, 129, 100, 66, 65, 3):
        logits = replayed(images[:count])
        assert torch.equal(logits, model.layer(images[:count].flatten(1)))
        (gradient,) = torch.autograd.grad(logits.sum(), images)
        expected = model.layer.weight.sum(0).view(3, 2, 2).expand(count, -1, -1, -1)
        torch.testing.assert_close(gradient[:count], expected)
        assert not gradient[count:].any()
    assert model.sizes == [192, 192, 128, 128, 128, 4]


@torch.no_grad()
def test_weights_that_need_gradients_are_not_replayed(recorded):
    model = Asked().requires_grad_()
    replayed = Replayed(model)
    for _ in range(WORTH + 1):
        replayed(some(8))
    assert not recorded


@torch.no_grad()
def test_a_model_that_cannot_be_recorded_is_called_for_good(recorded, monkeypatch):
    model = Asked()
    replayed = Replayed(model)
    for _ in range(WORTH):
        replayed(some(40))
    assert recorded == [48]

    def fail(*_):
        tried.append(True)
        raise RuntimeError("operation not permitted when stream is capturing")

    tried = []
    monkeypatch.setattr(graphs, "_record", fail)
    for count in (8, 16, 40):
        for call in range(WORTH + 5):
            images = some(count, seed=call)
            assert torch.equal(replayed(images), model.layer(images.flatten(1)))
    assert len(tried) == 1
    assert model.sizes[-WORTH:] == [64] * WORTH


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("compiled", [False, True])
@torch.no_grad()
def test_a_gpu_replays_the_search_copy(compiled):
    torch.manual_seed(0)
    model = build_model("small-cnn", 10, 3).eval().cuda()
    images = torch.rand(200, 3, 16, 16, device="cuda")
    search = prepare_search(model, images, compile=compiled)
    with torch.autocast("cuda", torch.bfloat16, enabled=search.bfloat16):
        for count in (200, 193, 40, 3):
            for _ in range(WORTH + 2):
                logits = search.model(images[:count])
            torch.testing.assert_close(
                logits, search.model.model(images[:count]), rtol=0.02, atol=0.02
            )
    assert sorted(key[0] for key in search.model._captured) == [4, 48, 208]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@torch.no_grad()
def test_a_gpu_gives_up_graphs_for_a_model_that_waits_for_values():
    images = torch.rand(200, 3, 16, 16, device="cuda")

    class Waiting(nn.Module):
        def forward(self, images):
            return images.flatten(1) * float(images.sum() > 0)

    waiting = Replayed(Waiting())
    for _ in range(WORTH + 2):
        assert torch.equal(waiting(images), images.flatten(1))
    assert not waiting._possible
    torch.rand(1, device="cuda")  # torch's own generator is not left inside the failed capture
