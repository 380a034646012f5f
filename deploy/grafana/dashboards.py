#!/usr/bin/env python3
"""Writes deploy/grafana/dashboards/*.json, in Grafana's classic schema, from the tables below.

    deploy/grafana/dashboards.py [--check]     --check writes nothing; exit 1: a file is not what this would write
"""
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
JOB, RANK = 'job_id=~"$job_id"', 'job_id=~"$job_id",rank=~"$rank"'


def panel(title, unit, *targets, about="", kind="timeseries", stack=False, decimals=None, width=8, maximum=None):
    """`targets`: pairs of expression and legend."""
    return {"title": title, "unit": unit, "targets": targets, "about": about, "kind": kind, "stack": stack,
            "decimals": decimals, "width": width, "maximum": maximum}


def rate(metric, by, labels=JOB, aggregate="sum", window="$__rate_interval"):
    return f"{aggregate} by ({by}) (rate({metric}{{{labels}}}[{window}]))"


def quantile(q, metric, by="", labels="", window="$__rate_interval"):
    return f"histogram_quantile({q}, sum by ({by + ', ' if by else ''}le) (rate({metric}_bucket{{{labels}}}[{window}])))"


FLEET = {
    "uid": "telar-fleet", "title": "Telar: fleet", "variables": [],
    "about": "The cluster and its service: what runs, what waits, what fails, and how the daemons are.",
    "rows": [
        ("What runs", [
            panel("Jobs by state", "short", ("sum by (state) (telar_jobs)", "{{state}}"), stack=True, decimals=0),
            panel("Devices", "short", ("sum by (kind, state) (telar_devices)", "{{kind}} {{state}}"), stack=True, decimals=0,
                  about="away: on a node that does not answer."),
            panel("Nodes by state", "short", ("sum by (state) (telar_nodes)", "{{state}}"), stack=True, decimals=0),
            panel("Tokens per second", "short", ("sum by (job_id) (rate(telar_tokens_total[$__rate_interval]))", "{{job_id}}"),
                  stack=True),
            panel("MFU by job", "percentunit", ("job:telar_mfu:ratio_rate5m", "{{job_id}}, {{convention}}"),
                  about="A recorded rule. Nothing on devices whose peak is not known."),
            panel("Live jobs", "short", ("count by (name, model, devices, kind, dp, tp, pp) (telar_job_info)",
                                         "{{name}}: {{model}} on {{devices}} {{kind}}, dp {{dp}} tp {{tp}} pp {{pp}}"), decimals=0),
        ]),
        ("What waits and what fails", [
            panel("Queue wait", "s", (quantile(0.5, "telar_queue_wait_seconds", window="1h"), "median"),
                  (quantile(0.95, "telar_queue_wait_seconds", window="1h"), "p95"), about="Of jobs placed in the last hour."),
            panel("Restarts", "short", ("sum by (reason) (increase(telar_job_restarts_total[1h]))", "{{reason}}"),
                  about="An hour, by the failure class that caused them."),
            panel("Rank exits", "short", ("sum by (class) (increase(telar_worker_rank_exits_total[1h]))", "{{class}}")),
            panel("Hangs", "short", ("sum by (named) (increase(telar_job_hangs_total[1h]))", "culprit known: {{named}}"),
                  ("sum(increase(telar_job_stragglers_total[1h]))", "slow ranks, changes")),
            panel("Device faults", "short", ("sum by (device, code) (increase(telar_device_faults_total[1h]))", "{{device}} {{code}}")),
            panel("Logs that are missing", "bytes", ("sum(increase(telar_log_missing_bytes_total[1h]))", "coordinator"),
                  ("sum(increase(telar_worker_log_lost_bytes_total[1h]))", "workers")),
        ]),
        ("Daemons", [
            panel("RPC time, p95", "s", (quantile(0.95, "telar_rpc_seconds", "method", window="5m"), "{{method}}")),
            panel("Store commit and scheduler round, p95", "s", (quantile(0.95, "telar_store_commit_seconds", window="5m"), "commit"),
                  (quantile(0.95, "telar_scheduler_round_seconds", window="5m"), "round"), about="A round holds up all calls."),
            panel("Store", "ops", ("sum(rate(telar_store_commit_seconds_count[5m]))", "changes"),
                  ("sum(rate(telar_store_transactions_total[5m]))", "writes"), about="Changes that come together share a write."),
            panel("Workers' contact", "s", ("time() - telar_worker_heartbeat_timestamp_seconds < 86400", "{{instance}}"),
                  about="Since a heartbeat was answered."),
            panel("Device memory in use", "bytes", ("telar_device_used_bytes", "{{instance}} {{device}}"),
                  about="By whatever process. GPUs only."),
            panel("Telemetry", "short", ("telar_telemetry_stale", "{{instance}} stale"),
                  ("increase(telar_probe_restarts_total[1h])", "{{instance}} restarts of the probe"),
                  ("time() - telar_telemetry_last_success_timestamp_seconds < 86400", "{{instance}} age, s")),
            panel("Calls refused", "short", ("sum by (reason) (increase(telar_refused_calls_total[1h]))", "{{reason}}"),
                  ("sum(increase(telar_audit_lost_total[1h]))", "audit entries lost"),
                  ("sum(increase(telar_security_reload_failures_total[1h]))", "bad files"), about="An hour. docs/security.md."),
            panel("Certificates end in", "s", ("telar_tls_certificate_expiry_timestamp_seconds - time()", "{{job}} {{instance}}"),
                  about="Each daemon's own; nothing without TLS."),
            panel("Workers connected", "short", ("sum(telar_worker_connected)", "connected"), kind="stat", decimals=0, width=4),
            panel("Versions", "short", ("count by (component, version, build_type) (telar_build_info)",
                                        "{{component}} {{version}} {{build_type}}"), kind="stat", decimals=0, width=4),
        ]),
    ],
}

