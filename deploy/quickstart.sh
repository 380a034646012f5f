#!/bin/bash
# From a bare Debian 12 to a trained model: installs, builds, starts a coordinator and two workers on this machine, trains
# deploy/examples/quickstart.yaml on the King James Bible and shows what came out. Stops what it started, also on Ctrl-C.
#   deploy/quickstart.sh [--keep] [--bin DIR] [--text FILE] [--set path=value]...
#     --keep           leave the coordinator and the workers running
#     --stop           stop those that --keep left, and do nothing else
#     --bin DIR        run the programs in DIR or DIR/bin: install nothing, build nothing
#     --text FILE      train on this file instead
#     --set path=value change the job, e.g. --set schedule.steps=50
# Everything it writes is below $TELAR_HOME (default ~/.local/state/telar-quickstart).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
home=$(realpath -m -- "${TELAR_HOME:-${XDG_STATE_HOME:-$HOME/.local/state}/telar-quickstart}")
keep='' stop='' bin='' text='' settings=()

fail() { echo "quickstart.sh: $*" >&2; exit 1; }
say() { printf '\n== %s\n' "$*"; }

while [ $# -gt 0 ]; do
  case $1 in
    --keep) keep=1 ;;
    --stop) stop=1 ;;
    --bin) bin=$(realpath -m -- "${2:?--bin needs a folder}"); shift ;;
    --text) text=$(realpath -- "${2:?--text needs a file}"); shift ;;
    --set) settings+=(--set "${2:?--set needs path=value}"); shift ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done

# --- Daemons: one pid file each, so that a later call finds what an earlier one left. -----------------------------------
is_ours() {  # A pid may have been given to another program since; a zombie waits for nothing but its parent.
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  [[ $stat == *"(telar-"* && $stat != *") Z "* ]]
}

stop_daemon() {
  local file=$home/run/$1.pid pid
  [ -s "$file" ] || return 0
  pid=$(<"$file")
  if is_ours "$pid"; then
    kill -TERM "$pid" 2>/dev/null || true
    for _ in $(seq 150); do
      is_ours "$pid" || break
      sleep 0.1
    done
    if is_ours "$pid"; then
      echo "quickstart.sh: $1 (pid $pid) does not end; killing it" >&2
      kill -KILL "$pid" 2>/dev/null || true
    fi
  fi
  rm -f "$file"
}

stop_all() {  # Workers first: they end their ranks and report it.
  stop_daemon worker-a
  stop_daemon worker-b
  stop_daemon coordinator
}

# start NAME PROGRAM ARGUMENT...: in a session of its own, so that Ctrl-C here reaches this script alone.
start() {
  local name=$1
  shift
  rm -f "$home/run/$name.json"
  # shellcheck disable=SC2016  # The inner shell expands them.
  setsid --fork bash -c 'echo $$ >"$1"; shift; exec "$@"' _ "$home/run/$name.pid" "$@" --port-file "$home/run/$name.json" \
    >>"$home/log/$name.log" 2>&1 </dev/null
  for _ in $(seq 300); do
    [ -s "$home/run/$name.json" ] && return 0
    [ ! -s "$home/run/$name.pid" ] || [ -d "/proc/$(<"$home/run/$name.pid")" ] || break
    sleep 0.1
  done
  tail -n 20 "$home/log/$name.log" >&2
  fail "$name did not start; its log is $home/log/$name.log"
}

# The address that a daemon bound, from its port file: address NAME KEY, KEY as the flag is called.
address() {
  local found
  found=$(sed -n 's/.*"'"$2"'": *"\([^"]*\)".*/\1/p' "$home/run/$1.json" | head -n 1)
  [ -n "$found" ] || fail "no \"$2\" in $home/run/$1.json"
  echo "$found"
}

