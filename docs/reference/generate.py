#!/usr/bin/env python3
"""Writes metrics.md (with the alerts) and errors.md beside this file from the sources; a test calls it with --check.

    generate.py           writes
    generate.py --check   exit 1 when what lies there is not what the sources say
    generate.py --self-test

It reads the sources as text: a metric is a name with its help behind it, an error a reason in a call of error() or of a
function that hands it on. A name or reason that it sees and cannot place ends it, and so does a reason that a program or a
test asks for and no error has, so that nothing is left out in silence.
"""
import pathlib
import re
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDERS = ("common", "server", "worker", "client")
ASKING = (*FOLDERS, "tests/server", "tests/client", "tests/worker", "tests/fakes")  # Who looks at the reason of an error.
NO_METRICS = {"telar_backend_module"}
NO_REASONS = {"setenv", "getenv", "envname"}  # Whose arguments look like a reason.
LITERAL = r'"((?:[^"\\]|\\.)*)"'
MESSAGE_WIDTH = 200


class Sources:
    def __init__(self, root=ROOT):
        self.root = root
        self.asking = {str(path.relative_to(root)): path.read_text() for folder in ASKING
                       for path in sorted((root / folder).rglob("*.*")) if path.suffix in (".cc", ".h")}
        self.files = {path: text for path, text in self.asking.items() if path.split("/")[0] in FOLDERS}

    def text(self, name):
        return (self.root / name).read_text()


def fail(message):
    sys.exit(f"generate.py: {message}")


def without_comments(text):
    return re.sub(rf'{LITERAL}|//[^\n]*', lambda found: found.group(0) if found.group(0).startswith('"') else "", text)


def closing(text, start):
    """The index of the bracket that closes what is open at `start`; brackets in literals do not count."""
    depth = 0
    for found in re.finditer(rf'{LITERAL}|[(){{}}\[\]]', text[start:]):
        one = found.group(0)
        if one in "({[":
            depth += 1
        elif one in ")}]":
            if depth == 0:
                return start + found.start()
            depth -= 1
    return len(text)


def said(code):
    """What an expression says: its literals, with a mark for whatever is put between them."""
    parts, last = [], 0
    for found in re.finditer(rf'{LITERAL}', code):
        between = code[last:found.start()]
        if re.search(r"\w", between.replace("absl::StrCat", "")):
            parts.append("…")
        parts.append(found.group(1).replace('\\"', '"').replace("\\n", " "))
        last = found.end()
    if re.search(r"\w", code[last:]):
        parts.append("…")
    text = re.sub(r"(…\s*)+…", "…", "".join(parts)).strip()
    text = "" if text == "…" else text
    return text if len(text) <= MESSAGE_WIDTH else text[:MESSAGE_WIDTH].rsplit(" ", 1)[0] + " …"


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


# --- Metrics ---------------------------------------------------------------------------------------------------------------
KINDS = {"gauge": "gauge", "counter": "counter", "histogram": "histogram"}


def kind_of(before, after):
    """By what is called with the name, or by the type that a family is given behind its help."""
    behind = re.match(r'[^;]{0,40}?MetricType::(\w+)', after, re.S)
    if behind:
        return KINDS[behind.group(1).lower()]
    calls = re.findall(r"(?i)\b(?:Build)?(gauge|counter|histogram)(?:_family)?\s*\(", before[-160:])
    return KINDS[calls[-1].lower()] if calls else None


def metrics(sources):
    found = {}
    for path, raw in sources.files.items():
        text = without_comments(raw)
        for name in re.finditer(r'"(telar_[a-z0-9_]+)"', text):
            if name.group(1) in NO_METRICS:
                continue
            rest = text[name.end():name.end() + 600]
            words = re.match(rf'\)?\s*(?:,|\.Help\()\s*((?:{LITERAL}\s*)+)', rest)
            if not words:
                fail(f"{path}: {name.group(1)} has no help behind its name, or is no metric: then add it to NO_METRICS")
            help_text = "".join(re.findall(LITERAL, words.group(1)))
            kind = kind_of(text[:name.start()], rest[words.end():])
            if kind is None:
                fail(f"{path}: cannot tell what {name.group(1)} is: gauge, counter or histogram")
            page = "coordinator" if path.startswith("server/") else "worker"
            entry = found.setdefault(name.group(1), {"kind": kind, "help": help_text, "pages": set(), "path": path})
            if entry["kind"] != kind:
                fail(f"{name.group(1)} is a {entry['kind']} in {entry['path']} and a {kind} in {path}")
            entry["pages"].add(page)
    return found


def unit_of(name):
    base = re.sub(r"_total$", "", name)
    for ending, unit in (("timestamp_seconds", "Unix time, s"), ("flops_per_second", "FLOP/s"), ("seconds", "s"), ("bytes", "bytes"),
                         ("flops", "FLOP"), ("ratio", "ratio")):
        if base.endswith(ending):
            return unit
    return ""