JOB_BOARD = {
    "uid": "telar-job", "title": "Telar: job", "variables": ["job_id"],
    "about": "One job, or several beside each other: learning, speed, memory, saves.",
    "rows": [
        ("Learning", [
            panel("Loss", "short", (f"max by (job_id) (telar_loss{{{JOB}}})", "{{job_id}}"), decimals=3,
                  about="Mean over all target tokens of the step."),
            panel("Eval loss", "short", (f"max by (job_id) (telar_eval_loss{{{JOB}}})", "{{job_id}}"),
                  (f"max by (job_id, source) (telar_eval_source_loss{{{JOB}}})", "{{job_id}}, {{source}}"), decimals=3),
            panel("Gradient norm", "short", (f"max by (job_id) (telar_grad_norm{{{JOB}}})", "{{job_id}}"),
                  about="Before clipping, each logical parameter once."),
            panel("Learning rate", "sci", (f"max by (job_id) (telar_learning_rate{{{JOB}}})", "{{job_id}}")),
            panel("Steps and samples", "short", (f"max by (job_id) (telar_consumed_samples{{{JOB}}})", "{{job_id}} samples"),
                  (f"max by (job_id) (telar_job_step{{{JOB}}})", "{{job_id}} steps")),
            panel("Non-finite steps", "short", (f"max by (job_id) (increase(telar_nonfinite_total{{{JOB}}}[5m]))", "{{job_id}} not finite"),
                  (f"max by (job_id) (increase(telar_skipped_steps_total{{{JOB}}}[5m]))", "{{job_id}} skipped")),
            panel("Loss scale", "short", (f"max by (job_id) (telar_loss_scale{{{JOB}}})", "{{job_id}}"), about="fp16 only."),
        ]),
        ("Speed", [
            panel("Tokens per second", "short", (rate("telar_tokens_total", "job_id"), "{{job_id}}")),
            panel("MFU", "percentunit",
                  (f"{rate('telar_model_flops_total', 'job_id, convention')} / on (job_id) group_left () "
                   f"(sum by (job_id) (telar_device_peak_flops_per_second{{{JOB}}}) > 0)", "{{job_id}}, {{convention}}"),
                  about="Model FLOPs over the devices' dense peak at the job's precision; recompute is not counted."),
            panel("FLOPs per second", "short", (rate("telar_model_flops_total", "job_id, convention"), "{{job_id}} model, {{convention}}"),
                  (rate("telar_hardware_flops_total", "job_id"), "{{job_id}} hardware"),
                  about="Hardware: what the kernels compute, what is recomputed included."),
            panel("Step time", "s", (quantile(0.5, "telar_step_seconds", "job_id", JOB), "{{job_id}} median"),
                  (quantile(0.95, "telar_step_seconds", "job_id", JOB), "{{job_id}} p95")),
            panel("Where a step's time goes", "percentunit",
                  (f"{rate('telar_step_phase_seconds_total', 'phase')} / on () group_left () "
                   f"sum(rate(telar_step_phase_seconds_total{{{JOB}}}[$__rate_interval]))", "{{phase}}"),
                  stack=True, maximum=1, width=16,
                  about="Parts of the step's seconds, that sum to it. The device's part is split as in the last step that was timed op by "
                        "op (trace.account_every)."),
        ]),
        ("Memory and state on disk", [
            panel("Device memory by class", "bytes", (f"max by (job_id, class) (telar_memory_bytes{{{JOB}}})", "{{job_id}} {{class}}"),
                  stack=True, about="The largest rank's. Planned before the first step, and exactly that; context and kernels as measured."),
            panel("Checkpoint age", "s", (f"time() - max by (job_id) (telar_checkpoint_last_success_timestamp_seconds{{{JOB}}} > 0)",
                                          "{{job_id}}")),
            panel("Time of a save", "s", (quantile(0.5, "telar_checkpoint_save_seconds", "job_id", JOB, "1h"), "{{job_id}} median"),
                  (f"max by (job_id) (increase(telar_checkpoint_stall_seconds_total{{{JOB}}}[1h]))", "{{job_id}} stall an hour")),
            panel("Saves", "short", (f"max by (job_id) (increase(telar_checkpoint_saves_total{{{JOB}}}[1h]))", "{{job_id}} published"),
                  (f"max by (job_id) (increase(telar_checkpoint_failures_total{{{JOB}}}[1h]))", "{{job_id}} failed"),
                  (f"max by (job_id) (telar_checkpoint_last_durable_step{{{JOB}}})", "{{job_id}} last step")),
            panel("Checkpoint bytes per second", "Bps", (f"sum by (job_id) (rate(telar_checkpoint_bytes_total{{{JOB}}}[5m]))", "{{job_id}}")),
            panel("Parameters", "short", (f"max by (job_id) (telar_parameters{{{JOB}}})", "{{job_id}}"), kind="stat", width=4),
            panel("Goodput", "percentunit",
                  (f"max by (job_id, kind) (telar_job_time_seconds{{{JOB}}}) / on (job_id) group_left () "
                   f"(sum by (job_id) (max by (job_id, kind) (telar_job_time_seconds{{{JOB}}})) > 0)", "{{job_id}} {{kind}}"),
                  stack=True, maximum=1, about="Of the job's age so far. lost: steps that had to be done again."),
            panel("State", "short", (f"max by (job_id, state) (telar_job_state{{{JOB}}})", "{{job_id}} {{state}}"), kind="stat",
                  decimals=0, width=4),
        ]),
    ],
}

