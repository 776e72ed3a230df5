"""Claims are true, false or not measured as the rows say; the paper's own figures bear them out."""

import copy

import pytest

from bilateral.paper.claims import CLAIMS
from bilateral.paper.comparisons import STRONGEST, Cell, Check, above, near, times_smaller, under
from bilateral.paper.judging import claims_table, findings
from bilateral.paper.recipes import recipe_named
from bilateral.paper.tables import TABLES, Attack, Clean, Gradient

# The figure has no printed values: accuracies under every attack, by training budget.
FIGURE = {"eps 1": 40.0, "eps 2": 50.0, "eps 4": 60.0, "eps 8": 53.0}
FIGURE |= {"eps 12": 5.0, "eps 16": 3.0}
# Whose printed figures stand in for AutoAttack's, so that every claim holds under it as well.
STAND_IN = {
    "motivation-steps": "PGD20-2",
    "random-start": "CE7 RS",
    "attack-strength": "LL RS",
    "cifar10": "CE20",
    "budget": "CW200",
    "black-box": "another R-MC-LA CE20",
    "svhn": "CE20",
    "imagenet": "CE10-nt",
    "other-attacks": "CE1000",
    "data-size": "CE20",
    "cifar100": "FGSM",
    "label-formulas": "CE20",
}
# claim -> a cell, and a value (in points) that refutes the claim
REFUTED = {
    "label-leaking": ("random-start", "LL", "fgsm-last", 90.0),
    "mc-beats-ll": ("random-start", "R-MC", "pgd7-last", 35.9),
    "labels": ("cifar10", "R-MC-LS", "pgd20-last", 55.4),
    "mc-as-strong-as-fgsm": ("attack-strength", "R-LL", "mc-rs-last", 60.0),
    "ll-is-weak": ("attack-strength", "R-MC", "ll-last", 72.0),
    "fewer-steps": ("motivation-steps", "PGD2-8", "pgd100-last", 45.0),
    "black-box": ("black-box", "R-MC-LA", "another R-MC-LA CE20", 55.0),
    "black-box-source": ("black-box", "R-MC-LA+", "undefended FGSM", 74.0),
    "gradients": ("gradients", "SVHN madry", "mean", 16.0),
    "budget-4-beats-8": ("budget", "R-MC-LA (eps 4)", "pgd200-cw-last", 51.0),
    "budget-4-is-best": ("steps-figure", "R-MC-LA (eps 2)", "pgd100-last", 60.5),
    "budget-12-collapses": ("steps-figure", "R-MC-LA (eps 12)", "pgd100-last", 11.0),
    "budget-16-collapses": ("steps-figure", "R-MC-LA (eps 16)", "pgd100-last", 11.0),
    "margin-loss": ("budget", "R-MC-LA+ (eps 8)", "pgd100-cw-last", 55.3),
    "margin-loss-madry": ("budget", "Madry*", "pgd100-cw-last", 46.0),
    "thousand-steps": ("budget", "R-MC-LA+ (eps 4)", "pgd1000-cw-last", 58.0),
    "beats-madry": ("cifar10", "Madry*", "pgd20-last", 55.4),
    "beats-madry-svhn": ("svhn", "Madry*", "fgsm-last", 67.0),
    "one-step-is-enough": ("cifar10", "Madry-LA+", "pgd20-last", 58.0),
    "long-training": ("cifar10", "Madry-LA+", "pgd20-last", 53.0),
    "nine-classes": ("cifar100", "R-MC-LA9", "fgsm-last", 30.0),
    "label-formula": ("label-formulas", "R-MC-LA+ (sup)", "pgd20-last", 57.6),
    "random-start": ("random-start", "MC", "pgd7-nors-last", 37.0),
}
# claim -> a row, and an accuracy under AutoAttack that refutes it there
REFUTED_STRONG = {
    "label-leaking": ("random-start", "FGSM", 6.0),
    "mc-beats-ll": ("random-start", "R-LL", 48.5),
    "labels": ("cifar10", "R-MC", 54.0),
    "fewer-steps": ("motivation-steps", "PGD7-2", 49.0),
    "black-box": ("black-box", "R-MC-LA", 72.0),
    "budget-4-beats-8": ("budget", "R-MC-LA (eps 4)", 30.0),
    "budget-4-is-best": ("steps-figure", "R-MC-LA (eps 4)", 30.0),
    "budget-12-collapses": ("steps-figure", "R-MC-LA (eps 12)", 20.0),
    "budget-16-collapses": ("steps-figure", "R-MC-LA (eps 16)", 20.0),
    "thousand-steps": ("budget", "R-MC-LA (eps 8)", 32.0),
    "beats-madry": ("cifar10", "R-MC-LA", 32.1),
    "beats-madry-svhn": ("svhn", "R-MC-LA (eps 8)", 30.0),
    "one-step-is-enough": ("cifar10", "R-MC-LA", 32.1),
    "long-training": ("cifar10", "R-MC-LA+", 30.0),
    "nine-classes": ("cifar100", "R-MC-LA9+", 10.0),
    "label-formula": ("label-formulas", "R-MC-LA (main)", 30.0),
}