def alerts(sources):
    """[(name, severity, summary)], of the rules that are shipped."""
    text = sources.text("deploy/prometheus/rules/telar.yml")
    found = []
    for block in re.split(r"^\s*- (?=alert:|record:)", text, flags=re.M)[1:]:
        name = re.match(r"alert: (\w+)", block)
        if not name:
            continue
        severity, summary = re.search(r"severity: (\w+)", block), re.search(rf"summary: {LITERAL}", block)
        if not severity or not summary:
            fail(f"alert {name.group(1)} has no severity or no summary")
        found.append((f"`{name.group(1)}`", severity.group(1), re.sub(r"\{\{[^}]*\}\}", "…", summary.group(1))))
    return found


def metrics_page(sources):
    found = metrics(sources)
    lines = ["# Metrics", "", "<!-- Written by generate.py from the sources. -->", "",
             "What `/metrics` of the daemons shows. A series of a rank has the labels `job_id` and `rank`, one of a job `job_id`; they",
             "go when the job is over. `telar_rank_info` and `telar_job_info` say what stands behind these labels. Counters begin at",
             "zero with their daemon. [What is behind the figures](../metrics.md)."]
    for page, title in (("coordinator", "The coordinator's"), ("worker", "The workers'")):
        lines += ["", f"## {title}", "", "| metric | type | unit | |", "|---|---|---|---|"]
        lines += [f"| `{name}` | {one['kind']} | {unit_of(name)} | {cell(one['help'].rstrip('.'))} |"
                  for name, one in sorted(found.items()) if page in one["pages"]]
    lines += ["", "## Alerts", "", "Of [`deploy/prometheus/rules`](../../deploy/prometheus/rules).", ""]
    lines += table(("alert", "severity", ""), alerts(sources))
    return "\n".join(lines) + "\n"


# --- Errors ----------------------------------------------------------------------------------------------------------------
CODE = r"absl::StatusCode::k(\w+)"


def code_name(camel):
    return re.sub(r"(?<!^)(?=[A-Z])", "_", camel).upper()


def carriers(text):
    """{function: code} of those whose first argument is a reason that they put into an error: there even one word, as
    "REVOKED", is one."""
    found = {}
    for start in re.finditer(r"\b(\w+)\(const std::string& (\w+)[^;{]*\{", text):
        body = text[start.end():closing(text, start.end())]
        code = re.search(CODE, body)
        if code and re.search(rf"\berror\(\s*{CODE}\s*,\s*{start.group(2)}\b|\bset_reason\(\s*{start.group(2)}\s*\)", body):
            found[start.group(1)] = code_name(code.group(1))
    return found


def code_of_table(text):
    """The code that error() gets in this file where its reason is no literal but comes from a table."""
    codes = set(re.findall(rf"\berror\(\s*{CODE}\s*,\s*[a-z]", text))
    return code_name(codes.pop()) if len(codes) == 1 else None


def reasons(sources):
    """reason -> {(code, message)}"""
    texts = {path: without_comments(raw) for path, raw in sources.files.items()}
    everywhere = {name: code for path, text in texts.items() if path.startswith("common/") for name, code in carriers(text).items()}
    found = {}

    def note(reason, code, message):
        found.setdefault(reason, set()).add((code, message))

    for path, text in texts.items():
        helpers = {**everywhere, **carriers(text)}
        for one in re.finditer(r'"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*)"', text):
            before, rest = text[:one.start()], text[one.end():]
            reason = one.group(1)
            message = said(rest[1:closing(rest, 0)]) if rest.startswith(",") else ""
            direct = re.search(rf"\berror\(\s*{CODE}\s*,\s*$", before)
            helper = re.search(r"\b(\w+)\(\s*$", before)
            helper = helper.group(1) if helper else ""
            if direct:
                note(reason, code_name(direct.group(1)), message)
            elif helper == "set_reason":
                note(reason, "INVALID_ARGUMENT", "every mistake of the request, each with its field")
            elif helper in helpers:
                note(reason, helpers[helper], message)
            elif "_" not in reason or helper in NO_REASONS:
                continue
            elif rest.startswith(",") and (before.rstrip().endswith("{") or helper):
                code = code_of_table(text)
                if code:
                    note(reason, code, message)
                elif path.startswith("server/"):
                    fail(f"{path}: cannot tell the code that goes with {reason}")
    for path, raw in sources.asking.items():
        for asked in re.findall(r'\breason\([^;"]*(?:==|,)\s*"([A-Z][A-Z0-9_]*)"', without_comments(raw)):
            if asked not in found:
                fail(f"{path} asks for the reason {asked}, which no error seems to have")
    return found


def enum(text, name, scope=""):
    """[(value, number, comment)] of a proto enum, without the unspecified one."""
    start = re.search(rf"enum {name} \{{", text[text.index(scope):])
    body = text[text.index(scope) + start.end():]
    body = body[:body.index("}")]
    found = re.findall(r"^\s*([A-Z_]+) = (\d+);(?:[ \t]*//[ \t]*(.*))?((?:\n[ \t]*//.*)*)", body, re.M)
    return [(value, int(number), " ".join([comment, *re.findall(r"//\s*(.*)", more)]).strip())
            for value, number, comment, more in found if int(number) != 0]


