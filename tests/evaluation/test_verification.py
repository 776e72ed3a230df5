"""Kept adversarial images are re-checked: planted faults are found, damaged files refused."""

import contextlib
import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bilateral.cli import main
from bilateral.data.datasets import load
from bilateral.evaluation import keeping
from bilateral.evaluation.keeping import AdversarialImages

KEPT = "adversarial/pgd5@40-255.npz"


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A digits run of two epochs, 60 of its images attacked and kept."""
    out = tmp_path_factory.mktemp("verify")
    words = ["--epochs", "2", "--check-epochs", "0", "--quiet", "--out", str(out)]
    assert main(["train", "digits-r-mc-la", *words]) == 0
    run = out / "digits-r-mc-la" / "seed0"
    words = ["--attacks", "pgd5", "--images", "60", "--quiet", "--save-adversarial"]
    assert main(["evaluate", str(run), *words]) == 0
    return run


@pytest.fixture
def run(evaluated, tmp_path, capsys):
    """A copy to plant faults in."""
    copy = tmp_path / "run"
    shutil.copytree(evaluated, copy)
    capsys.readouterr()
    return copy


def verify(capsys, *words):
    assert main(["verify", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def plant(run, change):
    """Change the kept images: `change` is given the dictionary, and the flags by number."""
    stored = AdversarialImages.read(run / KEPT)
    record = json.loads((run / "attacks" / "pgd5@40-255.json").read_text())
    change(stored.images, dict(zip(record["images"], record["robust"], strict=True)))
    stored.save(stored.path, stored.images)


def digits():
    """The clean images by their numbers."""
    return load("digits", "test").pixels.transpose(0, 3, 1, 2).astype(np.float32) / 255


def attacked(images, flags):
    """An image that is right when clean and claimed to be broken."""
    clean = digits()
    broken = [number for number in sorted(flags) if not flags[number]]
    return next(number for number in broken if not np.array_equal(images[number], clean[number]))


def test_an_honest_claim_holds(run, capsys):
    found = verify(capsys, run / KEPT)
    entry = json.loads((run / "evaluation.json").read_text())["entries"][0]
    assert found["claim_holds"] is True
    assert found["images"] == found["in_ball"] == found["in_range"] == found["finite"] == 60
    assert found["robust_accuracy"] == entry["attacks"]["pgd5"]["accuracy"]
    assert found["claimed_accuracy"] == found["robust_accuracy"]
    assert 10 < found["fooled"] < 60
    assert found["weights_digest"] == entry["weights_digest"]
    # Batches, and a target named in full, change nothing.
    again = verify(capsys, run / KEPT, "--target", run, "--batch-size", 7)
    assert {**again, "target": ""} == {**found, "target": ""}


def test_an_image_outside_the_ball_is_found(run, capsys):
    """It fools all the more, but does not count."""
    number = []

    def push(images, flags):
        number.append(attacked(images, flags))
        clean, image = digits()[number[0]], images[number[0]]
        images[number[0]] = np.clip(clean + 2 * (image - clean), 0, 1)

    before = verify(capsys, run / KEPT)
    plant(run, push)
    found = verify(capsys, run / KEPT)
    assert found["outside_ball"] == number and found["outside_range"] == []
    assert found["in_ball"] == 59 and found["claim_holds"] is False
    assert found["fooled"] == before["fooled"] - 1
    assert found["not_fooled"] == number


def test_the_tolerance_is_a_millionth(run, capsys):
    """A pixel past the ball by less than 1e-6 is rounding; by 5e-6 it is not."""
    stored, clean = AdversarialImages.read(run / KEPT), digits()
    number = min(stored.images)
    for extra, in_ball in ((5e-7, 60), (5e-6, 59)):
        stored.images[number] = clean[number].copy()
        place = np.unravel_index(clean[number].argmin(), clean[number].shape)
        stored.images[number][place] += np.float32(40 / 255 + extra)
        stored.save(stored.path, stored.images)
        assert verify(capsys, run / KEPT)["in_ball"] == in_ball


@pytest.mark.parametrize("value", [-0.01, 1.01])
def test_an_image_outside_the_range_is_found(run, capsys, value):
    number = []

    def push(images, flags):
        number.append(min(number for number, robust in flags.items() if robust))
        image = images[number[0]]
        place = image.argmin() if value < 0 else image.argmax()
        image[np.unravel_index(place, image.shape)] = value

    plant(run, push)
    found = verify(capsys, run / KEPT)
    assert found["outside_range"] == number and found["in_range"] == 59
    assert found["claim_holds"] is False
    assert main(["verify", str(run / KEPT)]) == 0
    said = capsys.readouterr().out
    assert f"outside [0, 1]: image {number[0]}\n" in said
    assert "claim holds" in said and " no\n" in said


def test_an_image_outside_the_range_does_not_count_as_fooled(run, capsys):
    """It lies in the ball and fools, but it is no image."""
    number = []

    def push(images, flags):
        number.append(attacked(images, flags))
        black = np.unravel_index(digits()[number[0]].argmin(), images[number[0]].shape)
        images[number[0]][black] = -1e-4

    before = verify(capsys, run / KEPT)
    plant(run, push)
    found = verify(capsys, run / KEPT)
    assert found["outside_range"] == number and found["outside_ball"] == []
    assert found["fooled"] == before["fooled"] - 1 and found["not_fooled"] == number
    assert found["robust_accuracy"] == pytest.approx(before["robust_accuracy"] + 1 / 60)


def test_an_image_that_does_not_fool_is_found(run, capsys):
    """A clean image in place of one that was claimed to fool."""
    number = []

    def soothe(images, flags):
        number.append(attacked(images, flags))
        images[number[0]] = digits()[number[0]]

    before = verify(capsys, run / KEPT)
    plant(run, soothe)
    found = verify(capsys, run / KEPT)
    assert found["not_fooled"] == number and found["claim_holds"] is False
    assert found["in_ball"] == found["in_range"] == 60
    assert found["robust_accuracy"] == pytest.approx(before["robust_accuracy"] + 1 / 60)
    assert found["claimed_accuracy"] == before["claimed_accuracy"]


def test_a_claim_of_robustness_is_refuted(run, capsys):
    path = run / "attacks" / "pgd5@40-255.json"
    record = json.loads(path.read_text())
    place = record["robust"].index(False)
    record["robust"][place] = True
    path.write_text(json.dumps(record))
    found = verify(capsys, run / KEPT)
    assert found["claimed_robust"] == [record["images"][place]]
    assert found["claim_holds"] is False


def test_nan_is_found(run, capsys):
    def spoil(images, flags):
        images[min(images)][0, 0, 0] = np.nan

    plant(run, spoil)
    found = verify(capsys, run / KEPT)
    assert found["finite"] == 59 and len(found["not_finite"]) == 1
    assert found["claim_holds"] is False


def test_without_a_record_nothing_is_claimed(run, capsys):
    shutil.rmtree(run / "attacks")
    found = verify(capsys, run / KEPT)
    assert found["claimed_accuracy"] is None and found["claim_holds"] is None
    assert found["fooled"] > 10
    assert found["robust_accuracy"] == pytest.approx(1 - found["fooled"] / 60)


def test_what_is_not_kept_is_not_confirmed(run, capsys):
    """Of 60 images with flags ten robust ones are kept: the table says of how many it speaks."""

    def leave(images, flags):
        chosen = [number for number, robust in flags.items() if robust][:10]
        for number in set(images) - set(chosen):
            del images[number]

    plant(run, leave)
    found = verify(capsys, run / KEPT)
    assert (found["images"], found["claimed_images"]) == (10, 60)
    capsys.readouterr()
    assert main(["verify", str(run / KEPT), "--quiet"]) == 0
    assert "10 of the 60 that have flags" in capsys.readouterr().out


def test_a_claim_is_found_from_inside_its_folder(run, capsys, monkeypatch):
    monkeypatch.chdir((run / KEPT).parent)
    found = verify(capsys, Path(KEPT).name, "--target", run)
    assert found["claimed_accuracy"] == found["robust_accuracy"]


@pytest.mark.parametrize("field", ["data", "weights_digest", "code_digest", "data_digest"])
def test_a_record_of_other_data_or_another_model_claims_nothing(run, capsys, field):
    path = run / "attacks" / "pgd5@40-255.json"
    record = json.loads(path.read_text())
    record["robust"] = [True] * 60  # would be refuted
    path.write_text(json.dumps({**record, field: "other"}))
    found = verify(capsys, run / KEPT)
    assert found["claimed_accuracy"] is None and found["claim_holds"] is None


def test_an_ensemble_keeps_what_its_flags_say(run, capsys):
    """Members measured before without being kept are done again, so every flag has its image."""
    words = [str(run), "--images", "40", "--quiet", "--json"]
    assert main(["evaluate", *words, "--attacks", "apgd-t"]) == 0
    assert main(["evaluate", *words, "--attacks", "apgd", "--save-adversarial"]) == 0
    capsys.readouterr()
    found = verify(capsys, run / "adversarial" / "apgd@40-255.npz")
    members = set(AdversarialImages.read(run / "adversarial" / "apgd@40-255.npz").members.values())
    assert members == {"apgd-ce", "apgd-t"}
    assert found["claim_holds"] is True and found["images"] == 40


def test_an_l2_attack_claims_nothing_of_the_ball(run, capsys):
    words = [str(run), "--images", "20", "--quiet", "--json", "--epsilon", "2/255"]
    assert main(["evaluate", *words, "--attacks", "deepfool-l2", "--save-adversarial"]) == 0
    entry = json.loads(capsys.readouterr().out)
    found = verify(capsys, run / "adversarial" / "deepfool-l2@2-255.npz")
    assert found["in_ball"] < 20 and found["claim_holds"] is True
    assert found["robust_accuracy"] == entry["attacks"]["deepfool-l2"]["accuracy"]


def refused(capsys, *words):
    assert main(["verify", *map(str, words)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    return said.err


def test_other_weights_are_refused(run, tmp_path, capsys):
    words = ["--epochs", "1", "--check-epochs", "0", "--seed", "1", "--quiet"]
    assert main(["train", "digits-r-mc-la", *words, "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    other = tmp_path / "digits-r-mc-la" / "seed1"
    assert "was made against other weights" in refused(capsys, run / KEPT, "--target", other)


OWN = """
import torch
class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    def forward(self, x):
        return self.net(x.detach()) + 0 * x.flatten(1).sum(1, keepdim=True)
