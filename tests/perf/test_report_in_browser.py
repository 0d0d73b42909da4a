"""The page of `report` in a real Chromium. Screenshots stay in pytest's folder, to be looked at."""

import base64
import importlib.util
import shutil
from pathlib import Path

import pytest

from . import made_up_results as made_up
from .report_reader import report
from .test_report import ALL, hostile_contents

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
MISSING = [
    name
    for name, found in (
        ("selenium", importlib.util.find_spec("selenium")),
        ("chromium", CHROMIUM),
        ("chromedriver", DRIVER),
    )
    if not found
]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"not on this machine: {', '.join(MISSING)} (make report-test)"
)

OPTIONS = (
    "headless=new no-sandbox disable-gpu disable-dev-shm-usage disable-quic no-first-run "
    "disable-background-networking disable-component-update disable-sync hide-scrollbars"
)
WIDTHS, SCHEMES = (1100, 420), ("light", "dark")
SVG_COUNTS = """
return Object.fromEntries([...document.querySelectorAll('.plot')].map(
  (plot) => [plot.id.slice(5), plot.querySelectorAll('svg .trace, svg .hm').length]
));
"""


class Browser:
    """Chromium with a page of a given width and colour scheme."""

    def __init__(self, driver):
        self.driver = driver
        self.run = driver.execute_script

    def command(self, name, **arguments):
        return self.driver.execute_cdp_cmd(name, arguments)

    def prefer(self, scheme):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.command("Emulation.setEmulatedMedia", features=[feature])

    def open(self, page, width=1100, scheme="light"):
        from selenium.webdriver.support.wait import WebDriverWait

        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 600}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        self.prefer(scheme)
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(page.as_uri())
        drawn = "return document.documentElement.dataset.drawn"
        WebDriverWait(self.driver, 30).until(lambda _: self.run(drawn))

    def errors(self):
        return self.driver.get_log("browser")

    def shoot(self, path):
        """The whole page as a picture."""
        size = self.run(
            "const e = document.documentElement; return [e.scrollWidth, e.scrollHeight]"
        )
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        taken = self.command("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(taken["data"]))


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in OPTIONS.split():
        options.add_argument(f"--{option}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield Browser(driver)
    driver.quit()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The page of all the made-up files, and what a reader without scripts finds in it."""
    folder = tmp_path_factory.mktemp("report")
    result, page = report(folder, ALL)
    assert result.exit_code == 0, result.output
    return folder / "page.html", page


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_chart_is_drawn(browser, written, width, scheme, tmp_path):
    path, page = written
    browser.open(path, width, scheme)
    assert browser.errors() == []
    drawn = browser.run(SVG_COUNTS)
    assert set(drawn) == set(page.figures)
    assert all(drawn.values()), drawn
    assert browser.run("return document.documentElement.scrollWidth") == width
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(246, 247, 248)" if scheme == "light" else "rgb(15, 19, 23)")
    shot = tmp_path / f"page-{width}-{scheme}.png"
    browser.shoot(shot)
    assert shot.stat().st_size > 50_000


def test_nothing_is_fetched(browser, written):
    browser.open(written[0])
    messages = " ".join(entry["message"] for entry in browser.driver.get_log("performance"))
    assert "Network.requestWillBeSent" in messages
    assert '"url":"http' not in messages


def test_tables_hold_the_numbers_of_the_files(browser, written):
    browser.open(written[0])
    shown = browser.run(
        "return [...document.querySelectorAll('#flush tbody tr')].map("
        "(row) => [row.cells[0].textContent, ...[2, 3].map("
        "(at) => Number(row.cells[at].querySelector('data').value))])"
    )
    wanted = [
        (row["extra_info"]["contender"], row["extra_info"]["holes"], row["stats"]["median"] * 1e6)
        for row in ALL["newer.json"]["benchmarks"]
        if row["extra_info"]["layer"] == "flush"
    ]
    assert sorted(map(tuple, shown)) == sorted(wanted)


def test_charts_hold_the_numbers_of_the_files(browser, written):
    browser.open(written[0])
    drawn = browser.run(
        "return document.getElementById('plot-flush')._fullData.filter((t) => t.visible)"
        ".map((t) => [t.name, [...t.x], [...t.y]])"
    )
    first = made_up.PAGE_BYTES[0]
    wanted = {
        (row["extra_info"]["contender"], row["extra_info"]["holes"], row["stats"]["median"] * 1e6)
        for row in ALL["newer.json"]["benchmarks"]
        if row["extra_info"]["layer"] == "flush" and row["extra_info"]["page_bytes"] == first
    }
    found = {(name, *point) for name, x, y in drawn for point in zip(x, y, strict=True)}
    assert found == wanted


def test_a_case_is_chosen_by_keyboard(browser, written):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.open(written[0])
    shown = (
        "return document.getElementById('plot-flush')._fullData.filter((t) => t.visible)"
        ".map((t) => t.meta.case)"
    )
    assert set(browser.run(shown)) == {0}
    browser.driver.find_element(By.ID, "case-flush").send_keys(Keys.ARROW_DOWN)
    assert set(browser.run(shown)) == {1}


def test_tables_open_by_keyboard(browser, written):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.open(written[0])
    browser.driver.find_element(By.CSS_SELECTOR, "#flush summary").send_keys(Keys.ENTER)
    assert browser.run("return document.querySelector('#flush details').open")
    assert browser.run("return document.querySelector('#flush table').offsetHeight > 100")


def test_the_first_tab_leads_past_the_links(browser, written):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser.open(written[0])
    ActionChains(browser.driver).send_keys(Keys.TAB).perform()
    assert browser.run("return document.activeElement.textContent") == "To the charts"
    assert browser.run("return document.activeElement.getBoundingClientRect().left >= 0")


def test_a_screen_reader_finds_names(browser, written):
    path, page = written
    browser.open(path)
    nodes = browser.command("Accessibility.getFullAXTree")["nodes"]
    named = {
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"]
    }
    images = [name for role, name in named if role in ("image", "img") and "table" in name]
    assert len(images) == len(page.figures)
    assert ("combobox", "Case") in {(role, name.strip()) for role, name in named}
    assert ("heading", "History") in named


def test_the_scheme_can_change_while_the_page_is_open(browser, written):
    ink = "return getComputedStyle(document.querySelector('#plot-flush .legendtext')).fill"
    browser.open(written[0], scheme="light")
    light = browser.run(ink)
    browser.prefer("dark")
    browser.run("return new Promise((done) => setTimeout(done, 500))")
    assert browser.run(ink) != light
    assert browser.errors() == []


def test_hostile_names_run_nothing(browser, tmp_path):
    from selenium.common.exceptions import NoAlertPresentException

    report(tmp_path, hostile_contents(), f"--title={made_up.HOSTILE}")
    browser.open(Path(tmp_path, "page.html"))
    assert browser.errors() == []
    assert browser.run("return document.images.length") == 0
    assert browser.run("return document.title") == made_up.HOSTILE
    with pytest.raises(NoAlertPresentException):
        browser.driver.switch_to.alert.accept()
    texts = browser.run(
        "return [...document.querySelectorAll('.plot text')].map((t) => t.textContent)"
    )
    assert any(text.startswith("</script><img src=x") for text in texts)


def test_the_policy_stops_what_escaping_would_miss(browser, written, tmp_path):
    text = written[0].read_text()
    injected = "<img src='data:,' onerror='document.title = 1'><script>document.title = 2</script>"
    path = tmp_path / "injected.html"
    path.write_text(text.replace("<main", f"{injected}<main"))
    browser.open(path)
    assert browser.run("return document.title") == "kvdefrag performance"
    assert len(browser.errors()) >= 2