def measured(row, columns, cells):
    """A row of `results/<table>.json` from figures by column title."""
    attacks, other = {}, {}
    for column in columns:
        if column.title in cells and isinstance(column.measure, Attack):
            attacks[column.measure.name] = {"accuracy": cells[column.title] / 100, "images": 1000}
        elif column.title in cells and not isinstance(column.measure, Clean):
            unit = 1 if isinstance(column.measure, Gradient) else 100
            other[column.title] = {"value": cells[column.title] / unit, "images": 10000}
    return {
        "title": row.title,
        "recipe": row.recipe,
        "model": "wrn-28-10",
        "epochs": recipe_named(row.recipe).epochs,
        "clean_accuracy": cells["clean"] / 100 if "clean" in cells else None,
        "attacks": attacks,
        "other": other,
    }


def results_of_the_paper(strongest=None):
    """The paper's figures as if they had been measured; AutoAttack's are made up if it is named."""
    results = {}
    for name, table in TABLES.items():
        results[name] = []
        for row in table.rows:
            if row.recipe is None:
                continue
            cells = dict(row.printed)
            if table.is_figure:
                accuracy = FIGURE[row.title.split("(")[1].rstrip(")")]
                cells = {column.title: accuracy for column in table.columns[:-1]}
            found = measured(row, table.columns, cells)
            if strongest is not None and name in (*STAND_IN, "steps-figure") and cells:
                accuracy = cells["200" if table.is_figure else STAND_IN[name]]
                if name == "black-box":
                    accuracy -= 1
                found["attacks"][strongest] = {"accuracy": accuracy / 100, "images": 1000}
            results[name].append(found)
    return results


def row_of(results, table, title):
    (row,) = [row for row in results[table] if row["title"] == title]
    return row


def put(results, table, title, column, value):
    """The results with another figure in a cell; none takes it out."""
    results = copy.deepcopy(results)
    row = row_of(results, table, title)
    if column in row["other"]:
        row["other"][column]["value"] = value if value is None else value / 100
    elif value is None:
        del row["attacks"][column]
    else:
        row["attacks"][column] = {"accuracy": value / 100, "images": 1000}
    return results


def columns_known(table):
    names = {"clean"}
    for column in TABLES[table].columns:
        measure = column.measure
        names.add(measure.name if isinstance(measure, Attack) else column.title)
    return names


@pytest.mark.parametrize("name", CLAIMS)
class TestEveryClaim:
    def test_holds_on_the_papers_figures(self, name):
        finding = CLAIMS[name].check(results_of_the_paper())
        assert finding.holds is True, finding

    def test_is_refuted_by_one_figure(self, name):
        table, row, column, value = REFUTED[name]
        finding = CLAIMS[name].check(put(results_of_the_paper(), table, row, column, value))
        assert finding.holds is False
        assert row in finding.reading and "epochs" in finding.reading

    def test_is_not_judged_without_its_figures(self, name):
        claim = CLAIMS[name]
        assert claim.check({}).holds is None
        results = results_of_the_paper()
        assert claim.check({**results, claim.tables[0]: []}).holds in (
            # Long training is claimed of two tables, each of which is enough.
            (True,) if name == "long-training" else (None,)
        )
        if not claim.check.partial:
            table, row, column, _ = REFUTED[name]
            finding = claim.check(put(results, table, row, column, None))
            assert (finding.holds, finding.reading) == (None, "")

    def test_rests_on_cells_that_exist(self, name):
        claim = CLAIMS[name]
        checks = [claim.check] + [claim.under_autoattack] * (claim.under_autoattack is not None)
        for check in checks:
            for comparison in check.comparisons:
                for cell in comparison.cells:
                    assert cell.table in claim.tables
                    assert cell.column in columns_known(cell.table), cell
                    (row,) = [row for row in TABLES[cell.table].rows if row.title == cell.row]
                    assert not row.quoted
                # A reading names the row or the column that they share.
                rows, columns = (
                    {getattr(c, key) for c in comparison.cells} for key in ("row", "column")
                )
                assert 1 in (len(rows), len(columns))


