"""Evaluations of a run folder: killed and started again, grown, shared between attacks."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bilateral.arrays import read_npz
from bilateral.cli import main
from bilateral.data import readers_folder
from bilateral.data.photographs import Photographs
from bilateral.errors import UserError
from bilateral.evaluation import campaign as campaign_module
from bilateral.evaluation.campaign import _evened, evaluate_target
from bilateral.evaluation.target import find_target
from bilateral.runs import RunFolder

CPU = torch.device("cpu")
EPSILON = 40 / 255


def flags_in(folder, attack):
    file = json.loads(folder.attack(attack, "40/255").read_text())
    return dict(zip(file["images"], file["robust"], strict=True))


def count_batches(monkeypatch):
    sizes = []
    real = campaign_module.robust_flags

    def counted(*arguments):
        sizes.append(len(arguments[1]))
        return real(*arguments)

    monkeypatch.setattr(campaign_module, "robust_flags", counted)
    return sizes


def test_nothing_is_measured_twice(target, monkeypatch):
    sizes = count_batches(monkeypatch)
    first = evaluate_target(target, ["pgd5"], EPSILON, 40, CPU, batch_size=16)
    assert sizes == [16, 16, 8]
    again = evaluate_target(target, ["pgd5"], EPSILON, 40, CPU, batch_size=16)
    assert sizes == [16, 16, 8]
    assert first.attacks["pgd5"] == again.attacks["pgd5"]
    evaluate_target(target, ["pgd5"], EPSILON, 50, CPU, batch_size=16)
    assert sizes == [16, 16, 8, 10]


def test_keeping_some_images_costs_no_other_flag(target, monkeypatch):
    """Flags of images that are not asked for stay; those asked for are attacked once more."""
    evaluate_target(target, ["apgd"], EPSILON, 40, CPU)
    before = flags_in(target.folder, "apgd")
    sizes = count_batches(monkeypatch)
    evaluate_target(target, ["apgd"], EPSILON, 10, CPU, save_adversarial=True)
    assert sizes[0] == 10 and len(sizes) == 2
    assert flags_in(target.folder, "apgd") == before and len(before) == 40
    sizes.clear()
    evaluate_target(target, ["apgd"], EPSILON, 40, CPU)
    evaluate_target(target, ["apgd"], EPSILON, 10, CPU, save_adversarial=True)
    assert sizes == [], "nothing is left to do"


OWN_MODEL = """
import os
import torch
from helper import post
from bilateral.models import build_model

class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.network = build_model("small-cnn", 10, 1)
        self.scale = float(os.environ.get("SCALE", "1"))
        self.shift = torch.full((10,), float(os.environ.get("SHIFT", "0")))
        self._calls = 0

    def forward(self, images):
        self._calls += 1
        return post(self.scale * self.network(images)) + self.shift

def build():
    return Own().eval()
"""


def test_other_code_anywhere_is_another_model(tmp_path, monkeypatch):
    """In a file that the model's own imports, or by what its function was given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own.py").write_text(OWN_MODEL)
    sizes = count_batches(monkeypatch)

    def measured(post="logits", **environment):
        """How many images are attacked by the same command again."""
        sizes.clear()
        sys.modules.pop("helper", None)
        (tmp_path / "helper.py").write_text(f"def post(logits):\n    return {post}  # {'x' * 9}\n")
        for name in ("SCALE", "SHIFT"):
            monkeypatch.setenv(name, environment.get(name, "1"))
        own = find_target("own.py:build", "digits", None, None, CPU)
        evaluate_target(own, ["fgsm"], EPSILON, 20, CPU)
        return sum(sizes)

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert [measured(), measured()] == [20, 0]
    assert [measured("logits.roll(1, 1)"), measured("logits.roll(1, 1)")] == [20, 0]
    assert [measured(SCALE="2"), measured(SCALE="2")] == [20, 0]
    assert [measured(SHIFT="2"), measured(SHIFT="2")] == [20, 0]
    sys.modules.pop("helper", None)


