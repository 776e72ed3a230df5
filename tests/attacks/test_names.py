"""Attacks by name: what a suffix sets, and which do not go together."""

import pytest

from bilateral.attacks.table import ATTACKS, attack_named
from bilateral.errors import UserError


def test_suffixes_combine_in_any_order():
    plain = attack_named("pgd20", 8 / 255)
    found = attack_named("pgd20-cw-rd-step1.6-x10", 8 / 255)
    assert found == attack_named("pgd20-x10-step1.6-rd-cw", 8 / 255)
    assert found == plain.with_fields(
        loss="margin", target="random", step_size=1.6 / 255, restarts=10
    )
    assert attack_named("pgd20-nors", 8 / 255) == plain.with_fields(random_start=False)
    assert attack_named("pgd20-last", 8 / 255) == plain.with_fields(iterate="last")


def test_one_start_is_the_plain_attack():
    assert attack_named("pgd7-x1", 0.1) == ATTACKS["pgd7"].settings(0.1)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pgd20-x10-last", "does not combine with -xN"),
        ("pgd20-nors-x10", "-xN asks for random starts, -nors for none"),
        ("pgd20-x0", "unknown attack"),
        ("pgd20-x", "unknown attack"),
        ("pgd20-x10000", "unknown attack"),
        ("fgsm-x3", "unknown attack"),
        ("pgd0", "unknown attack"),
        ("pgd20-step0", "S above 0"),
        ("autoattack-last", "unknown attack"),
        ("apgd-ce-last", "unknown attack"),
    ],
)
def test_what_does_not_go_together_is_refused(name, reason):
    with pytest.raises(UserError, match=reason):
        attack_named(name, 8 / 255)
