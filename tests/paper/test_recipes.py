"""The recipes hold what the paper says of them."""

import subprocess
import sys

import pytest

from bilateral.errors import UserError
from bilateral.paper.recipes import RECIPES, recipe_named

CONTRACT = """
undefended fgsm r-fgsm ll r-ll mc r-mc r-fgsm-ls r-mc-ls r-mc-la r-mc-la-eps1 r-mc-la-eps2
r-mc-la-eps4 r-mc-la-eps12 r-mc-la-sup madry madry-2x8 madry-la trades
"""


def test_every_name_of_the_contract_is_there():
    names = {"digits-undefended", "digits-r-mc-la"}
    names |= {f"cifar10-{name}{suffix}" for name in CONTRACT.split() for suffix in ("", "-long")}
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


def test_unknown_recipe_names_the_nearest():
    with pytest.raises(UserError, match="cifar10-r-mc-la"):
        recipe_named("cifar10-r-mc-al")


def test_recipes_need_no_torch():
    code = "import sys, bilateral.paper.recipes; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