RANKS = {
    "uid": "telar-ranks", "title": "Telar: ranks and pipeline", "variables": ["job_id", "rank"],
    "about": "The ranks of a job: who waits for whom, how full the pipeline is, what the links carry.",
    "rows": [
        ("Ranks", [
            panel("Since the last step", "s", (f"time() - telar_last_step_timestamp_seconds{{{RANK}}} < 86400", "{{job_id}} rank {{rank}}")),
            panel("Step time by rank", "s", (quantile(0.5, "telar_step_seconds", "job_id, rank", RANK), "{{job_id}} rank {{rank}}")),
            panel("Stragglers", "short", (f"max by (job_id) (telar_job_straggler_ratio{{{JOB}}})", "{{job_id}}"),
                  about="The slowest rank's own time over its gang's median; 1 is even."),
            panel("Where the ranks are", "short", (f"telar_rank_info{{{RANK}}}",
                                                   "{{job_id}} rank {{rank}}: {{node}} {{device}}, dp {{dp}} tp {{tp}} pp {{pp}}"), decimals=0),
            panel("Ranks by state", "short", ("sum by (state) (telar_worker_ranks)", "{{state}}"), decimals=0),
            panel("Steps per second", "short", (rate("telar_steps_total", "job_id, rank", RANK), "{{job_id}} rank {{rank}}")),
        ]),
        ("Memory", [
            panel("Memory beside its forecast", "bytes",
                  (f'sum by (job_id, rank) (telar_memory_bytes{{{RANK},class!="host"}})', "{{job_id}} rank {{rank}}"),
                  (f'sum by (job_id, pp) (telar_memory_forecast_bytes{{{JOB},class!="host"}})', "{{job_id}} forecast, pp {{pp}}"),
                  about="Of the device: what was planned before the first step and what was found beside the plan; and what telar plan says."),
            panel("Forecast by class", "bytes", (f"max by (job_id, class) (telar_memory_forecast_bytes{{{JOB}}})", "{{job_id}} {{class}}"),
                  about="Of the place in the pipeline that needs most. reserved: for what no plan has."),
            panel("Memory by class", "bytes", (f"max by (job_id, class) (telar_memory_bytes{{{RANK}}})", "{{job_id}} {{class}}"),
                  about="Of the rank that has most of it."),
        ]),
        ("Pipeline", [
            panel("Bubble", "percentunit",
                  (f"{rate('telar_pipeline_idle_seconds_total', 'job_id, rank', RANK)} / "
                   f"({rate('telar_pipeline_window_seconds_total', 'job_id, rank', RANK)} > 0)", "{{job_id}} rank {{rank}} measured"),
                  (f"telar_pipeline_bubble_theoretical_ratio{{{RANK}}}", "{{job_id}} rank {{rank}} theory"),
                  about="Idle over the pipeline's window. Theory: what the schedule leaves idle if all stages take alike and messages no time."),
            panel("Idle by part", "percentunit",
                  (f"{rate('telar_pipeline_idle_seconds_total', 'job_id, part', RANK)} / on (job_id) group_left () "
                   f"({rate('telar_pipeline_window_seconds_total', 'job_id', RANK)} > 0)", "{{job_id}} {{part}}"), stack=True,
                  about="Warm-up until the first backward, cool-down behind the last forward."),
            panel("Time by phase and rank", "percentunit",
                  (f"{rate('telar_step_phase_seconds_total', 'rank, phase', RANK)} / on (rank) group_left () "
                   f"{rate('telar_step_phase_seconds_total', 'rank', RANK)}", "rank {{rank}} {{phase}}")),
        ]),
        ("Communication", [
            panel("Bytes per second", "Bps", (rate("telar_comm_bytes_total", "job_id, group, op", RANK), "{{job_id}} {{group}} {{op}}")),
            panel("Bus bandwidth", "Bps", (f"job:telar_comm_bus_bytes_per_second:rate5m{{{JOB}}}", "{{job_id}} {{group}} {{op}}"),
                  about="A recorded rule: what a link carries while a collective runs, waiting for late ranks included."),
            panel("Time in collectives", "percentunit",
                  (f"{rate('telar_comm_seconds_total', 'job_id, group, op', RANK, 'avg')}", "{{job_id}} {{group}} {{op}}"),
                  about="Of the wall's, hidden or not."),
            panel("Calls per second", "short", (rate("telar_comm_calls_total", "job_id, group, op", RANK), "{{job_id}} {{group}} {{op}}")),
            panel("Ranks in a group", "short", (f"max by (job_id, group) (telar_comm_group_ranks{{{RANK}}})", "{{job_id}} {{group}}"),
                  kind="stat", decimals=0, width=8),
        ]),
    ],
}

