"""The page in a real browser, opened from disk: it works, asks for nothing and runs nothing else.

Driven by playwright on the system's Chromium; skipped where there is none, unless
BILATERAL_REQUIRE_BROWSER is set, as .ci/run does.
"""

import json
import os
import shutil

import pytest
from run_folders import HOSTILE, make_run, transfer

from bilateral.report.gather import gather
from bilateral.report.page import render
from bilateral.report.transfer import read_transfer

PHOTOGRAPHS = ["airplane", "automobile", "bird", "cat", "deer"]
PHOTOGRAPHS += ["dog", "frog", "horse", "ship", "truck"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def found_browser():
    return next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="module")
def browser():
    program = found_browser()
    if program is None:
        reason = f"no browser: none of {', '.join(BROWSERS)} is installed"
        if os.environ.get("BILATERAL_REQUIRE_BROWSER"):
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A pair of runs like the demo's, one run alone, and a run of hostile names."""
    out = tmp_path_factory.mktemp("browser")
    accuracies = {"fgsm": 0.1425, "pgd20": 0.0125}
    pair = [
        make_run(out / "digits-undefended" / "seed0", accuracies=accuracies),
        make_run(out / "digits-r-mc-la" / "seed0", verdict="suspect"),
    ]
    bad = make_run(out / "<img src=x onerror=alert(1)>" / "seed0", classes=list(HOSTILE.values()))
    matrix = read_transfer(str(transfer(out / "transfer.json", list(HOSTILE.values()))))
    photographs = make_run(out / "cifar10-r-mc-la" / "seed0", classes=PHOTOGRAPHS)
    (photographs / "diagnostics.json").unlink()
    paths = [f"runs/cifar10-r-mc-la-preact-resnet-18/seed{seed}" for seed in range(3)]
    paths = read_transfer(str(transfer(out / "paths.json", paths)))
    written = {
        "pair": render(gather(list(map(str, pair)))),
        "one": render(gather([str(pair[1])])),
        "photographs": render(gather([str(photographs)]), paths),
        "hostile": render(gather([str(bad)]), matrix),
    }
    for name, page in written.items():
        (out / f"{name}.html").write_text(page, encoding="utf-8")
    return out