@pytest.mark.parametrize("name", REFUTED_STRONG)
class TestUnderAutoAttack:
    @pytest.mark.parametrize("strongest", ["autoattack", "apgd"])
    def test_the_same_comparison_is_made(self, name, strongest):
        check = CLAIMS[name].under_autoattack
        results = results_of_the_paper(strongest)
        assert check(results).holds is True, check(results)
        table, row, value = REFUTED_STRONG[name]
        finding = check(put(results, table, row, strongest, value))
        assert finding.holds is False
        assert strongest in finding.reading

    def test_is_not_judged_without_it(self, name):
        assert CLAIMS[name].under_autoattack(results_of_the_paper()).holds is None


def test_every_claim_is_tested():
    assert set(REFUTED) == set(CLAIMS)
    assert set(REFUTED_STRONG) == {n for n, c in CLAIMS.items() if c.under_autoattack is not None}


def row(title, epochs=100, model="wrn-28-10", **attacks):
    return {
        "title": title,
        "model": model,
        "epochs": epochs,
        "clean_accuracy": 0.9,
        "attacks": {name: {"accuracy": value, "images": 10} for name, value in attacks.items()},
    }


ONE, OTHER = Cell("t", "one", "pgd"), Cell("t", "other", "pgd")


@pytest.mark.parametrize(
    ("comparison", "first", "second", "holds"),
    [
        (above(ONE, OTHER), 0.5, 0.5, False),
        (above(ONE, OTHER), 0.501, 0.5, True),
        (above(ONE, OTHER, 10), 0.59, 0.5, False),
        (above(ONE, OTHER, 10), 0.61, 0.5, True),
        (above(ONE, OTHER, -1), 0.495, 0.5, True),
        (near(ONE, OTHER, 3), 0.5, 0.529, True),
        (near(ONE, OTHER, 3), 0.531, 0.5, False),
        (under(ONE, 5), 0.049, 0.5, True),
        (under(ONE, 5), 0.051, 0.5, False),
        (times_smaller(ONE, OTHER, 5), 0.1, 0.51, True),
        (times_smaller(ONE, OTHER, 5), 0.1, 0.49, False),
    ],
)
def test_comparisons(comparison, first, second, holds):
    results = {"t": [row("one", pgd=first), row("other", pgd=second)]}
    assert Check((comparison,))(results).holds is holds


def test_the_reading_shows_the_closest_comparison_and_what_was_trained():
    far = above(ONE, Cell("t", "third", "pgd"))
    results = {"t": [row("one", pgd=0.5), row("other", 30, pgd=0.481), row("third", pgd=0.2)]}
    finding = Check((far, above(ONE, OTHER)))(results)
    assert finding.reading == (
        "2 of 2 comparisons, the closest pgd: one 50, other 48.1 (wrn-28-10, 30 and 100 epochs)"
    )
    assert Check((under(ONE, 60),))(results).reading == "pgd: one 50 (wrn-28-10, 100 epochs)"
    failing = Check((above(OTHER, ONE), above(Cell("t", "third", "pgd"), ONE)))(results)
    assert failing.reading.startswith("0 of 2 comparisons, the worst pgd: third 20, one 50")


def test_figures_of_different_numbers_of_images_say_so():
    """A comparison of a thousand images with ten thousand is coarser than it looks."""
    one, other = row("one", pgd=0.5), row("other", pgd=0.481)
    compared = Check((above(ONE, OTHER),))
    one["attacks"]["pgd"]["images"], other["attacks"]["pgd"]["images"] = 10_000, 1000
    finding = compared({"t": [one, other]})
    assert finding.reading.startswith("pgd: one 50 (n = 10,000), other 48.1 (n = 1,000) (wrn-28-10")
    other["attacks"]["pgd"]["images"] = 10_000
    assert compared({"t": [one, other]}).reading.startswith("pgd: one 50, other 48.1 (wrn")
    one["clean_images"], one["clean_accuracy"] = 500, 0.6
    leak = Check((above(Cell("t", "one", "clean"), ONE),))
    said = leak({"t": [one]}).reading
    assert said.startswith("one: clean 60 (n = 500), pgd 50 (n = 10,000) (wrn")


def test_of_several_schedules_the_longest_counts():
    results = {"t": [row("one", 100, pgd=0.5), row("one", 30, pgd=0.1)]}
    assert Check((under(ONE, 20),))(results).holds is False


