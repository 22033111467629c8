"""Take the screenshots of docs/inspect.md in headless Chromium, from pictures drawn on the spot.

    python tools/viewer_images.py [--out docs/images]

Needs `ocrstore[dev]`, Chromium and ChromeDriver.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import cv2
import numpy as np
from scenes import draw_scene
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from ocrstore.viewer.app import Viewer
from ocrstore.viewer.live import Live

SIZES = ((720, 960), (720, 1280), (960, 720), (800, 800))
DESKTOP, PHONE = (1280, 800), (390, 844)


def make_data(folder: Path, count: int = 60) -> None:
    """Draw pictures, build street.ocrs, and write boxes.json with hits, misses and false alarms."""
    rng = np.random.default_rng(7)
    boxes = {}
    for name in ("images", "gt"):
        (folder / name).mkdir()
    for number in range(count):
        height, width = SIZES[number % len(SIZES)]
        words = int(rng.integers(3, 14))
        picture, polygons, texts, _ = draw_scene(number, height=height, width=width, words=words)
        key = f"scene_{number:03}"
        picture = cv2.bilateralFilter(picture, 15, 60, 15)  # without the grain the PNGs are small
        cv2.imwrite(str(folder / "images" / f"{key}.jpg"), picture[..., ::-1])
        lines = [
            ",".join(str(round(float(v))) for v in quad.ravel()) + "," + text
            for quad, text in zip(
                polygons, ("###" if rng.random() < 0.15 else t for t in texts), strict=True
            )
        ]
        (folder / "gt" / f"gt_{key}.txt").write_text("\n".join(lines) + "\n", "utf-8")
        found = [
            {
                "points": (quad + rng.normal(0, 1.5, quad.shape)).tolist(),
                "score": round(rng.uniform(0.6, 1), 2),
            }
            for quad in polygons
            if rng.random() < 0.75
        ]
        for _ in range(int(rng.integers(0, 3))):
            x, y = rng.uniform(20, width - 140), rng.uniform(20, height - 60)
            corners = [[x, y], [x + 90, y], [x + 90, y + 25], [x, y + 25]]
            found.append({"points": corners, "score": round(rng.uniform(0.3, 0.6), 2)})
        boxes[f"{key}.jpg"] = found
    (folder / "boxes.json").write_text(json.dumps(boxes))
    code = "from ocrstore.cli import main; main()"
    arguments = ["build", "images", "--annotations", "gt", "--out", "street.ocrs"]
    subprocess.run([sys.executable, "-c", code, *arguments], cwd=folder, check=True)


class Page:
    def __init__(self, browser: webdriver.Chrome, url: str, out: Path) -> None:
        self.browser, self.url, self.out = browser, url, out
        self.open()

    def open(self, hash_: str = "", *, size=DESKTOP, theme: str = "light") -> None:
        """Load the page; texts are on, the help and the suggestions closed."""
        width, height = size
        metrics = {
            "width": width,
            "height": height,
            "deviceScaleFactor": 1,
            "mobile": size == PHONE,
        }
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.browser.get("about:blank")
        self.browser.get(self.url + hash_)
        settings = {"on": ["polygons", "ignored", "texts", "predictions"], "theme": theme}
        for name, value in settings.items():
            self.run(f"localStorage.setItem('ocrstore.{name}', {json.dumps(json.dumps(value))})")
        self.browser.refresh()

    def run(self, script: str):
        return self.browser.execute_script(script)

    def wait(self, selector: str, *, count: int = 1) -> None:
        script = f"return [...document.querySelectorAll({json.dumps(selector)})].filter(e => e.getClientRects().length).length"
        WebDriverWait(self.browser, 30).until(lambda _: self.run(script) >= count)

    def type(self, *keys: str) -> None:
        self.browser.find_element(By.ID, "filter").send_keys(*keys)

    def press(self, keys: str) -> None:
        self.browser.find_element(By.TAG_NAME, "body").send_keys(keys)

    def shoot(self, name: str) -> None:
        self.run("return new Promise(done => setTimeout(done, 600))")  # transitions end
        data = np.frombuffer(self.browser.get_screenshot_as_png(), np.uint8)
        pixels = cv2.imdecode(data, cv2.IMREAD_COLOR).astype(np.uint16)
        pixels = np.minimum((pixels + 2) // 4 * 4, 255).astype(np.uint8)  # 6 bits: half the file
        cv2.imwrite(str(self.out / f"viewer-{name}.png"), pixels, [cv2.IMWRITE_PNG_COMPRESSION, 9])
        print(name, flush=True)


def take_all(page: Page) -> None:
    for name, size, theme in (
        ("grid", DESKTOP, "light"),
        ("grid-dark", DESKTOP, "dark"),
        ("grid-phone", PHONE, "light"),
        ("grid-phone-dark", PHONE, "dark"),
    ):
        page.open(size=size, theme=theme)
        page.wait(".tile.loaded", count=4 if size == PHONE else 10)
        page.shoot(name)
    key = page.run("return document.querySelector('.tile[data-position=\"3\"]').dataset.key")
    sample = f"#/sample/{key}?sort=hmean"
    for name, size, theme, keys in (
        ("sample", DESKTOP, "light", ""),
        ("sample-dark", DESKTOP, "dark", ""),
        ("sample-phone", PHONE, "light", ""),
        ("sample-phone-dark", PHONE, "dark", ""),
        ("maps", DESKTOP, "light", "bmh"),
        ("compare-dark", DESKTOP, "dark", "c"),
    ):
        page.open(sample, size=size, theme=theme)
        page.wait("polygon.outline")
        page.press(keys)
        page.wait(".world img.loaded")
        page.shoot(name)
    page.open("#/?sort=hmean")
    page.wait(".tile.loaded", count=10)
    page.type("polygons_count > 5 AND h")
    page.wait("#suggestions li")
    page.shoot("suggestions")
    page.open("#/?sort=hmean")
    page.wait(".tile.loaded", count=10)
    page.type("total coffee", Keys.ENTER)
    page.wait("#mode")
    page.wait(".tile.loaded", count=3)
    page.shoot("filter-words")
    page.open("#/?sort=hmean")
    page.wait(".tile.loaded", count=10)
    page.type("polygons_count > 5 AND widht > 3", Keys.ENTER)
    page.wait("#filter-error")
    page.shoot("filter-error")
    page.open("#/?sort=hmean")
    page.wait(".tile.loaded", count=10)
    page.press("?")
    page.wait("#help[open]")
    page.shoot("help")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    out = parser.parse_args().out
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome")
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--hide-scrollbars",
        "--force-color-profile=srgb",
    ):
        options.add_argument(flag)
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder))
        live = Live(Path(folder) / "street.ocrs", predictions=[Path(folder) / "boxes.json"])
        viewer = Viewer(live)
        thread = threading.Thread(target=viewer.run)
        thread.start()
        browser = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            take_all(Page(browser, viewer.url, out))
        finally:
            browser.quit()
            viewer.stop()
            thread.join()


if __name__ == "__main__":
    main()
