"""`model.py` builds the very network that the package builds, for every model of the table."""

import ast
import sys
from types import ModuleType

import pytest
import torch

from bilateral.export.standalone import standalone_source
from bilateral.models import MODELS, build_model, model_entry

NAMES = [*MODELS, "wrn-10-2"]


def module_of(source: str) -> ModuleType:
    module = ModuleType("exported")
    module.__file__ = "model.py"
    exec(compile(source, "model.py", "exec"), module.__dict__)
    return module


def filled(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Weights and statistics other than those of a fresh network; variances above zero."""
    generator = torch.Generator().manual_seed(1)
    state = {}
    for name, value in network.state_dict().items():
        if value.dtype == torch.int64:
            state[name] = torch.ones((), dtype=torch.int64)
        elif value.dim() > 1 and "normalise" not in name:
            fan = value[0].numel()
            state[name] = torch.empty(value.shape).uniform_(-1, 1, generator=generator)
            state[name] *= (3 / fan) ** 0.5
        else:
            state[name] = torch.empty(value.shape).uniform_(0.5, 1, generator=generator)
    return state


@pytest.mark.parametrize("name", NAMES)
def test_the_network_is_the_same(name):
    module = module_of(standalone_source(name, classes=7, channels=2))
    entry = model_entry(name)
    builder = getattr(module, entry.builder.partition(":")[2])
    with torch.device("meta"):
        ours = build_model(name, 7, 2)
        theirs = builder(**entry.settings, classes=7, channels=2)
    state = filled(ours)
    images = torch.rand(2, 2, 16, 16, generator=torch.Generator().manual_seed(2))
    logits = []
    for network in (ours, theirs):
        network.load_state_dict(state, assign=True)
        with torch.no_grad():
            logits.append(network.eval()(images))
    assert logits[0].isfinite().all() and (logits[0][0] - logits[0][1]).abs().max() > 1e-3
    assert torch.equal(logits[0], logits[1])
    assert type(theirs) is not type(ours)


@pytest.mark.parametrize("name", NAMES)
def test_the_file_imports_torch_and_safetensors_alone(name):
    tree = ast.parse(standalone_source(name, 10, 3))
    roots = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level
            roots.add(node.module.partition(".")[0])
    assert {"torch", "safetensors"} <= roots
    assert roots - sys.stdlib_module_names == {"torch", "safetensors"}


def test_load_builds_it_with_its_classes_and_channels(tmp_path, run):
    from bilateral.weights import write_weights

    source = standalone_source("wrn-10-2", classes=7, channels=2)
    assert "network = wide_resnet(depth=10, width=2, classes=7, channels=2)" in source
    assert source.count("class Network(") == source.count("class Normalise(") == 1
    module = module_of(source)
    torch.manual_seed(0)
    network = build_model("wrn-10-2", 7, 2).eval()
    write_weights(tmp_path / "any.safetensors", network, {"classes": list("abcdefg")})
    loaded = module.load(tmp_path / "any.safetensors")
    images = torch.rand(2, 2, 9, 9)
    assert not loaded.training and torch.equal(loaded(images), network(images))
    about = module.about(tmp_path / "any.safetensors")
    assert about["classes"] == list("abcdefg") and set(about) == {"classes", "sha256"}
    assert module.WEIGHTS.name == "model.safetensors"
