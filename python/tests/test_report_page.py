# SPDX-License-Identifier: BSD-3-Clause

"""The page that remat-report writes, in a headless Chromium: what it shows, and that it makes no requests."""

import json
import os
import re
import subprocess
from pathlib import Path

import browser
import pytest

REPORT = os.environ.get("REMAT_REPORT_PROGRAM", "")
SAMPLES = os.environ.get("REMAT_REPORT_SAMPLES_PROGRAM", "")  # a C++ suite that writes recordings
PICTURES = os.environ.get("REMAT_REPORT_PICTURES", "")  # a folder for new pictures of docs/how-to/tools.md

pytestmark = [
    pytest.mark.skipif(not (REPORT and SAMPLES), reason="expected REMAT_REPORT_PROGRAM and REMAT_REPORT_SAMPLES_PROGRAM"),
    pytest.mark.skipif(browser.PROGRAM is None, reason=browser.MISSING),
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Returns pages by name, and the data of each."""
    folder = tmp_path_factory.mktemp("report")
    environment = {**os.environ, "REMAT_REPORT_SAMPLES": str(folder)}
    subprocess.run([SAMPLES, "[.samples]"], env=environment, check=True, capture_output=True)
    recordings = {name: [name] for name in ("step", "recompute", "long", "hostile", "empty")} | {"both": ["step", "recompute"]}
    for name, parts in recordings.items():
        subprocess.run([REPORT, *(folder / f"{part}.rec" for part in parts), "-o", folder / f"{name}.html"], check=True)
    return {name: folder / f"{name}.html" for name in recordings}


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    opened = browser.Browser(str(tmp_path_factory.mktemp("chromium")))
    yield opened
    opened.close()


def run_of(page, number=0):
    text = re.search(r'id="data">(.*?)</script>', page.read_text(), re.S)[1]
    return json.loads(text)["runs"][number]


def sums(differences):
    total, all_sums = 0, []
    for difference in differences:
        total += difference
        all_sums.append(total)
    return all_sums


def total_at(run, moment):
    return sum(sums(kind)[moment] for kind in run["curve"]["bytes"])


def attribute(chromium, selector, name):
    return chromium.evaluate(f"document.querySelector({json.dumps(selector)}).getAttribute({json.dumps(name)})")


def text(chromium, selector):
    return chromium.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")


def rows(chromium, table):
    return chromium.evaluate(
        f"[...document.querySelectorAll('{table} tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"
    )


def test_a_page_asks_for_nothing_and_has_no_fault(chromium, pages):
    for name, page in pages.items():
        chromium.open(page)
        chromium.evaluate("document.querySelectorAll('button, input').forEach(control => control.click())")
        chromium.frame()
        assert chromium.requests() == [page.as_uri()], name
        assert chromium.faults() == [], name


def test_a_page_of_100_000_events_is_small_and_opens_in_a_second(chromium, pages):
    assert run_of(pages["long"])["summary"]["events"] > 100_000
    assert pages["long"].stat().st_size < 1_000_000
    chromium.open(pages["empty"])  # starts the browser itself
    taken = min(chromium.open(pages["long"]) for _ in range(5))
    print(f"opens in {taken:.2f} s")
    assert taken < 1


@pytest.mark.parametrize("name", ["step", "long", "hostile"])
def test_the_tables_of_a_moment_come_to_the_chart(chromium, pages, name):
    run = run_of(pages[name])
    chromium.open(pages[name])
    peak = total_at(run, run["curve"]["peak"])
    assert peak == run["summary"]["peak_bytes"]
    assert int(attribute(chromium, "#peak-table", "data-bytes")) == peak
    shown = chromium.evaluate("[...document.querySelectorAll('#peak-table tbody td:first-child')].map(cell => cell.title)")
    assert sum(int(title.split()[0].replace(",", "")) for title in shown) == peak
    for moment in (0, len(run["curve"]["time"]) // 3, len(run["curve"]["time"]) - 1):
        chromium.evaluate(f"page.control.setCursor({moment})")
        assert int(attribute(chromium, "#cursor-table", "data-bytes")) == total_at(run, moment)


def test_like_regions_are_one_row_until_they_are_unfolded(chromium, pages):
    chromium.open(pages["step"])
    folded = rows(chromium, "#peak-table")
    assert any(row[3] == "h.* \u00d7 12" for row in folded)
    assert [row[0] for row in rows(chromium, "#region-table")] == ["h.* \u00d7 12"]
    chromium.evaluate("document.querySelector('#fold').click()")
    chromium.evaluate("document.querySelector('#peak-table .more').click()")
    unfolded = rows(chromium, "#peak-table")
    assert len(unfolded) > len(folded)
    assert {"h.0", "h.11"} <= {row[3] for row in unfolded}
    assert int(attribute(chromium, "#peak-table", "data-bytes")) == run_of(pages["step"])["summary"]["peak_bytes"]


def test_keys_move_the_cursor_and_the_view(chromium, pages):
    chromium.open(pages["step"])
    chromium.evaluate("document.querySelector('#chart').focus()")

    def now():
        return int(attribute(chromium, "#chart", "aria-valuenow"))

    peak = now()
    assert peak == run_of(pages["step"])["curve"]["peak"]
    assert chromium.evaluate("document.querySelector('#cursor-table').hidden")
    chromium.press("ArrowRight")
    assert now() == peak + 1
    assert not chromium.evaluate("document.querySelector('#cursor-table').hidden")
    assert "alive" in attribute(chromium, "#chart", "aria-valuetext")
    chromium.press("ArrowLeft", shift=True)
    assert now() < peak - 5
    chromium.press("End")
    assert now() == int(attribute(chromium, "#chart", "aria-valuemax"))
    chromium.press("Home")
    assert now() == 0
    chromium.press("m")
    assert text(chromium, "#cursor-title").startswith("After 39")  # the end of step 1
    chromium.press("p")
    assert now() == peak
    whole = chromium.evaluate("page.chart.to - page.chart.from")
    chromium.press("+")
    assert chromium.evaluate("page.chart.to - page.chart.from") == pytest.approx(whole / 2)
    chromium.press("-")
    chromium.press("+")
    chromium.press("0")
    assert chromium.evaluate("page.chart.to - page.chart.from") == pytest.approx(whole)


def test_wheel_and_drag_zoom_and_a_click_sets_the_cursor(chromium, pages):
    chromium.open(pages["step"])
    box = chromium.evaluate("(({x, y, width}) => [x, y, width])(document.querySelector('#chart').getBoundingClientRect())")
    left, top, width = box

    def length():
        return chromium.evaluate("page.chart.to - page.chart.from")

    whole = length()
    chromium.mouse("mouseWheel", left + width / 2, top + 100, deltaX=0, deltaY=-200)
    chromium.frame()
    assert length() < whole
    chromium.evaluate("document.querySelector('#zoom-all').click()")
    for kind, share in (("mousePressed", 0.4), ("mouseMoved", 0.5), ("mouseReleased", 0.6)):
        chromium.mouse(kind, left + width * share, top + 100, button="left", buttons=1, clickCount=1)
    chromium.frame()
    assert length() == pytest.approx(0.2 * whole, rel=0.2)
    for kind in ("mousePressed", "mouseReleased"):
        chromium.mouse(kind, left + width / 2, top + 100, button="left", buttons=1, clickCount=1)
    chromium.frame()
    clicked = chromium.evaluate(f"page.chart.timeAt({width / 2})")
    times = sums(run_of(pages["step"])["curve"]["time"])
    cursor = int(attribute(chromium, "#chart", "aria-valuenow"))
    assert times[cursor] <= clicked < times[cursor + 1]


def test_tables_are_sorted_by_buttons(chromium, pages):
    chromium.open(pages["step"])

    def slots():
        return [int(row[4]) for row in rows(chromium, "#peak-table") if row[4]]

    chromium.evaluate("document.querySelector('#peak-table [data-column=\"4\"]').click()")
    assert attribute(chromium, "#peak-table th:nth-child(5)", "aria-sort") == "descending"
    assert slots() == sorted(slots(), reverse=True)
    chromium.evaluate("document.activeElement.click()")  # the focus stays
    assert attribute(chromium, "#peak-table th:nth-child(5)", "aria-sort") == "ascending"
    assert slots() == sorted(slots())


def test_dark_mode_follows_the_system_and_the_button(chromium, pages):
    def ground():
        return chromium.evaluate("getComputedStyle(document.documentElement).backgroundColor")

    chromium.open(pages["step"], is_dark=False)
    light = ground()
    chromium.evaluate("document.querySelector('#theme').click()")
    dark = ground()
    assert dark != light and attribute(chromium, "#theme", "aria-pressed") == "true"
    chromium.open(pages["step"], is_dark=True)
    assert ground() == dark
    chromium.evaluate("document.querySelector('#theme').click()")
    assert ground() == light


def test_all_controls_have_names_and_a_phone_needs_no_sideways_scrolling(chromium, pages):
    chromium.open(pages["both"], width=390)
    nameless = """[...document.querySelectorAll('button, select, input, [tabindex]')].filter(control =>
      !(control.getAttribute('aria-label') || control.textContent.trim() || control.labels?.length)).length"""
    assert chromium.evaluate(nameless) == 0
    assert chromium.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_plan_stands_beside_what_was_measured(chromium, pages):
    chromium.open(pages["step"])
    plans = run_of(pages["step"])["plans"]
    assert len(rows(chromium, "#plan-table")) == len(plans) == 2
    labels = chromium.evaluate("[...document.querySelectorAll('.plan-label')].map(label => label.textContent)")
    assert [label.split()[0] for label in labels] == ["predicted", "budget", "plain"]
    # Lines are relative to the bytes alive when the step began.
    top = chromium.evaluate("+document.querySelector('.plan.budget').getAttribute('y1')")
    assert top == pytest.approx(chromium.evaluate(f"page.chart.y({plans[0][6] + plans[0][3]})"))


def test_two_recordings_are_one_over_the_other(chromium, pages):
    chromium.open(pages["both"])
    first, second = run_of(pages["both"]), run_of(pages["both"], 1)
    assert int(attribute(chromium, "#peak-table", "data-bytes")) == first["summary"]["peak_bytes"]
    chromium.evaluate("byId('align').value = 'mark'; byId('align').dispatchEvent(new Event('change'))")
    chromium.frame()
    assert chromium.evaluate("page.chart.shift") == first["marks"][0][0] - second["marks"][0][0]
    compared = {row[0]: row[1:] for row in rows(chromium, "#compare-table")}
    assert compared["Replayed ops"][:2] == [str(run["summary"]["phases"][2][0]) for run in (first, second)]
    chromium.evaluate("document.querySelector('#runs button:nth-child(2)').click()")
    assert int(attribute(chromium, "#peak-table", "data-bytes")) == second["summary"]["peak_bytes"]


def test_text_of_a_recording_is_shown_and_never_run(chromium, pages):
    chromium.open(pages["hostile"])
    assert "</script><img src=x onerror=alert(1)>" in text(chromium, "#region-table")
    assert chromium.evaluate("document.querySelectorAll('img').length") == 0
    assert not any(event.get("method") == "Page.javascriptDialogOpening" for event in chromium.events)


@pytest.mark.skipif(not PICTURES, reason="only with REMAT_REPORT_PICTURES=docs/pictures")
def test_pictures_of_the_docs(chromium, pages):
    for name, page, is_dark, width, height, keys in (
        ("report-light", "step", False, 1000, 1060, ""),
        ("report-dark", "both", True, 1000, 790, "m++"),
    ):
        chromium.open(pages[page], width=width, height=height, is_dark=is_dark)
        chromium.evaluate("document.querySelector('#chart').focus({ preventScroll: true })")
        chromium.evaluate("byId('align').value = 'mark'; byId('align').dispatchEvent(new Event('change'))")
        for key in keys:
            chromium.press(key)
        chromium.evaluate("document.activeElement.blur()")
        chromium.frame()
        path = Path(PICTURES) / f"{name}.png"
        chromium.picture(path)
        assert path.stat().st_size < 150_000
