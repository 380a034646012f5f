#!/usr/bin/env python3
"""Opens every dashboard with deploy/grafana/view.py in a headless Chromium, beside a real Prometheus, and looks at the page.

Every panel of the JSON must be there and drawn; what a panel with one figure says must be what Prometheus answers; legends
must have a name for each series; the pointer, the keyboard and the menus must do what they are for; what is planted must be
named. The modules' unit tests (viewer_units.js) run in the same browser. Exit 77: no prometheus or no Chromium here.
"""
import base64
import json
import pathlib
import re
import shutil
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse

import check_dashboards
import prometheus_selftest
from browser import PROGRAMS, Browser, find_program

ROOT = pathlib.Path(__file__).resolve().parents[2]
GRAFANA = ROOT / "deploy/grafana"
BOARDS = {board["uid"]: board for board in (json.loads(path.read_text()) for path in sorted((GRAFANA / "dashboards").glob("*.json")))}
SETTLED = """(document.documentElement.dataset.state === 'error' || (document.documentElement.dataset.state === 'ready'
  && !document.querySelector('details.row[open] [data-state="loading"]')))"""
# What the page shows of each panel.
PANELS = """[...document.querySelectorAll('.panel')].map((panel) => ({
  title: panel.dataset.title, type: panel.dataset.type, state: panel.dataset.state,
  text: panel.querySelector('.body').innerText.trim(), marks: panel.querySelectorAll('.body svg *, .body td').length,
  figures: [...panel.querySelectorAll('.stat strong')].map((figure) => figure.innerText),
  clipped: [...panel.querySelectorAll('.stat strong')].some((figure) => figure.scrollWidth > figure.parentElement.clientWidth + 1),
  legend: [...panel.querySelectorAll('.legend button')].map((button) => button.innerText),
  bars: panel.querySelectorAll('.bar').length}))"""
FACTORS = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "%": 0.01, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "s": 1, "min": 60, "h": 3600}

sys.path.insert(0, str(GRAFANA))
import view  # noqa: E402  (found by the line above)


def panels_of(board):
    """The panels in the order of the page, without the rows."""
    return [panel for panel in check_dashboards.panels_of(board) if panel["type"] != "row"]


def number_of(text):
    """What a figure stands for, and how far the true value may be away: half of its last digit."""
    match = re.fullmatch(r"(-?\d+(?:\.(\d+))?)\s*(\D*)", text)
    assert match, f"{text!r} is no figure"
    factor = FACTORS[match.group(3).strip()]
    return float(match.group(1)) * factor, 0.5001 * factor * 10 ** -len(match.group(2) or "")


class ViewerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        process, cls.url = prometheus_selftest.start_prometheus(cls.folder, prometheus_selftest.start_stand_ins(),
                                                                [f"--web.user-assets={GRAFANA}"])
        cls.addClassCleanup(process.wait, 20)
        cls.addClassCleanup(process.terminate)
        cls.browser = cls.enterClassContext(Browser())
        prometheus_selftest.wait_for_samples(cls.url, process, cls.folder / "log")
        cls.prometheus = check_dashboards.Prometheus(cls.url)
        # A moment that is over, so that what we ask and what the page asks is the same.
        cls.end = int(time.time()) - 2
        cls.home = cls.serve(GRAFANA)

    @classmethod
    def serve(cls, folder, prometheus=None):
        server = view.serve(prometheus or cls.url, folder=folder)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        cls.addClassCleanup(server.server_close)
        cls.addClassCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_address[1]}/user/viewer/"

    def open(self, board, home=None, **query):
        page = self.browser.page(1400, 900)
        query = {"board": board, "from": 1000 * (self.end - 60), "to": 1000 * self.end, "refresh": "", **query}
        page.open(f"{home or self.home}?{urllib.parse.urlencode(query, doseq=True)}")
        page.wait(SETTLED)
        return page

    def unfold(self, page):
        page.evaluate("document.querySelectorAll('details.row:not([open])').forEach((row) => row.open = true)")
        page.wait(f"!document.querySelector('.panel[data-state=loading]') && {SETTLED}")
        self.assertFalse(page.evaluate("document.querySelector('.complaint')?.innerText"))

    def test_units(self):
        page = self.open("telar-fleet")
        module = base64.b64encode((ROOT / "tests/e2e/viewer_units.js").read_bytes()).decode()
        load = "(name) => import(new URL(name, location))"
        result = page.evaluate(f"import('data:text/javascript;base64,{module}').then(({{run}}) => run({load}))")
        self.assertEqual(result["failures"], [])
        self.assertGreater(result["checks"], 70)

    def test_every_panel_is_drawn(self):
        for uid, board in BOARDS.items():
            with self.subTest(uid):
                page = self.open(uid)
                folded = sum(len(panel["panels"]) for panel in board["panels"] if panel["type"] == "row")
                loading = page.evaluate("document.querySelectorAll('.panel[data-state=loading]').length")
                self.assertEqual(loading, folded, "what is folded away is not asked for")
                self.unfold(page)
                self.assertEqual(page.evaluate("document.title"), board["title"])
                links = page.evaluate("[...document.querySelectorAll('nav a')].map((link) => new URL(link.href).searchParams.get('board'))")
                self.assertEqual(links, list(BOARDS))
                shown, wanted = page.evaluate(PANELS), panels_of(board)
                self.assertEqual([(panel["title"], panel["type"]) for panel in shown],
                                 [(panel["title"], panel["type"]) for panel in wanted])
                for seen, panel in zip(shown, wanted):
                    with self.subTest(panel["title"]):
                        self.check_panel(seen, panel)
                self.assertEqual(page.errors, [])

    def answers(self, panel):
        """The labels and last value of each series that the panel's queries give at the page's time."""
        known = {"__rate_interval": "4s", "__interval": "1s", "__range": "1m", "job_id": ".*", "rank": ".*"}
        for target in panel["targets"]:
            query = check_dashboards.expand(target["expr"], known)
            if target.get("instant"):
                for series in self.prometheus.get("query", query=query, time=self.end)["result"]:
                    yield series["metric"], float(series["value"][1])
            else:
                for series in self.prometheus.get("query_range", query=query, start=self.end - 60, end=self.end, step=1)["result"]:
                    yield series["metric"], next((float(value) for _, value in reversed(series["values"]) if value != "NaN"), None)

    def check_panel(self, seen, panel):
        answers = list(self.answers(panel))
        self.assertEqual(seen["state"], "ok", seen["text"])
        self.assertFalse(seen["clipped"], seen["text"])
        self.assertTrue(seen["bars"] or seen["marks"] or panel["type"] == "stat", seen)
        if panel["type"] == "stat" and panel["options"]["textMode"] == "name":
            self.assertEqual(seen["figures"], [labels["state"] for labels, _ in answers])
        elif panel["type"] == "stat":
            self.assertEqual(len(seen["figures"]), len(answers))
            for figure, (_, value) in zip(seen["figures"], answers):
                number, tolerance = number_of(figure)
                self.assertAlmostEqual(number, value, delta=tolerance + 1e-9, msg=figure)
        elif panel["type"] == "timeseries":
            self.assertEqual(len(seen["legend"]), len(answers), seen["legend"])
            self.assertTrue(all(seen["legend"]), seen["legend"])
        elif panel["type"] == "table":
            headings = list(panel["transformations"][0]["options"]["renameByName"].values())
            self.assertEqual(seen["text"].split("\n")[0].split("\t"), headings)
            for labels, _ in answers:
                for value in labels.values():
                    self.assertIn(value, seen["text"])
        elif panel["type"] == "barchart":
            row, column = panel["options"]["xField"].split("\\")
            self.assertEqual(seen["bars"], len({labels[row] for labels, _ in answers}))
            self.assertEqual(sorted(seen["legend"]), sorted({labels[column] for labels, _ in answers}))

    def panel_box(self, page, title):
        box = page.evaluate(f"""(() => {{ const chart = document.querySelector('[data-title="{title}"] svg.plot');
          chart.scrollIntoView({{block: 'center'}});
          const {{left, top, width, height}} = chart.getBoundingClientRect(); return [left, top, width, height]; }})()""")
        return [round(value) for value in box]

    def test_pointer_and_keyboard(self):
        page = self.open("telar-job")
        left, top, width, height = self.panel_box(page, "Samples consumed")
        page.mouse("mouseMoved", left + width - 20, top + height // 2)
        page.wait("document.querySelector('.tooltip:not([hidden])')")
        shown = page.evaluate("document.querySelector('.tooltip').innerText")
        self.assertIn("k3x9q2ab", shown)
        series, = self.prometheus.get("query_range", query="max by (job_id) (telar_consumed_samples)", start=self.end - 60, end=self.end,
                                      step=1)["result"]
        number, tolerance = number_of(shown.strip().split("\n")[-1].split("\t")[-1].strip())
        self.assertTrue(any(abs(float(value) - number) <= tolerance for _, value in series["values"]), (shown, series))
        cursors = page.evaluate("document.querySelectorAll('.cursor[visibility=visible]').length")
        charts = page.evaluate("document.querySelectorAll('details[open] svg.plot').length")
        self.assertEqual(cursors, charts, "all charts follow the pointer")
        page.mouse("mouseMoved", 2, 2)
        page.wait("document.querySelector('.tooltip').hidden")

        page.evaluate("document.querySelector('[data-title=\"Gradient norm\"] svg.plot').focus()")
        page.key("ArrowLeft")
        page.wait("!document.querySelector('.tooltip').hidden")
        self.assertIn("1.5", page.evaluate("document.querySelector('.tooltip').innerText"))
        page.key("Escape")
        page.wait("document.querySelector('.tooltip').hidden")

        left, top, width, height = self.panel_box(page, "Gradient norm")
        page.drag(left + width // 2, left + width - 20, top + height // 2)
        page.wait(f"!location.search.includes('to={1000 * self.end}') && {SETTLED}")
        zoomed = urllib.parse.parse_qs(page.evaluate("location.search.slice(1)"))
        self.assertRegex(zoomed["from"][0], r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")
        self.assertEqual(page.errors, [])

    def test_legends_and_menus(self):
        page = self.open("telar-job")
        title = "Where a step's time goes"
        lines = f"document.querySelectorAll(`[data-title=\"{title}\"] .series .line`).length"
        button = f"document.querySelector(`[data-title=\"{title}\"] .legend button`).click()"
        before = page.evaluate(lines)
        self.assertEqual(before, 3)
        page.evaluate(button)
        self.assertEqual(page.evaluate(lines), 1, "one alone")
        page.evaluate(button)
        self.assertEqual(page.evaluate(lines), before, "all again")
        choices = "[...document.querySelectorAll('[data-variable=job_id] label')]"
        self.assertEqual(page.evaluate(f"{choices}.map((label) => label.textContent)"), ["All", "k3x9q2ab"])
        page.evaluate(f"{choices}[1].querySelector('input').click()")
        page.wait(f"location.search.includes('var-job_id=k3x9q2ab') && {SETTLED}")
        self.assertEqual(page.evaluate("document.querySelectorAll('[data-state=error], .complaint').length"), 0)
        page.evaluate("[...document.querySelectorAll('.quick button')].find((button) => button.textContent === 'Last 5 minutes').click()")
        page.wait(f"location.search.includes('from=now-5m') && {SETTLED}")
        self.assertEqual(page.evaluate("document.querySelector('.time summary').innerText"), "Last 5 minutes")
        page.evaluate("document.querySelector('[name=from]').value = 'yesterday', document.querySelector('.ranges form').requestSubmit()")
        self.assertIn("yesterday", page.evaluate("document.querySelector('.problem').textContent"))
        self.assertEqual(page.errors, [])

    def test_planted_mistakes_are_named(self):
        folder = self.folder / "grafana"
        shutil.copytree(GRAFANA, folder, ignore=shutil.ignore_patterns("__pycache__"))
        path = folder / "dashboards/telar-job.json"
        board = json.loads(path.read_text())
        panels = {panel["title"]: panel for panel in board["panels"]}
        panels["Training loss"]["type"] = "piechart"
        panels["Eval loss"]["options"]["legend"]["displayMode"] = "hidden"
        panels["Gradient norm"]["targets"][0]["expr"] = "sum by (telar_loss"
        panels["Learning rate"]["targets"][0]["expr"] = "telar_loss{rank=\"$nobody\"}"
        panels["Samples consumed"]["targets"][0]["expr"] = "telar_no_such_metric"
        path.write_text(json.dumps(board))
        page = self.open("telar-job", self.serve(folder))
        seen = {panel["title"]: (panel["state"], panel["text"]) for panel in page.evaluate(PANELS)}
        for title, state, part in (("Training loss", "error", '"piechart" is not understood'),
                                   ("Eval loss", "error", "options.legend.displayMode"),
                                   ("Gradient norm", "error", "parse error"), ("Learning rate", "error", "$nobody"),
                                   ("Samples consumed", "empty", "No data"), ("Tokens per second", "ok", "")):
            self.assertEqual(seen[title][0], state, seen[title])
            self.assertIn(part, seen[title][1])
        board["panels"], board["weekStart"] = [], "monday"
        path.write_text(json.dumps(board))
        page = self.open("telar-job", self.serve(folder))
        self.assertEqual(page.evaluate("document.documentElement.dataset.state"), "error")
        self.assertIn("weekStart is not understood", page.evaluate("document.querySelector('.complaint').innerText"))
        page = self.open("telar-nothing")
        self.assertIn("telar-nothing", page.evaluate("document.querySelector('.complaint').innerText"))

    def test_prometheus_serves_it_itself(self):
        page = self.open("telar-ranks", f"{self.url}/user/viewer/")
        self.assertEqual(page.evaluate("document.querySelectorAll('details[open] .panel:not([data-state=ok])').length"), 0)
        self.assertEqual(page.errors, [])

    def test_prometheus_is_away(self):
        page = self.open("telar-fleet", self.serve(GRAFANA, "http://127.0.0.1:1"))
        for selector in (".complaint", ".panel[data-state=error]"):
            self.assertIn("http://127.0.0.1:1", page.evaluate(f"document.querySelector('{selector}').innerText"))


def main():
    if not shutil.which("prometheus"):
        print("skipped: no prometheus; Debian's package prometheus has it")
        return 77
    if not find_program():
        print(f"skipped: none of {', '.join(PROGRAMS)}; Debian's package chromium-headless-shell has the first")
        return 77
    result = unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]], exit=False).result
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
