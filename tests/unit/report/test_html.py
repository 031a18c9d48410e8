"""Pages in a browser: headless Chromium, where there is one."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from gguf_verify.report import card
from gguf_verify.report.html import page as pages
from gguf_verify.report.writer import Form, Kind
from gguf_verify_nightly.report import html as night_page
from gguf_verify_nightly.summary import NightReport
from tests.support import needs, nights, records
from tests.support.audits import audited
from tests.support.bisection_records import bisections
from tests.support.bisection_records import named as bisection_named
from tests.support.graph_records import graphs, named
from tests.support.nights import HOSTILE, SCRIPT, report, run_result

pytestmark = pytest.mark.needs("chromium")

WRONG = nights.gemm_names(21)[8]
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}


#: The pages are our own, so that no sandbox is needed; root, as which continuous integration runs, cannot have one. The
#: browser must ask nobody for updates or anything else.
BROWSER_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-gpu", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-extensions",
    "--disable-sync", "--disable-domain-reliability", "--no-pings", "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = needs.browser() or ""
    for argument in BROWSER_OPTIONS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    driver.command_executor.client_config.timeout = 600  # axe takes long where the machine is busy
    try:
        yield driver
    finally:
        driver.quit()


Opener = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Opener]:
    """Open a page; at its end nothing was said on the console, and nothing but the page was asked for."""

    def open_page(page: str, size: str = "desktop", dark: bool = False, script: bool = True) -> Any:
        width, height = SIZES[size]
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        wishes = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not script})
        path = tmp_path / "page.html"
        path.write_text(page, encoding="utf-8")
        browser.get(path.as_uri())
        return browser

    browser.get_log("browser"), browser.get_log("performance")
    yield open_page
    assert [entry["message"] for entry in browser.get_log("browser")] == []
    told = [entry["message"] for entry in browser.get_log("performance")]
    assert all("page.html" in message for message in told if "Network.requestWillBeSent" in message)
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def seen(browser: Any, element: Any) -> bool:
    return bool(browser.execute_script("return arguments[0].checkVisibility({visibilityProperty: true})", element))


def unfold(browser: Any, name: str = "") -> None:
    """Open a fold of the page as a reader does, or all of them."""
    if name:
        browser.find_element(By.CSS_SELECTOR, f'[data-fold="{name}"] > summary').click()
    else:
        browser.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")


def column(browser: Any, table: str, n: int) -> list[str]:
    """Texts of a column, of the rows that are shown."""
    found: list[str] = browser.execute_script(
        "return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)].filter(r => !r.hidden)"
        ".map(r => r.cells[arguments[1]].innerText.trim())", table, n,
    )  # fmt: skip
    return found


def test_tables_sort(opened: Opener) -> None:
    browser = opened(night_page.render(report()))
    unfold(browser, "cells")
    head = browser.find_element(By.CSS_SELECTOR, "#t-cells th:nth-child(8)")
    button = head.find_element(By.TAG_NAME, "button")
    button.click()
    assert head.get_attribute("aria-sort") == "descending"
    values = column(browser, "t-cells", 7)
    assert values[0] == "✕ 57"
    numbers = [float(v.removeprefix("✕ ")) for v in values if v != "–"]
    assert numbers == sorted(numbers, reverse=True)
    assert values[-2:] == ["–", "–"], "what has no value is least"
    button.click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(browser, "t-cells", 7)[-1] == "✕ 57"
    names = browser.find_element(By.CSS_SELECTOR, "#t-cells th:nth-child(2)")
    names.find_element(By.TAG_NAME, "button").click()
    assert head.get_attribute("aria-sort") is None
    assert column(browser, "t-cells", 1) == sorted(column(browser, "t-cells", 1))
    told = browser.find_element(By.CSS_SELECTOR, '[data-for="t-cells"] .told')
    assert told.text == "24 of 24 rows, sorted by type, ascending"


def test_tables_filter(opened: Opener) -> None:
    browser = opened(night_page.render(report()))
    unfold(browser, "cells")
    controls = browser.find_element(By.CSS_SELECTOR, '[data-for="t-cells"]')
    field = controls.find_element(By.TAG_NAME, "input")
    field.send_keys("q5_1 F32")
    assert column(browser, "t-cells", 1) == ["Q5_1", "Q5_1"]
    assert controls.find_element(By.CSS_SELECTOR, ".told").text == "2 of 24 rows"
    field.clear()
    field.send_keys(" ")
    assert len(column(browser, "t-cells", 0)) == 24
    Select(controls.find_element(By.TAG_NAME, "select")).select_by_visible_text("crashed")
    assert column(browser, "t-cells", 3) == ["! crashed"]


def test_keyboard(opened: Opener) -> None:
    browser = opened(pages.run(run_result(wrong=WRONG)))

    def press(key: str) -> Any:
        ActionChains(browser).send_keys(key).perform()
        return browser.switch_to.active_element

    first = press(Keys.TAB)
    assert first.text == "Skip to the report"
    assert first.rect["x"] >= 0, "the skip link is seen where it has the focus"
    for _ in range(60):
        at = press(Keys.TAB)
        if at.tag_name == "summary" and at.text.endswith("GEMMs"):
            break
    press(Keys.ENTER)
    for _ in range(9):
        at = press(Keys.TAB)
        if at.tag_name == "button":
            break
    assert at.find_element(By.XPATH, "ancestor::table").get_attribute("id") == "t-gemms"
    outline = browser.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "the focus is seen"
    head = at.find_element(By.XPATH, "ancestor::th")
    press(Keys.ENTER)
    assert head.get_attribute("aria-sort") == "ascending"
    press(Keys.SPACE)
    assert head.get_attribute("aria-sort") == "descending"
    assert column(browser, "t-gemms", 0) == sorted(column(browser, "t-gemms", 0), reverse=True)


@pytest.mark.parametrize("script", [True, False])
def test_xray_opens(opened: Opener, script: bool) -> None:
    browser = opened(night_page.render(report()), script=script)
    cell = browser.find_element(By.CSS_SELECTOR, "#troubled details.cell")
    xray = cell.find_element(By.CSS_SELECTOR, ".xray")
    assert not seen(browser, xray)
    cell.find_element(By.TAG_NAME, "summary").click()
    assert seen(browser, xray)
    assert "X-ray of the block" in xray.text
    assert xray.find_element(By.CSS_SELECTOR, ".field:nth-child(2) code").text.split()[:2] == ["56", "03"]
    xray.find_element(By.TAG_NAME, "summary").click()
    assert len(xray.find_elements(By.CSS_SELECTOR, ".values li")) == 32
    assert "got" in cell.text
    assert "-0.0018" in cell.text


def test_without_javascript(opened: Opener) -> None:
    browser = opened(pages.run(run_result(wrong=WRONG)), script=False)
    assert not browser.find_elements(By.CSS_SELECTOR, "th button")
    for summary in browser.find_elements(By.TAG_NAME, "summary"):
        if seen(browser, summary):
            summary.click()
    for table in browser.find_elements(By.TAG_NAME, "table"):
        assert seen(browser, table)
    for controls in browser.find_elements(By.CSS_SELECTOR, ".controls"):
        assert not seen(browser, controls), "what would do nothing is not shown"


def test_a_script_stays_text(opened: Opener) -> None:
    browser = opened(pages.run(run_result([*HOSTILE], SCRIPT)))
    unfold(browser, "gemms")
    first = browser.find_element(By.CSS_SELECTOR, "#t-gemms tbody th")
    assert first.text == SCRIPT
    assert len(browser.find_elements(By.TAG_NAME, "script")) == 1
    assert not browser.find_elements(By.TAG_NAME, "img")
    assert SCRIPT in browser.find_element(By.CSS_SELECTOR, "#first .facts").text


def test_the_policy_lets_nothing_else_run(browser: Any, tmp_path: Path) -> None:
    page = pages.run(run_result())
    path = tmp_path / "altered.html"
    more = "<script>document.title = 'taken'</script><p style='color:red' id=p>x</p>"
    path.write_text(page.replace("</main>", more + "</main>"))
    browser.get(path.as_uri())
    assert "taken" not in browser.title
    colour = browser.execute_script("return getComputedStyle(document.getElementById('p')).color")
    assert colour != "rgb(255, 0, 0)"
    told = " ".join(entry["message"] for entry in browser.get_log("browser"))
    assert "Content Security Policy" in told


#: Functions of the scripts below. `misplaced`: texts of a picture that it clips, or that are over another text.
#: `contrast`: of two colours, as WCAG 2.2 defines it.
FUNCTIONS = """
const misplaced = (svg) => {
  const room = svg.viewBox.baseVal, boxes = [], wrong = [];
  for (const text of svg.querySelectorAll("text")) {
    const b = text.getBBox(), said = text.textContent;
    const right = b.x + b.width, low = b.y + b.height;
    if (b.x < -0.5 || b.y < -0.5 || right > room.width + 0.5 || low > room.height + 0.5) wrong.push(`clipped: ${said}`);
    for (const [other, o] of boxes) {
      const beside = b.x >= o.x + o.width - 1 || o.x >= right - 1;
      const slack = Math.min(b.height, o.height) / 6;
      if (!beside && b.y < o.y + o.height - slack && o.y < low - slack) wrong.push(`${said} over ${other}`);
    }
    boxes.push([said, b]);
  }
  return wrong;
};
const part = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const light = (colour) => {
  const [r, g, b] = colour.match(/[0-9.]+/g).slice(0, 3).map((c) => part(Number(c) / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (a, b) => {
  const [x, y] = [light(a), light(b)].sort((p, q) => p - q);
  return (y + 0.05) / (x + 0.05);
};
"""

#: How many maps are seen, and what is wrong with their texts: also wider than their cell, or hard to read on it.
MAPS = (
    FUNCTIONS
    + """
const wrong = [];
const maps = [...document.querySelectorAll("svg.pic")].filter((svg) => svg.checkVisibility());
for (const svg of maps) {
  wrong.push(...misplaced(svg));
  const cells = [...svg.querySelectorAll("rect.fill")].map((rect) => [rect, rect.getBBox()]);
  const ground = getComputedStyle(svg.closest("section")).backgroundColor;
  for (const text of svg.querySelectorAll("text")) {
    const b = text.getBBox(), said = text.textContent;
    let under = ground;
    if (text.classList.contains("on")) {
      const y = b.y + b.height / 2;
      const holds = cells.find(([, c]) => c.x <= b.x && b.x < c.x + c.width && c.y <= y && y < c.y + c.height);
      if (!holds) { wrong.push(`in no cell: ${said}`); continue; }
      if (b.x + b.width > holds[1].x + holds[1].width) wrong.push(`wider than its cell: ${said}`);
      under = getComputedStyle(holds[0]).fill;
    }
    const ratio = contrast(getComputedStyle(text).fill, under);
    if (ratio < 4.5) wrong.push(`contrast ${ratio.toFixed(2)}: ${said}`);
  }
}
return [maps.length, wrong];
"""
)

#: Cells, facts and labels of the page that hide a part of their text.
CLIPPED = """
const hides = (e) => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX !== "visible";
return [...document.querySelectorAll("td, th, dd, .badge, summary")]
  .filter((e) => e.checkVisibility() && hides(e)).map((e) => e.textContent.trim().slice(0, 60));
"""


@cache
def shown() -> dict[str, str]:
    """A page of each kind."""
    small = nights.gemm_names(7)
    return {
        "wrong": pages.run(nights.explained(WRONG)), "passed": pages.run(run_result(small)),
        "hostile": pages.run(run_result([*HOSTILE], SCRIPT)), "night": night_page.render(report(3, gemms=14)),
        "first night": night_page.render(report(1, gemms=14, compared=False)),
    }  # fmt: skip


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.parametrize("name", ["wrong", "passed", "hostile", "night", "first night"])
def test_pages_fit_the_screen(opened: Opener, tmp_path: Path, name: str, size: str, dark: bool) -> None:
    """Folded and unfolded: no page is wider than the screen, and every text of a map can be read."""
    browser = opened(shown()[name], size, dark)
    for unfolded in (False, True):
        if unfolded:
            unfold(browser)
        width = browser.execute_script("return document.documentElement.scrollWidth")
        assert width <= SIZES[size][0]
    maps, wrong = browser.execute_script(MAPS)
    assert not wrong
    assert maps
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(15, 19, 25)" if dark else "rgb(245, 246, 248)")
    assert browser.execute_script(CLIPPED) == []
    browser.save_screenshot(str(tmp_path / f"{name}-{size}.png"))  # for whoever looks into a failure


@pytest.mark.needs("axe")
@pytest.mark.parametrize("name", ["wrong", "passed", "hostile", "night"])
def test_rules_of_accessibility(opened: Opener, name: str) -> None:
    """axe's rules, on a phone with everything unfolded, so that it looks at all of a page; colours in both themes."""
    page = night_page.render(few_cells()) if name == "night" else shown()[name]
    browser = opened(page, "phone")
    unfold(browser)
    assert violations(browser) == []
    browser = opened(page, "phone", dark=True)
    unfold(browser)
    assert violations(browser, "color-contrast") == []


def few_cells() -> NightReport:
    """Three nights of the first four cells, of which one is wrong: axe takes its time for each element."""
    few = report(3, gemms=14)
    cut = [
        replace(night, planned=night.planned[:4], cells={key: night.cells[key] for key in night.planned[:4]})
        for night in few.nights
    ]
    return NightReport(tuple(cut), few.comparison)


def violations(browser: Any, rule: str = "") -> list[Any]:
    """What axe finds, by all of its rules or by one: rule, what it asks for, elements."""
    browser.set_script_timeout(600)
    browser.execute_script(needs.axe().read_text(encoding="utf-8"))
    passes, found = browser.execute_async_script(
        "const [rule, done] = arguments; "
        "axe.run({resultTypes: ['violations'], ...(rule && {runOnly: rule})}).then("
        "(result) => done([result.passes.length, result.violations.map("
        "(v) => [v.id, v.help, v.nodes.map((n) => n.html.slice(0, 200))])]), "
        "(error) => done([0, [String(error)]]))", rule,
    )  # fmt: skip
    assert passes > (0 if rule else 10), "the rules were applied"
    return list(found)


def test_axe_would_find_a_fault(opened: Opener) -> None:
    needs.need("axe")
    browser = opened(pages.run(run_result(nights.gemm_names(2))))
    browser.execute_script(needs.axe().read_text(encoding="utf-8"))
    browser.execute_script(
        "document.querySelector('.lead').setAttribute('aria-labelledby', 'nobody'); document.documentElement.lang = ''"
    )
    browser.set_script_timeout(600)
    found = browser.execute_async_script(
        "const done = arguments[0]; axe.run().then((r) => done(r.violations.map((v) => v.id)))"
    )
    assert "html-has-lang" in found


def test_a_cell_of_the_grid_leads_to_its_runs(opened: Opener) -> None:
    browser = opened(night_page.render(report(3, gemms=14)))
    link = browser.find_element(By.CSS_SELECTOR, "#grid a.badge.bad")
    panel = browser.find_element(By.CSS_SELECTOR, link.get_attribute("href").partition("page.html")[2])
    assert not seen(browser, panel)
    link.click()
    assert seen(browser, panel)
    assert "mismatch" in panel.text
    assert len(panel.find_elements(By.CSS_SELECTOR, "svg.lines")) == 4, "utilisation and time of both runs"
    browser.execute_script("document.querySelector('#grid > details').open = false; location.hash = ''")
    browser.execute_script("arguments[0].focus()", link)
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    assert seen(browser, panel)
    assert browser.switch_to.active_element == panel


def test_the_baseline_is_chosen(opened: Opener) -> None:
    browser = opened(night_page.render(report(4, gemms=14)))
    choice = Select(browser.find_element(By.ID, "baseline"))
    # the night that the tests' comparison names is not in so short a history
    assert [option.text.partition(",")[0] for option in choice.options] == [
        "night 19 (the verdict's)",
        "night 3",
        "night 2",
        "night 1",
    ]
    assert "timed out, now verified" in browser.find_element(By.ID, "changed").text
    choice.select_by_value("2")
    told = browser.find_element(By.ID, "changed").text
    assert "Against night 2" in told
    assert "2 new failures" in told
    assert "timed out, now verified" not in told
    choice.select_by_value("19")
    assert "timed out, now verified" in browser.find_element(By.ID, "changed").text


def test_no_choice_without_a_script(opened: Opener) -> None:
    browser = opened(night_page.render(report(4, gemms=14)), script=False)
    assert not seen(browser, browser.find_element(By.ID, "baseline"))
    assert "timed out, now verified" in browser.find_element(By.ID, "changed").text


def test_histograms_and_lines_are_not_clipped(opened: Opener) -> None:
    values = [0.0, 1e-7, 0.02, 0.03, 1.0, 5.0, 2e5, float("inf"), float("nan")]
    found = run_result()
    gemms = found.rungs[2].details
    for i, value in enumerate(values):
        gemms[i] = records.gemm(f"blk.{i}.attn_q.weight", value, llama=values[-1 - i])
    browser = opened(pages.run(found), "phone")
    unfold(browser)
    wrong = browser.execute_script(
        FUNCTIONS
        + "const of = [...document.querySelectorAll('svg.histogram')]; return [of.length, of.flatMap(misplaced)]"
    )
    assert wrong == [2, []]


def test_cards_fit(opened: Opener) -> None:
    """With the fonts of this browser, which are not those that the card was laid out by."""
    long = run_result([*HOSTILE], SCRIPT)
    for found in (run_result(), nights.explained(WRONG), long):
        drawn = str(card.WRITER.renders[Kind.RUN](found, Form(suffix=".svg")))
        browser = opened(f"<!doctype html><html lang=en><title>card</title><body>{drawn}</body></html>")
        wrong = browser.execute_script(FUNCTIONS + "return misplaced(document.querySelector('svg'))")
        assert wrong == []


def test_printed(opened: Opener) -> None:
    browser = opened(night_page.render(report()), dark=True)
    made = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert made.startswith(b"%PDF")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)", "paper is white, whatever the theme"
    assert seen(browser, browser.find_element(By.CSS_SELECTOR, "#troubled .xray")), "nothing stays folded"
    assert not seen(browser, browser.find_element(By.CSS_SELECTOR, ".controls"))


@pytest.mark.parametrize("which", ["nights", "run"])
def test_a_large_page_loads_and_sorts(opened: Opener, which: str) -> None:
    if which == "run":
        page = pages.run(run_result(nights.gemm_names(1000), nights.gemm_names(1000)[8]))
    else:
        page = night_page.render(report(20, gemms=48))
    assert page.count("<tr") > 1000
    assert len(page.encode()) < 5_000_000
    browser = opened(page)
    loaded = browser.execute_script("const [n] = performance.getEntriesByType('navigation'); return n.loadEventEnd")
    sort = "const t = performance.now(); document.querySelector(arguments[0]).click(); return performance.now() - t"
    sorting = browser.execute_script(sort, "#t-gemms th button")
    # how long it takes is for whoever reads it: the machine may be busy
    print(f"{which}: {len(page.encode()):,} bytes, loaded in {loaded:.0f} ms, sorted in {sorting:.0f} ms")
    assert len(column(browser, "t-gemms", 0)) >= 1000


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", list(SIZES))
def test_the_page_of_an_audit(opened: Opener, size: str, dark: bool) -> None:
    """It is no wider than the screen, and a piece of the byte map says its range when it is moved to by keyboard."""
    path = Path("/" + "folder" * 20) / "m.gguf"  # no browser breaks such a word by itself
    made = audited("scale-not-finite", "trailing", owner="blk.0.attn_q.weight", path=path)
    browser = opened(pages.audit(made), size, dark)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= SIZES[size][0]
    piece = browser.find_element("css selector", ".bytemap .found")
    tip = piece.find_element("css selector", ".tip")
    assert tip.size["width"] <= 1
    browser.execute_script("arguments[0].focus()", piece)
    assert tip.size["width"] > 100
    assert "blk.0.attn_q.weight" in tip.text


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", list(SIZES))
def test_the_page_of_a_graph(opened: Opener, size: str, dark: bool) -> None:
    """It is no wider than the screen, folded and unfolded, and its tables sort and filter."""
    for found in (graphs()["many wrong"], *map(named, HOSTILE)):
        browser = opened(pages.graph(found), size, dark)
        for _ in range(2):
            assert browser.execute_script("return document.documentElement.scrollWidth") <= SIZES[size][0]
            assert browser.execute_script(CLIPPED) == []
            unfold(browser)
    browser = opened(pages.graph(graphs()["fell back"]), size, dark)
    Select(browser.find_element(By.CSS_SELECTOR, '[data-for="t-operations"] select')).select_by_visible_text(
        "fell back"
    )
    assert column(browser, "t-operations", 0) == ["ROPE"]


@pytest.mark.parametrize("size", list(SIZES))
def test_the_page_of_a_bisection(opened: Opener, size: str) -> None:
    for found in (*bisections().values(), *map(bisection_named, HOSTILE)):
        browser = opened(pages.bisection(found), size)
        for _ in range(2):
            assert browser.execute_script("return document.documentElement.scrollWidth") <= SIZES[size][0]
            assert browser.execute_script(CLIPPED) == []
            unfold(browser)


@pytest.mark.needs("axe")
@pytest.mark.parametrize("kind", ["graph", "bisection"])
def test_rules_of_accessibility_for_a_graph(opened: Opener, kind: str) -> None:
    page = pages.graph(graphs()["many wrong"]) if kind == "graph" else pages.bisection(bisections()["range"])
    browser = opened(page, "phone")
    unfold(browser)
    assert violations(browser) == []
    browser = opened(page, "phone", dark=True)
    unfold(browser)
    assert violations(browser, "color-contrast") == []
