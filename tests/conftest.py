"""Settings and fixtures shared by all tests."""

import os
import pathlib
import shutil
import tempfile

# Compiled programs are kept between test processes and runs; commands that tests
# start inherit this. Set before jax is imported.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR",
    str(pathlib.Path(tempfile.gettempdir()) / f"stackformer-xla-{os.getuid()}"),
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")
# Most of a test's time is LLVM's: 0.6 of it without its expensive passes. Sums may then
# round otherwise: what is compared to the last bits asks for `compiled_as_users_do`.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import jax
import pytest

# An accidental (3,) + (5, 3) broadcast is a bug until somebody writes it down.
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    """Compiled programs of one file are of no use to the next, and take gigabytes."""
    yield
    jax.clear_caches()


@pytest.fixture
def compiled_as_users_do():
    """All passes of LLVM, in this process."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()
    yield
    jax.config.update("jax_disable_most_optimizations", before)
    jax.clear_caches()


BROWSER_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1000",
)


@pytest.fixture(scope="session")
def _chromium(tmp_path_factory):
    """Headless Chromium, started once. Skips where it is not installed; with
    STACKFORMER_REQUIRE_BROWSER=1, as in .ci/run, a missing browser is a failure."""
    programs = {
        "chromium": shutil.which("chromium") or shutil.which("google-chrome"),
        "chromedriver (Debian: chromium-driver)": shutil.which("chromedriver"),
    }
    missing = [name for name, path in programs.items() if path is None]
    if missing:
        stop = (
            pytest.fail
            if os.environ.get("STACKFORMER_REQUIRE_BROWSER")
            else pytest.skip
        )
        stop(f"no {' and no '.join(missing)} on the PATH: install to run browser tests")
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location, driver_path = programs.values()
    profile = tmp_path_factory.mktemp("chromium-profile")
    for flag in (*BROWSER_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(driver_path))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture
def browser(_chromium):
    """Chromium for one test: `browser.get(path.as_uri())`; fails on console errors."""
    _chromium.get("about:blank")
    _chromium.get_log("browser")
    yield _chromium
    errors = [e for e in _chromium.get_log("browser") if e["level"] == "SEVERE"]
    assert not errors, f"the page wrote errors to the console: {errors}"