def test_an_ensemble_goes_on_with_survivors_and_shares_members(target, monkeypatch):
    sizes = count_batches(monkeypatch)
    evaluate_target(target, ["apgd"], EPSILON, 30, CPU)
    ce, targeted = sizes
    assert ce == 30 and targeted < 30
    members = json.loads(target.folder.attack("apgd", "40/255").read_text())["members"]
    assert targeted == sum(members["apgd-ce"]["robust"])
    sizes.clear()
    entry = evaluate_target(target, ["apgd-ce"], EPSILON, 30, CPU)
    assert sizes == []  # the ensemble's first member has seen every image
    after = evaluate_target(target, ["apgd"], EPSILON, 30, CPU).attacks["apgd"].members
    assert after["apgd-ce"] == entry.attacks["apgd-ce"].accuracy >= after["apgd-t"]


def test_a_batch_norm_without_statistics_is_attacked(tmp_path, monkeypatch):
    """It cannot be folded into a convolution."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "batchwise.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    norm = nn.BatchNorm2d(4, track_running_stats=False)\n"
        "    head = (nn.Flatten(), nn.Linear(256, 10))\n"
        "    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), norm, *head).eval()\n"
    )
    batchwise = find_target("batchwise.py:build", "digits", None, None, CPU)
    found = evaluate_target(batchwise, ["pgd5"], EPSILON, 20, CPU)
    assert found.attacks["pgd5"].images == 20


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_exported_program_is_attacked_as_its_model_is(target, tmp_path, monkeypatch):
    """Programs of torch.export refuse `eval()`; they need none."""
    monkeypatch.chdir(tmp_path)
    images = torch.rand(2, 1, 8, 8)
    dynamic = ({0: torch.export.Dim("batch")},)
    torch.export.save(
        torch.export.export(target.model, (images,), dynamic_shapes=dynamic), "model.pt2"
    )
    (tmp_path / "program.py").write_text(
        "import torch\ndef build():\n    return torch.export.load('model.pt2').module()\n"
    )
    program = find_target("program.py:build", "digits", None, None, CPU)
    found, expected = (
        evaluate_target(one, ["pgd5"], EPSILON, 20, CPU) for one in (program, target)
    )
    assert found.clean_accuracy == expected.clean_accuracy
    assert found.attacks["pgd5"].accuracy == expected.attacks["pgd5"].accuracy


def test_flags_do_not_depend_on_batch_size(target, digits_run, tmp_path):
    evaluate_target(target, ["apgd-ce", "pgd50-cw"], EPSILON, 24, CPU, batch_size=24)
    other = find_target(str(digits_run.path), None, None, str(tmp_path / "other"), CPU)
    evaluate_target(other, ["apgd-ce", "pgd50-cw"], EPSILON, 24, CPU, batch_size=7)
    for attack in ("apgd-ce", "pgd50-cw"):
        assert flags_in(target.folder, attack) == flags_in(other.folder, attack)


def test_the_worst_case_is_over_all_calls(target, monkeypatch):
    """A weaker attack later must not make the model look better."""
    strong = evaluate_target(target, ["pgd20-cw"], EPSILON, 100, CPU)
    both = evaluate_target(target, ["ll-rs"], EPSILON, 100, CPU)
    assert set(both.attacks) == {"pgd20-cw", "ll-rs"}
    assert both.attacks["ll-rs"].accuracy > strong.worst_case_accuracy
    assert both.worst_case_accuracy <= strong.worst_case_accuracy
    stored = json.loads(target.folder.evaluation.read_text())["entries"]
    assert [one["worst_case_accuracy"] for one in stored] == [both.worst_case_accuracy]


def test_a_precision_that_was_asked_for_is_measured_anew(target, monkeypatch):
    """And what was measured before in another one stays in the entry."""
    sizes = count_batches(monkeypatch)
    evaluate_target(target, ["pgd5"], EPSILON, 20, CPU, precision="bfloat16")
    for precision in ("float32", "bfloat16", "bfloat16", "auto"):
        entry = evaluate_target(target, ["fgsm"], EPSILON, 20, CPU, precision=precision)
    assert sizes == [20, 20, 20]
    assert set(entry.attacks) == {"pgd5", "fgsm"}


def test_other_images_under_the_same_name_are_measured_anew(target, monkeypatch):
    sizes = count_batches(monkeypatch)
    evaluate_target(target, ["fgsm"], EPSILON, 20, CPU)
    target.split.pixels[:] = 255 - target.split.pixels
    evaluate_target(target, ["fgsm"], EPSILON, 20, CPU)
    assert sizes == [20, 20]


def test_an_edited_model_is_measured_anew(tmp_path, monkeypatch):
    """Its forward can change while its weights do not."""
    sizes = count_batches(monkeypatch)
    file = tmp_path / "own.py"
    code = (
        "import torch\n"
        "class Own(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x.flatten(1)[:, :10] * 2\n"
        "def build():\n    return Own()\n"
    )
    for text in (code, code.replace("* 2", "* -2")):
        file.write_text(text)
        own = find_target(f"{file}:build", "digits", None, str(tmp_path / "results"), CPU)
        evaluate_target(own, ["fgsm"], EPSILON, 20, CPU)
    assert sizes == [20, 20]


def test_a_figure_of_another_model_is_not_replaced_silently(tmp_path, capsys):
    file = tmp_path / "own.py"
    code = (
        "import torch\n"
        "def build():\n"
        "    layer = torch.nn.Linear(64, 10, bias=False)\n"
        "    torch.nn.init.constant_(layer.weight, 0.1)\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), layer).eval()\n"
    )
    words = ["--data", "digits", "--images", "20", "--quiet", "--force", "--out", str(tmp_path)]

    def said(text, attacks="fgsm"):
        file.write_text(text)
        assert main(["evaluate", f"{file}:build", *words, "--attacks", attacks]) == 0
        lines = capsys.readouterr().err.splitlines()
        return [line for line in lines if "replace" in line or "set aside" in line]

    assert said(code) == [] == said(code, "pgd10"), "another attack on the same model joins it"
    lines = said(code.replace("0.1", "0.2"))
    assert "replaces an evaluation of other weights, code or images (" in lines[0]
    assert "fgsm@40-255.json is of other weights, code or images: it is set aside" in lines[1]


def test_an_edit_that_is_undone_costs_no_flags(tmp_path, monkeypatch, capsys):
    """AutoAttack takes hours, and a comment is enough to make a file another model."""
    file, work = tmp_path / "own.py", count_batches(monkeypatch)
    code = (
        "import torch\n"
        "def build():\n"
        "    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).eval()\n"
    )
    words = ["evaluate", f"{file}:build", "--data", "digits", "--quiet", "--force"]
    words += ["--out", str(tmp_path), "--json", "--attacks", "fgsm,pgd2", "--images"]

    def accuracies(text, images):
        file.write_text(text)
        assert main([*words, images]) == 0
        found = json.loads(capsys.readouterr().out)["attacks"]
        return {name: attack["accuracy"] for name, attack in found.items()}

    first = accuracies(code, "60")
    accuracies(f"{code}# a note\n", "20")
    done = len(work)
    assert accuracies(code, "60") == first
    assert len(work) == done, "nothing is attacked again"
    accuracies(f"{code}# a note\n", "20")
    assert len(work) == done, "nor the other way round"
    accuracies(code, "80")
    accuracies(f"{code}# a note\n", "20")
    done = len(work)
    accuracies(code, "80")
    assert len(work) == done, "of what was set aside twice the larger part is found"


def test_what_will_be_lost_is_told_before_it_is(tmp_path, monkeypatch, capsys):
    """Whoever reads it in time can still stop, and choose another --out."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "import torch\n"
        "def build():\n"
        "    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).eval()\n"
    )
    words = ["evaluate", "own.py:build", "--data", "digits", "--quiet", "--force"]
    assert main([*words, "--images", "40", "--attacks", "fgsm"]) == 0
    Path("own.py").write_text(Path("own.py").read_text().replace("(0)", "(1)"))

    def stopped(*_, **__):
        raise UserError("not yet")

    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr("bilateral.evaluation.campaign.evaluate_target", stopped)
        assert main([*words, "--images", "20", "--attacks", "fgsm,pgd2"]) == 2
    said = capsys.readouterr().err
    assert "fgsm@40-255.json is of other weights, code or images: it is set aside" in said
    assert "pgd2" not in said and "replaces an evaluation" not in said, "of 20 images there is none"


