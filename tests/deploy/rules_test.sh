#!/bin/bash
# Recording rules and alerts parse, do what their cases say, and none is without a case.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
command -v promtool >/dev/null || { echo "no promtool; Debian's package prometheus has it"; exit 77; }
rules=$root/deploy/prometheus/rules/telar.yml cases=$root/tests/deploy/rules_test.yml
promtool check config --syntax-only "$root/deploy/prometheus/prometheus.yml"
promtool check rules "$rules"
promtool test rules "$cases"
missing=$(sed -nE 's/^ +- (alert|record): (.*)/\2/p' "$rules" | while read -r name; do
  case $name in Telar*) wanted="alertname: $name" ;; *) wanted=$name ;; esac
  grep -q "$wanted" "$cases" || echo "$name"
done)
[ -z "$missing" ] || { echo "without a case in $cases: $missing" >&2; exit 1; }
# A rule over a metric that nobody exports never fires.
for metric in $(grep -oE '\btelar_[a-z_]+' "$rules" | sed -E 's/_(bucket|sum|count)$//' | grep -vE '^telar_(mfu|bubble|step_seconds|comm_bus_bytes_per_second)$' | sort -u); do
  grep -rq "\"$metric\"" "$root/server" "$root/worker" "$root/common" || { echo "nobody exports $metric" >&2; exit 1; }
done
