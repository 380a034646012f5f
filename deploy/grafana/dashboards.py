#!/usr/bin/env python3
"""Writes deploy/grafana/dashboards/*.json, in Grafana's classic schema, from the tables below.

    deploy/grafana/dashboards.py [--check]     --check writes nothing; exit 1: a file is not what this would write

viewer/ draws the same files without a Grafana; what it does not understand of them it names, and a test finds it.
"""
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
JOB, RANK = 'job_id=~"$job_id"', 'job_id=~"$job_id",rank=~"$rank"'
STATES = {"QUEUED": "gray", "STARTING": "blue", "RUNNING": "green", "RESTARTING": "orange", "CANCELLING": "brown", "FAILING": "red"}
ENDS = {"SUCCEEDED": "teal", "FAILED": "pink", "CANCELLED": "yellow"}


def panel(title, unit, *targets, **changes):
    """`targets`: pairs of expression and legend. `changes`: see the defaults."""
    spec = {"kind": "timeseries", "width": 8, "height": 8, "about": "", "stack": False, "decimals": None, "minimum": None,
            "maximum": None,
            "nothing": "",       # What stands there when there is no data, and that is well.
            "side": False,       # The legend is a table beside the chart.
            "colors": {},        # Name of a series -> its colour.
            "dashed": "",        # Pattern of the names whose lines are dashed.
            "color": None,       # Of a single figure.
            "thresholds": None,  # {value: colour}: the figure's from there on; in a chart, a line.
            "columns": {},       # Of a table: label -> heading, in order.
            "words": {},         # Of a table: heading -> {what stands below: its colour}.
            "matrix": (),        # Of bars: the label of a bar, and the label of its parts.
            "values": {}}        # Of a state timeline: what a value is called, and its colour.
    assert changes.keys() <= spec.keys(), changes
    if unit == "percentunit":
        spec["decimals"] = 1
    return {**spec, **changes, "title": title, "unit": unit, "targets": targets}


def stat(title, unit, expression, width=4, **changes):
    return panel(title, unit, (expression, "{{job_id}}"), kind="stat", width=width, height=4, **changes)


def table(title, unit, expression, columns, **changes):
    """The label `Value` is the number itself."""
    return panel(title, unit, (expression, ""), kind="table", columns=columns, **changes)


def bars(title, unit, expression, matrix, **changes):
    return panel(title, unit, (expression, ""), kind="barchart", matrix=matrix, **changes)


def rate(metric, by, labels=JOB, aggregate="sum", window="$__rate_interval"):
    return f"{aggregate} by ({by}) (rate({metric}{{{labels}}}[{window}]))"


def quantile(q, metric, by="", labels="", window="$__rate_interval"):
    return f"histogram_quantile({q}, sum by ({by + ', ' if by else ''}le) (rate({metric}_bucket{{{labels}}}[{window}])))"


def share(metric, by, over, labels):
    """Of what grew by the labels `over`, what grew by `by`."""
    return f"{rate(metric, by, labels)} / on ({over}) group_left () ({rate(metric, over, labels)} > 0)"


def mfu(by):
    return (f"{rate('telar_model_flops_total', by)} / on (job_id) group_left () "
            f"(sum by (job_id) (telar_device_peak_flops_per_second{{{JOB}}}) > 0)")


