"""`gallery.npz`: the same few images for every attack, whatever interrupts an evaluation."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bilateral.arrays import read_npz
from bilateral.cli import main
from bilateral.config import Labels
from bilateral.data.batches import as_floats, as_tensors
from bilateral.errors import Interrupted, UserError
from bilateral.evaluation import campaign as campaign_module
from bilateral.evaluation.campaign import evaluate_target
from bilateral.evaluation.gallery import GALLERY_IMAGES
from bilateral.evaluation.target import find_target
from bilateral.runs import RunFolder

CPU = torch.device("cpu")
EPSILON = 40 / 255
KINDS = {
    *("numbers", "labels", "members", "clean", "adversarial", "training_labels"),
    *("clean_confidence", "adversarial_confidence"),
}


def fresh(digits_run, path):
    """The model with another place for its results."""
    return find_target(str(digits_run.path), None, None, str(path), CPU)


def shown(target, attack):
    """The arrays of an attack."""
    arrays, start = read_npz(target.folder.gallery), f"{attack}@40-255/"
    return {key.removeprefix(start): value for key, value in arrays.items() if start in key}


def assert_same(one, other):
    assert one.keys() == other.keys() and one
    for key, value in one.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(value, other[key], rtol=0, atol=1e-6, err_msg=key)
        else:
            np.testing.assert_array_equal(value, other[key], err_msg=key)


def test_what_is_in_it(target):
    entry = evaluate_target(target, ["fgsm", "pgd5"], EPSILON, 100, CPU)
    arrays = read_npz(target.folder.gallery)
    assert arrays["classes"].dtype.kind == "U" and arrays["classes"].tolist() == list("0123456789")
    assert str(arrays["data_digest"]) == entry.data_digest
    pixels, labels = as_tensors(target.split, CPU)
    for attack in ("fgsm", "pgd5"):
        kept = shown(target, attack)
        assert set(kept) == KINDS
        numbers = torch.from_numpy(kept["numbers"])
        assert len(numbers) == GALLERY_IMAGES == len(set(numbers.tolist()))
        clean, adversarial = (torch.from_numpy(kept[kind]) for kind in ("clean", "adversarial"))
        assert torch.equal(clean, as_floats(pixels[numbers]))
        assert kept["labels"].tolist() == labels[numbers].tolist()
        assert 0.05 < float((adversarial - clean).abs().max()) <= EPSILON + 1e-6
        with torch.no_grad():
            expected = target.model(adversarial).softmax(1)
        assert torch.allclose(torch.from_numpy(kept["adversarial_confidence"]), expected, atol=1e-6)
        assert (kept["clean_confidence"].argmax(1) == kept["labels"]).mean() > 0.8
        file = json.loads(target.folder.attack(attack, "40/255").read_text())
        robust = dict(zip(file["images"], file["robust"], strict=True))
        seen = kept["adversarial_confidence"].argmax(1) == kept["labels"]
        assert seen.tolist() == [robust[number] for number in numbers.tolist()]
        assert 3 <= int((~seen).sum()) <= 21  # fooled ones and others
        counts = np.bincount(kept["labels"], minlength=10)
        assert counts.max() - counts.min() <= 1
        assert kept["members"].tolist() == [attack] * GALLERY_IMAGES


def test_training_labels_are_those_of_the_runs_own_rule(digits_run, target, tmp_path):
    """R-MC-LA's formula, written out for one image: shares of s_k, and the ratio for the truth."""
    evaluate_target(target, ["fgsm"], EPSILON, 30, CPU)
    kept = shown(target, "fgsm")
    settings = digits_run.read_run().labels
    assert settings.rule == "adversarial" and settings.top_k is None
    ratio = settings.ratio if settings.ratio is not None else 9.0
    with torch.no_grad():
        logits = target.model(torch.from_numpy(kept["clean"])).double().tolist()
    for row, label, fitted in zip(logits, kept["labels"], kept["training_labels"], strict=True):
        wrong = [place for place in range(10) if place != label]
        most = max(row[place] for place in wrong)
        share = {place: most - row[place] + settings.gamma for place in wrong}
        total = sum(share.values()) + ratio * max(share.values())
        for place in wrong:
            assert fitted[place] == pytest.approx(share[place] / total, abs=1e-5)
        assert fitted[label] == pytest.approx(ratio * max(share.values()) / total, abs=1e-5)
    plain = replace(
        target, folder=RunFolder(tmp_path / "one-hot"), label_rule=Labels(rule="one-hot")
    )
    evaluate_target(plain, ["fgsm"], EPSILON, 30, CPU)
    hot = shown(plain, "fgsm")
    truth = F.one_hot(torch.from_numpy(hot["labels"]), 10).float()
    np.testing.assert_array_equal(hot["training_labels"], truth.numpy())


