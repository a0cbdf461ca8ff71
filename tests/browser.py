"""Chromium, for the tests of the report's page and of the built site; `browser` is in conftest."""

import os
import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
NEEDED = bool(os.environ.get("CTTA_NEEDS_BROWSER"))
PATIENCE = 120_000  # milliseconds; machines that run tests are busy
if CHROMIUM is not None and not NEEDED:  # where it is needed, a missing part is a failure
    pytest.importorskip("playwright.sync_api")

NEEDS_BROWSER = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None and not NEEDED, reason="chromium is not installed"),
]
