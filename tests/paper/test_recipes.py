"""The recipes hold what the paper says of them."""

import subprocess
import sys

import pytest

from bilateral.errors import UserError
from bilateral.paper.recipes import RECIPES, recipe_named

CONTRACT = """
undefended fgsm r-fgsm ll r-ll mc r-mc r-fgsm-ls r-mc-ls r-mc-la r-mc-la-eps1 r-mc-la-eps2
r-mc-la-eps4 r-mc-la-eps12 r-mc-la-eps16 r-mc-la-sup madry madry-2x8 madry-la trades
"""
OTHERS = """
cifar100-r-mc-la cifar100-r-mc-la9 cifar100-madry
svhn-undefended svhn-r-mc-la svhn-r-mc-la-eps4 svhn-madry
"""
IMAGENET = """
imagenet-r-mc-la-resnet50 imagenet-r-mc-la-resnet101 imagenet-r-mc-la-resnet152
imagenet-madry-resnet50
"""


def test_every_name_of_the_contract_is_there():
    names = {"digits-undefended", "digits-r-mc-la", "digits-madry", "folder", *IMAGENET.split()}
    both = [f"cifar10-{name}" for name in CONTRACT.split()] + OTHERS.split()
    names |= {f"{name}{suffix}" for name in both for suffix in ("", "-long")}
    names |= {
        "cifar10-fast",
        "cifar10-wide",
        *(f"{data}-strong" for data in ("cifar10", "cifar100", "svhn")),
    }
    assert set(RECIPES) == names


def test_the_method_is_the_papers():
    run = recipe_named("cifar10-r-mc-la")
    assert run.adversary.steps == 1
    assert run.adversary.step_size == run.adversary.epsilon == 8 / 255
    assert run.adversary.target == "most-confusing"
    assert run.adversary.random_start and not run.adversary.clip_start
    assert (run.labels.rule, run.labels.ratio, run.labels.gamma) == ("adversarial", 9, 0.01)
    optimiser = run.optimiser
    assert (optimiser.learning_rate, optimiser.momentum) == (0.1, 0.9)
    assert (optimiser.weight_decay, optimiser.batch_size) == (2e-4, 128)
    assert (run.epochs, optimiser.milestones) == (100, (0.6, 0.9))
    assert run.model == "wrn-28-10"
    long = recipe_named("cifar10-r-mc-la-long")
    assert (long.epochs, long.optimiser.milestones) == (200, (0.5, 0.75))


@pytest.mark.parametrize(
    ("name", "steps", "pixels"), [("madry", 7, 2), ("madry-2x8", 2, 8), ("trades", 10, 2)]
)
def test_multi_step_recipes(name, steps, pixels):
    run = recipe_named(f"cifar10-{name}")
    assert run.adversary.steps == steps
    assert run.adversary.step_size == pytest.approx(pixels / 255)
    assert run.adversary.target == "none"


@pytest.mark.parametrize("pixels", [1, 2, 4, 12])
def test_budget_variants(pixels):
    adversary = recipe_named(f"cifar10-r-mc-la-eps{pixels}").adversary
    assert adversary.epsilon == adversary.step_size == pixels / 255


def test_random_start_is_what_the_r_stands_for():
    for name in ("fgsm", "ll", "mc"):
        assert not recipe_named(f"cifar10-{name}").adversary.random_start
        assert recipe_named(f"cifar10-r-{name}").adversary.random_start


@pytest.mark.parametrize("depth", [50, 101, 152])
def test_imagenet_is_two_steps_of_8_at_16(depth):
    run = recipe_named(f"imagenet-r-mc-la-resnet{depth}")
    assert (run.model, run.image_size, run.epochs) == (f"resnet-{depth}", 224, 100)
    assert (run.data.name, run.data.augment) == ("folder:imagenet", "resized-crop-flip")
    adversary = run.adversary
    assert (adversary.epsilon, adversary.steps, adversary.step_size) == (16 / 255, 2, 8 / 255)
    assert adversary.random_start and adversary.target == "most-confusing"
    assert (run.labels.rule, run.labels.ratio) == ("adversarial", 100)
    optimiser = run.optimiser
    assert (optimiser.batch_size, optimiser.weight_decay) == (256, 1e-4)
    assert (optimiser.learning_rate, optimiser.milestones) == (0.1, (0.3, 0.6, 0.9))


def test_madry_on_imagenet_is_ten_steps_of_3():
    ours, theirs = (recipe_named(f"imagenet-{name}-resnet50") for name in ("r-mc-la", "madry"))
    adversary = theirs.adversary
    assert (adversary.epsilon, adversary.steps, adversary.step_size) == (16 / 255, 10, 3 / 255)
    assert (adversary.target, theirs.labels.rule) == ("none", "one-hot")
    assert theirs.optimiser == ours.optimiser


def test_cifar100_and_svhn():
    run = recipe_named("cifar100-r-mc-la")
    assert (run.data.name, run.labels.ratio, run.labels.top_k) == ("cifar100", 11, None)
    assert run.adversary == recipe_named("cifar10-r-mc-la").adversary
    nine = recipe_named("cifar100-r-mc-la9").labels
    assert (nine.ratio, nine.top_k) == (11, 9)
    assert recipe_named("cifar100-madry").adversary == recipe_named("cifar10-madry").adversary
    for name in ("undefended", "r-mc-la", "r-mc-la-eps4", "madry"):
        run, alike = recipe_named(f"svhn-{name}"), recipe_named(f"cifar10-{name}")
        assert (run.data.name, run.data.augment) == ("svhn", "crop")
        assert run.optimiser.learning_rate == 0.01
        assert (run.method, run.adversary, run.labels) == (
            alike.method,
            alike.adversary,
            alike.labels,
        )
        assert RECIPES[f"svhn-{name}"].summary.startswith("SVHN: ")


def test_unknown_recipe_names_the_nearest():
    with pytest.raises(UserError, match="cifar10-r-mc-la"):
        recipe_named("cifar10-r-mc-al")


def test_recipes_need_no_torch():
    code = "import sys, bilateral.paper.recipes; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