def test_figures_of_one_title_are_of_one_model():
    """Two models were trained under the title; each holds a figure that the other lacks."""
    within = Check((near(ONE, Cell("t", "one", "more"), 2),))
    apart = [row("one", pgd=0.5, other=0.4), row("one", more=0.5)]
    assert within({"t": apart}).holds is None
    again = row("one", 30, pgd=0.45, more=0.4)
    finding = within({"t": [*apart, again]})
    assert finding.reading == "one: pgd 45, more 40 (wrn-28-10, 30 epochs)"
    assert finding.holds is False
    both = Check((under(ONE, 60), under(Cell("t", "one", "more"), 60)))
    assert both({"t": apart}).holds is None, "each comparison would find a model of its own"


def test_a_claim_and_its_twin_under_autoattack_are_of_one_model():
    """A model that has all of it is taken, also where a longer schedule has the claim's part."""
    results = results_of_the_paper(STRONGEST)
    title = "R-MC-LA+ (eps 4)"
    whole = row_of(results, "budget", title)
    longer = {**whole, "epochs": 999, "attacks": dict(whole["attacks"])}
    del longer["attacks"][STRONGEST]
    results["budget"].append(longer)
    (found,) = (one for one in findings(results) if one.claim.name == "thousand-steps")
    assert found.finding.holds and "999 epochs" not in found.finding.reading
    assert found.under_autoattack.holds is not None


def test_autoattack_is_never_set_beside_apgd():
    """APGD alone leaves more: it would flatter the row that has nothing else."""
    comparison = Check((above(Cell("t", "one", STRONGEST), Cell("t", "other", STRONGEST)),))
    one = row("one", apgd=0.5)
    assert comparison({"t": [one, row("other", autoattack=0.4)]}).holds is None
    both = row("other", autoattack=0.4, apgd=0.6)
    finding = comparison({"t": [one, both]})
    assert finding.holds is False and finding.reading.startswith("apgd: one 50, other 60")


def test_networks_are_not_mixed():
    """A claim is judged on the network with most rows, or on one that has all it needs."""
    results = results_of_the_paper()
    small = copy.deepcopy(results["svhn"])
    for found in small:
        found["model"] = "preact-resnet-18"
    row_of({"svhn": small}, "svhn", "Madry*")["attacks"]["pgd20-last"]["accuracy"] = 0.99
    judged = {one.claim.name: one.finding for one in findings({**results, "svhn": small})}
    assert judged["beats-madry-svhn"].holds is False
    assert "preact-resnet-18" in judged["beats-madry-svhn"].reading
    both = {**results, "svhn": [*small, *results["svhn"]]}
    judged = {one.claim.name: one.finding for one in findings(both)}
    assert judged["beats-madry-svhn"].holds is True
    halves = [found for found in small if found["title"] == "Madry*"]
    halves += [found for found in results["svhn"] if found["title"] != "Madry*"]
    judged = {one.claim.name: one.finding for one in findings({"svhn": halves})}
    assert judged["beats-madry-svhn"].holds is None


def test_table_of_claims():
    results = put(results_of_the_paper("autoattack"), "cifar10", "Madry*", "autoattack", 60)
    results["svhn"] = []
    head, rows = claims_table(results)
    assert head == ["claim", "holds", "reading", "under AutoAttack"]
    by_name = dict(zip(CLAIMS, rows, strict=True))
    assert [row[0] for row in rows] == [claim.text for claim in CLAIMS.values()]
    assert by_name["beats-madry"][1:] == [
        "true",
        "3 of 3 comparisons, the closest pgd20-last: R-MC-LA 55.3, Madry* 47.6 "
        "(wrn-28-10, 100 epochs)",
        "false: autoattack: R-MC-LA 55.3, Madry* 60 (wrn-28-10, 100 epochs)",
    ]
    assert by_name["beats-madry-svhn"][1:] == ["not measured", "", "not measured"]
    assert by_name["gradients"][1] == "true" and by_name["gradients"][3] == "does not apply"
    assert {row[1] for row in claims_table({})[1]} == {"not measured"}


def test_a_claim_that_is_measured_in_part_says_so():
    """Madry-LA+ is the long half of the claim; without it no more is known than the short one."""
    results = results_of_the_paper()
    results["cifar10"] = [one for one in results["cifar10"] if one["title"] != "Madry-LA+"]
    lines = {line[0]: line[1] for line in claims_table(results)[1]}
    assert lines[CLAIMS["one-step-is-enough"].text] == "true so far, 1 not measured"
    assert lines[CLAIMS["beats-madry"].text] == "true"


def test_rows_of_before_titles_are_passed_over():
    """`results/cifar10.json` began without titles and other figures."""
    old = {"recipe": "cifar10-r-mc-la", "model": "preact-resnet-18", "epochs": 30}
    old |= {"clean_accuracy": 0.83, "attacks": {"pgd20": {"accuracy": 0.386, "images": 10000}}}
    assert all(one.finding.holds is None for one in findings({"cifar10": [old]}))
