"""Pages in a browser: headless Chromium, where there is one."""

from __future__ import annotations

import base64
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from gguf_verify.report.html import page as pages
from tests.support import needs, nights
from tests.support.nights import HOSTILE, SCRIPT, report, run_result
from tests.unit.report.test_audit_reports import audited

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


def column(browser: Any, table: str, n: int) -> list[str]:
    """Texts of a column, of the rows that are shown."""
    found: list[str] = browser.execute_script(
        "return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)].filter(r => !r.hidden)"
        ".map(r => r.cells[arguments[1]].innerText.trim())", table, n,
    )  # fmt: skip
    return found


def test_tables_sort(opened: Opener) -> None:
    browser = opened(pages.night(report()))
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
    browser = opened(pages.night(report()))
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
    browser = opened(pages.night(report()), script=script)
    cell = browser.find_element(By.CSS_SELECTOR, "details.cell")
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
    for table in browser.find_elements(By.TAG_NAME, "table"):
        assert seen(browser, table)
    for controls in browser.find_elements(By.CSS_SELECTOR, ".controls"):
        assert not seen(browser, controls), "what would do nothing is not shown"


def test_a_script_stays_text(opened: Opener) -> None:
    browser = opened(pages.run(run_result([*HOSTILE], SCRIPT)))
    first = browser.find_element(By.CSS_SELECTOR, "#t-gemms tbody th")
    assert first.text == SCRIPT
    assert len(browser.find_elements(By.TAG_NAME, "script")) == 1
    assert not browser.find_elements(By.TAG_NAME, "img")
    assert SCRIPT in browser.find_element(By.CSS_SELECTOR, "details.failure[open] .facts").text


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


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.parametrize("hostile", [False, True])
def test_nothing_is_wider_than_the_screen(opened: Opener, size: str, dark: bool, hostile: bool) -> None:
    run = run_result([*HOSTILE], SCRIPT) if hostile else run_result(wrong=WRONG)
    for page in (pages.night(report()), pages.run(run)):
        browser = opened(page, size, dark)
        width = browser.execute_script("return document.documentElement.scrollWidth")
        assert width <= SIZES[size][0]
        ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(15, 19, 25)" if dark else "rgb(245, 246, 248)")


def test_printed(opened: Opener) -> None:
    browser = opened(pages.night(report()), dark=True)
    made = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert made.startswith(b"%PDF")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)", "paper is white, whatever the theme"
    assert seen(browser, browser.find_element(By.CSS_SELECTOR, "details.cell .xray")), "nothing stays folded"
    assert not seen(browser, browser.find_element(By.CSS_SELECTOR, ".controls"))


@pytest.mark.parametrize("which", ["nights", "run"])
def test_a_large_page_loads_quickly(opened: Opener, which: str) -> None:
    if which == "run":
        page = pages.run(run_result(nights.gemm_names(1000), nights.gemm_names(1000)[8]))
    else:
        page = pages.night(report(20, gemms=48))
    assert page.count("<tr") > 1000
    assert len(page.encode()) < 5_000_000
    start = time.monotonic()
    browser = opened(page)
    spent = time.monotonic() - start
    loaded = browser.execute_script("const [n] = performance.getEntriesByType('navigation'); return n.loadEventEnd")
    print(f"{which}: {len(page.encode()):,} bytes, loaded in {loaded:.0f} ms, {spent:.2f} s with the driver")
    assert loaded < 20_000  # generous: this machine may be busy. What is measured is printed
    sort = "const t = performance.now(); document.querySelector(arguments[0]).click(); return performance.now() - t"
    assert browser.execute_script(sort, "#t-gemms th button") < 10_000


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", list(SIZES))
def test_the_page_of_an_audit(opened: Opener, size: str, dark: bool) -> None:
    """It is no wider than the screen, and a piece of the byte map says its range when it is moved to by keyboard."""
    browser = opened(pages.audit(audited("scale-not-finite", "trailing", owner="blk.0.attn_q.weight")), size, dark)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= SIZES[size][0]
    piece = browser.find_element("css selector", ".bytemap .found")
    tip = piece.find_element("css selector", ".tip")
    assert tip.size["width"] <= 1
    browser.execute_script("arguments[0].focus()", piece)
    assert tip.size["width"] > 100
    assert "blk.0.attn_q.weight" in tip.text