UNKNOWN_PEAK = "The peak of a CPU is not known"
FLEET = {
    "uid": "telar-fleet", "title": "Telar: fleet", "variables": [],
    "about": "The cluster and its service: what runs, what waits, what fails, and how the daemons are.",
    "rows": [
        ("Now", [
            stat("Jobs running", "short", 'sum(telar_jobs{state="RUNNING"})', decimals=0, color="green"),
            stat("Jobs waiting", "short", 'sum(telar_jobs{state="QUEUED"})', decimals=0, color="gray"),
            stat("Nodes ready", "short", 'sum(telar_nodes{state="READY"})', decimals=0, color="teal"),
            stat("Devices in use", "percentunit", 'sum(telar_devices{state="used"}) / (sum(telar_devices) > 0)', color="purple"),
            stat("Tokens per second", "short", "sum(rate(telar_tokens_total[$__rate_interval]))", color="blue", nothing="None"),
            stat("Alerts", "short", 'count(ALERTS{alertname=~"Telar.+",alertstate="firing"}) or vector(0)', decimals=0,
                 thresholds={None: "green", 1: "red"}, about="That fire now, of deploy/prometheus/rules."),
        ]),
        ("What runs", [
            table("Live jobs", "none", "max by (job_id, name, model, kind, devices, dp, tp, pp) (telar_job_info) "
                  "* on (job_id) group_left (state) max by (job_id, state) (telar_job_state) "
                  "* on (job_id) group_left () max by (job_id) (telar_job_step)",
                  {"job_id": "Job", "name": "Name", "state": "State", "model": "Model", "kind": "Kind", "devices": "Devices", "dp": "Data",
                   "tp": "Tensor", "pp": "Pipeline", "Value": "Step"},
                  words={"State": STATES}, width=16, height=7, nothing="None"),
            panel("Tokens per second by job", "short", ("sum by (job_id) (rate(telar_tokens_total[$__rate_interval]))", "{{job_id}}"),
                  stack=True, height=7, nothing="None"),
            panel("Jobs by state", "short", ("sum by (state) (telar_jobs) > 0", "{{state}}"), stack=True, decimals=0,
                  colors={**STATES, **ENDS}, nothing="None"),
            panel("Devices", "short", ("sum by (kind, state) (telar_devices) > 0", "{{kind}} {{state}}"), stack=True, decimals=0,
                  about="away: on a node that does not answer."),
            panel("Nodes by state", "short", ("sum by (state) (telar_nodes) > 0", "{{state}}"), stack=True, decimals=0,
                  colors={"READY": "green", "UNKNOWN": "orange", "LOST": "red", "OFFLINE": "gray"}),
        ]),
        ("What waits and what fails", [
            panel("Queue wait", "s", (quantile(0.5, "telar_queue_wait_seconds", window="1h"), "median"),
                  (quantile(0.95, "telar_queue_wait_seconds", window="1h"), "p95"), about="Of jobs placed in the last hour.", width=6,
                  height=7),
            panel("Restarts", "short", ("sum by (reason) (increase(telar_job_restarts_total[1h])) > 0", "{{reason}}"), width=6, height=7,
                  about="An hour, by the failure class that caused them.", nothing="None", minimum=0),
            panel("Rank exits", "short", ("sum by (class) (increase(telar_worker_rank_exits_total[1h])) > 0", "{{class}}"), width=6,
                  height=7, about="An hour, by failure class; none: without a failure.", minimum=0, nothing="None"),
            panel("Hangs and slow ranks", "short", ("sum(increase(telar_job_stragglers_total[1h]))", "slow ranks, changes"),
                  ("sum by (named) (increase(telar_job_hangs_total[1h])) > 0", "hangs, culprit known: {{named}}"), width=6, height=7,
                  about="An hour.", minimum=0),
        ]),
        ("Daemons", [
            panel("RPC time, p95", "s", (quantile(0.95, "telar_rpc_seconds", "method", window="5m") + " >= 0", "{{method}}"), side=True,
                  width=12, about="Of calls in the last five minutes; a method that nobody called is not there."),
            panel("Store commit and scheduler round, p95", "s", (quantile(0.95, "telar_store_commit_seconds", window="5m"), "commit"),
                  (quantile(0.95, "telar_scheduler_round_seconds", window="5m"), "round"), about="A round has its writes in it.", width=6),
            panel("Store", "ops", ("sum(rate(telar_store_commit_seconds_count[5m]))", "changes"),
                  ("sum(rate(telar_store_transactions_total[5m]))", "writes"), about="Changes that come together share a write.", width=6),
            panel("Workers connected", "short", ("max by (instance) (telar_worker_connected)", "{{instance}}"), kind="state-timeline",
                  height=6, values={1: ("connected", "green"), 0: ("no answer", "red")},
                  about="Whether the coordinator answers the heartbeat."),
            panel("Workers' contact", "s", ("time() - telar_worker_heartbeat_timestamp_seconds < 86400", "{{instance}}"), height=6,
                  about="Since a heartbeat was answered."),
            table("Versions", "none", "count by (job, version) (telar_build_info)",
                  {"job": "Program", "version": "Version", "Value": "Running"}, height=6),
        ]),
    ],
    "folded": [
        ("GPUs, logs, security and the lock", [
            panel("MFU by job", "percentunit", ("job:telar_mfu:ratio_rate5m", "{{job_id}}, {{convention}}"), about="A recorded rule.",
                  nothing=UNKNOWN_PEAK),
            panel("Device memory in use", "bytes", ("telar_device_used_bytes", "{{instance}} {{device}}"), about="By whatever process.",
                  nothing="GPUs only"),
            panel("Device faults", "short", ("sum by (device, code) (increase(telar_device_faults_total[1h]))", "{{device}} {{code}}"),
                  about="An hour.", nothing="None", minimum=0),
            panel("Telemetry", "short", ("telar_telemetry_stale", "{{instance}} stale"),
                  ("increase(telar_probe_restarts_total[1h])", "{{instance}} restarts of the probe"),
                  ("time() - telar_telemetry_last_success_timestamp_seconds < 86400", "{{instance}} age, s"), nothing="GPUs only"),
            panel("Logs that are missing", "bytes", ("sum(increase(telar_log_missing_bytes_total[1h]))", "coordinator"),
                  ("sum(increase(telar_worker_log_lost_bytes_total[1h]))", "workers"), about="An hour."),
            panel("Calls refused", "short", ("sum by (reason) (increase(telar_refused_calls_total[1h])) > 0", "{{reason}}"),
                  ("sum(increase(telar_audit_lost_total[1h]))", "audit entries lost"),
                  ("sum(increase(telar_security_reload_failures_total[1h]))", "bad files"), about="An hour. docs/security.md.",
                  nothing="None"),
            panel("Certificates end in", "s", ("telar_tls_certificate_expiry_timestamp_seconds - time()", "{{job}} {{instance}}"),
                  about="Each daemon's own.", nothing="No TLS"),
            panel("The coordinator's lock, by holder", "percentunit",
                  ("sum by (holder) (rate(telar_manager_hold_seconds_sum[5m]))", "{{holder}}"),
                  about="Of the time. All calls wait for it."),
        ]),
    ],
}

