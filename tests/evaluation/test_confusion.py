"""What a broken image is taken for: recorded for every image, and drawn together by class."""

import json

import pytest
import torch

import bilateral
from bilateral.config import GradientAttack
from bilateral.data.batches import as_tensors
from bilateral.evaluation.campaign import evaluate_target
from bilateral.evaluation.keeping import AdversarialImages
from bilateral.evaluation.robustness import noise_keys, robust_flags
from bilateral.evaluation.target import find_target
from bilateral.results import (
    AttackFile,
    Evaluation,
    MemberFlags,
    confusion,
    summarise,
    summarise_members,
)

CPU = torch.device("cpu")
EPSILON = 40 / 255


def entry(labels, clean, members, classes=3):
    """The evaluation of images 0, 1, ... under one attack of these members."""
    return summarise(
        epsilon=0.1,
        epsilon_text="0.1",
        data="memory",
        data_digest="",
        search="float32",
        classes=[str(number) for number in range(classes)],
        labels=labels,
        predictions=clean,
        attacks={"attack": summarise_members(members, range(len(labels)))},
        weights_digest="",
        versions={},
    )


def test_rows_are_true_classes_and_columns_classes_seen():
    assert confusion(3, [0, 0, 1, 2, 2], [0, 1, 1, 0, 0]) == [[1, 1, 0], [0, 1, 0], [2, 0, 0]]