def test_a_worst_case_is_not_told_above_what_is_known(tmp_path, digits_run, capsys):
    """The table of a weaker attack alone would be the more flattering one."""
    shutil.copytree(digits_run.path, tmp_path / "run")
    words = ["evaluate", str(tmp_path / "run"), "--quiet", "--attacks"]
    assert main([*words, "pgd20", "--images", "100"]) == 0
    capsys.readouterr()
    assert main([*words, "fgsm", "--images", "60"]) == 0
    said = capsys.readouterr().err
    entry = json.loads((tmp_path / "run/evaluation.json").read_text())["entries"][-1]
    shown = 100 * entry["worst_case_accuracy"]
    assert "pgd20 broke more of these images in earlier evaluations: with those" in said
    assert main([*words, "fgsm,pgd20", "--images", "60"]) == 0
    assert "broke more" not in capsys.readouterr().err
    entry = json.loads((tmp_path / "run/evaluation.json").read_text())["entries"][-1]
    left = 100 * entry["worst_case_accuracy"]
    assert left < shown and f"the worst case is {left:.1f} %, not {shown:.1f} %" in said


def test_another_precision_replaces_nothing(digits_run, tmp_path, capsys):
    """Hours of AutoAttack in bfloat16 were gone after a look at twenty images in float32."""
    shutil.copytree(digits_run.path, tmp_path / "run")
    words = ["evaluate", str(tmp_path / "run"), "--attacks", "fgsm", "--quiet", "--json"]

    def evaluated(*more):
        assert main([*words, *more]) == 0
        found = json.loads(capsys.readouterr().out)
        return found["attacks"]["fgsm"]["images"], found["attacks"]["fgsm"]["seconds"]

    before = evaluated("--search", "bfloat16")
    assert evaluated("--search", "float32", "--images", "20")[0] == 20
    assert evaluated("--search", "bfloat16") == before, "no second was spent again"
    assert evaluated() == before, "any precision will do"


