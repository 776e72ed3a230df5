"""What every attack in the table promises, whatever it does inside."""

import copy

import pytest
import torch
from torch import nn

from bilateral.attacks.ball import inside
from bilateral.attacks.losses import fools
from bilateral.attacks.perform import perform
from bilateral.attacks.settings import APGD, CarliniWagner, DeepFool
from bilateral.attacks.table import ATTACKS, ENSEMBLES, attack_members, attack_named, attack_names
from bilateral.config import GradientAttack
from bilateral.errors import UserError
from bilateral.evaluation.robustness import noise_keys, robust_flags
from bilateral.randomness import image_keys

EPSILON = 0.1
# The attack is the same with fewer rounds; the full counts only cost time here.
FEWER = {"steps": 10, "queries": 60, "samples": 8}
GRADIENT_FREE = ("square", "spsa")


def short(name):
    settings = attack_named(name, EPSILON)
    fields = settings.model_dump()
    return settings.with_fields(
        **{key: min(fewer, fields[key]) for key, fewer in FEWER.items() if key in fields}
    )


def flags(name, model, images, labels, numbers=None):
    keys = noise_keys(torch.arange(len(labels)) if numbers is None else numbers)
    return robust_flags(model, images, labels, short(name), keys, epsilon=EPSILON)


@pytest.mark.parametrize("name", [*ATTACKS, "pgd7-last"])
class TestEveryAttack:
    def test_stays_in_the_ball_and_in_range(self, name, convolutional, batch):
        images = batch[0].round()  # at the edges of the pixel range, where clipping matters
        labels = convolutional(images).argmax(1)
        tried = flags(name, convolutional, images, labels).images
        assert torch.isfinite(tried).all()
        smallest = isinstance(short(name), CarliniWagner | DeepFool)
        assert inside(tried, images, 1.0 if smallest else EPSILON).all()

    def test_is_deterministic_and_right_about_its_flags(self, name, convolutional, batch):
        images = batch[0]
        labels = convolutional(images).argmax(1)
        one, other = (flags(name, convolutional, images, labels) for _ in range(2))
        assert torch.equal(one.images, other.images)
        fooled = convolutional(one.images).argmax(1) != labels
        assert torch.equal(one.robust, ~(fooled & inside(one.images, images, EPSILON)))
        assert one.forwards > 0
        assert (one.backwards == 0) == (name in GRADIENT_FREE)

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


@pytest.mark.parametrize("name", ENSEMBLES)
def test_an_ensemble_is_its_members(name):
    members = attack_members(name, 8 / 255)
    assert members == {member: attack_named(member, 8 / 255) for member in members}


def test_names_follow_the_pattern():
    settings = attack_named("pgd37-cw-nors", 8 / 255)
    assert (settings.steps, settings.loss, settings.random_start) == (37, "margin", False)
    assert settings.step_size == pytest.approx(2 / 255)
    assert attack_named("pgd10-rd", 8 / 255).target == "random"
    assert attack_names("fgsm, pgd20,fgsm") == ["fgsm", "pgd20"]


@pytest.mark.parametrize("name", [*ATTACKS, "pgd37-cw-nors"])
def test_only_attacks_by_gradients_take_the_last_iterate(name):
    settings = attack_named(name, 8 / 255)
    if isinstance(settings, GradientAttack):
        assert settings.iterate == "any"
        assert attack_named(f"{name}-last", 8 / 255) == settings.with_fields(iterate="last")
    else:
        with pytest.raises(UserError, match=f"unknown attack '{name}-last'; nearest: .*{name}"):
            attack_named(f"{name}-last", 8 / 255)


class _Hill(nn.Module):
    """The wrong class wins within 0.02 of a pixel value of 0.54."""

    def forward(self, images):
        wrong = 0.02 - (images.flatten(1) - 0.54).abs()
        return torch.cat([torch.zeros_like(wrong), wrong], dim=1)