def test_a_model_without_a_run_has_no_training_labels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(
        "import torch\n"
        "class Own(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x.flatten(1)[:, :10] * 2\n"
        "def build():\n    return Own()\n"
    )
    words = ["own.py:build", "--data", "digits", "--images", "20", "--attacks", "fgsm", "--quiet"]
    assert main(["evaluate", *words, "--out", "results"]) == 0
    with np.load(tmp_path / "results" / "gallery.npz") as gallery:
        kinds = {key.rpartition("/")[2] for key in gallery.files if "/" in key}
        assert kinds == KINDS - {"training_labels"}
        assert len(gallery["classes"]) == 10


def test_numbers_do_not_depend_on_batches_images_or_attacks(target, digits_run, tmp_path):
    evaluate_target(target, ["fgsm", "pgd5"], EPSILON, None, CPU)
    other = fresh(digits_run, tmp_path / "other")
    evaluate_target(other, ["pgd5"], EPSILON, 50, CPU, batch_size=7)
    assert_same(shown(target, "pgd5"), shown(other, "pgd5"))
    assert shown(target, "fgsm")["numbers"].tolist() == shown(other, "pgd5")["numbers"].tolist()
    few = fresh(digits_run, tmp_path / "few")
    evaluate_target(few, ["pgd5"], EPSILON, 10, CPU)
    ten = shown(few, "pgd5")["numbers"].tolist()
    assert len(ten) == 10 and set(ten) < set(shown(other, "pgd5")["numbers"].tolist())
    evaluate_target(few, ["pgd5"], EPSILON, 50, CPU)  # the larger one starts from the smaller
    assert_same(shown(few, "pgd5"), shown(other, "pgd5"))


def test_it_is_whole_after_the_first_batch_and_stays_so_when_interrupted(
    target, digits_run, tmp_path, monkeypatch
):
    evaluate_target(target, ["apgd"], EPSILON, 40, CPU)
    other = fresh(digits_run, tmp_path / "other")
    real = campaign_module.robust_flags
    calls = []

    def stopping(*arguments):
        calls.append(arguments)
        if len(calls) in (2, 4):
            raise Interrupted(15)  # as SIGKILL would: nothing is tidied up
        return real(*arguments)

    monkeypatch.setattr(campaign_module, "robust_flags", stopping)
    for first in (True, False):
        with pytest.raises(Interrupted):
            evaluate_target(other, ["apgd"], EPSILON, 40, CPU, batch_size=25)
        if first:
            assert len(shown(other, "apgd")["numbers"]) == GALLERY_IMAGES
    evaluate_target(other, ["apgd"], EPSILON, 40, CPU, batch_size=25)
    assert_same(shown(target, "apgd"), shown(other, "apgd"))
    assert set(shown(other, "apgd")["members"].tolist()) == {"apgd-ce", "apgd-t"}


def test_another_code_of_the_model_starts_it_anew(target):
    """The same weights behind another forward: pictures of the former would be its examples."""
    evaluate_target(replace(target, code_digest="first"), ["fgsm"], EPSILON, 30, CPU)
    assert str(read_npz(target.folder.gallery)["code_digest"]) == "first"
    evaluate_target(replace(target, code_digest="second"), ["pgd5"], EPSILON, 30, CPU)
    arrays = read_npz(target.folder.gallery)
    assert str(arrays["code_digest"]) == "second"
    assert not any(name.startswith("fgsm@") for name in arrays)