def test_what_was_set_aside_is_known_as_well(tmp_path, monkeypatch, capsys):
    """Broken by an attack whose file had to make room for that of edited code."""
    monkeypatch.chdir(tmp_path)
    code = (
        "import torch\n"
        "def build():\n"
        "    torch.manual_seed(0)\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).eval()\n"
    )
    words = ["evaluate", "own.py:build", "--data", "digits", "--quiet", "--force", "--json"]
    words += ["--epsilon", "20/255", "--images"]

    def worst(text, images, attacks):
        Path("own.py").write_text(text)
        assert main([*words, images, "--attacks", attacks]) == 0
        out, err = capsys.readouterr()
        return json.loads(out)["worst_case_accuracy"], err

    robust, _ = worst(code, "60", "fgsm,pgd10-step8")
    worst(f"{code}# a note\n", "60", "fgsm,pgd10-step8")
    alone, said = worst(code, "59", "pgd1-rd-step1")
    assert 59 * alone > 60 * robust
    assert "fgsm, pgd10-step8 broke more of these images in earlier evaluations" in said


def test_a_subset_of_fewer_images_than_classes():
    """Those of the largest class need not be among them."""
    labels = np.repeat([0, 1, 2], [4, 5, 40])
    for chosen in ([0], [0, 5], list(range(9))):
        (said,) = _evened(labels, np.array(chosen))
        assert said.startswith(f"these {len(chosen)} images are drawn evenly")


def test_an_edited_attack_of_ones_own_is_run_anew(target, tmp_path):
    file = tmp_path / "edited.py"
    file.write_text("def attack(model, images, labels, epsilon):\n    return images\n")
    name = f"{file}:attack"
    before = evaluate_target(target, [name], EPSILON, 40, CPU).attacks[name].accuracy
    file.write_text(
        "def attack(model, images, labels, epsilon):\n    return (images + epsilon).clamp(0, 1)\n"
    )
    after = evaluate_target(target, [name], EPSILON, 40, CPU).attacks[name].accuracy
    assert after < before
    file.write_text("def attack(model, images, labels, epsilon):\n    raise KeyError('oh')\n")
    with pytest.raises(UserError, match="failed: KeyError"):
        evaluate_target(target, [name], EPSILON, 40, CPU)
    file.unlink()
    for order in (1, -1):  # of the files that were set aside
        asides = sorted(target.folder.path.glob("attacks/before/*.json"))[::order]
        assert len(asides) == 2
        for number, aside in enumerate(asides):
            aside.rename(aside.with_name(f"{aside.name.split('.')[0]}.{number}-{order}.json"))
        weaker = evaluate_target(target, ["fgsm"], EPSILON, 40, CPU)
        assert set(weaker.attacks) == {name, "fgsm"}, "what it broke stays broken"
        assert weaker.attacks[name].accuracy == after >= weaker.worst_case_accuracy