VARIABLES = {"job_id": ("Job", "label_values(telar_loss, job_id)", 1),
             "rank": ("Rank", "label_values(telar_rank_info{job_id=~\"$job_id\"}, rank)", 3)}


def variable(name):
    label, query, sort = VARIABLES[name]
    return {"name": name, "label": label, "type": "query", "datasource": SOURCE, "definition": query,
            "query": {"query": query, "refId": "Variable"}, "refresh": 2, "sort": sort, "multi": True, "includeAll": True,
            "allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}, "hide": 0, "regex": "", "options": [],
            "skipUrlSync": False}


def annotation(name, color, expression, text):
    return {"name": name, "datasource": SOURCE, "enable": True, "hide": False, "iconColor": color, "expr": expression,
            "titleFormat": name, "textFormat": text, "step": "10s", "useValueForTime": False}


def options_of(spec):
    if spec["kind"] == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value", "graphMode": "none",
                "textMode": "value_and_name", "orientation": "auto", "justifyMode": "auto"}
    return {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}, "tooltip": {"mode": "multi", "sort": "none"}}


def panel_json(number, spec, x, y):
    defaults = {"unit": spec["unit"]}
    if spec["kind"] == "timeseries":
        defaults["custom"] = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 30 if spec["stack"] else 0, "showPoints": "never",
                              "spanNulls": False, "stacking": {"mode": "normal" if spec["stack"] else "none", "group": "A"},
                              "scaleDistribution": {"type": "linear"}}
    if spec["decimals"] is not None:
        defaults["decimals"] = spec["decimals"]
    if spec["maximum"] is not None:
        defaults["max"] = spec["maximum"]
    return {"id": number, "type": spec["kind"], "title": spec["title"], "description": spec["about"], "datasource": SOURCE,
            "gridPos": {"h": 8, "w": spec["width"], "x": x, "y": y}, "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": options_of(spec),
            "targets": [{"refId": chr(ord("A") + i), "datasource": SOURCE, "editorMode": "code", "expr": expression,
                         "legendFormat": legend, "range": True} for i, (expression, legend) in enumerate(spec["targets"])]}


