"""A real browser for tests of pages: Chromium without a window, and what it saw.

Needs Chromium and its driver (Debian: apt-get install chromium chromium-driver). Without them the tests are skipped,
but not where CI=true: there they fail.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--no-first-run", "--disable-extensions"),
)
PATIENCE = 120  # seconds, against waiting forever: a busy machine may take its time
Driver = webdriver.Chrome
Open = Callable[..., Driver]


def programs() -> tuple[str, str]:
    browser = next((found for name in ("chromium", "google-chrome", "chrome") if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        message = "needs chromium and chromedriver: apt-get install chromium chromium-driver"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    return browser, driver


def start() -> Driver:
    browser, service = programs()
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(service))


def ready(driver: Driver) -> bool:
    return bool(driver.execute_script("return document.documentElement.dataset.ready === 'yes'"))


def requests(driver: Driver) -> list[str]:
    """What the browser asked for, whatever came of it."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


def text(driver: Driver, selector: str) -> str:
    return str(driver.find_element(By.CSS_SELECTOR, selector).text)


def shown(driver: Driver, read: str) -> str:
    return text(driver, f'[data-read="{read}"]')


def tooltip(driver: Driver, start: str) -> str:
    """What the tooltip says, once it is there and has a name that starts so."""
    found = driver.find_elements(By.CSS_SELECTOR, "#vg-tooltip-element.visible")
    words = " ".join(found[0].text.split()) if found else ""
    return words if start in words else ""