def test_an_ensemble_shows_what_its_members_broke_in_another_attack(target, digits_run, tmp_path):
    evaluate_target(target, ["apgd"], EPSILON, 40, CPU)
    other = fresh(digits_run, tmp_path / "other")
    evaluate_target(other, ["apgd-ce", "fgsm"], EPSILON, 40, CPU)
    evaluate_target(other, ["apgd"], EPSILON, 40, CPU)
    assert_same(shown(target, "apgd"), shown(other, "apgd"))
    broken = {
        number
        for number, member in zip(
            shown(target, "apgd")["numbers"], shown(target, "apgd")["members"], strict=True
        )
        if member == "apgd-ce"
    }
    evaluate_target(target, ["apgd-ce"], EPSILON, 40, CPU)  # nothing is left to attack
    alone = shown(target, "apgd-ce")
    assert broken and set(alone["numbers"].tolist()) == broken
    assert (alone["adversarial_confidence"].argmax(1) != alone["labels"]).all()


def test_examples_of_an_attack_that_has_changed_are_dropped(target, tmp_path):
    file = tmp_path / "edited.py"
    name = f"{file}:attack"
    for count, sign in ((40, "+"), (10, "-")):
        file.write_text(
            "def attack(model, images, labels, epsilon):\n"
            f"    return (images {sign} epsilon).clamp(0, 1)\n"
        )
        evaluate_target(target, [name], EPSILON, count, CPU)
    kept = shown(target, name)
    assert len(kept["numbers"]) == 10
    assert (kept["adversarial"] <= kept["clean"]).all()


def test_other_data_or_weights_take_its_place(target):
    evaluate_target(target, ["fgsm"], EPSILON, 30, CPU)
    target.split.pixels[:] = 255 - target.split.pixels
    evaluate_target(target, ["pgd2"], EPSILON, 30, CPU)
    assert not shown(target, "fgsm") and shown(target, "pgd2")
    with torch.no_grad():
        target.model.head.bias += 0.1
    evaluate_target(target, ["mc"], EPSILON, 30, CPU)
    assert not shown(target, "pgd2") and shown(target, "mc")
    evaluate_target(target, ["ll"], EPSILON / 2, 30, CPU)
    assert shown(target, "mc") and not shown(target, "ll")  # this one is at another budget
    keys = read_npz(target.folder.gallery)
    assert "ll@20-255/clean" in keys


def test_a_damaged_gallery_is_told_of_before_an_attack(target, monkeypatch):
    evaluate_target(target, ["fgsm"], EPSILON, 30, CPU)
    target.folder.gallery.write_bytes(target.folder.gallery.read_bytes()[:200])
    monkeypatch.setattr(campaign_module, "robust_flags", None)
    with pytest.raises(UserError, match=r"gallery\.npz is damaged"):
        evaluate_target(target, ["pgd2"], EPSILON, 30, CPU)
    assert not target.folder.attack("pgd2", "40/255").exists()


def test_an_older_gallery_is_left_alone_until_there_is_something_new(target):
    evaluate_target(target, ["fgsm"], EPSILON, 30, CPU)
    path = target.folder.gallery
    older = {
        key: value
        for key, value in read_npz(path).items()
        if key not in ("data_digest", "classes") and not key.endswith(("members", "labels"))
    }
    np.savez_compressed(path, **older)
    before = path.read_bytes()
    evaluate_target(target, ["fgsm"], EPSILON, 30, CPU)
    assert path.read_bytes() == before
    evaluate_target(target, ["pgd2"], EPSILON, 30, CPU)
    assert not shown(target, "fgsm") and set(shown(target, "pgd2")) == KINDS


def test_numbers_rise(target):
    evaluate_target(target, ["fgsm"], EPSILON, None, CPU, batch_size=50)
    numbers = shown(target, "fgsm")["numbers"].tolist()
    assert all(one < other for one, other in pairwise(numbers))