def exit_codes(sources):
    """[(program, [(code, meaning)])]"""
    client = re.findall(r"k\w+ = (\d+),\s*//\s*(.*)", sources.text("client/commands/exit_codes.h"))
    listed = {path: re.findall(r"^//   (\d+)  (.*(?:\n//      .*)*)", sources.text(path), re.M)
              for path in ("server/options.h", "worker/options.h")}
    rank = re.findall(r"kExit\w+ = (\d+),\s*(?://\s*(.*))?", sources.text("worker/metrics/exit_codes.h"))
    rank = [(code, meaning or "The run is complete.") for code, meaning in rank]
    tables = [("telar", client), ("telar-coordinator", listed["server/options.h"]),
              ("telar-worker", listed["worker/options.h"]), ("telar-rank", rank)]
    for program, table in tables:
        if len(table) < 3:
            fail(f"found {len(table)} exit codes of {program}")
    return [(program, [(code, re.sub(r"\n//\s*", " ", meaning)) for code, meaning in table]) for program, table in tables]


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head),
            *("| " + " | ".join(cell(one) for one in row) + " |" for row in rows)]


def errors_page(sources):
    jobs, rank = sources.text("proto/telar/v1/jobs.proto"), sources.text("proto/telar/v1/rank.proto")
    lines = ["# Errors", "", "<!-- Written by generate.py from the sources. -->", "",
             "## Reasons of refused calls", "",
             "A refused call has a gRPC code and, in its details, an `ErrorInfo` of the domain `telar.dev` with one of these reasons.",
             "Programs go by code and reason; the message is for people, and … stands for what it names.", ""]
    found = reasons(sources)
    lines += table(("reason", "code", "message"),
                   [(f"`{reason}`", ", ".join(sorted({code for code, _ in said_of})),
                     "; or: ".join(sorted({message for _, message in said_of if message})))
                    for reason, said_of in sorted(found.items())])
    lines += ["", "## Why a job failed", "", "`failure_class` of a job and of a rank. A rank ends with 20 + its number.", ""]
    lines += table(("class", "number", ""), [(f"`{value}`", str(number), comment)
                                             for value, number, comment in enum(rank, "FailureClass")])
    lines += ["", "## Why a job waits", "", "`waiting.reason` of a job that is QUEUED; `telar describe` says it with the numbers.", ""]
    lines += table(("reason", ""), [(f"`{value}`", comment) for value, _, comment in enum(jobs, "Reason", "message Waiting")])
    conditions = re.search(r"message Condition \{\s*string type = 1;\s*//\s*([A-Z_ |]+)", jobs).group(1)
    lines += ["", "## Notes on a job", "", "`conditions` of a job, beside its state: " +
              ", ".join(f"`{one.strip()}`" for one in conditions.split("|")) + ".", "", "## Exit codes"]
    for program, codes in exit_codes(sources):
        lines += ["", f"`{program}`:", ""] + table(("code", ""), codes)
    return "\n".join(lines) + "\n"


PAGES = {"metrics.md": metrics_page, "errors.md": errors_page}


def stale(sources, folder):
    return [name for name, page in PAGES.items()
            if not (folder / name).exists() or (folder / name).read_text() != page(sources)]


def self_test(sources):
    """A metric, a reason and an exit code that nobody has written down must be missed; so must one that is no more."""
    plants = [("server/planted.cc", 'gauge(r, "telar_planted", "A planted one.")', "metrics.md"),
              ("server/planted.cc", 'return error(absl::StatusCode::kNotFound, "PLANTED_REASON", "planted");', "errors.md"),
              ("server/planted.cc", 'return error(absl::StatusCode::kNotFound, "PLANTED", "planted");', "errors.md"),
              ("server/planted.cc",
               'absl::Status no(const std::string& why) { return error(absl::StatusCode::kAborted, why, ""); }\n'
               'absl::Status use() { return no("PLANTED"); }', "errors.md")]
    for path, text, page in plants:
        sources.files[path] = text
        if stale(sources, HERE) != [page]:
            fail(f"a planted line passed: {text}")
        del sources.files[path]
    sources.asking["tests/planted.cc"] = 'EXPECT_EQ(reason(call()), "PLANTED");'
    try:
        reasons(sources)
    except SystemExit:
        del sources.asking["tests/planted.cc"]
    else:
        fail("a reason that is asked for and that no error has passed")
    with tempfile.TemporaryDirectory() as folder:
        for name in PAGES:
            (pathlib.Path(folder) / name).write_text((HERE / name).read_text().replace("_total`", "_gone`").replace("JOB_", "GONE_"))
        if stale(sources, pathlib.Path(folder)) != list(PAGES):
            fail("a page that lists what is gone passed")
    print("planted lines were found")


def main():
    sources = Sources()
    if sys.argv[1:] == ["--check"]:
        old = stale(sources, HERE)
        if old:
            fail(f"{', '.join(old)} in docs/reference: not what the sources say; run docs/reference/generate.py")
        print("the references are up to date")
    elif sys.argv[1:] == ["--self-test"]:
        self_test(sources)
    elif not sys.argv[1:]:
        for name, page in PAGES.items():
            (HERE / name).write_text(page(sources))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