def test_the_gallery_is_written_attack_by_attack(target):
    with pytest.raises(UserError):
        evaluate_target(target, ["fgsm", "nowhere.py:attack"], EPSILON, 10, CPU)
    with np.load(target.folder.gallery) as gallery:
        assert gallery["fgsm@40-255/clean"].shape == (10, 1, 8, 8)
        assert gallery["fgsm@40-255/adversarial_confidence"].shape == (10, 10)


def test_other_weights_are_measured_anew(target, monkeypatch):
    sizes = count_batches(monkeypatch)
    evaluate_target(target, ["fgsm"], EPSILON, 20, CPU)
    with torch.no_grad():
        target.model.head.bias += 0.1
    evaluate_target(target, ["fgsm"], EPSILON, 20, CPU)
    assert sizes == [20, 20]


def test_minimum_norm_attacks_tell_distances(target):
    entry = evaluate_target(target, ["deepfool-l2"], EPSILON, 30, CPU)
    attack = entry.attacks["deepfool-l2"]
    file = json.loads(target.folder.attack("deepfool-l2", "40/255").read_text())
    found = [value for value in file["distances"] if value]
    assert attack.mean_distance == pytest.approx(np.mean(found))
    at_half = sum(value is None or value > 0.5 for value in file["distances"]) / 30
    assert attack.accuracy_at_radius["0.5"] == pytest.approx(at_half)


def test_a_damaged_file_is_named(target):
    evaluate_target(target, ["fgsm"], EPSILON, 10, CPU)
    path = target.folder.attack("fgsm", "40/255")
    path.write_text(path.read_text()[:100])
    with pytest.raises(UserError, match="is damaged"):
        evaluate_target(target, ["fgsm"], EPSILON, 10, CPU)


def test_more_images_than_there_are(target):
    with pytest.raises(UserError, match="must be 1 to 360, the test images of digits"):
        evaluate_target(target, ["fgsm"], EPSILON, 361, CPU)


def test_an_attack_of_ones_own(target, tmp_path):
    """It is held to the same ball: a cheat that leaves it breaks nothing."""
    (tmp_path / "mine.py").write_text(
        "def nothing(model, images, labels, epsilon):\n    return images\n"
        "def cheat(model, images, labels, epsilon):\n    return 1 - images\n"
        "def corner(model, images, labels, epsilon):\n"
        "    return (images - epsilon).clamp(0, 1)\n"
        "def wrong(model, images, labels, epsilon):\n    return labels\n"
    )
    names = [f"{tmp_path}/mine.py:{function}" for function in ("nothing", "cheat", "corner")]
    with pytest.warns(UserWarning, match="cheat: .* lie outside the ball of 40/255"):
        entry = evaluate_target(target, names, EPSILON, 60, CPU)
    nothing, cheat, corner = (entry.attacks[name].accuracy for name in names)
    assert nothing == cheat == entry.clean_accuracy
    assert corner <= nothing
    (said,) = entry.warnings
    assert said.startswith(f"{names[1]} fooled the model on ") and "count as robust" in said
    again = evaluate_target(target, ["fgsm"], EPSILON, 60, CPU)
    assert again.warnings == [said]  # a later call keeps the attack, and what was wrong with it
    with pytest.raises(UserError, match="not images of"):
        evaluate_target(target, [f"{tmp_path}/mine.py:wrong"], EPSILON, 10, CPU)