@pytest.mark.parametrize(
    ("name", "robust"), [("pgd2-nors", False), ("pgd2-nors-last", True), ("pgd1-nors-last", False)]
)
def test_the_last_iterate_forgets_an_earlier_one(name, robust):
    """Steps of 0.05 go from 0.5 to 0.55, which fools, and back."""
    images, labels = torch.full((1, 1, 1, 1), 0.5), torch.zeros(1, dtype=torch.int64)
    keys = noise_keys(torch.arange(1))
    settings = attack_named(name, 0.2)
    assert bool(robust_flags(_Hill(), images, labels, settings, keys).robust) is robust


BAD = ["fgms", "pgd", "pgd0", "pgd20-xx", "pgd-20", "", "auto"]
BAD += ["-last", "pgd20-last-last", "pgd20-last-cw", "autoattack-last", "apgd-last"]


@pytest.mark.parametrize("bad", BAD)
def test_unknown_names_are_refused(bad):
    with pytest.raises(UserError):
        attack_names(bad)


def test_nearest_name_is_suggested():
    with pytest.raises(UserError, match="fgsm"):
        attack_names("fgms")


def test_a_slack_asks_for_more_than_a_wrong_class():
    """By a share of the largest logit; without one a wrong class is enough."""
    logits = torch.tensor([[2.0, 1.0], [1.0, 1.01], [1.0, 1.5], [-4.0, -3.9], [0.5, 0.5]])
    labels = torch.zeros(5, dtype=torch.int64)
    assert fools(logits, labels).tolist() == [False, True, True, True, False]
    assert fools(logits, labels, 0.02).tolist() == [False, False, True, True, False]
    assert fools(logits, labels, 0.03).tolist() == [False, False, True, False, False]


class PassingBy(nn.Module):
    """One pixel; on the way from most starts to class 1, which is never reached, class 2 leads."""

    def forward(self, images):
        moved = images.flatten(1) - 0.5
        away = moved.abs()
        second = torch.where((away > 0.02) & (away < 0.08), 1.0, -5.0)
        return torch.cat([0 * moved, 5 * moved - 1, second], 1)


@pytest.mark.parametrize(
    "settings",
    [
        GradientAttack(epsilon=0.1, steps=7, step_size=0.1, target="most-confusing"),
        APGD(epsilon=0.1, steps=10, loss="dlr-targeted", targets=1),
        APGD(epsilon=0.1, steps=10),
    ],
    ids=lambda settings: type(settings).__name__,
)
def test_what_fools_within_the_slack_is_handed_over_for_the_check(settings):
    """A slack that nothing meets: every image that a plain search breaks still comes back wrong."""
    model, images = PassingBy(), torch.full((24, 1, 1, 1), 0.5)
    labels, keys = torch.zeros(24, dtype=torch.int64), image_keys(0, torch.arange(24))
    plain = perform(model, images, labels, settings, keys)
    doubtful = perform(model, images, labels, settings, keys, slack=1e6)
    wrong = model(doubtful.images).argmax(1) != labels
    assert plain.fooled.any() and not doubtful.fooled.any()
    assert wrong[plain.fooled].all()
    assert inside(doubtful.images, images, 0.1).all()


@pytest.mark.parametrize("name", ["pgd7", "apgd-ce", "apgd-t", "fab-t", "square"])
def test_with_a_slack_the_search_goes_on_until_it_is_met(name, convolutional):
    """What it calls fooled then fools clearly; a slack that no image meets fools none."""
    images = torch.rand(24, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    labels = convolutional(images).argmax(1)
    keys = image_keys(0, torch.arange(24))
    settings = attack_named(name, 32 / 255)
    if name == "square":
        settings = settings.with_fields(queries=200)
    plain = perform(convolutional, images, labels, settings, keys)
    clear = perform(convolutional, images, labels, settings, keys, slack=0.1)
    assert 0 < int(clear.fooled.sum()) <= int(plain.fooled.sum())
    found = clear.images[clear.fooled]
    assert fools(convolutional(found), labels[clear.fooled], 0.1).all()
    assert not perform(convolutional, images, labels, settings, keys, slack=1e6).fooled.any()
