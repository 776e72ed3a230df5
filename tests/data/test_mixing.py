import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional as F

from bilateral.config import Adversary, Data, Labels, Run
from bilateral.data.mixing import cut_and_mix, drawn_boxes
from bilateral.randomness import image_keys
from bilateral.training.step import perturbed_batch, step_loss

KEYS = image_keys(3, torch.arange(2000))
MIXED = Run(data=Data(cutmix=1.0), labels=Labels(rule="one-hot"))


def test_labels_count_the_pixels_of_each_image():
    """Images of one value each: what is where can be counted."""
    numbers = torch.arange(6)
    images = numbers[:, None, None, None].expand(-1, 3, 10, 14).to(torch.float32)
    mixed, soft = cut_and_mix(images, numbers, 6, drawn_boxes(KEYS[:6], 1.0, 10, 14))
    for place in range(6):
        counted = torch.bincount(mixed[place, 0].flatten().long(), minlength=6) / 140
        torch.testing.assert_close(soft[place], counted)
        assert set(mixed[place].unique().tolist()) <= {place, (place - 1) % 6}
        assert torch.equal(mixed[place, 0], mixed[place, 2]), "all channels alike"
    assert 0 < (mixed != images).float().mean() < 1


def test_a_box_is_one_rectangle_of_the_images_shape():
    boxes = drawn_boxes(KEYS[:200], 1.0, 20, 40).numpy()
    for box in boxes:
        rows, columns = np.flatnonzero(box.any(1)), np.flatnonzero(box.any(0))
        if len(rows) and len(columns):
            inside = box[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            assert inside.all() and inside.sum() == box.sum()
            if rows[0] > 0 and rows[-1] < 19 and columns[0] > 0 and columns[-1] < 39:
                assert abs(2 * len(rows) - len(columns)) <= 2, "sides as the image's"


def test_boxes_lie_everywhere_and_their_area_before_the_border_is_uniform():
    boxes = drawn_boxes(KEYS, 1.0, 32, 32).to(torch.float32)
    # Of a side s a box about a uniform point keeps s - s^2/4, so s^2 loses its part of the area.
    side = torch.linspace(0, 1, 1001).sqrt()
    expected = (side - side.pow(2) / 4).pow(2).mean()
    assert boxes.mean() == pytest.approx(float(expected), abs=0.02)
    shown = boxes.mean(0)
    assert shown[8:24, 8:24].mean() > shown[0, 0] > 0.05
    torch.testing.assert_close(shown, shown.flip(0), atol=0.07, rtol=0)


def test_about_so_many_images_are_mixed():
    touched = drawn_boxes(KEYS, 0.25, 32, 32).any(2).any(1).to(torch.float32)
    assert touched.mean() == pytest.approx(0.25, abs=0.04)
    assert not drawn_boxes(KEYS, 0.0, 32, 32).any()


def test_the_attack_flees_the_mixed_label_and_the_loss_fits_it():
    """For a linear network the gradient is W^T (p - y): the oracle of one FGSM step."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5))
    images, soft = torch.rand(4, 3, 2, 2), torch.rand(4, 5).softmax(1)
    run = MIXED.with_fields(adversary=Adversary(random_start=False, epsilon=0.01, step_size=0.01))
    perturbed = perturbed_batch(network, images, soft, run, KEYS[:4])
    way = (network(images).softmax(1) - soft) @ network[1].weight
    expected = (images + 0.01 * way.sign().view_as(images)).clamp(0, 1)
    torch.testing.assert_close(perturbed.images, expected)
    torch.testing.assert_close(perturbed.soft_labels, soft)
    result = step_loss(network, perturbed, images, soft, run)
    logits = network(expected)
    torch.testing.assert_close(result.loss, F.cross_entropy(logits, soft))
    assert int(result.adversarial_correct) == int((logits.argmax(1) == soft.argmax(1)).sum())


def test_smoothing_a_mixed_label_mixes_smoothed_ones():
    run = MIXED.with_fields(labels=Labels(rule="smoothing", budget=0.4))
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5))
    images, first, second = torch.rand(3, 3, 2, 2), torch.arange(3), torch.arange(2, 5)

    def smoothed(labels):
        return perturbed_batch(network, images, labels, run, KEYS[:3]).soft_labels

    mixed = torch.lerp(*(F.one_hot(one, 5).float() for one in (first, second)), 0.3)
    expected = torch.lerp(smoothed(first), smoothed(second), 0.3)
    torch.testing.assert_close(smoothed(mixed), expected)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"adversary.target": "most-confusing"}, "untargeted"),
        ({"adversary.loss": "margin"}, "untargeted"),
        ({"labels.rule": "adversarial"}, "labels.rule"),
        ({"adversary.iterate": "any"}, "iterate"),
        ({"data.cutmix": 1.5}, "cutmix"),
    ],
)
def test_what_mixed_images_cannot_have_is_refused(fields, said):
    with pytest.raises(ValidationError, match=said):
        MIXED.with_paths(fields)


def test_an_attack_that_is_not_made_is_not_judged():
    MIXED.with_paths({"method": "undefended", "adversary.target": "most-confusing"})
