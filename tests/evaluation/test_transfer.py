"""Transfer against a hand computation on linear models, and the command on digits runs."""

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from bilateral.attacks.table import attack_named
from bilateral.cli import main
from bilateral.data import readers_folder
from bilateral.data.datasets import Split
from bilateral.errors import UserError
from bilateral.evaluation import transfer as transfer_module
from bilateral.evaluation.robustness import noise_keys, predictions, robust_flags
from bilateral.evaluation.target import Target
from bilateral.evaluation.transfer import transfer, transfer_between, transfer_members
from bilateral.runs import RunFolder

EPSILON = 0.02


@pytest.fixture
def models(linear):
    """Two linear models of two classes with related weights, and labels neither fully knows."""
    kind = type(linear)
    one, two = kind(classes=2, seed=0).eval(), kind(classes=2, seed=1).eval()
    with torch.no_grad():
        two.head.weight.copy_(0.6 * one.head.weight + 0.8 * two.head.weight)
    return {"one": one, "two": two}


@pytest.fixture
def scene(models):
    generator = torch.Generator().manual_seed(5)
    images = 0.3 + 0.4 * torch.rand(300, 3, 6, 6, generator=generator)
    labels = sum(model(images) for model in models.values()).argmax(1)
    return images, labels


def by_hand(source, target, images, labels):
    """The accuracy of `target` on x + epsilon * sign(w_wrong - w_true) of the source's weights."""
    weights = source.head.weight.detach()
    signs = (weights[1 - labels] - weights[labels]).sign().view_as(images)
    moved = (images + EPSILON * signs).flatten(1) - 0.5
    logits = moved @ target.head.weight.detach().T
    return float((logits.argmax(1) == labels).float().mean())


def test_the_matrix_equals_a_hand_computation(models, scene):
    """On a linear model FGSM and PGD's last iterate are the same corner of the ball."""
    images, labels = scene
    found = transfer(models, models, images, labels, ["fgsm", "pgd20"], EPSILON, batch_size=70)
    for attack in ("fgsm", "pgd20"):
        for source, one in models.items():
            for target, other in models.items():
                expected = by_hand(one, other, images, labels)
                assert found.attacks[attack][source][target] == pytest.approx(expected, abs=1e-6)
    clean = {
        name: float((model(images).argmax(1) == labels).float().mean())
        for name, model in models.items()
    }
    assert found.clean == pytest.approx(clean)
    assert all(0.8 < share < 1 for share in clean.values())  # wrong ones are attacked too
    crossed = found.attacks["fgsm"]["one"]["two"]
    assert found.attacks["fgsm"]["two"]["two"] < crossed < clean["two"] - 0.1
    assert found.images == 300 and found.white_box == ["one", "two"]
    assert found.settings["pgd20"]["pgd20"]["iterate"] == "last"


def test_the_first_fooling_iterate_would_transfer_less(models, scene):
    """Why the last iterate is handed over: `evaluate`'s images are weaker on another model."""
    images, labels = scene
    settings = attack_named("pgd20", EPSILON)
    keys = noise_keys(torch.arange(len(labels)))
    stopped = robust_flags(models["one"], images, labels, settings, keys).images
    weaker = float((predictions(models["two"], stopped) == labels).float().mean())
    found = transfer(
        {"one": models["one"]}, {"two": models["two"]}, images, labels, ["pgd20"], EPSILON
    )
    assert found.attacks["pgd20"]["one"]["two"] < weaker - 0.05
    assert found.white_box == []


def test_an_ensemble_goes_on_with_what_is_left(models, scene):
    images, labels = scene
    found = transfer(models, models, images, labels, ["apgd"], EPSILON)
    for name, model in models.items():
        expected = by_hand(model, model, images, labels)
        assert found.attacks["apgd"][name][name] == pytest.approx(expected, abs=1e-6)
    assert set(found.settings["apgd"]) == {"apgd-ce", "apgd-t"}


def test_images_outside_the_ball_do_not_count(models, scene, tmp_path):
    images, labels = scene
    (tmp_path / "own.py").write_text("def far(model, images, labels, epsilon): return 1 - images\n")
    attack = f"{tmp_path}/own.py:far"
    with pytest.warns(UserWarning, match="far: .* lie outside the ball"):
        found = transfer(models, models, images, labels, [attack], EPSILON)
    for row in found.attacks[attack].values():
        assert row == found.clean


