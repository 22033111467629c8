"""The page in a real browser: Chromium without a window, driven through ChromeDriver."""

import contextlib
import json
import shutil

import numpy as np
import pytest

import ocrstore
from tests.viewer.conftest import QUADS, write_store

selenium = pytest.importorskip("selenium", reason="the browser test needs selenium (extra dev)")

from selenium import webdriver  # after the check that it is there
from selenium.common.exceptions import StaleElementReferenceException  # the same
from selenium.webdriver.chrome.service import Service  # the same
from selenium.webdriver.common.by import By  # the same
from selenium.webdriver.common.keys import Keys  # the same
from selenium.webdriver.support.ui import WebDriverWait  # the same

pytestmark = pytest.mark.slow
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,800",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A browser for all tests of this file; skip where there is none."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        missing = "Chromium" if program is None else "ChromeDriver"
        pytest.skip(f"no {missing} on this machine (Debian: chromium and chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=Service(driver))
    running.set_script_timeout(120)
    yield running
    running.quit()


class Page:
    """What a user does and sees."""

    def __init__(self, browser, client):
        self.browser = browser
        browser.get("about:blank")
        browser.get(client.viewer.url)
        browser.execute_script("localStorage.clear()")
        browser.refresh()
        self.wait(lambda: self.all(".tile.loaded"))
        self.loud()

    def one(self, selector):
        """The element a selector names."""
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        """The elements of a selector that are visible."""
        found = self.browser.find_elements(By.CSS_SELECTOR, selector)
        return [element for element in found if element.is_displayed()]

    def wait(self, condition):
        """Wait until something is so; elements may be replaced meanwhile."""

        def check(_):
            with contextlib.suppress(StaleElementReferenceException):
                return condition()
            return False

        return WebDriverWait(self.browser, 120, poll_frequency=0.05).until(check)

    def press(self, *keys):
        """Press keys where the focus is."""
        self.browser.switch_to.active_element.send_keys(*keys)

    def filter(self, text):
        """Type a filter and apply it."""
        box = self.one("#filter")
        box.clear()
        box.send_keys(text, Keys.ENTER)

    def keys(self):
        """The keys of the tiles that are shown, in order."""
        tiles = self.browser.execute_script(
            "return [...document.querySelectorAll('.tile:not([hidden])')]"
            ".map(t => [Number(t.dataset.position), t.dataset.key])"
        )
        return [key for _, key in sorted(tiles)]

    def drawn(self):
        """How many pixels of a layer's own colour the browser shows, by column."""
        return self.browser.execute_script(
            "return Object.fromEntries([...document.querySelectorAll('.world img.loaded')]"
            ".map(i => [i.dataset.column, i.naturalWidth]))"
        )

    def loud(self):
        """What the browser complained about since last asked, but for refused requests."""
        lines = [entry["message"] for entry in self.browser.get_log("browser")]
        return [line for line in lines if "Failed to load resource" not in line]


@pytest.fixture
def page(browser, client):
    """The page of the shared store."""
    shown = Page(browser, client)
    yield shown
    assert shown.loud() == []


def test_loads_and_hides_the_token(page, client):
    """Names, counts and thumbnails are there; the token is out of the address, a reload works."""
    assert page.one("#name").text == "val.ocrs"
    assert "12 samples · 18 polygons" in page.one("#summary").text
    assert client.viewer.token not in page.browser.current_url
    page.wait(lambda: len(page.all(".tile.loaded")) == 12)
    assert client.viewer.token not in page.browser.execute_script("return document.cookie")


def test_scrolls_through_many_samples(browser, start_viewer, tmp_path):
    """Only the tiles in sight exist, however many samples; the last one can be reached."""
    client = start_viewer(write_store(tmp_path / "many.ocrs", samples=900, maps=False))
    page = Page(browser, client)
    assert len(page.keys()) < 60
    browser.execute_script("const g = document.getElementById('grid'); g.scrollTop = 1e9")
    page.wait(lambda: page.keys()[-1] == "img_899.jpg")
    page.wait(lambda: len(page.all(".tile.loaded")) >= 10)
    assert len(page.browser.find_elements(By.CSS_SELECTOR, ".tile")) < 90
    page.press(Keys.HOME)
    page.wait(lambda: page.keys()[0] == "img_00.jpg")
    assert page.loud() == []


def test_opens_a_sample_and_walks_on(page):
    """By click, keys and link; Escape leads back to the same place."""
    page.all(".tile")[2].click()
    page.wait(lambda: page.drawn().get("image") == 160)
    assert page.one("#sample-key").text == "img_02.jpg" and page.one("#position").text == "3 / 12"
    page.press("j")
    page.wait(lambda: page.one("#sample-key").text == "img_03.jpg")
    page.press(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    page.wait(lambda: page.one("#position").text == "1 / 12" or page.press(Keys.ARROW_LEFT))
    assert not page.one("#previous").is_enabled()
    link = page.browser.current_url
    assert link.endswith("#/sample/img_00.jpg")
    page.press(Keys.ESCAPE)
    page.wait(lambda: not page.one("#sample").is_displayed())
    page.browser.get(link.replace("img_00", "img_07"))
    page.wait(lambda: page.one("#position").text == "8 / 12")
    page.wait(lambda: page.drawn().get("image") == 120)


def test_toggles_layers(page):
    """Polygons, ignored, texts, maps and masks come and go; maps follow the matrix."""
    page.all(".tile")[3].click()
    page.wait(lambda: page.all("polygon.outline"))
    assert len(page.all("polygon.truth")) == 2 and len(page.all("polygon.ignored")) == 1
    page.press("i")
    page.wait(lambda: not page.all("polygon.ignored"))
    page.press("t")
    page.wait(lambda: [e.text for e in page.all("text.label")] == ["Total", "12.50"])
    page.press("p")
    page.wait(lambda: not page.all("polygon.outline"))
    for key, column in zip("mhxy", ("prob_map", "thresh_map", "prob_mask", "thresh_mask")):
        page.press(key)
        page.wait(lambda column=column: page.drawn().get(column) == 64)
    # the view's 64 pixels are 160 of the picture's: the layer is laid out 2.5 times as large
    script = "return document.querySelector('[data-column=prob_map]').getBoundingClientRect().width"
    picture = "return document.querySelector('[data-column=image]').getBoundingClientRect().width"
    ratio = page.browser.execute_script(script) / page.browser.execute_script(picture)
    assert ratio == pytest.approx(160 / 120, rel=0.01)
    page.press("b")
    page.wait(lambda: page.drawn().get("tensor") == 64 and "image" not in page.drawn())
    page.press("c")
    page.wait(lambda: {"tensor", "image"} <= set(page.drawn()) and page.all("#wipe"))
    page.press("m")
    page.wait(lambda: "prob_map" not in page.drawn())


def test_zooms_and_pans(page):
    """Buttons, keys and dragging move the picture; 0 brings it back."""
    page.all(".tile")[0].click()
    page.wait(lambda: page.drawn().get("image"))
    place = "return document.querySelector('#stage .world').style.transform"
    fitted = page.browser.execute_script(place)
    page.press("+")
    page.wait(lambda: page.browser.execute_script(place) != fitted)
    larger = page.browser.execute_script(place)
    stage = page.one("#stage")
    actions = webdriver.ActionChains(page.browser)
    actions.click_and_hold(stage).move_by_offset(60, 40).release().perform()
    assert page.browser.execute_script(place) != larger
    actions.scroll_from_origin(
        webdriver.common.actions.wheel_input.ScrollOrigin.from_element(stage), 0, -300
    ).perform()
    page.press("0")
    page.wait(lambda: page.browser.execute_script(place) == fitted)


def test_filters_and_sorts(page):
    """The grid follows words and SQL; a filter that is wrong says where; nothing found says so."""
    page.filter("TOTAL img_1")
    page.wait(lambda: page.keys() == ["img_10.jpg", "img_11.jpg"])
    assert page.one("#mode").text == "words"
    page.filter("polygons_count >= 3")
    page.wait(lambda: page.keys() == ["img_03.jpg", "img_07.jpg", "img_11.jpg"])
    assert (
        page.one("#matches").text == "3 of 12"
        and "filter=polygons_count" in page.browser.current_url
    )
    assert page.one("#mode").text == "SQL"
    page.filter("widht > 3")
    page.wait(lambda: page.all("#filter-error"))
    assert "did you mean width" in page.one("#filter-error").text
    assert page.one("#filter-error mark").text == "widht"
    page.filter("row > 99")
    page.wait(lambda: page.all("#empty"))
    assert "No sample" in page.one("#empty").text
    page.filter("nothing like it")
    page.wait(lambda: "these words" in page.one("#empty").text)
    page.one("#filter-clear").click()
    page.wait(lambda: len(page.keys()) == 12)
    page.one("#sort option[value='weight']").click()
    page.one("#direction").click()
    page.wait(lambda: page.keys()[0] == "img_11.jpg")
    page.one("#filter").send_keys("polyg")
    page.wait(lambda: page.all("#suggestions li"))
    page.press(Keys.TAB)
    assert page.one("#filter").get_property("value") == "polygons"
    assert page.loud() == []


def test_keys_of_the_grid_and_help(page):
    """Arrows move, Enter opens, ? explains, Escape closes."""
    page.one("#grid").send_keys(Keys.ARROW_RIGHT)
    page.press(Keys.ARROW_RIGHT)
    active = "return document.activeElement.dataset.key"
    assert page.browser.execute_script(active) == "img_01.jpg"
    page.press(Keys.ENTER)
    page.wait(lambda: page.one("#sample-key").text == "img_01.jpg")
    page.press(Keys.ESCAPE)
    page.wait(lambda: page.browser.execute_script(active) == "img_01.jpg")
    page.press("?")
    page.wait(lambda: page.all("#help[open]"))
    page.press(Keys.ESCAPE)
    page.wait(lambda: not page.all("#help[open]"))


def test_a_wrong_token(browser, client):
    """A page that says what to do, in words."""
    browser.delete_all_cookies()
    browser.get(client.viewer.url + "x")
    assert "out of date" in browser.find_element(By.TAG_NAME, "h1").text
    assert "ocrstore view" in browser.find_element(By.TAG_NAME, "main").text


def test_a_missing_sample(page):
    """A link to a sample that is not there explains itself, and leads back."""
    page.browser.get(page.browser.current_url.split("#")[0] + "#/sample/nothing.jpg")
    page.wait(lambda: page.all("#stage-note"))
    assert "no such sample" in page.one("#stage-note").text
    page.one("#stage-note button").click()
    page.wait(lambda: not page.one("#sample").is_displayed())
    assert len(page.keys()) == 12


def test_a_store_replaced_underneath(browser, start_viewer, tmp_path):
    """A banner tells; the old one is shown until asked; then the new one is."""
    path = write_store(tmp_path / "val.ocrs", samples=4)
    page = Page(browser, start_viewer(path))
    write_store(tmp_path / "new.ocrs", samples=3, first=20).replace(path)
    page.wait(lambda: page.all("#banner"))
    assert "was replaced" in page.one("#banner-text").text
    assert page.keys()[0] == "img_00.jpg"
    page.one("#banner-reload").click()
    page.wait(lambda: page.keys() == ["img_20.jpg", "img_21.jpg", "img_22.jpg"])
    page.wait(lambda: not page.all("#banner"))
    assert "3 samples" in page.one("#summary").text
    assert page.loud() == []


def test_predictions(browser, start_viewer, shared_store, tmp_path):
    """The worst comes first; hits, misses and false alarms have their colours."""
    false = [[60, 120], [110, 120], [110, 150], [60, 150]]
    boxes = {"img_03.jpg": [{"points": false, "score": 0.4}, QUADS[0]], "img_01.jpg": [QUADS[0]]}
    (tmp_path / "boxes.json").write_text(json.dumps(boxes))
    page = Page(browser, start_viewer(shared_store, predictions=[tmp_path / "boxes.json"]))
    assert page.keys()[:2] == ["img_03.jpg", "img_01.jpg"]
    assert page.one(".tile .score").text == "0.500"
    page.all(".tile")[0].click()
    page.wait(lambda: page.all("polygon.box-false_alarm"))
    counts = [len(page.all(f"polygon.{n}")) for n in ("hit", "miss", "ignored", "box-hit")]
    assert counts == [1, 1, 1, 1]
    assert page.one(".tallies").text.split() == ["1", "hits", "1", "misses", "1", "false", "alarms"]
    page.press("d")
    page.wait(lambda: not page.all("polygon.box") and len(page.all("polygon.truth")) == 2)
    assert page.loud() == []


def test_attributes_of_unexpected_types(browser, start_viewer, tmp_path):
    """A name promises no type: every value is shown, polygons that cannot be drawn are counted."""
    attributes = {
        "source_hash": "no number",
        "changed_ns": 2**62,
        "started_ns": "yesterday",
        "file_nbytes": [1, 2],
        "texts": {"a": 1},
        "polygons": [[1.0, 2.0], QUADS[0]],
    }
    with ocrstore.create(tmp_path / "a.ocrs", {"a": ocrstore.Column("uint8", (8, 8, 3))}) as writer:
        writer.append("k", {"a": np.zeros((8, 8, 3), np.uint8)}, attributes=attributes)
    page = Page(browser, start_viewer(tmp_path / "a.ocrs"))
    page.all(".tile")[0].click()
    page.wait(lambda: page.all("polygon.outline"))
    shown = page.one("#facts").text
    for words in ("no number", "yesterday", "[1,2]", '{"a":1}', "1 polygons without"):
        assert words in shown
    assert page.loud() == []


def test_two_sets_of_predictions_side_by_side(browser, start_viewer, shared_store, tmp_path):
    """Both halves show the picture, each with its boxes; the score slider drops a false alarm."""
    false = [[60, 120], [110, 120], [110, 150], [60, 150]]
    scored = [{"points": false, "score": 0.4}, {"points": QUADS[0], "score": 0.9}]
    for name, boxes in (("a", scored), ("b", [])):
        (tmp_path / f"{name}.json").write_text(json.dumps({"img_03.jpg": boxes}))
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    page = Page(browser, start_viewer(shared_store, predictions=paths))
    page.all(".tile")[0].click()
    page.wait(lambda: page.all("#stage-beside img.loaded"))
    assert (page.one("#stage-name").text, page.one("#beside-name").text) == ("a.json", "b.json")
    assert len(page.all("#stage polygon.box")) == 2 and not page.all("#stage-beside polygon.box")
    assert len(page.all("#stage-beside polygon.miss")) == 2
    page.press("+")
    zooms = [page.one(f"{half} .world").get_attribute("style") for half in HALVES]
    assert "scale(" in zooms[0] and zooms[0] == zooms[1]
    page.press("0")  # what is zoomed out of sight does not count as displayed
    page.browser.execute_script(
        "const s = document.getElementById('score'); s.value = 50;"
        "s.dispatchEvent(new Event('input'))"
    )
    page.wait(lambda: len(page.all("#stage polygon.box")) == 1)
    assert page.one("#score-shown").text == "0.50"
    assert page.loud() == []


HALVES = ("#stage", "#stage-beside")


def test_a_store_beside(browser, start_viewer, shared_store, tmp_path):
    """The sample of the same key; where the other store has none, it says so."""
    other = write_store(tmp_path / "other.ocrs", samples=1)
    page = Page(browser, start_viewer(shared_store, beside=other))
    page.all(".tile")[0].click()
    page.wait(lambda: page.all("#stage-beside img.loaded"))
    assert page.one("#beside-name").text == "other.ocrs"
    page.press("j")
    page.wait(lambda: "has no such sample" in page.one("#beside-name").text)
    assert page.loud() == []


def test_histogram_tags_and_keys(browser, start_viewer, tmp_path):
    """A bar narrows the grid; `s` tags a sample, which a filter finds; the keys can be saved."""
    client = start_viewer(write_store(tmp_path / "val.ocrs"))
    page = Page(browser, client)
    page.press("g")
    page.wait(lambda: "Choose a field" in page.one("#counts").text)
    page.browser.execute_script(
        "const s = document.getElementById('sort'); s.value = 'width';"
        "s.dispatchEvent(new Event('change'))"
    )
    page.wait(lambda: len(page.all(".count")) == 24)
    page.all(".count")[-1].click()
    page.wait(lambda: len(page.keys()) == 6)
    assert "width" in page.one("#filter").get_attribute("value")
    page.all(".tile")[0].click()
    page.wait(lambda: page.all("#stage img.loaded"))
    page.press("s")
    page.wait(lambda: page.one("#tags").get_attribute("value") == "selected")
    page.press(Keys.ESCAPE)
    page.wait(lambda: page.all(".tile"))
    page.filter("list_contains(tags, 'selected')")
    page.wait(lambda: page.keys() == ["img_00.jpg"])
    link = page.one("#keys").get_attribute("href")
    status, _, body = client.request(link[link.index("/api/") :])
    assert (status, body) == (200, b"img_00.jpg\n")
    assert page.loud() == []