@pytest.fixture
def photographs(tmp_path):
    """A folder of JPEGs of several sizes, and a model that tells its classes apart by colour."""
    generator = np.random.default_rng(0)
    for number in range(30):
        file = tmp_path / "pictures" / "val" / "abc"[number // 10] / f"{number:02d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 120, (20 + number, 40 - number, 3), dtype=np.uint8)
        pixels[..., number // 10] += 5 * (number % 10 + 1)
        Image.fromarray(pixels).save(file)
    (tmp_path / "own.py").write_text(
        "import torch\n"
        "class Own(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return 20 * x.mean((2, 3)) + 5 * x[:, :, 3, 3]\n"
        "def build():\n    return Own()\n"
    )
    return tmp_path


def evaluate_photographs(folder, out, *words):
    words = ["--data", f"folder:{folder}/pictures", "--image-size", "8", "--quiet", *words]
    return main(["evaluate", f"{folder}/own.py:build", "--out", str(out), *words])


def test_photographs_streamed_have_the_flags_of_those_in_memory(photographs, monkeypatch, capsys):
    """The same folder, read at once or batch by batch; kept images verify in both readings."""
    words = ["--attacks", "pgd5,apgd", "--epsilon", "4/255", "--batch-size", "7", "--json"]
    words += ["--save-adversarial"]
    decoded = []
    real = Photographs.picture

    def noted(self, number):
        decoded.append(number)
        return real(self, number)

    monkeypatch.setattr(Photographs, "picture", noted)
    entries, flags = [], []
    for place, limit in enumerate((2**30, 0)):
        decoded.clear()
        monkeypatch.setattr(readers_folder, "MEMORY_LIMIT", limit)
        out = RunFolder(photographs / f"results{place}")
        assert evaluate_photographs(photographs, out.path, *words) == 0
        entries.append(json.loads(capsys.readouterr().out))
        files = [json.loads(out.attack(name, "4/255").read_text()) for name in ("pgd5", "apgd")]
        flags.append([(file["images"], file["robust"]) for file in files])
    assert flags[0] == flags[1]
    assert 0 < sum(flags[0][0][1]) < 30
    one, other = ({**entry, "attacks": None, "data_digest": ""} for entry in entries)
    assert one == other
    survivors = sum(files[1]["members"]["apgd-ce"]["robust"])
    # To know the model, the guards', four to begin with; then each batch: clean and the attacks.
    assert len(decoded) == 30 + 30 + 4 + 3 * 30 + survivors
    kept = out.adversarial("pgd5", "4/255")
    assert main(["verify", str(kept), "--target", f"{photographs}/own.py:build", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["claim_holds"] is True


def test_a_changed_photograph_is_measured_anew(photographs, monkeypatch):
    monkeypatch.setattr(readers_folder, "MEMORY_LIMIT", 0)
    sizes = count_batches(monkeypatch)
    out = photographs / "results"
    for _ in range(2):
        assert evaluate_photographs(photographs, out, "--attacks", "fgsm") == 0
    assert sizes == [30]
    Image.new("RGB", (20, 20)).save(photographs / "pictures" / "val" / "a" / "00.jpg")
    assert evaluate_photographs(photographs, out, "--attacks", "fgsm") == 0
    assert sizes == [30, 30]


def test_a_corrupt_photograph_is_one_line_and_exit_2(photographs, monkeypatch, capsys):
    monkeypatch.setattr(readers_folder, "MEMORY_LIMIT", 0)
    (photographs / "pictures" / "val" / "b" / "14.jpg").write_bytes(b"broken")
    assert evaluate_photographs(photographs, photographs / "out", "--attacks", "fgsm") == 2
    said = capsys.readouterr()
    assert "14.jpg is not a readable image" in said.err and said.err.count("\n") == 1


@pytest.mark.kills
def test_a_killed_evaluation_goes_on_with_the_same_flags(digits_run, tmp_path):
    """SIGKILL during autoattack; the same command gives an uninterrupted run's flags."""
    words = ["--attacks", "autoattack", "--images", "12", "--batch-size", "4", "--json", "--quiet"]
    words = [sys.executable, "-m", "bilateral", "evaluate", str(digits_run.path), *words]

    def command(out):
        return [*words, "--out", str(out)]

    subprocess.run(command(tmp_path / "whole"), check=True, capture_output=True)
    broken = RunFolder(tmp_path / "broken")
    flags = broken.attack("autoattack", "40/255")
    seen, kills = 0, 0
    while kills < 3:
        process = subprocess.Popen(
            command(broken.path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        before = flags.read_bytes() if flags.exists() else b""
        while process.poll() is None and (flags.read_bytes() if flags.exists() else b"") == before:
            time.sleep(0.01)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
        members = json.loads(flags.read_text())["members"]
        done = sum(len(member["images"]) for member in members.values())
        assert done > seen  # what was done stays done
        seen = done
    subprocess.run(command(broken.path), check=True, capture_output=True)
    whole = RunFolder(tmp_path / "whole")
    assert flags_in(broken, "autoattack") == flags_in(whole, "autoattack")
    members = json.loads(flags.read_text())["members"]
    for member in members.values():
        assert len(member["images"]) == len(set(member["images"]))  # no batch done twice
    one, other = (read_npz(folder.gallery) for folder in (whole, broken))
    assert one.keys() == other.keys()
    for key in ("numbers", "members", "adversarial"):
        kept = f"autoattack@40-255/{key}"
        assert len(one[kept]) == 12 and np.array_equal(one[kept], other[kept])
