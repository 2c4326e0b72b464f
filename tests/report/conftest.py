"""The browser that tests of pages share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.browser import FLAGS, PATIENCE, Driver, Open, programs, ready
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait


@pytest.fixture(scope="session")
def driver() -> Iterator[Driver]:
    browser, service = programs()
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(service))
    yield opened
    opened.quit()


@pytest.fixture
def open_page(driver: Driver) -> Open:
    def opened(path: Path, width: int = 1200, height: int = 900) -> Driver:
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        driver.get("about:blank")
        for kind in ("browser", "performance"):
            driver.get_log(kind)  # what came before is not ours
        driver.get(path.as_uri())
        WebDriverWait(driver, PATIENCE).until(ready)
        return driver

    return opened