def dashboard(board):
    panels, y = [], 0
    for title, specs in board["rows"]:
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
                       "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}})
        x, y = 0, y + 1
        for spec in specs:
            if x + spec["width"] > 24:
                x, y = 0, y + 8
            panels.append(panel_json(len(panels) + 1, spec, x, y))
            x += spec["width"]
        y += 8
    datasource = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}, "hide": 0,
                  "includeAll": False, "multi": False, "options": [], "refresh": 1, "regex": "", "skipUrlSync": False}
    annotations = [annotation("Restarts", "red", "sum by (reason) (increase(telar_job_restarts_total[1m])) > 0", "{{reason}}")]
    if "job_id" in board["variables"]:
        annotations.append(annotation("Checkpoints", "green",
                                      f"max by (job_id) (changes(telar_checkpoint_last_durable_step{{{JOB}}}[1m])) > 0", "{{job_id}}"))
    links = [{"title": "Telar", "type": "dashboards", "tags": ["telar"], "asDropdown": True, "includeVars": True, "keepTime": True,
              "icon": "external link", "targetBlank": False, "tooltip": "", "url": ""}]
    return {"id": None, "uid": board["uid"], "title": board["title"], "description": board["about"], "tags": ["telar"], "schemaVersion": 39,
            "version": 1, "editable": True, "graphTooltip": 1, "refresh": "10s", "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser", "timepicker": {}, "annotations": {"list": annotations}, "links": links,
            "templating": {"list": [datasource, *map(variable, board["variables"])]}, "panels": panels}


def main():
    check, wrong = "--check" in sys.argv[1:], []
    wanted = {f"{board['uid']}.json": json.dumps(dashboard(board), indent=1) + "\n" for board in (FLEET, JOB_BOARD, RANKS)}
    for name, text in wanted.items():
        path = FOLDER / name
        if path.exists() and path.read_text() == text:
            continue
        wrong.append(name)
        if not check:
            path.write_text(text)
    wrong += [path.name for path in FOLDER.glob("*.json") if path.name not in wanted]
    if check and wrong:
        sys.exit(f"{FOLDER}: not as dashboards.py makes them: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