def trained(): return Own().eval()
"""


@pytest.fixture
def own(tmp_path, monkeypatch, capsys):
    """Somebody's own model whose gradients are zero, and what was kept of an attack on it."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    words = ["evaluate", "own.py:trained", "--data", "digits", "--attacks", "pgd5", "--force"]
    assert main([*words, "--images", "40", "--quiet", "--save-adversarial", "--out", "out"]) == 0
    capsys.readouterr()
    return Path("out") / KEPT


def test_the_same_code_elsewhere_is_the_same_model(own, capsys):
    Path("moved").mkdir()
    shutil.copy("own.py", "moved/other.py")
    for target in ("own.py:trained", "./own.py:trained", "moved/other.py:trained"):
        found = verify(capsys, own, "--target", target, "--quiet")
        assert found["claim_holds"] is True and found["claimed_images"] == 40


def test_other_code_around_the_same_weights_is_refused(own, capsys):
    """Its gradients were hidden: what is claimed of it says nothing of the model that has some."""
    Path("own.py").write_text(OWN.replace("self.net(x.detach())", "self.net(x)"))
    said = refused(capsys, own, "--target", "own.py:trained")
    assert "was made against other code than that of own.py:trained: " in said


def test_other_images_under_the_same_name_are_refused(run, capsys, monkeypatch):
    """A data set made anew: image 7 is another, though all are as many and as large."""

    def other(name, split, **named):
        found = load(name, split, **named)
        return replace(found, pixels=np.where(found.pixels == 0, 1, found.pixels))

    monkeypatch.setattr("bilateral.evaluation.target.load", other)
    assert "was made from other images of digits than " in refused(capsys, run / KEPT)