PHASES = {"forward": "blue", "backward": "indigo", "recompute": "purple", "optimizer": "teal", "other": "gray",
          "pipeline_wait": "orange", "p2p_wire": "yellow", "tp_comm_exposed": "pink", "weight_comm_exposed": "lime",
          "grad_comm_exposed": "green", "gang_wait": "brown", "data_wait": "red", "checkpoint_stall": "#b42318", "copy_exposed": "#0e7490",
          "device_idle": "#5b6472", "host": "#a3abb8"}
GOODPUT = {"productive": "green", "queued": "gray", "starting": "blue", "lost": "red", "stalled": "orange", "recovering": "yellow",
           "ending": "brown"}
JOB_BOARD = {
    "uid": "telar-job", "title": "Telar: job", "variables": ["job_id"],
    "about": "One job, or several beside each other: learning, speed, memory, saves.",
    "rows": [
        ("Now", [
            panel("State", "short", (f"max by (state) (telar_job_state{{{JOB}}})", "{{state}}"), kind="stat", colors=STATES, width=4,
                  height=4, nothing="Over"),
            stat("Step", "none", f"max by (job_id) (telar_job_step{{{JOB}}})", 3, color="gray", nothing="–"),
            stat("Loss", "short", f"max by (job_id) (telar_loss{{{JOB}}})", 3, decimals=3, color="orange"),
            stat("Tokens per second", "short", rate("telar_tokens_total", "job_id"), 4, color="blue"),
            stat("MFU", "percentunit", mfu("job_id"), 3, color="purple", nothing="Unknown peak",
                 about="Model FLOPs over the devices' dense peak at the job's precision; recompute is not counted."),
            stat("Productive", "percentunit", f'max by (job_id) (telar_job_time_seconds{{{JOB},kind="productive"}}) '
                 f"/ (sum by (job_id) (max by (job_id, kind) (telar_job_time_seconds{{{JOB}}})) > 0)", 4, color="green", nothing="–",
                 about="Of the job's age so far."),
            stat("Parameters", "short", f"max by (job_id) (telar_parameters{{{JOB}}})", 3, color="teal"),
            panel("History", "short", (" or ".join(f'{i} * max by (job_id) (telar_job_state{{{JOB},state="{state}"}})'
                                                    for i, state in enumerate(STATES, 1)), "{{job_id}}"),
                  kind="state-timeline", width=24, height=4, values=dict(enumerate(STATES.items(), 1)), nothing="Over"),
        ]),
        ("Learning", [
            panel("Training loss", "short", (f"max by (job_id) (telar_loss{{{JOB}}})", "{{job_id}}"), decimals=3, width=12,
                  about="Mean over all target tokens of the step."),
            panel("Eval loss", "short", (f"max by (job_id) (telar_eval_loss{{{JOB}}})", "{{job_id}}"),
                  (f"max by (job_id, source) (telar_eval_source_loss{{{JOB}}})", "{{job_id}}, {{source}}"), decimals=3, width=12,
                  nothing="No evaluation yet"),
            panel("Gradient norm", "short", (f"max by (job_id) (telar_grad_norm{{{JOB}}})", "{{job_id}}"), height=7,
                  about="Before clipping, each logical parameter once."),
            panel("Learning rate", "sci", (f"max by (job_id) (telar_learning_rate{{{JOB}}})", "{{job_id}}"), height=7),
            panel("Samples consumed", "short", (f"max by (job_id) (telar_consumed_samples{{{JOB}}})", "{{job_id}}"), height=7),
        ]),
        ("Speed", [
            panel("Where a step's time goes", "percentunit",
                  (f"{rate('telar_step_phase_seconds_total', 'phase')} / on () group_left () "
                   f"sum(rate(telar_step_phase_seconds_total{{{JOB}}}[$__rate_interval])) > 0", "{{phase}}"),
                  stack=True, maximum=1, width=16, height=10, side=True, colors=PHASES,
                  about="Parts of the step's seconds, that sum to it. The device's part is split as in the last step that was timed op by "
                        "op (trace.account_every)."),
            panel("Step time, all ranks", "short",
                  (f"sum by (le) (increase(telar_step_seconds_bucket{{{JOB}}}[$__rate_interval]))", "{{le}}"), kind="heatmap",
                  height=10, about="How many steps took how long."),
            panel("Tokens per second by job", "short", (rate("telar_tokens_total", "job_id"), "{{job_id}}"), height=7, minimum=0),
            panel("Step time", "s", (quantile(0.5, "telar_step_seconds", "job_id", JOB), "{{job_id}} median"),
                  (quantile(0.95, "telar_step_seconds", "job_id", JOB), "{{job_id}} p95"), height=7, dashed="p95$"),
            panel("FLOPs per second", "flops", (rate("telar_model_flops_total", "job_id, convention"), "{{job_id}} model, {{convention}}"),
                  (rate("telar_hardware_flops_total", "job_id"), "{{job_id}} hardware"), height=7, minimum=0,
                  about="Hardware: what the kernels compute, what is recomputed included."),
        ]),
        ("Memory and state on disk", [
            bars("Device memory by class", "bytes", f"max by (job_id, class) (telar_memory_bytes{{{JOB}}}) > 0", ("job_id", "class"),
                 width=12, height=5, about="The largest rank's. Planned before the first step, and exactly that; context and kernels as "
                 "measured."),
            bars("Goodput", "percentunit",
                 f"max by (job_id, kind) (telar_job_time_seconds{{{JOB}}}) / on (job_id) group_left () "
                 f"(sum by (job_id) (max by (job_id, kind) (telar_job_time_seconds{{{JOB}}})) > 0) > 0", ("job_id", "kind"), maximum=1,
                 width=12, height=5, colors=GOODPUT, nothing="Over",
                 about="Of the job's age so far. lost: steps that had to be done again."),
            panel("Checkpoint age", "s", (f"time() - max by (job_id) (telar_checkpoint_last_success_timestamp_seconds{{{JOB}}} > 0)",
                                          "{{job_id}}"), width=6, height=7, nothing="No checkpoint yet", minimum=0),
            panel("Time of a save", "s", (quantile(0.5, "telar_checkpoint_save_seconds", "job_id", JOB, "1h"), "{{job_id}} median"),
                  (f"max by (job_id) (increase(telar_checkpoint_stall_seconds_total{{{JOB}}}[1h]))", "{{job_id}} stall an hour"), width=6,
                  height=7, minimum=0),
            panel("Saves", "short", (f"max by (job_id) (increase(telar_checkpoint_saves_total{{{JOB}}}[1h]))", "{{job_id}} published"),
                  (f"max by (job_id) (increase(telar_checkpoint_failures_total{{{JOB}}}[1h]))", "{{job_id}} failed"), width=6, height=7,
                  about="An hour.", minimum=0),
            panel("Checkpoint bytes per second", "Bps",
                  (f"sum by (job_id) (rate(telar_checkpoint_bytes_total{{{JOB}}}[5m]))", "{{job_id}}"), width=6, height=7, minimum=0),
        ]),
    ],
    "folded": [
        ("MFU and numerics", [
            panel("MFU by job", "percentunit", (mfu("job_id, convention"), "{{job_id}}, {{convention}}"), nothing=UNKNOWN_PEAK, minimum=0,
                  width=6),
            panel("Non-finite steps", "short", (f"max by (job_id) (increase(telar_nonfinite_total{{{JOB}}}[5m]))", "{{job_id}} not finite"),
                  (f"max by (job_id) (increase(telar_skipped_steps_total{{{JOB}}}[5m]))", "{{job_id}} skipped"), minimum=0, width=6),
            panel("Loss scale", "short", (f"max by (job_id) (telar_loss_scale{{{JOB}}})", "{{job_id}}"), nothing="fp16 only", width=6),
            panel("Last step saved", "short", (f"max by (job_id) (telar_checkpoint_last_durable_step{{{JOB}}})", "{{job_id}}"), width=6,
                  nothing="No checkpoint yet"),
        ]),
    ],
}