def test_an_attack_without_a_budget_is_refused():
    with pytest.raises(UserError, match="cw-l2 has no L-inf budget"):
        transfer_members("cw-l2", EPSILON)


@pytest.fixture
def attacked(monkeypatch):
    """The sizes of the batches that were attacked."""
    sizes, real = [], transfer_module.transfer_images

    def counted(model, images, *rest):
        sizes.append(len(images))
        return real(model, images, *rest)

    monkeypatch.setattr(transfer_module, "transfer_images", counted)
    return sizes


@pytest.fixture
def known(models, tmp_path):
    """The linear models as targets of `evaluate`, and `between` to transfer from one to the other.

    Changes given to `between` are made to what it transfers.
    """
    pixels = np.random.default_rng(0).integers(50, 200, (60, 6, 6, 3), dtype=np.uint8)
    images = torch.from_numpy(pixels.transpose(0, 3, 1, 2)).float() / 255
    labels = sum(model(images) for model in models.values()).argmax(1).numpy()
    split = Split(pixels, labels, ("a", "b"))
    folder = RunFolder(tmp_path)
    one, two = (Target(name, model, folder, "own", split) for name, model in models.items())

    def between(source=one, targets=(two,), attacks=("fgsm",), epsilon=EPSILON, images=40):
        return transfer_between(
            {"one": source},
            {target.name: target for target in targets},
            list(attacks),
            epsilon,
            images,
            torch.device("cpu"),
            batch_size=16,
            folder=tmp_path / "out",
        )

    return one, two, between


def test_what_is_known_is_not_attacked_again(known, attacked):
    one, two, between = known
    first = between()
    assert attacked == [16, 16, 8]
    assert between() == first and len(attacked) == 3
    larger = between(images=50)  # it starts from the smaller one
    assert attacked[3:] == [10]
    assert between().attacks == first.attacks
    assert between().seconds == pytest.approx(larger.seconds * 40 / 50)
    both = between(targets=(two, one))  # a further target must be shown the images
    assert attacked[4:] == [16, 16, 8]
    assert both.attacks["fgsm"]["one"]["two"] == first.attacks["fgsm"]["one"]["two"]
    between(targets=(one,))
    assert len(attacked) == 7


def test_what_differs_is_attacked_anew(known, attacked, tmp_path, linear):
    one, two, between = known
    first = between()
    other = type(linear)(classes=2, seed=7).eval()
    own = tmp_path / "own.py"
    own.write_text("def same(model, images, labels, epsilon): return images\n")
    changed_pixels = np.where(one.split.pixels > 100, 101, one.split.pixels).astype(np.uint8)
    split = replace(one.split, pixels=changed_pixels)
    changes = [
        {"source": replace(one, model=other)},
        {"source": replace(one, code_digest="edited")},
        {"targets": (replace(two, model=other),)},
        {"targets": (replace(two, code_digest="edited"),)},
        {"source": replace(one, split=split), "targets": (replace(two, split=split),)},
        {"source": replace(one, data="other"), "targets": (replace(two, data="other"),)},
        {"epsilon": EPSILON / 2},
        {"attacks": (f"{own}:same",)},
    ]
    for change in changes:
        between()  # what a change replaced is there again
        attacked.clear()
        between(**change)
        assert attacked == [16, 16, 8], change
    own.write_text("def same(model, images, labels, epsilon): return 1 * images\n")
    attacked.clear()
    between(attacks=(f"{own}:same",))
    assert attacked == [16, 16, 8]
    attacked.clear()
    assert between().attacks == first.attacks
    assert attacked == []


def test_flags_under_the_name_of_other_weights_are_not_taken(known, attacked, tmp_path, linear):
    one, _, between = known
    other = replace(one, model=type(linear)(classes=2, seed=7).eval())
    between()
    file = next((tmp_path / "out" / "flags").rglob("one-*.json"))
    expected = between(source=other).attacks
    for path in file.parent.iterdir():
        path.write_bytes(file.read_bytes())
    attacked.clear()
    assert between(source=other).attacks == expected
    assert attacked == [16, 16, 8]


