#!/usr/bin/env python3
"""Runs every query of Grafana dashboards against a Prometheus, as Grafana would, and wants data from each.

    check_dashboards.py --prometheus URL [--window SECONDS] [--step SECONDS] [--rate-interval DURATION]
                        [--allow-empty 'PANEL=REASON']... [DASHBOARD.json]...

Each target of each panel must be answered with success, at least one finite sample and no infinite one (NaN is what a
quantile of nothing is, so it only doesn't count). A variable's query must give at least one value. A panel named by
--allow-empty may have no data, for the reason given; infinite values it may not have either. A panel that --allow-empty
names but no dashboard has is an error. Exit 0: all well; 1: not, each failure a line on stderr; 2: usage.
"""
import argparse
import json
import math
import pathlib
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


class QueryError(Exception):
    pass


class Prometheus:
    def __init__(self, url):
        self.url = url.rstrip("/")

    def get(self, path, **parameters):
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters, doseq=True)}"
        try:
            try:
                with urllib.request.urlopen(address, timeout=20) as response:
                    body = response.read()
            except urllib.error.HTTPError as refusal:  # A refused query explains itself in the body.
                body = refusal.read()
            answer = json.loads(body)
        except (OSError, ValueError) as error:  # Not up yet: no answer, or one in plain text.
            raise QueryError(f"{self.url}: {error}") from error
        if answer.get("status") != "success":
            raise QueryError(answer.get("error", "no success"))
        return answer["data"]

    def label_values(self, selector, label, start, end):
        series = self.get("series", **{"match[]": selector}, start=start, end=end)
        return sorted({one[label] for one in series if label in one})


def expand(text, variables):
    """$name, ${name} and ${name:format} replaced; what no variable explains is an error."""
    def value(match):
        name = match.group(1) or match.group(2)
        if name not in variables:
            raise QueryError(f"unknown variable ${name}")
        return variables[name]
    return re.sub(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))", value, text)


def variables_of(dashboard, prometheus, options, start, end, failures):
    """All values of each variable, joined as Grafana does for a regular expression."""
    seconds = f"{options.step}s"
    known = {"__interval": seconds, "__rate_interval": options.rate_interval, "__range": f"{options.window}s"}
    for variable in dashboard.get("templating", {}).get("list", []):
        name, where = variable["name"], f"{dashboard['title']}: variable {variable['name']}"
        if variable["type"] == "datasource":
            known[name] = "prometheus"
            continue
        query = variable["query"]["query"] if isinstance(variable["query"], dict) else variable["query"]
        match = re.fullmatch(r"label_values\((?:(.*),)?\s*(\w+)\)", query)
        if variable["type"] != "query" or not match:
            failures.append(f"{where}: cannot read {query!r}")
            continue
        known[name] = ".*"
        try:
            values = prometheus.label_values(expand(match.group(1), known), match.group(2), start, end)
        except QueryError as error:
            failures.append(f"{where}: {error}")
            continue
        if not values:
            failures.append(f"{where}: {query} gives no value")
        known[name] = "(" + "|".join(re.escape(value) for value in values).replace("\\", "\\\\") + ")"
    return known


def panels_of(dashboard):
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


def check_target(prometheus, expression, options, start, end, may_be_empty):
    """What is wrong, or nothing."""
    result = prometheus.get("query_range", query=expression, start=start, end=end, step=options.step)["result"]
    samples = [float(value) for series in result for _, value in series["values"]]
    if any(math.isinf(sample) for sample in samples):
        return "has infinite values"
    if not any(math.isfinite(sample) for sample in samples) and not may_be_empty:
        return "has no data"
    return None


def check(dashboard, prometheus, options, allowed, failures):
    """Returns (targets run, panels seen)."""
    end = time.time()
    start = end - options.window
    variables = variables_of(dashboard, prometheus, options, start, end, failures)
    targets, seen = 0, set()
    for panel in panels_of(dashboard):
        if panel["type"] in ("row", "text"):
            continue
        seen.add(panel["title"])
        if not panel.get("targets"):
            failures.append(f"{dashboard['title']}: {panel['title']}: no query")
        for target in panel.get("targets", []):
            targets += 1
            where = f"{dashboard['title']}: {panel['title']} ({target['refId']})"
            try:
                expression = expand(target["expr"], variables)
                problem = check_target(prometheus, expression, options, start, end, panel["title"] in allowed)
            except QueryError as error:
                problem, expression = str(error), target["expr"]
            if problem:
                failures.append(f"{where}: {problem}: {expression}")
    return targets, seen


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", required=True, metavar="URL")
    parser.add_argument("--window", type=int, default=300, help="seconds back from now (default 300)")
    parser.add_argument("--step", type=int, default=1, help="seconds between samples (default 1)")
    parser.add_argument("--rate-interval", default="20s", help="$__rate_interval: at least four scrapes (default 20s)")
    parser.add_argument("--allow-empty", action="append", default=[], metavar="PANEL=REASON")
    parser.add_argument("dashboards", nargs="*", type=pathlib.Path,
                        default=sorted((REPOSITORY / "deploy/grafana/dashboards").glob("*.json")))
    options = parser.parse_args(arguments)
    allowed = dict(entry.partition("=")[::2] for entry in options.allow_empty)
    for panel, reason in allowed.items():
        if not reason:
            parser.error(f"--allow-empty {panel!r} gives no reason")
    if not options.dashboards:
        parser.error("no dashboards")
    return options, allowed


def main(arguments=None):
    options, allowed = parse(arguments)
    prometheus, failures, targets, seen = Prometheus(options.prometheus), [], 0, set()
    for path in options.dashboards:
        count, titles = check(json.loads(path.read_text()), prometheus, options, allowed, failures)
        targets, seen = targets + count, seen | titles
    failures += [f"--allow-empty names {panel!r}, which no dashboard has" for panel in sorted(allowed.keys() - seen)]
    for failure in failures:
        print(failure, file=sys.stderr)
    for panel, reason in allowed.items():
        print(f"may be empty: {panel}: {reason}")
    print(f"{targets} queries in {len(seen)} panels, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
