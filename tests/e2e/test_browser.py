"""In a real browser: a person triggers a run in Airflow's UI, sees it succeed and reads a task's log."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from include.stages import STAGES
from local.services import Services
from tests.e2e.conftest import Runs

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.engine]

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@pytest.fixture
def page(services: Services) -> Iterator[Page]:
    """A page of a fresh browser; an error on its console fails the test."""
    if not Path(CHROMIUM).exists():
        pytest.skip("Debian's chromium isn't installed: `make test` installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        opened = browser.new_page(viewport={"width": 1400, "height": 900})
        opened.set_default_timeout(60_000)
        errors: list[str] = []
        opened.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        yield opened
        browser.close()
    assert errors == []


def test_a_person_triggers_a_run_sees_it_succeed_and_reads_a_log(
    page: Page, services: Services, runs: Runs
) -> None:
    address = services.airflow.address
    page.goto(f"{address}/dags/demo")
    page.get_by_role("button", name="Trigger").first.click()
    form = page.get_by_role("dialog")
    form.get_by_text("Run Parameters").wait_for()
    expect(form).to_contain_text("auto: train in single runs, leave it out in backfills")
    expect(form.get_by_text("Backfill", exact=True)).to_be_visible()
    form.get_by_role("spinbutton").fill("3")
    form.get_by_role("combobox").first.click()
    page.get_by_role("option", name="never").click()
    form.get_by_role("button", name="Trigger", exact=True).click()
    page.wait_for_url(re.compile(r"/dags/demo/runs/"))
    run_id = page.url.split("/runs/")[1].split("/")[0].split("?")[0].replace("%3A", ":").replace("%2B", "+")
    assert runs.wait(run_id) == "success"
    page.reload()
    expect(page.get_by_text("Success").first).to_be_visible()
    page.goto(f"{address}/dags/demo/runs/{run_id}/tasks/generate")
    expect(page.get_by_text(re.compile(r"generate demo/shard-\d+: done in")).first).to_be_visible()
    page.goto(f"{address}/dags/demo/runs/{run_id}/tasks/train_drafter")
    expect(page.get_by_text("the run's parameter `train` is `never`").first).to_be_visible()


def test_a_person_backfills_a_range_of_shards(
    page: Page, services: Services, runs: Runs, whole_run: str
) -> None:
    page.set_viewport_size({"width": 1400, "height": 1300})
    page.goto(f"{services.airflow.address}/dags/demo")
    page.get_by_role("button", name="Trigger").first.click()
    form = page.get_by_role("dialog")
    form.get_by_text("Backfill", exact=True).click()
    for day in ("2020/01/03", "2020/01/04"):
        form.get_by_text("Select date and time").first.click()
        page.get_by_placeholder("YYYY/MM/DD").last.fill(day)
        page.get_by_placeholder("HH:mm").last.fill("00:00")
        page.keyboard.press("Enter")
        page.keyboard.press("Escape")
    form.get_by_text("All Runs").click()
    form.get_by_role("button", name="Run Backfill").click()
    for run_id in runs.wait_for_backfill({"shard-00002", "shard-00003"}):
        assert runs.wait(run_id) == "success"
        assert set(runs.states(run_id).values()) == {"skipped"}


def test_the_picture_of_a_run_shows_the_eight_stages(page: Page, services: Services, whole_run: str) -> None:
    """With SCREENSHOTS set to a folder, the README's picture is made anew."""
    page.set_viewport_size({"width": 1500, "height": 560})
    page.goto(f"{services.airflow.address}/dags/demo/runs/{whole_run}")
    page.get_by_role("button", name="Show Graph").click()
    page.get_by_role("button", name="Collapse Details Panel").click()
    for task in STAGES:
        expect(page.get_by_text(task, exact=True).first).to_be_visible()
    page.get_by_role("button", name="Fit View").click()
    page.wait_for_timeout(1500)
    if folder := os.environ.get("SCREENSHOTS"):
        clip = {"x": 0, "y": 0, "width": 1500, "height": 400}  # without the map in the corner
        page.screenshot(path=Path(folder) / "dag.png", clip=clip)