def test_sources_whose_names_look_alike_are_apart(known, attacked, tmp_path):
    one, two, _ = known
    sources = {"../run": one, "run": two}
    for _ in range(2):
        found = transfer_between(
            sources,
            {"two": two},
            ["fgsm"],
            EPSILON,
            None,
            torch.device("cpu"),
            folder=tmp_path / "out",
        )
        assert found.attacks["fgsm"]["../run"] != found.attacks["fgsm"]["run"]
    assert attacked == [60, 60]


def test_a_damaged_file_of_flags_is_refused(known, tmp_path):
    *_, between = known
    between()
    file = next((tmp_path / "out" / "flags" / "fgsm@5.1-255").glob("one-*.json"))
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(UserError, match=r"one-\w+.json is damaged: .*; remove it"):
        between()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with two digits runs of two epochs."""
    out = tmp_path_factory.mktemp("transfer")
    for recipe in ("digits-undefended", "digits-r-mc-la"):
        words = ["--epochs", "2", "--check-epochs", "0", "--quiet", "--out", str(out)]
        assert main(["train", recipe, *words]) == 0
    return out


def test_the_command_writes_what_it_prints(runs, monkeypatch, capsys):
    monkeypatch.chdir(runs)
    one, two = "digits-undefended/seed0", "digits-r-mc-la/seed0"
    words = ["--sources", one, two, "--targets", f"{two}/", "--images", "100", "--quiet"]
    assert main(["transfer", *words, "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert said.err == ""
    assert found == json.loads((runs / "evaluations" / "transfer" / "transfer.json").read_text())
    assert found["images"] == 100 and found["epsilon_text"] == "40/255"
    assert set(found["attacks"]) == {"fgsm", "pgd20"}
    assert found["white_box"] == [two]  # spelled in two ways, one model
    pgd = found["attacks"]["pgd20"]
    assert pgd[two][two] < pgd[one][two] < found["clean"][two]
    assert main(["evaluate", two, "--attacks", "fgsm", "--images", "100", "--quiet", "--json"]) == 0
    assert found["clean"][two] == json.loads(capsys.readouterr().out)["clean_accuracy"]

    assert main(["transfer", *words, "--attacks", "fgsm", "--format", "markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert "(white-box)" not in lines[3] and "(white-box)" in lines[4]


@pytest.mark.parametrize("order", [1, -1])
def test_a_copy_is_white_box_to_its_original(runs, tmp_path, monkeypatch, capsys, order):
    """Its images are made on the very weights that they are shown to, whatever it is called."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(runs / "digits-r-mc-la", "original")
    shutil.copytree("original", "copy")
    one, two = ["original/seed0", "copy/seed0"][::order]
    words = ["--sources", one, "--targets", two, one, "--attacks", "fgsm", "--images", "50"]
    assert main(["transfer", *words, "--quiet", "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["white_box"] == [one] and list(found["attacks"]["fgsm"][one]) == [one]
    assert said.err.count("\n") == 1
    assert f"{two} and {one} have the same weights and code: shown as {one}" in said.err
    assert main(["transfer", *words, "--quiet", "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(" (white-box)")


OWN = """
import torch
class Own(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.scale = torch.nn.Linear(64, 10), scale
    def forward(self, x):
        return self.net(self.scale * x.flatten(1))
def one(): return Own(3).eval()
def two(): return Own(-1).eval()
"""


def test_own_code_by_two_spellings_is_one_model_and_by_two_functions_is_not(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    words = ["--sources", "own.py:one", "--targets", "./own.py:one", "own.py:two", "--force"]
    words += ["--data", "digits", "--attacks", "fgsm", "--images", "50", "--quiet", "--json"]
    assert main(["transfer", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["white_box"] == ["own.py:one"]
    assert list(found["clean"]) == ["own.py:one", "own.py:two"], "the same weights, other code"


def test_the_table_fits_a_terminal_whatever_the_runs_are_called(runs, monkeypatch, capsys):
    monkeypatch.chdir(runs)
    one, two = (f"{runs}/digits-{name}/seed0" for name in ("undefended", "r-mc-la"))
    words = ["transfer", "--sources", one, two, "--targets", two, one, "--images", "50"]
    assert main([*words, "--quiet", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main([*words, "--quiet"]) == 0
    first, second, empty, title, *lines = capsys.readouterr().out.splitlines()
    assert (first, second, empty) == (f"A  {two}", f"B  {one}", "")
    assert title == "at 40/255 on digits: 50 images"
    assert [line.split()[0] for line in lines[1:]] == [
        "clean",
        "fgsm",
        "fgsm",
        "pgd20",
        "pgd20",
        "*",
    ]
    assert lines[0].split() == ["accuracy", "(%)", "A", "B"] and lines[-1].startswith("* white-box")
    for attack, source, name, line in (("fgsm", "B", one, lines[2]), ("pgd20", "A", two, lines[5])):
        cells = [
            f"{100 * found['attacks'][attack][name][target]:.1f}" + "*" * (target == name)
            for target in (two, one)
        ]
        assert line.split() == [attack, "from", source, *cells]
    assert max(map(len, [title, *lines])) <= 80


def test_where_it_went_and_what_it_replaced_is_told(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    one, two = (f"{runs}/digits-{name}/seed0" for name in ("undefended", "r-mc-la"))
    place = "evaluations/transfer/transfer.json"

    def said(source, target, *words):
        names = ["--sources", source, "--targets", target]
        few = ["--images", "10", "--attacks", "fgsm"]
        assert main(["transfer", *names, *few, *words]) == 0
        return capsys.readouterr().err.splitlines()

    assert said(one, two)[-1] == f"written to {place}"
    assert said(two, one, "--quiet") == said(two, one, "--json", "--quiet") == [], "the same models"
    assert f"written to {place}" not in said(two, one, "--json")
    (warning,) = said(two, two, "--quiet")
    assert f"{place} was of other models ({two}, {one}) and is replaced" in warning
    (tmp_path / place).write_text("{")
    assert said(one, two, "--quiet") == [], "there was nothing to lose"


def without_seconds(text):
    return {**json.loads(text), "seconds": 0}


def many_batches(out):
    """Words for two attacks on two sources, in four batches each."""
    names = ["digits-undefended/seed0", "digits-r-mc-la/seed0"]
    words = ["transfer", "--sources", *names, "--targets", *names, "--images", "40"]
    return [*words, "--attacks", "fgsm,pgd5", "--batch-size", "10", "--quiet", "--out", str(out)]


def test_an_interrupted_transfer_goes_on(runs, tmp_path, monkeypatch, attacked):
    """SIGTERM in the seventh batch: it is written, and nothing is attacked twice."""
    monkeypatch.chdir(runs)
    assert main(many_batches(tmp_path / "whole")) == 0
    assert attacked == [10] * 16
    attacked.clear()
    counted = transfer_module.transfer_images

    def interrupted(*arguments):
        if len(attacked) == 6:
            signal.raise_signal(signal.SIGTERM)
        return counted(*arguments)

    monkeypatch.setattr(transfer_module, "transfer_images", interrupted)
    assert main(many_batches(tmp_path / "broken")) == 143
    assert len(attacked) == 7 and not (tmp_path / "broken" / "transfer.json").exists()
    assert main(many_batches(tmp_path / "broken")) == 0
    assert attacked == [10] * 16
    whole, broken = (tmp_path / name / "transfer.json" for name in ("whole", "broken"))
    assert without_seconds(broken.read_text()) == without_seconds(whole.read_text())
    assert json.loads(broken.read_text())["seconds"] > 0


def test_a_killed_transfer_goes_on(runs, tmp_path, monkeypatch, attacked):
    """SIGKILL in the seventh batch: six are written."""
    monkeypatch.chdir(runs)
    program = (
        "import os, sys\n"
        "from bilateral.cli import main\n"
        "from bilateral.evaluation import transfer\n"
        "real, calls = transfer.transfer_images, []\n"
        "def deadly(*arguments):\n"
        "    calls.append(1)\n"
        "    return os.kill(os.getpid(), 9) if len(calls) == 7 else real(*arguments)\n"
        "transfer.transfer_images = deadly\n"
        "main(sys.argv[1:])\n"
    )
    words = many_batches(tmp_path / "broken")
    killed = subprocess.run([sys.executable, "-c", program, *words], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert main(words) == 0
    assert attacked == [10] * 10
    assert main(many_batches(tmp_path / "whole")) == 0
    whole, broken = (tmp_path / name / "transfer.json" for name in ("whole", "broken"))
    assert without_seconds(broken.read_text()) == without_seconds(whole.read_text())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sources", "nowhere", "--targets", "nowhere"], "no run folder at nowhere"),
        (["--sources", "digits-r-mc-la/seed0"], "--targets"),
        (["--sources", "digits-r-mc-la/seed0", "--targets"], "--targets"),
        (["--sources", "a", "--targets", "b", "--epsilon", "8"], "did you mean 8/255?"),
        (["--sources", "a", "--targets", "b", "--attacks", "pgd"], "unknown attack"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(runs, monkeypatch, capsys, words, message):
    monkeypatch.chdir(runs)
    before = sorted(runs.rglob("*"))
    assert main(["transfer", *words]) == 2
    said = capsys.readouterr()
    assert message in said.err and said.err.count("\n") == 1 and said.out == ""
    assert sorted(runs.rglob("*")) == before


def test_models_tested_on_different_images_are_refused(runs, tmp_path, monkeypatch, capsys):
    for place, name in enumerate(["cat", "dog"]):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(10):
            picture = Image.new("RGB", (8, 8), (80 * place, 120, 10 * number))
            picture.save(tmp_path / "pictures" / name / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    words = ["digits-r-mc-la", "--data", "folder:pictures", "--epochs", "1", "--quiet"]
    for seed in ("0", "1"):
        assert main(["train", *words, "--check-epochs", "0", "--seed", seed]) == 0
    capsys.readouterr()
    sources = ["runs/digits-r-mc-la/seed0"]
    other = str(runs / "digits-r-mc-la" / "seed0")
    assert main(["transfer", "--sources", *sources, "--targets", other]) == 2
    assert "tested on different images" in capsys.readouterr().err
    quick = ["--attacks", "fgsm", "--quiet"]
    seeds = ["--sources", *sources, "--targets", "runs/digits-r-mc-la/seed1", *quick]
    assert main(["transfer", *seeds]) == 0, "seeds of a folder have the same"


def test_streamed_photographs_transfer_as_those_in_memory(tmp_path, monkeypatch, capsys):
    generator = np.random.default_rng(0)
    for number in range(40):
        file = tmp_path / "pictures" / "val" / "ab"[number // 20] / f"{number:02d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 200, (9, 12, 3), dtype=np.uint8)
        pixels[..., number // 20] += 25
        Image.fromarray(pixels).save(file)
    (tmp_path / "own.py").write_text(
        "import torch\n"
        "class Own(torch.nn.Module):\n"
        "    def __init__(self, place):\n"
        "        super().__init__()\n"
        "        self.place = place\n"
        "    def forward(self, x):\n"
        "        return 20 * x.mean((2, 3))[:, :2] + x[:, :2, self.place, self.place]\n"
        "def one(): return Own(1)\n"
        "def two(): return Own(2)\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ["--sources", "own.py:one", "--targets", "own.py:one", "own.py:two", "--json"]
    words += ["--data", "folder:pictures", "--image-size", "6", "--epsilon", "4/255", "--quiet"]
    found = []
    for limit in (2**30, 0):
        monkeypatch.setattr(readers_folder, "MEMORY_LIMIT", limit)
        assert main(["transfer", *words, "--batch-size", "15", "--out", str(limit)]) == 0
        found.append(without_seconds(capsys.readouterr().out))
    assert found[0] == found[1]
    attacked = found[0]["attacks"]["pgd20"]["own.py:one"]["own.py:two"]
    assert attacked < found[0]["clean"]["own.py:two"]


def test_a_softmax_is_refused_by_its_name(runs, monkeypatch, capsys):
    monkeypatch.chdir(runs)
    (runs / "own.py").write_text(
        "from torch import nn\n"
        "def soft(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Softmax(1))\n"
    )
    words = ["--sources", "own.py:soft", "--targets", "digits-r-mc-la/seed0", "--images", "20"]
    words += ["--data", "digits", "--attacks", "fgsm"]
    assert main(["transfer", *words]) == 2
    assert "probabilities" in capsys.readouterr().err
    assert main(["transfer", *words, "--force"]) == 0
    assert "warning: own.py:soft: the model returns probabilities" in capsys.readouterr().err