def test_an_ensemble_shows_what_the_member_that_broke_an_image_made_of_it():
    """Image 1 falls to the first member, 2 to the second; 0 fools outside the ball alone."""
    first = MemberFlags(images=[2, 1, 0], robust=[True, False, True], predictions=[2, 0, 0])
    second = MemberFlags(images=[0, 1, 2], robust=[True, False, False], predictions=[1, 2, 1])
    found = entry([0, 1, 2], [0, 1, 1], {"first": first, "second": second})
    assert found.attacks["attack"].predictions == [1, 0, 1]
    assert found.attacks["attack"].confusion == [[1, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert found.clean_confusion == [[1, 0, 0], [0, 1, 0], [0, 1, 0]]
    assert found.clean_accuracy == pytest.approx(2 / 3)
    written = json.loads(found.model_dump_json())
    assert written["attacks"]["attack"]["confusion"] == found.attacks["attack"].confusion
    assert "predictions" not in written["attacks"]["attack"]
    assert Evaluation.model_validate(written).clean_confusion == found.clean_confusion


@pytest.mark.parametrize(
    "flags",
    [
        MemberFlags(images=[0, 1], robust=[True, False]),  # an older file
        MemberFlags(images=[1], robust=[False], predictions=[0]),  # image 0 was not attacked
    ],
)
def test_no_confusion_where_a_prediction_is_not_known(flags):
    found = entry([0, 1], [0, 1], {"one": flags})
    assert found.attacks["attack"].confusion == found.attacks["attack"].predictions == []
    assert found.clean_confusion == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]


def test_no_confusion_of_too_many_classes_or_of_one_without_a_name():
    member = {"one": MemberFlags(images=[0, 1], robust=[True, False], predictions=[0, 7])}
    assert len(entry([0, 1], [0, 1], member, classes=100).attacks["attack"].confusion) == 100
    large, small = (entry([0, 1], [0, 1], member, classes=count) for count in (101, 7))
    assert large.attacks["attack"].confusion == large.clean_confusion == []
    assert small.attacks["attack"].confusion == [] and len(small.clean_confusion) == 7


def test_predictions_are_of_all_images_or_of_none():
    flags = MemberFlags()
    flags.add([4, 2], [True, False], [0, 3], [], 0.0, 0, 0)
    flags.add([9], [False], [1], [], 0.0, 0, 0)
    assert flags.predictions == [0, 3, 1]
    flags.keep({9, 4})
    assert (flags.images, flags.robust, flags.predictions) == ([4, 9], [True, False], [0, 1])
    flags.add([5], [True], [], [], 0.0, 0, 0)  # a batch out of an older file
    assert flags.predictions == [] and flags.images == [4, 9, 5]
    flags.add([6], [True], [2], [], 0.0, 0, 0)
    assert flags.predictions == [] and flags.images == [4, 9, 5, 6]
    flags.keep({6})
    assert (flags.images, flags.predictions) == ([6], [])


def test_linear_confusion_equals_the_closed_form(two_classes):
    """Two classes: what is broken is taken for the other one."""
    images = 0.3 + 0.4 * torch.rand(200, 3, 6, 6, generator=torch.Generator().manual_seed(4))
    logits = two_classes(images).detach()
    labels = logits.argmax(1)
    labels[:20] = 1 - labels[:20]
    margin = logits.gather(1, labels[:, None]) - logits.gather(1, 1 - labels[:, None])
    weights = two_classes.head.weight.detach()
    robust = margin.squeeze(1) > 0.02 * (weights[0] - weights[1]).abs().sum()
    result = bilateral.evaluate(two_classes, images, labels, "pgd20,apgd", 0.02, batch_size=64)
    right = logits.argmax(1) == labels
    for table, flags in (
        (result.clean_confusion, right),
        (result.attacks["pgd20"].confusion, robust),
        (result.attacks["apgd"].confusion, robust),
    ):
        counts = [[int((flags & (labels == row)).sum()) for row in (0, 1)]]
        counts.append([int((~flags & (labels == row)).sum()) for row in (0, 1)])
        (kept0, kept1), (lost0, lost1) = counts
        assert table == [[kept0, lost0], [lost1, kept1]]
        assert min(kept0, kept1, lost0, lost1) > 0


def test_predictions_cost_no_forward_pass(convolutional):
    images = torch.rand(40, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    labels = convolutional(images).argmax(1)
    labels[:5] = (labels[:5] + 1) % 5
    passed = []
    convolutional.register_forward_hook(lambda *arguments: passed.append(len(arguments[2])))
    settings = GradientAttack(epsilon=0.05, steps=3, step_size=0.02, clip_start=True)
    found = robust_flags(convolutional, images, labels, settings, noise_keys(torch.arange(40)))
    assert sum(passed) == found.forwards
    with torch.no_grad():
        assert torch.equal(found.predictions, convolutional(found.images).argmax(1))
    assert torch.equal(found.robust, found.predictions == labels)
    assert 0 < int(found.robust.sum()) < 35


def stored(target, attack):
    path = target.folder.attack(attack, "40/255")
    return path, AttackFile.model_validate_json(path.read_bytes())


def trace(table):
    return sum(row[place] for place, row in enumerate(table))


def test_recorded_predictions_are_those_of_the_kept_images(target):
    """The images themselves are the oracle, for a single attack and an ensemble's members."""
    names = ["pgd5", "apgd"]
    found = evaluate_target(target, names, EPSILON, 60, CPU, batch_size=25, save_adversarial=True)
    labels = as_tensors(target.split, CPU)[1]
    for name in names:
        kept = AdversarialImages.read(target.folder.adversarial(name, "40/255"))
        table = torch.zeros(10, 10, dtype=torch.int64)
        _, file = stored(target, name)
        for number, image in kept.images.items():
            flags = file.members[kept.members[number]]
            with torch.no_grad():
                seen = int(target.model(torch.from_numpy(image)[None]).argmax())
            assert flags.predictions[flags.images.index(number)] == seen
            table[labels[number], seen] += 1
        assert found.attacks[name].confusion == table.tolist()
        assert trace(found.attacks[name].confusion) / 60 == found.attacks[name].accuracy < 0.9
    assert trace(found.clean_confusion) / 60 == found.clean_accuracy


def test_the_confusion_does_not_depend_on_how_it_was_measured(target, digits_run, tmp_path):
    """At once, or in two calls of small batches that begin with a member of the ensemble."""
    at_once = evaluate_target(target, ["apgd"], EPSILON, 30, CPU)
    other = find_target(str(digits_run.path), None, None, str(tmp_path / "other"), CPU)
    evaluate_target(other, ["apgd-ce"], EPSILON, 20, CPU, batch_size=7)
    bit_by_bit = evaluate_target(other, ["apgd"], EPSILON, 30, CPU, batch_size=16)
    assert bit_by_bit.attacks["apgd"].confusion == at_once.attacks["apgd"].confusion != []
    assert bit_by_bit.clean_confusion == at_once.clean_confusion


def test_an_older_file_loads_and_goes_on_without_a_confusion(target):
    before = evaluate_target(target, ["fgsm"], EPSILON, 20, CPU)
    assert before.attacks["fgsm"].confusion != []
    path, _ = stored(target, "fgsm")
    older = json.loads(path.read_text())
    for member in older["members"].values():
        del member["predictions"]
    path.write_text(json.dumps(older))
    entries = json.loads(target.folder.evaluation.read_text())
    for one in entries["entries"]:
        del one["clean_confusion"], one["attacks"]["fgsm"]["confusion"]
    target.folder.evaluation.write_text(json.dumps(entries))
    again = evaluate_target(target, ["fgsm"], EPSILON, 20, CPU)
    assert again.attacks["fgsm"].confusion == [] and again.clean_confusion != []
    assert again.attacks["fgsm"].accuracy == before.attacks["fgsm"].accuracy
    more = evaluate_target(target, ["fgsm"], EPSILON, 40, CPU)
    assert more.attacks["fgsm"].confusion == [] and more.attacks["fgsm"].images == 40


def test_what_fools_outside_the_ball_is_not_in_the_confusion(target, tmp_path):
    (tmp_path / "mine.py").write_text(
        "def cheat(model, images, labels, epsilon):\n    return 1 - images\n"
    )
    name = f"{tmp_path}/mine.py:cheat"
    with pytest.warns(UserWarning, match="cheat: .* images lie outside the ball"):
        found = evaluate_target(target, [name], EPSILON, 60, CPU)
    assert found.attacks[name].confusion == found.clean_confusion
    flags = next(iter(stored(target, name)[1].members.values()))
    fooled = [seen for seen, robust in zip(flags.predictions, flags.robust, strict=True) if robust]
    assert len(fooled) > 40 and fooled != [
        int(target.split.labels[number])
        for number, robust in zip(flags.images, flags.robust, strict=True)
        if robust
    ]
