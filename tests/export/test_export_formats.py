"""An export gives the run's logits where this package cannot be imported, for any batch."""

import copy
import importlib.metadata
import json
import re
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from export_runs import export, make_run, python

from bilateral.evaluation.target import trained_model
from bilateral.export.exporting import LIMIT, largest_difference
from bilateral.export.formats import FORMATS
from bilateral.export.programs import ONNX_PACKAGES
from bilateral.runs import RunFolder

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "export.md"

LOAD = {
    "safetensors": "from model import load; network = load()",
    "torch": "network = torch.export.load('model.pt2').module()",
    "onnx": """
import onnxruntime
session = onnxruntime.InferenceSession("model.onnx")
network = lambda images: torch.tensor(session.run(None, {"images": images.numpy()})[0])
""",
}
COMPARE = """
import json, torch
images = torch.load(sys.argv[1]) if len(sys.argv) > 1 else torch.load("images.pt")
found = {}
with torch.no_grad():
    for name, code in json.loads(CODE).items():
        exec(code)
        found[name] = [network(images[:count]).tolist() for count in (1, 5)]
print(json.dumps(found))
"""


def logits_elsewhere(folder: Path, formats: list[str], images: torch.Tensor, *options: str):
    """Logits of one image and of five, by format, from a process without this package."""
    torch.save(images, folder / "images.pt")
    code = f"CODE = {json.dumps({name: LOAD[name] for name in formats})!r}\n" + COMPARE
    found = json.loads(python(code, folder, *options))
    return {name: [torch.tensor(part) for part in parts] for name, parts in found.items()}