class Visit:
    """An open page, with all that it said and asked for."""

    def __init__(self, browser, path, width=1200, scheme="light"):
        self.said, self.asked = [], []
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append("dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.page.close()

    def column(self, number):
        return self.page.locator(f"#runs tbody tr > :nth-child({number})").all_inner_texts()

    def text(self, selector):
        shown = self.page.locator(selector).inner_text()
        return shown.translate(dict.fromkeys(map(ord, "\u2068\u2069")))  # names are isolated


@pytest.mark.parametrize("name", ["pair", "one", "photographs", "hostile"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_error_no_request_no_overflow(browser, pages, name, scheme):
    for width in (1200, 375):
        with Visit(browser, pages / f"{name}.html", width, scheme) as visit:
            page = visit.page
            page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            page.keyboard.press("ArrowRight")
            assert visit.said == []
            others = [url for url in visit.asked if not url.startswith("data:")]
            assert others == [(pages / f"{name}.html").as_uri()]
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{name} scrolls sideways at {width} px"
            page.evaluate("document.documentElement.style.fontSize = '200%'")
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{name} scrolls sideways at {width} px and twice the text size"


def test_dark_and_light_follow_the_reader(browser, pages):
    def brightness(scheme, selector, property):
        with Visit(browser, pages / "one.html", scheme=scheme) as visit:
            colour = visit.page.eval_on_selector(
                selector, f"one => getComputedStyle(one).{property}"
            )
        return sum(int(part) for part in colour.strip("rgba()").split(",")[:3]) / 3

    for scheme, bright_page in (("light", True), ("dark", False)):
        paper = brightness(scheme, "html", "backgroundColor")
        ink = brightness(scheme, ".drawing svg text", "fill")
        assert (paper > 200) == bright_page and (ink < 100) == bright_page
        assert abs(paper - ink) > 120, "the text of a drawing can be read"


def test_text_follows_the_readers_size(browser, pages):
    with Visit(browser, pages / "one.html") as visit:
        measure = "getComputedStyle(document.querySelector('table')).fontSize"
        before = float(visit.page.evaluate(measure).removesuffix("px"))
        visit.page.evaluate("document.documentElement.style.fontSize = '200%'")
        after = float(visit.page.evaluate(measure).removesuffix("px"))
        assert after == pytest.approx(2 * before, rel=0.01)


@pytest.mark.parametrize("width", [1200, 375])
def test_drawings_follow_the_readers_size_and_nothing_spills(browser, pages, width):
    """Half of the text's size at least, on a phone too; a drawing that is too wide scrolls."""
    measure = """Math.min(...[...document.querySelectorAll(".drawing text")].map((one) => {
        const { a, b } = one.getScreenCTM();
        return parseFloat(getComputedStyle(one).fontSize) * Math.hypot(a, b);
    }))"""
    spilled = """Math.max(...[...document.querySelectorAll(".drawing")].map((one) =>
        one.scrollWidth - one.clientWidth))"""
    with Visit(browser, pages / "one.html", width) as visit:
        page = visit.page
        assert page.evaluate(measure) >= 10
        assert page.evaluate(spilled) <= 0
        page.evaluate("document.documentElement.style.fontSize = '200%'")
        assert page.evaluate(measure) >= 20
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_table_sorts_by_click_and_by_key(browser, pages):
    with Visit(browser, pages / "pair.html") as visit:
        assert [name.split("/")[0] for name in visit.column(1)] == [
            "digits-undefended",
            "digits-r-mc-la",
        ]
        heading = visit.page.locator("#runs thead th").nth(4)
        assert heading.inner_text().startswith("PGD (%)")
        heading.get_by_role("button").click()
        assert heading.get_attribute("aria-sort") == "descending"
        assert [cell.split()[0] for cell in visit.column(5)] == ["69.2", "1.2"]
        visit.page.keyboard.press("Enter")  # the button has the focus
        assert heading.get_attribute("aria-sort") == "ascending"
        assert [cell.split()[0] for cell in visit.column(5)] == ["1.2", "69.2"]
        unmeasured = visit.page.locator("#runs thead th").nth(6)
        for _ in range(2):  # either way round what was not measured comes last
            unmeasured.get_by_role("button").click()
            assert [cell.split()[0] for cell in visit.column(7)] == ["63.7", "–"]
        assert heading.get_attribute("aria-sort") is None


def test_costs_beyond_a_thousand_sort_as_numbers(browser, tmp_path):
    folder = make_run(tmp_path / "run", accuracies={"fgsm": 0.5, "pgd20": 0.4}, epochs=2)
    path = folder / "evaluation.json"
    evaluation = json.loads(path.read_text())
    evaluation["entries"][0]["attacks"]["pgd20"] |= {"forwards": 400 * 2482.9, "seconds": 1200.5}
    path.write_text(json.dumps(evaluation))
    (tmp_path / "costs.html").write_text(render(gather([str(folder)])))
    with Visit(browser, tmp_path / "costs.html") as visit:
        table = visit.page.locator("[aria-label=Attacks]")
        for column, largest in (("forward passes per image", "2,482.9"), ("seconds", "1,200.5")):
            table.get_by_role("button", name=column, exact=False).first.click()
            assert largest in table.locator("tbody tr").first.inner_text()


def test_keys_step_through_the_gallery(browser, pages):
    with Visit(browser, pages / "one.html") as visit:
        visit.page.locator("#gallery").scroll_into_view_if_needed()
        assert visit.text("[data-place]") == "2 of 12"  # the first that was fooled
        assert "True class 1; fooled. fgsm at 40/255, test image 7" in visit.text("[data-about]")
        before = visit.page.locator("[data-picture=adversarial]").get_attribute("src")
        visit.page.keyboard.press("ArrowRight")
        assert visit.text("[data-place]") == "3 of 12"
        assert "not fooled" in visit.text("[data-about]")
        assert visit.page.locator("[data-picture=adversarial]").get_attribute("src") != before
        for _ in range(3):
            visit.page.keyboard.press("ArrowLeft")
        assert visit.text("[data-place]") == "12 of 12"  # round the end
        visit.page.locator("[data-step='1']").click()
        assert visit.text("[data-place]") == "1 of 12"
        visit.page.locator(".thumbs button").nth(4).click()
        assert visit.text("[data-place]") == "5 of 12"
        assert visit.page.locator(".thumbs [aria-current]").count() == 1
        shown = visit.page.locator("[data-picture=clean]")
        assert shown.evaluate("one => getComputedStyle(one).imageRendering") == "pixelated"
        assert shown.get_attribute("alt").endswith("true class \u20684\u2069")
        bars = visit.page.locator("[data-bars] tr").nth(4).inner_text().split("\t")
        assert bars[1:] == ["100.0", "50.0", "90.0", "90.0"]


def test_keys_elsewhere_leave_the_gallery_alone(browser, pages):
    with Visit(browser, pages / "one.html") as visit:
        visit.page.locator("#gallery").scroll_into_view_if_needed()
        visit.page.locator("#gallery .scroll").focus()
        visit.page.keyboard.press("ArrowRight")
        assert visit.text("[data-place]") == "2 of 12"
        visit.page.evaluate("document.activeElement.blur(); scrollTo(0, 1e6)")
        visit.page.keyboard.press("ArrowRight")
        assert visit.text("[data-place]") == "2 of 12"


def test_the_gallery_is_one_stop_of_the_tab_key(browser, pages):
    with Visit(browser, pages / "one.html") as visit:
        page, current = visit.page, ".thumbs [aria-current]"
        stops = ".thumbs button:not([tabindex='-1'])"
        assert page.locator(stops).count() == 1
        page.locator("[data-step='1']").focus()
        for _ in range(2):  # over the table of labels
            page.keyboard.press("Tab")
        assert page.locator(current).evaluate("one => one === document.activeElement")
        outline = "one => getComputedStyle(one).outlineStyle"
        assert page.locator(current).evaluate(outline) == "solid", "the focus is seen"
        page.keyboard.press("ArrowRight")
        assert visit.text("[data-place]") == "3 of 12"
        assert page.locator(current).evaluate("one => one === document.activeElement")
        assert page.locator(stops).count() == 1
        page.keyboard.press("Tab")
        assert page.locator(".thumbs :focus").count() == 0


def test_all_of_an_example_is_in_sight_on_a_phone(browser, pages):
    with Visit(browser, pages / "photographs.html", 375) as visit:
        box = visit.page.locator("#gallery .scroll")
        assert box.evaluate("one => one.scrollWidth - one.clientWidth") <= 0
        assert (
            visit.page.locator("#gallery .triple figure").evaluate_all(
                "all => new Set(all.map((one) => one.getBoundingClientRect().top)).size"
            )
            == 1
        )


def test_names_over_columns_are_whole(browser, pages):
    """The end of a path is what tells two runs apart."""
    with Visit(browser, pages / "photographs.html") as visit:
        names = visit.page.locator(".heat.accuracy thead bdi")
        assert names.count() == 6
        hidden = "all => all.map((one) => [one.scrollHeight - one.clientHeight, one.clientHeight])"
        for cut, height in names.evaluate_all(hidden):
            assert cut <= 0 and height <= 11 * 16


def test_numbers_after_a_right_to_left_name_keep_their_order(browser, pages):
    with Visit(browser, pages / "hostile.html") as visit:
        visit.page.locator("[data-filter=label] select").select_option(HOSTILE["arabic"])
        where = """(one, letter) => {
            const range = document.createRange();
            const at = one.textContent.lastIndexOf(letter);
            range.setStart(one.firstChild, at);
            range.setEnd(one.firstChild, at + 1);
            return range.getBoundingClientRect().left;
        }"""
        caption = visit.page.locator("[data-caption=clean]")
        caption.evaluate("one => { one.style.whiteSpace = 'nowrap' }")
        assert HOSTILE["arabic"] in caption.inner_text()
        left, right = (caption.evaluate(where, letter) for letter in "(%")
        assert left < right


def test_filters_choose_pictures(browser, pages):
    with Visit(browser, pages / "pair.html") as visit:
        page = visit.page
        assert page.locator(".thumbs button").count() == 24
        page.locator("[data-filter=run] select").select_option("digits-r-mc-la/seed0")
        assert page.locator(".thumbs button").count() == 12
        page.locator("[data-filter=attack] select").select_option("pgd20 at 40/255")
        assert page.locator(".thumbs button").count() == 6
        page.locator("[data-filter=label] select").select_option("3")
        assert visit.text("[data-place]") == "1 of 1"
        assert "True class 3" in visit.text("[data-about]")
        assert "pgd20 at 40/255, test image 21, digits-r-mc-la/seed0" in visit.text("[data-about]")
        page.locator("[data-filter=run] select").select_option("")
        assert page.locator(".thumbs button").count() == 2


def test_hostile_names_are_shown_and_not_run(browser, pages):
    with Visit(browser, pages / "hostile.html") as visit:
        page = visit.page
        classes = page.locator("[data-filter=label] option").all_text_contents()
        assert set(classes[1:]) <= set(HOSTILE.values()) and len(classes) == 7
        for _ in range(12):
            page.keyboard.press("ArrowRight")
        page.wait_for_timeout(100)
        assert page.title().endswith("robustness report") and page.title() != "run"
        assert visit.said == []
        shown = page.locator("main").inner_text()
        for name in HOSTILE.values():
            assert " ".join(name.split()) in " ".join(shown.split()), name


@pytest.mark.parametrize("width", [720, 680, 624])
def test_print_shows_everything_on_white(browser, pages, width):
    """A4 with narrow and with wide margins, and Letter with an inch: no box hides a part."""
    for name in ("one", "photographs", "pair"):
        with Visit(browser, pages / f"{name}.html", scheme="dark") as visit:
            page = visit.page
            page.set_viewport_size({"width": width, "height": 1000})
            page.emulate_media(media="print", color_scheme="dark")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            paper = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
            assert paper == "rgb(253, 253, 251)"
            assert not page.locator(".controls").is_visible()
            assert page.locator(".example").is_visible()
            hidden = "one => one.clientHeight ? one.scrollHeight - one.clientHeight : 0"
            for box in page.locator(".scroll").all():
                assert box.evaluate(hidden) <= 1, "nothing is hidden inside a box"


def test_print_names_what_is_missing(browser, pages, tmp_path):
    """Of several runs the list is folded on the screen; paper cannot be unfolded."""
    folders = [make_run(tmp_path / name / "seed0", epochs=2) for name in ("one", "two")]
    (folders[0] / "curves.json").unlink()
    (tmp_path / "gaps.html").write_text(render(gather(list(map(str, folders)))))
    with Visit(browser, tmp_path / "gaps.html") as visit:
        said = visit.page.locator(".gaps li")
        height = "one => one.checkVisibility({ contentVisibilityAuto: true })"
        assert not said.evaluate(height)
        visit.page.emulate_media(media="print")
        assert said.evaluate(height) and said.bounding_box()["height"] > 5