# Programs that someone else built: all there, and able to find their libraries here.
check_programs() {
  [ -x "$bin/telar" ] || [ ! -x "$bin/bin/telar" ] || bin=$bin/bin
  local program said lacking=()
  for program in telar telar-coordinator telar-worker telar-rank; do
    [ -f "$bin/$program" ] && [ -x "$bin/$program" ] || lacking+=("$program")
  done
  [ ${#lacking[@]} -eq 0 ] || fail "--bin $bin: no program ${lacking[*]} there"
  for program in telar telar-coordinator telar-worker telar-rank; do
    # 21 is what telar-rank says of any argument but a plan; a loader that lacks something says 1 or 127.
    said=$("$bin/$program" --help 2>&1) || [ $? = 21 ] || fail "--bin: $bin/$program does not start here: $said"
  done
}

install_and_build() {
  say "Packages"
  local packages=("$root/deploy/packages.txt")
  [ -n "$text" ] || packages+=(bible-kjv bible-kjv-text)
  "$root/deploy/install-packages.sh" "${packages[@]}"

  say "Build"
  mkdir -p build
  cmake --preset release -DUNITY=ON -Wno-dev >"build/quickstart.log" 2>&1 || { cat build/quickstart.log >&2; fail "cmake failed"; }
  cmake --build --preset release -j "$(nproc)" --target telar telar-coordinator telar-worker telar-rank telar-probe
  bin=$root/build/release/bin
}

prepare_text() {
  local out=$home/kjv.txt
  if [ -z "$text" ]; then
    if [ ! -s "$out" ]; then  # Verse numbers go, chapter headings and words stay.
      command -v bible >/dev/null || fail "no package bible-kjv here to take the text from; name one with --text FILE"
      bible -l99999 gen1:1-rev22:21 </dev/null | sed 's/^ *[0-9][0-9]* //' >"$out.part"
      mv "$out.part" "$out"
    fi
    text=$out
  fi
  [ -s "$text" ] || fail "$text: no such file, or empty"
  echo "$text: $(($(wc -c <"$text") / 1000)) kB"
}

if [ -n "$stop" ]; then
  stop_all
  exit 0
fi
mkdir -p "$home/run" "$home/log"
for name in coordinator worker-a worker-b; do
  if [ -s "$home/run/$name.pid" ] && is_ours "$(<"$home/run/$name.pid")"; then
    fail "$name of an earlier call still runs; end it with: $0 --stop"
  fi
done

cd "$root"
if [ -n "$bin" ]; then check_programs; else install_and_build; fi

say "Text"
prepare_text

say "Coordinator and two workers"
trap 'exit 130' INT TERM
trap stop_all EXIT
start coordinator "$bin/telar-coordinator" --listen 127.0.0.1:0 --http 127.0.0.1:0 \
  --data "$home/coordinator" --run-root "$home/runs"
coordinator=$(address coordinator listen)
# Two CPU workers share the job; where there are GPUs, worker a offers them and takes it alone.
kinds=(auto cpu)
for node in a b; do
  start "worker-$node" "$bin/telar-worker" --coordinator "$coordinator" --node "$node" --state "$home/worker-$node" \
    --http 127.0.0.1:0 --rank-program "$bin/telar-rank" --device-kind "${kinds[0]}" --cpu-devices 1 --stop-ranks-on-exit
  kinds=("${kinds[@]:1}")
done
telar=("$bin/telar" --coordinator "$coordinator")
for _ in $(seq 300); do
  [ "$("${telar[@]}" nodes -o name | wc -l)" -lt 2 ] || break
  sleep 0.1
done
"${telar[@]}" nodes
read -r _ _ gpus kind _ < <("${telar[@]}" nodes --no-headers) || fail "no worker registered; see $home/log"
[ "$kind" = gpu ] || gpus=0

say "Train"
threads=$(($(nproc) / 2 > 0 ? $(nproc) / 2 : 1))
devices=(--set resources.kind=cpu --set "resources.threads=$threads")
if [ "$gpus" -gt 0 ]; then
  count=$((gpus < 2 ? gpus : 2))
  devices=(--set resources.kind=gpu --set "resources.devices=$count" --set "parallel.data=$count" --set precision.compute=bf16)
fi
job=$("${telar[@]}" submit deploy/examples/quickstart.yaml --set "data.train=$text" "${devices[@]}" \
  ${settings[@]+"${settings[@]}"})
job=${job##*/}
echo "Job $job; from another terminal: ${telar[*]} watch $job"
status=0
"${telar[@]}" watch "$job" || status=$?
for rank in 0 1; do  # A job on one GPU has no rank 1.
  "${telar[@]}" logs "$job" --rank "$rank" >"$home/log/$job-rank-$rank.log" 2>&1 || true
done

say "Where things are"
run=$home/runs/$job
if [ -s "$run/sample.txt" ]; then
  printf 'Sample:\n\n'
  sed 's/^/    /' "$run/sample.txt"
  echo
fi
cat <<END
Checkpoints   $run/ckpt
Sample        $run/sample.txt
Metrics       $run/metrics.jsonl; while they run, Prometheus finds http://$(address coordinator http)/metrics
              and, by http://$(address coordinator http)/sd/workers, the workers
Logs          $home/log/$job-rank-0.log, -rank-1.log; daemons: $home/log/
END
if [ -n "$keep" ]; then
  trap - EXIT
  echo "Still running: ${telar[*]} list. Stop with: $0 --stop"
else
  echo "Stopping the coordinator and the workers; --keep would leave them running."
fi
exit "$status"