def test_what_an_older_version_kept_is_not_asked_for_its_digests(run, capsys):
    stored = AdversarialImages.read(run / KEPT)
    del stored.about["code_digest"], stored.about["data_digest"]
    stored.save(stored.path, stored.images)
    found = verify(capsys, run / KEPT)
    assert found["claim_holds"] is True and found["claimed_images"] == 60


def test_files_that_cannot_be_checked_are_refused(run, tmp_path, capsys):
    whole = (run / KEPT).read_bytes()
    assert "no adversarial images at" in refused(capsys, run / "nowhere.npz")
    (run / KEPT).write_bytes(whole[: len(whole) // 2])
    assert "is damaged" in refused(capsys, run / KEPT)
    (run / KEPT).write_bytes(b"nonsense")
    assert "is damaged" in refused(capsys, run / KEPT)
    (run / KEPT).write_bytes(whole)
    assert "does not hold adversarial images" in refused(capsys, run / "gallery.npz")
    lone = tmp_path / "lone.npz"
    lone.write_bytes(whole)
    assert "name its model with --target" in refused(capsys, lone)


@pytest.mark.parametrize("place", range(20))
def test_a_flipped_byte_never_gives_a_traceback(run, capsys, place):
    """Wherever it lies: refused, or of no consequence (in the directory's dates, say)."""
    content = bytearray((run / KEPT).read_bytes())
    content[place * len(content) // 20] ^= 0xFF
    (run / KEPT).write_bytes(content)
    assert main(["verify", str(run / KEPT)]) in (0, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda kept: kept.about.pop("epsilon"), "epsilon"),
        (lambda kept: kept.about.update(epsilon=8.0), "did you mean 8/255?"),
        (lambda kept: kept.about.update(attack="pgd"), "unknown attack"),
        (lambda kept: kept.images.update({9999: kept.images.pop(min(kept.images))}), "to 9999"),
        (lambda kept: kept.images.update({360: kept.images.pop(min(kept.images))}), "are 360 test"),
        (
            lambda kept: kept.images.update(
                {number: image[:, :4] for number, image in kept.images.items()}
            ),
            "of shape (1, 4, 8)",
        ),
        (
            lambda kept: kept.images.update(
                {number: image.astype(np.float64) for number, image in kept.images.items()}
            ),
            "float64",
        ),
    ],
)
def test_content_that_does_not_fit_is_refused(run, capsys, change, message):
    stored = AdversarialImages.read(run / KEPT)
    change(stored)
    stored.members = dict.fromkeys(stored.images, "pgd5")
    stored.save(stored.path, stored.images)
    assert message in refused(capsys, run / KEPT)


ABOUT = {"epsilon": 0.1, "weights_digest": "a", "code_digest": "", "data": "d", "data_digest": "e"}


def open_kept(path, **changes):
    return AdversarialImages.open(path, "pgd5", {**ABOUT, **changes})


def put(kept, numbers, value, member="pgd5"):
    """A batch of images that all have one value."""
    images = torch.full((len(numbers), 1, 2, 2), float(value))
    kept.put(torch.tensor(numbers), images, member)
    kept.write()


def values(kept):
    return {number: float(image.max()) for number, image in kept.images.items()}


def files(path):
    return sorted(str(file.relative_to(path.parent)) for file in path.parent.rglob("*.npz"))


def test_a_batch_writes_its_own_images_alone(tmp_path, monkeypatch):
    """So that the cost of many batches does not grow with their square."""
    path, sizes, real = tmp_path / "pgd5@8-255.npz", [], keeping.write_arrays

    def counted(path, arrays):
        sizes.append(len(arrays["images"]))
        real(path, arrays)

    monkeypatch.setattr(keeping, "write_arrays", counted)
    kept = open_kept(path)
    for start in range(0, 40, 10):
        put(kept, list(range(start, start + 10)), start)
    kept.write()  # nothing was put since
    assert sizes == [10, 10, 10, 10] and not path.exists()
    kept.finish()
    assert sizes[4:] == [40] and files(path) == [path.name]
    assert not path.with_suffix("").exists()
    assert values(AdversarialImages.read(path)) == {
        number: number // 10 * 10 for number in range(40)
    }
    open_kept(path).finish()  # a whole file is not written again
    assert len(sizes) == 5


def test_parts_are_found_again_and_the_latest_counts(tmp_path):
    path = tmp_path / "apgd@8-255.npz"
    first = open_kept(path)
    put(first, [1, 2], 0.1)
    put(first, [2, 3], 0.2, "apgd-t")
    again = open_kept(path)
    assert values(again) == pytest.approx({1: 0.1, 2: 0.2, 3: 0.2})
    assert again.members == {1: "pgd5", 2: "apgd-t", 3: "apgd-t"}
    put(again, [3], 0.3)
    assert len(files(path)) == 3
    assert values(AdversarialImages.read(path)) == pytest.approx({1: 0.1, 2: 0.2, 3: 0.3})
    again.finish()
    put(open_kept(path), [1], 0.4)  # a larger evaluation begins from the whole file
    assert values(open_kept(path)) == pytest.approx({1: 0.4, 2: 0.2, 3: 0.3})


@pytest.mark.parametrize("key", ["epsilon", "weights_digest", "code_digest", "data", "data_digest"])
def test_images_of_something_else_are_left_out(tmp_path, key):
    path = tmp_path / "pgd5@8-255.npz"
    put(open_kept(path), [1, 2], 0.1)
    open_kept(path).finish()
    put(open_kept(path), [3], 0.2)
    other = open_kept(path, **{key: "other"})
    assert other.images == {}
    put(other, [4], 0.3)
    assert values(AdversarialImages.read(path)) == pytest.approx({4: 0.3})
    assert values(open_kept(path)) == pytest.approx({1: 0.1, 2: 0.1, 3: 0.2})
    other.finish()
    assert files(path) == [path.name]
    assert values(AdversarialImages.read(path)) == pytest.approx({4: 0.3})


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.mark.parametrize("calls", range(1, 7))
def test_a_kill_loses_at_most_the_batch_being_written(tmp_path, monkeypatch, calls):
    """Killed at one of the renames (two batches, the whole file) or deletions (two parts)."""
    path, left = tmp_path / "pgd5@8-255.npz", [calls]

    def evaluated():
        kept = open_kept(path)
        put(kept, [1, 2], 0.1)
        put(kept, [2, 3], 0.2)
        kept.finish()

    def deadly(real):
        def replacement(*arguments, **named):
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return real(*arguments, **named)

        return replacement

    with monkeypatch.context() as patched, contextlib.suppress(Killed):
        for name in ("replace", "unlink"):
            patched.setattr(Path, name, deadly(getattr(Path, name)))
        evaluated()
    assert left[0] == (1 if calls == 6 else 0 if calls > 3 else -1)
    if path.with_suffix("").exists():  # a real kill leaves the file that was being written
        (path.with_suffix("") / ".part-000001.npz.abc.tmp").write_bytes(b"half")
    expected = [{}, {1: 0.1, 2: 0.1}, {1: 0.1, 2: 0.2, 3: 0.2}][min(calls, 3) - 1]
    assert values(open_kept(path)) == pytest.approx(expected)
    evaluated()
    assert files(path) == [path.name] and not path.with_suffix("").exists()
    assert values(AdversarialImages.read(path)) == pytest.approx({1: 0.1, 2: 0.2, 3: 0.2})


def test_an_interrupted_evaluation_goes_on_with_its_parts(evaluated, tmp_path, monkeypatch, capsys):
    """What is kept can be verified meanwhile; in the end the file is that of an unbroken one."""
    words = [
        "evaluate",
        str(evaluated),
        "--attacks",
        "pgd5",
        "--images",
        "60",
        "--batch-size",
        "20",
    ]
    words += ["--quiet", "--save-adversarial", "--out", str(tmp_path / "out")]
    real, written = AdversarialImages.write, []

    def interrupted(self):
        real(self)
        written.append(self.path)
        if len(written) == 2:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(AdversarialImages, "write", interrupted)
    assert main(words) == 143
    path = tmp_path / "out" / KEPT
    assert not path.exists() and len(files(path)) == 2
    capsys.readouterr()
    found = verify(capsys, path, "--target", evaluated)
    assert found["images"] == 40 and found["claim_holds"] is True
    assert main(words) == 0
    capsys.readouterr()
    assert files(path) == [path.name]
    whole, broken = AdversarialImages.read(evaluated / KEPT), AdversarialImages.read(path)
    assert sorted(whole.images) == sorted(broken.images)
    for number, image in whole.images.items():
        np.testing.assert_allclose(image, broken.images[number], atol=1e-6)
