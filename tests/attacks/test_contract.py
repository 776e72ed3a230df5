"""What every attack in the table promises, whatever it does inside."""

import copy

import pytest
import torch

from bilateral.attacks.ball import inside
from bilateral.attacks.table import ATTACKS, attack_named, attack_names
from bilateral.errors import UserError
from bilateral.evaluation.robustness import noise_keys, robust_flags

EPSILON = 0.1
QUICK = [name for name in ATTACKS if "1000" not in name and "200" not in name]


def flags(name, model, images, labels, numbers=None):
    keys = noise_keys(torch.arange(len(labels)) if numbers is None else numbers)
    return robust_flags(model, images, labels, attack_named(name, EPSILON), keys)


@pytest.mark.parametrize("name", QUICK)
class TestEveryAttack:
    def test_stays_in_the_ball_and_in_range(self, name, convolutional, batch):
        images = batch[0].round()  # at the edges of the pixel range, where clipping matters
        labels = convolutional(images).argmax(1)
        tried = flags(name, convolutional, images, labels).images
        assert torch.isfinite(tried).all()
        assert inside(tried, images, EPSILON).all()

    def test_is_deterministic_and_right_about_its_flags(self, name, convolutional, batch):
        images = batch[0]
        labels = convolutional(images).argmax(1)
        one, other = (flags(name, convolutional, images, labels) for _ in range(2))
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.robust, convolutional(one.images).argmax(1) == labels)
        assert one.forwards > 0 and one.backwards > 0

    def test_takes_a_batch_of_one(self, name, convolutional, batch):
        images = batch[0]
        labels = convolutional(images).argmax(1)
        whole = flags(name, convolutional, images, labels)
        alone = flags(name, convolutional, images[3:4], labels[3:4], torch.tensor([3]))
        assert bool(alone.robust) == bool(whole.robust[3])

    def test_leaves_the_model_untouched(self, name, convolutional, batch):
        images, labels = batch
        model = convolutional.train()
        model.body[1].eval()  # a mixed state must come back as it was
        modes = [module.training for module in model.modules()]
        before = copy.deepcopy(model.state_dict())
        flags(name, model, images, labels)
        assert [module.training for module in model.modules()] == modes
        assert all(parameter.grad is None for parameter in model.parameters())
        assert all(parameter.requires_grad for parameter in model.parameters())
        after = model.state_dict()
        assert all(torch.equal(before[key], after[key]) for key in before)

    def test_an_image_that_is_wrong_already_is_not_attacked(self, name, convolutional, batch):
        images = batch[0]
        wrong = (convolutional(images).argmax(1) + 1) % 5
        result = flags(name, convolutional, images, wrong)
        assert not result.robust.any()
        assert torch.equal(result.images, images)
        assert result.backwards == 0


def test_names_follow_the_pattern():
    settings = attack_named("pgd37-cw-nors", 8 / 255)
    assert (settings.steps, settings.loss, settings.random_start) == (37, "margin", False)
    assert settings.step_size == pytest.approx(2 / 255)
    assert attack_named("pgd10-rd", 8 / 255).target == "random"
    assert attack_names("fgsm, pgd20,fgsm") == ["fgsm", "pgd20"]


@pytest.mark.parametrize("bad", ["fgms", "pgd", "pgd0", "pgd20-xx", "pgd-20", ""])
def test_unknown_names_are_refused(bad):
    with pytest.raises(UserError):
        attack_names(bad)


def test_nearest_name_is_suggested():
    with pytest.raises(UserError, match="fgsm"):
        attack_names("fgms")
