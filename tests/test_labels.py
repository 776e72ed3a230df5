"""The label formulas against an independent slow version and their two invariants."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bilateral.config import Labels
from bilateral.labels import default_ratio, soft_cross_entropy, soft_labels


def slow_label(logits, label, rule, ratio, gamma, top_k=None):
    """The paper's equations image by image in Python floats, with v = -log p and epsilon_y."""
    top = max(logits)
    log_sum = top + math.log(sum(math.exp(z - top) for z in logits))
    v = {k: log_sum - z for k, z in enumerate(logits) if k != label}
    if top_k is not None:
        v = dict(sorted(v.items(), key=lambda item: -item[1])[:top_k])
    n_wrong, v_mc, v_ll = len(v), min(v.values()), max(v.values())
    mean = sum(v.values()) / n_wrong
    if rule == "adversarial":
        spread = (v_ll - v_mc + gamma) / (mean - v_mc + gamma)
        epsilon_y = 1 / (1 + ratio / n_wrong * spread)
        share = {
            k: epsilon_y / n_wrong * (x - v_mc + gamma) / (mean - v_mc + gamma)
            for k, x in v.items()
        }
    else:
        epsilon_y = 1 / (1 + ratio * v_ll / sum(v.values()))
        share = {k: epsilon_y * x / sum(v.values()) for k, x in v.items()}
    return [1 - epsilon_y if k == label else share.get(k, 0.0) for k in range(len(logits))]


@st.composite
def logits_and_label(draw, largest=20.0, counts=range(2, 31)):
    count = draw(st.sampled_from(counts))
    numbers = st.floats(-largest, largest, width=32)
    logits = draw(st.lists(numbers, min_size=count, max_size=count))
    return logits, draw(st.integers(0, count - 1))


@settings(deadline=None, max_examples=150)
@given(logits_and_label(), st.sampled_from(["adversarial", "supplementary"]), st.floats(1, 100))
def test_formula_equals_the_slow_version(case, rule, ratio):
    logits, label = case
    fast = soft_labels(
        torch.tensor([logits]), torch.tensor([label]), Labels(rule=rule, ratio=ratio)
    )
    slow = slow_label(logits, label, rule, ratio, 0.01)
    torch.testing.assert_close(fast[0], torch.tensor(slow), rtol=2e-3, atol=2e-5)


@settings(deadline=None, max_examples=150)
@given(
    logits_and_label(1e4, [2, 3, 10, 100, 1000]),
    st.sampled_from(["adversarial", "supplementary"]),
    st.sampled_from([1.0, 9.0, 11.0, 100.0]),
    st.sampled_from([None, 1, 9]),
)
def test_invariants_hold_for_large_logits(case, rule, ratio, top_k):
    logits, label = case
    rule_settings = Labels(rule=rule, ratio=ratio, top_k=top_k)
    row = soft_labels(torch.tensor([logits]), torch.tensor([label]), rule_settings)[0].double()
    assert row.min() >= 0
    assert abs(row.sum() - 1) <= 1e-6
    wrong = torch.cat([row[:label], row[label + 1 :]])
    assert abs(row[label] / wrong.max() - ratio) <= 1e-6 * ratio


def test_top_k_shares_among_the_least_likely():
    logits = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0]])
    row = soft_labels(logits, torch.tensor([1]), Labels(rule="adversarial", ratio=9, top_k=2))
    slow = slow_label(logits[0].tolist(), 1, "adversarial", 9, 0.01, top_k=2)
    torch.testing.assert_close(row[0], torch.tensor(slow), rtol=1e-5, atol=1e-7)
    assert row[0, 0] == 0 and row[0, 2] == 0


def test_equal_wrong_logits_are_label_smoothing():
    logits = torch.tensor([[3.0] + [0.0] * 9])
    row = soft_labels(logits, torch.tensor([0]), Labels(rule="adversarial", ratio=9))
    smooth = soft_labels(logits, torch.tensor([0]), Labels(rule="smoothing", budget=0.5))
    torch.testing.assert_close(row, smooth)


def test_the_most_confusing_class_gets_least():
    row = soft_labels(
        torch.tensor([[0.0, 4.0, 1.0]]), torch.tensor([0]), Labels(rule="adversarial", ratio=2)
    )
    assert row[0, 1] < row[0, 2]


def test_default_ratio_keeps_the_true_class_at_half():
    assert [default_ratio(classes) for classes in (2, 3, 10, 1000)] == [2, 2, 9, 999]
    logits = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)) * 5
    labels = torch.arange(50) % 7
    rows = soft_labels(logits, labels, Labels(rule="adversarial"))
    assert (rows[torch.arange(50), labels] >= 0.5 - 1e-6).all()


@pytest.mark.parametrize("rule", ["one-hot", "smoothing", "adversarial", "supplementary"])
def test_labels_are_float32_constants(rule):
    logits = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    rows = soft_labels(logits, torch.arange(4), Labels(rule=rule))
    assert rows.dtype == torch.float32 and not rows.requires_grad


def test_soft_cross_entropy_is_torchs_own():
    logits, rows = torch.randn(8, 5), torch.rand(8, 5).softmax(1)
    expected = torch.nn.functional.cross_entropy(logits, rows)
    torch.testing.assert_close(soft_cross_entropy(logits, rows), expected)


def test_soft_cross_entropy_of_low_precision_logits_is_taken_in_float32():
    """A logarithm in bfloat16 has three digits; only the logits themselves may be rounded."""
    logits = (10 * torch.randn(8, 5, generator=torch.Generator().manual_seed(0))).bfloat16()
    rows = torch.rand(8, 5, generator=torch.Generator().manual_seed(1)).softmax(1)
    expected = torch.nn.functional.cross_entropy(logits.float(), rows)
    torch.testing.assert_close(soft_cross_entropy(logits, rows), expected)


@pytest.mark.parametrize("rule", ["one-hot", "smoothing", "adversarial", "supplementary"])
def test_mixing_moves_every_rule_towards_the_uniform_label(rule):
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
    labels = torch.arange(6) % 4
    plain = soft_labels(logits, labels, Labels(rule=rule))
    mixed = soft_labels(logits, labels, Labels(rule=rule, mix=0.3))
    torch.testing.assert_close(mixed, 0.7 * plain + 0.3 * torch.full_like(plain, 0.25))
    torch.testing.assert_close(mixed.sum(1), torch.ones(6))