RANKS = {
    "uid": "telar-ranks", "title": "Telar: ranks and pipeline", "variables": ["job_id", "rank"],
    "about": "The ranks of a job: who waits for whom, how full the pipeline is, what the links carry.",
    "rows": [
        ("Now", [
            stat("Ranks", "short", f"count(telar_rank_info{{{RANK}}})", decimals=0, color="green"),
            stat("Steps per second", "short", f"min(rate(telar_steps_total{{{RANK}}}[$__rate_interval]))", color="blue",
                 about="Of the slowest rank."),
            stat("Since the last step", "s", f"max(time() - telar_last_step_timestamp_seconds{{{RANK}}} < 86400)", color="teal",
                 about="Of the rank that is last."),
            stat("Pipeline idle", "percentunit", f"sum(rate(telar_pipeline_idle_seconds_total{{{RANK}}}[$__rate_interval])) "
                 f"/ (sum(rate(telar_pipeline_window_seconds_total{{{RANK}}}[$__rate_interval])) > 0)", color="orange",
                 nothing="No pipeline"),
            stat("Idle in theory", "percentunit", f"max(telar_pipeline_bubble_theoretical_ratio{{{RANK}}})", color="gray",
                 nothing="No pipeline", about="What the schedule leaves idle if all stages take alike and messages no time."),
            stat("Slowest over median", "short", f"max(telar_job_straggler_ratio{{{JOB}}})", decimals=2, nothing="Not known yet",
                 thresholds={None: "green", 1.15: "orange", 1.5: "red"},
                 about="The slowest rank's own time over its gang's median; 1 is even."),
        ]),
        ("Ranks", [
            table("Where the ranks are", "short",
                  f"max by (job_id, rank, node, device, dp, tp, pp) (telar_rank_info{{{RANK}}}) * on (job_id, rank) group_left () "
                  f"max by (job_id, rank) (rate(telar_steps_total{{{RANK}}}[$__rate_interval]))",
                  {"job_id": "Job", "rank": "Rank", "node": "Node", "device": "Device", "dp": "Data", "tp": "Tensor", "pp": "Pipeline",
                   "Value": "Steps/s"}, width=12, height=7),
            bars("Where a step's time goes", "percentunit", share("telar_step_phase_seconds_total", "rank, phase", "rank", RANK) + " > 0",
                 ("rank", "phase"), width=12, height=7, maximum=1, colors=PHASES),
            panel("Step time by rank", "s", (quantile(0.5, "telar_step_seconds", "job_id, rank", RANK), "{{job_id}} rank {{rank}}"),
                  about="Median.", width=12, height=7),
            panel("Since the last step, by rank", "s",
                  (f"time() - telar_last_step_timestamp_seconds{{{RANK}}} < 86400", "{{job_id}} rank {{rank}}"), width=12, height=7),
        ]),
        ("Memory", [
            panel("Memory beside its forecast", "bytes",
                  (f'sum by (job_id, rank) (telar_memory_bytes{{{RANK},class!="host"}})', "{{job_id}} rank {{rank}}"),
                  (f'sum by (job_id, pp) (telar_memory_forecast_bytes{{{JOB},class!="host"}})', "{{job_id}} forecast, pp {{pp}}"),
                  dashed="forecast", about="Of the device: what was planned before the first step and what was found beside the plan; "
                                           "and what telar plan says."),
            bars("Device memory by rank", "bytes", f"max by (rank, class) (telar_memory_bytes{{{RANK}}}) > 0", ("rank", "class")),
            bars("Forecast by place in the pipeline", "bytes", f"max by (pp, class) (telar_memory_forecast_bytes{{{JOB}}}) > 0",
                 ("pp", "class"), about="What telar plan says. reserved: for what no plan has."),
        ]),
        ("Pipeline", [
            panel("Idle, measured and in theory", "percentunit",
                  (f"{rate('telar_pipeline_idle_seconds_total', 'job_id, rank', RANK)} / "
                   f"({rate('telar_pipeline_window_seconds_total', 'job_id, rank', RANK)} > 0)", "{{job_id}} rank {{rank}}"),
                  (f"max by (job_id) (telar_pipeline_bubble_theoretical_ratio{{{RANK}}})", "{{job_id}} theory"), dashed="theory$", width=12,
                  about="Idle over the pipeline's window.", minimum=0, nothing="No pipeline"),
            panel("Idle by part", "percentunit",
                  (f"{rate('telar_pipeline_idle_seconds_total', 'job_id, part', RANK)} / on (job_id) group_left () "
                   f"({rate('telar_pipeline_window_seconds_total', 'job_id', RANK)} > 0)", "{{job_id}} {{part}}"), stack=True, width=12,
                  about="Warm-up until the first backward, cool-down behind the last forward.", nothing="No pipeline"),
        ]),
        ("Communication", [
            panel("Bytes per second", "Bps", (rate("telar_comm_bytes_total", "job_id, group, op", RANK), "{{group}} {{op}}"), side=True,
                  width=12),
            panel("Time in collectives", "percentunit",
                  (f"{rate('telar_comm_seconds_total', 'job_id, group, op', RANK, 'avg')}", "{{group}} {{op}}"), side=True, width=12,
                  about="Of the wall's, hidden or not."),
            panel("Calls per second", "ops", (rate("telar_comm_calls_total", "job_id, group, op", RANK), "{{group}} {{op}}"), side=True,
                  width=12),
            panel("Bus bandwidth", "Bps", (f"job:telar_comm_bus_bytes_per_second:rate5m{{{JOB}}}", "{{group}} {{op}}"), side=True, width=12,
                  about="A recorded rule: what a link carries while a collective runs, waiting for late ranks included.",
                  nothing="A rule over five minutes"),
        ]),
    ],
    "folded": [
        ("Gangs and groups", [
            panel("Stragglers", "short", (f"max by (job_id) (telar_job_straggler_ratio{{{JOB}}})", "{{job_id}}"), nothing="Not known yet",
                  thresholds={None: "green", 1.15: "orange"}, about="The slowest rank's own time over its gang's median; 1 is even."),
            panel("Ranks by state", "short", ("sum by (state) (telar_worker_ranks)", "{{state}}"), decimals=0, about="Of all jobs."),
            table("Ranks in a group", "none", f"max by (job_id, group) (telar_comm_group_ranks{{{RANK}}})",
                  {"job_id": "Job", "group": "Group", "Value": "Ranks"}),
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


LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
SIDE = {"displayMode": "table", "placement": "right", "showLegend": True, "calcs": ["mean", "lastNotNull"]}
TOOLTIP = {"mode": "multi", "sort": "none"}


def options_of(spec):
    kind = spec["kind"]
    if kind == "stat":
        named = bool(spec["colors"])
        return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value",
                "graphMode": "none" if named else "area", "textMode": "name" if named else "auto", "orientation": "auto",
                "justifyMode": "auto"}
    if kind == "table":
        return {"showHeader": True, "cellHeight": "sm", "sortBy": [{"displayName": next(iter(spec["columns"].values())), "desc": False}]}
    if kind == "barchart":
        return {"orientation": "horizontal", "stacking": "normal", "showValue": "never", "barWidth": 0.7,
                "xField": "\\".join(spec["matrix"]), "legend": LEGEND, "tooltip": TOOLTIP}
    if kind == "heatmap":
        return {"calculate": False, "cellGap": 1, "rowsFrame": {"layout": "auto"}, "showValue": "never", "legend": {"show": True},
                "color": {"mode": "scheme", "scheme": "Blues", "steps": 12, "exponent": 0.5, "fill": "blue", "reverse": False},
                "yAxis": {"unit": "s", "axisPlacement": "left"}, "tooltip": {"mode": "single", "yHistogram": False},
                "filterValues": {"le": 1e-9}}
    if kind == "state-timeline":
        return {"mergeValues": True, "showValue": "auto", "alignValue": "left", "rowHeight": 0.8, "legend": {**LEGEND, "showLegend": False},
                "tooltip": TOOLTIP}
    return {"legend": SIDE, "tooltip": {"mode": "multi", "sort": "desc"}} if spec["side"] else {"legend": LEGEND, "tooltip": TOOLTIP}


def custom_of(spec):
    """The field options that only this kind of panel has."""
    if spec["kind"] == "timeseries":
        return {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 35 if spec["stack"] else 0, "showPoints": "never", "spanNulls": False,
                "stacking": {"mode": "normal" if spec["stack"] else "none", "group": "A"}, "scaleDistribution": {"type": "linear"},
                "thresholdsStyle": {"mode": "line" if spec["thresholds"] else "off"}}
    if spec["kind"] == "state-timeline":
        return {"fillOpacity": 55, "lineWidth": 0}
    return {"fillOpacity": 85, "lineWidth": 0} if spec["kind"] == "barchart" else {}


def field_config(spec):
    defaults = {"unit": spec["unit"], "custom": custom_of(spec)}
    for key, name in (("decimals", "decimals"), ("min", "minimum"), ("max", "maximum"), ("noValue", "nothing")):
        if spec[name] not in (None, ""):
            defaults[key] = spec[name]
    if spec["color"]:
        defaults["color"] = {"mode": "fixed", "fixedColor": spec["color"]}
    if spec["thresholds"]:
        defaults["color"] = {"mode": "thresholds" if spec["kind"] == "stat" else "palette-classic"}
        steps = [{"value": value, "color": color} for value, color in spec["thresholds"].items()]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    if spec["values"]:
        results = {str(value): {"text": text, "color": color, "index": i}
                   for i, (value, (text, color)) in enumerate(spec["values"].items())}
        defaults["mappings"] = [{"type": "value", "options": results}]
    overrides = [{"matcher": {"id": "byName", "options": name},
                  "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}]}
                 for name, color in spec["colors"].items()]
    for heading, colors in spec["words"].items():
        texts = {word: {"text": word, "color": color, "index": i} for i, (word, color) in enumerate(colors.items())}
        overrides.append({"matcher": {"id": "byName", "options": heading},
                          "properties": [{"id": "mappings", "value": [{"type": "value", "options": texts}]},
                                         {"id": "custom.cellOptions", "value": {"type": "color-text"}}]})
    if spec["dashed"]:
        overrides.append({"matcher": {"id": "byRegexp", "options": f"/{spec['dashed']}/"},
                          "properties": [{"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [6, 4]}}]})
    return {"defaults": defaults, "overrides": overrides}


def target_json(spec, number, expression, legend):
    target = {"refId": chr(ord("A") + number), "datasource": SOURCE, "editorMode": "code", "expr": expression, "legendFormat": legend}
    if spec["kind"] in ("table", "barchart"):
        return {**target, "instant": True, "range": False, "format": "table"}
    if spec["kind"] == "heatmap":
        return {**target, "range": True, "format": "heatmap"}
    instant = spec["kind"] == "stat" and bool(spec["colors"])  # A name is of now.
    return {**target, "instant": True, "range": False} if instant else {**target, "range": True}


def transformations_of(spec):
    if spec["columns"]:
        return [{"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": spec["columns"],
                                               "indexByName": {name: i for i, name in enumerate(spec["columns"])}}}]
    if spec["matrix"]:
        row, column = spec["matrix"]
        return [{"id": "groupingToMatrix", "options": {"rowField": row, "columnField": column, "valueField": "Value"}}]
    return []


def panel_json(number, spec, x, y):
    found = {"id": number, "type": spec["kind"], "title": spec["title"], "description": spec["about"], "datasource": SOURCE,
             "gridPos": {"h": spec["height"], "w": spec["width"], "x": x, "y": y}, "fieldConfig": field_config(spec),
             "options": options_of(spec),
             "targets": [target_json(spec, i, expression, legend) for i, (expression, legend) in enumerate(spec["targets"])],
             "transformations": transformations_of(spec)}
    if spec["kind"] == "heatmap":
        found["maxDataPoints"] = 60
    return found


def place(specs, first, y):
    """The panels side by side, in the next line where they do not fit; and the height below them."""
    panels, x, line = [], 0, 0
    for spec in specs:
        if x + spec["width"] > 24:
            x, y, line = 0, y + line, 0
        panels.append(panel_json(first + len(panels), spec, x, y))
        x, line = x + spec["width"], max(line, spec["height"])
    return panels, y + line


def panels_of(board):
    panels, number, y = [], 1, 0
    for folded, rows in ((False, board["rows"]), (True, board["folded"])):
        for title, specs in rows:
            inside, below = place(specs, number + 1, y + 1)
            panels.append({"id": number, "type": "row", "title": title, "collapsed": folded, "panels": inside if folded else [],
                           "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}})
            panels += [] if folded else inside
            number, y = number + 1 + len(inside), y + 1 if folded else below
    return panels


def dashboard(board):
    datasource = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}, "hide": 0,
                  "includeAll": False, "multi": False, "options": [], "refresh": 1, "regex": "", "skipUrlSync": False}
    annotations = [annotation("Restarts", "red", "sum by (reason) (increase(telar_job_restarts_total[20s])) > 0", "{{reason}}")]
    if "job_id" in board["variables"]:
        annotations.append(annotation("Checkpoints", "green",
                                      f"max by (job_id) (changes(telar_checkpoint_last_durable_step{{{JOB}}}[20s])) > 0", "{{job_id}}"))
    links = [{"title": "Telar", "type": "dashboards", "tags": ["telar"], "asDropdown": True, "includeVars": True, "keepTime": True,
              "icon": "external link", "targetBlank": False, "tooltip": "", "url": ""}]
    return {"id": None, "uid": board["uid"], "title": board["title"], "description": board["about"], "tags": ["telar"], "schemaVersion": 39,
            "version": 1, "editable": True, "graphTooltip": 1, "refresh": "10s", "time": {"from": "now-1h", "to": "now"},
            "timezone": "browser", "timepicker": {}, "annotations": {"list": annotations}, "links": links,
            "templating": {"list": [datasource, *map(variable, board["variables"])]}, "panels": panels_of(board)}


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