def images_of(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.rand(5, *shape, generator=torch.Generator().manual_seed(3))


def expected(folder: RunFolder, images: torch.Tensor) -> torch.Tensor:
    _, model = trained_model(folder, torch.device("cpu"))
    with torch.no_grad():
        return model(images)


def test_logits_are_the_same_without_this_package(trained, exported):
    images = images_of((1, 8, 8))
    truth = expected(trained, images)
    assert truth.std() > 0.1  # a constant would agree with anything
    for name, (one, five) in logits_elsewhere(exported, list(FORMATS), images).items():
        tolerance = 2e-5 if name == "onnx" else 1e-6
        assert one.shape == (1, 10) and five.shape == (5, 10), name
        torch.testing.assert_close(one, truth[:1], atol=tolerance, rtol=0, msg=name)
        torch.testing.assert_close(five, truth, atol=tolerance, rtol=0, msg=name)


def test_preact_resnet_on_data_that_is_not_on_disk(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BILATERAL_DATA", str(tmp_path / "no-data"))
    monkeypatch.setattr("bilateral.export.exporting.IMAGES", 4)
    run = make_run(tmp_path / "run", "preact-resnet-18", "cifar10", channels=3, size=32)
    for name in ("safetensors", "torch"):
        assert export(run.path, "--format", name, "--json") == 0
        told = capsys.readouterr()
        assert json.loads(told.out)["images_from"] == "random images"
        assert "cifar10 is not on disk" in told.err and told.err.count("\n") == 1
    images = images_of((3, 32, 32))
    truth = expected(run, images)
    out = run.path / "export"
    for name, (one, five) in logits_elsewhere(out, ["safetensors", "torch"], images).items():
        torch.testing.assert_close(one, truth[:1], atol=1e-5, rtol=0, msg=name)
        torch.testing.assert_close(five, truth, atol=1e-5, rtol=0, msg=name)
    assert "4 images (random images)" in (out / "MODEL_CARD.md").read_text()


def installed_folders(*names: str) -> dict[str, Path]:
    """Where the top-level modules of distributions and of all they need lie, numpy left out."""
    found: dict[str, Path] = {}
    wanted, seen = list(names), {"numpy"}
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system
        for file in distribution.files or ():
            top = file.parts[0]
            if top != ".." and not top.endswith((".pth", "__pycache__")):
                found[top] = Path(str(distribution.locate_file(top)))
        lines = [line for line in distribution.requires or () if "extra ==" not in line]
        wanted += [re.split(r"[^\w.-]", line)[0] for line in lines]
    return found


def test_loads_where_there_is_only_torch_and_safetensors(trained, exported, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    for name, place in installed_folders("torch", "safetensors").items():
        (site / name).symlink_to(place)
    out = tmp_path / "export"
    out.mkdir()
    for name in ("model.py", "model.safetensors", "model.pt2"):
        (out / name).write_bytes((exported / name).read_bytes())
    images = images_of((1, 8, 8))
    torch.save(images, out / "images.pt")
    code = f"""
import json, warnings
sys.path[:] = [path for path in sys.path if "site-packages" not in path]
sys.path += [{str(site)!r}, {str(out)!r}]
warnings.simplefilter("ignore")  # torch says that there is no numpy
import torch, model
images = torch.load("images.pt")
with torch.no_grad():
    networks = [model.load(), model.load({str(trained.weights)!r})]
    networks.append(torch.export.load("model.pt2").module())
    logits = [network(images).tolist() for network in networks]
kinds = {{name.partition(".")[0] for name in sys.modules}}
print(json.dumps([logits, sorted(kinds & {{"numpy", "bilateral", "pydantic", "onnx"}})]))
"""
    logits, present = json.loads(python(code, out, "-I", "-S"))
    assert present == []
    for found in logits:
        torch.testing.assert_close(
            torch.tensor(found), expected(trained, images), atol=1e-6, rtol=0
        )


def test_the_snippets_of_the_document_run(exported):
    text = DOCUMENT.read_text()
    codes = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert codes == [entry.loading_for((1, 8, 8)) for entry in FORMATS.values()]
    for code in codes:
        assert code.rstrip() in (exported / "MODEL_CARD.md").read_text()
    ends = "\nassert logits.shape == (5, 10) and classes == list('0123456789')\n"
    python("".join(code + ends for code in codes) + "print('all')", exported)


def test_no_path_of_this_machine_is_in_a_file(exported):
    here = [str(ROOT).encode(), str(Path(torch.__file__).parent).encode()]
    with zipfile.ZipFile(exported / "model.pt2") as archive:
        parts = [archive.read(name) for name in archive.namelist()]
    parts += [(exported / name).read_bytes() for name in ("model.onnx", "model.py")]
    assert not [place for place in here for part in parts if place in part]


def test_the_program_is_bound_to_no_device(exported):
    program = torch.export.load(exported / "model.pt2")
    graphs = [module for module in program.graph_module.modules() if hasattr(module, "code")]
    code = "".join(graph.code for graph in graphs)
    assert "conv2d" in code and "_assert_tensor_metadata" not in code and "device" not in code
    logits = program.module().to("meta")(torch.rand(3, 1, 8, 8, device="meta"))
    assert logits.device.type == "meta" and logits.shape == (3, 10)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_program_moves_to_a_gpu(trained, exported):
    images = images_of((1, 8, 8))
    network = torch.export.load(exported / "model.pt2").module().to("cuda")
    with torch.no_grad():
        found = network(images.cuda()).cpu()
    torch.testing.assert_close(found, expected(trained, images), atol=1e-2, rtol=0)


def test_an_export_again_gives_the_same_bytes(run, capsys):
    digests = []
    for _ in range(2):
        for name in ("safetensors", "torch"):
            assert export(run.path, "--format", name, "--json") == 0
            digests.append(json.loads(capsys.readouterr().out)["files"])
    assert digests[:2] == digests[2:]


OWN = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(64, classes)
    def forward(self, images):
        {body}
        return self.head(images.flatten(1))

def build(classes):
    return Own(classes)
"""


def own_run(tmp_path: Path, body: str) -> RunFolder:
    (tmp_path / "own.py").write_text(OWN.format(body=body))
    return make_run(tmp_path / "run", f"{tmp_path / 'own.py'}:build")


def test_a_model_of_ones_own(tmp_path, capsys):
    run = own_run(tmp_path, "images = images * 2 - 1")
    assert export(run.path) == 0
    told = capsys.readouterr()
    assert f"loading it needs {tmp_path / 'own.py'}:build" in told.err
    out = run.path / "export"
    assert not (out / "model.py").exists()
    assert "own.py:build; the other formats hold code" in (out / "MODEL_CARD.md").read_text()
    assert export(run.path, "--format", "torch", "--quiet") == 0
    images = images_of((1, 8, 8))
    (_, five) = logits_elsewhere(out, ["torch"], images)["torch"]
    torch.testing.assert_close(five, expected(run, images), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["safetensors", "torch"])
def test_other_logits_are_refused_and_nothing_is_written(tmp_path, capsys, name):
    run = own_run(tmp_path, "images = nn.functional.dropout(images, 0.5, True)")
    assert export(run.path, "--format", name) == 2
    told = capsys.readouterr().err
    assert f"the {name} export gives other logits" in told and told.count("\n") == 1
    assert not (run.path / "export").exists()


def test_a_model_that_cannot_be_traced_is_refused(tmp_path, capsys):
    run = own_run(tmp_path, "images = images if images.sum() > 0 else -images")
    assert export(run.path, "--format", "torch") == 2
    told = capsys.readouterr().err
    assert "torch.export cannot trace" in told and told.count("\n") == 1
    assert not (run.path / "export").exists()


@pytest.mark.parametrize("missing", ONNX_PACKAGES)
def test_onnx_says_what_to_install(run, capsys, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    assert export(run.path, "--format", "onnx") == 2
    told = capsys.readouterr().err
    assert told == (
        f"bilateral: --format onnx needs {missing}: pip install {missing.replace(',', '')}\n"
    )
    assert not (run.path / "export").exists()


def test_onnx_of_altered_weights_is_refused(run, capsys, monkeypatch):
    """The program is made of a model whose bias was moved by a little more than the limit."""
    from bilateral.export import exporting

    honest = exporting.traced

    def altered(model, shape, name):
        other = copy.deepcopy(model)
        with torch.no_grad():
            other.head.bias[3] += 2 * LIMIT
        return honest(other, shape, name)

    monkeypatch.setattr(exporting, "traced", altered)
    assert export(run.path, "--format", "onnx") == 2
    assert "the onnx export gives other logits" in capsys.readouterr().err
    assert not (run.path / "export").exists()


def test_the_largest_difference_is_found_alone_and_in_the_batch():
    images = torch.rand(4, 1, 2, 2)
    model = torch.nn.Flatten()

    def wrong(shift, on):
        return lambda part: model(part) + (shift if on(len(part)) else 0.0)

    assert largest_difference(model, model, images) == 0
    assert largest_difference(model, wrong(0.5, lambda n: n == 1), images) == pytest.approx(0.5)
    assert largest_difference(model, wrong(-0.5, lambda n: n > 1), images) == pytest.approx(0.5)
    for faulty in (
        wrong(float("nan"), lambda n: n == 1),
        wrong(float("nan"), lambda n: n > 1),
        lambda part: model(part)[:, :3],
    ):
        assert not largest_difference(model, faulty, images) <= LIMIT
