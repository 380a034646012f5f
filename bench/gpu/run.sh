#!/bin/bash
# On a GPU machine, beside a built tree or an unpacked bundle: the GPU tests, both benchmarks, and the peers in turn with
# ours; one short table last. Exit 0: every part that ran passed; 1: not, and which; 2: wrong arguments.
#   bench/gpu/run.sh [option]...
#     --only PARTS    of tests,sanitize,kernels,step,race,curve, comma-separated; default: tests,kernels,step, and race with
#                     --peers. sanitize: the kernels' tests under compute-sanitizer's memcheck and racecheck
#     --models NAMES  comma-separated names of models.txt; default: all
#     --peers DIR     holds llmc/train_gpt2cu, torch_llama.py, make_bin.py; what is absent is not raced
#     --text FILE     for curve: real text; default: what Debian's package bible-kjv prints
#     --bin DIR       telar-rank, bench programs, tests; default: build/release/bin of the tree, or where telar-rank lies
#     --out DIR       logs and JSON; default: a new folder below /tmp
#     --quick         half of the steps, one round instead of two, 100 steps of curve
#     --dry-run       print the commands instead
# A bundle: programs in a folder, libraries in its lib/, and the tree's tests/golden and bench/gpu somewhere above or in it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
only='' models='' peers='' text='' bin='' out='' quick='' dry='' rounds=2

fail() { echo "run.sh: $*" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --only|--models|--peers|--text|--bin|--out)
      [ $# -ge 2 ] || fail "$1 needs a value"
      printf -v "${1#--}" %s "$2"
      shift ;;
    --quick) quick=1 rounds=1 ;;
    --dry-run) dry=1 ;;
    *) sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
[ -z "$peers" ] || peers=$(realpath -e -- "$peers") || fail "--peers: no such folder"
[ -n "$only" ] || only=tests,kernels,step${peers:+,race}
for part in ${only//,/ }; do
  case $part in tests|sanitize|kernels|step|race|curve) ;; *) fail "--only $part: no such part" ;; esac
done
wants() { [[ ,$only, == *,$1,* ]]; }

# The first folder, from here upwards, that has `$1`.
above() {
  local folder=$here
  while :; do
    [ ! -e "$folder/$1" ] || { echo "$folder"; return 0; }
    [ "$folder" != / ] || return 1
    folder=$(dirname "$folder")
  done
}
if [ -z "$bin" ]; then
  if folder=$(above build/release/bin/telar-rank); then bin=$folder/build/release/bin
  elif folder=$(above telar-rank); then bin=$folder
  elif [ -n "$dry" ]; then bin=BIN
  else fail "no telar-rank in build/release/bin of the tree nor above $here; say --bin DIR"; fi
fi
[ -n "$dry" ] || bin=$(realpath -e -- "$bin") || fail "--bin: no such folder"
source_dir=$(above tests/golden) || source_dir=$bin
if [ -n "$dry" ]; then out=${out:-OUT}; else out=$(realpath -m -- "${out:-$(mktemp -d /tmp/telar-gpu.XXXXXX)}"); fi

# CUDA's libraries where pip puts them; without them the system's. Ours come from the bundle, and only ours: python3 and the
# peers keep their own libssl and libgomp.
python3=$(command -v python3) || fail "no python3: it makes the table and runs the peers"
pip_cuda=$("$python3" - <<'END'
import os, sys
found = (os.path.join(path, "nvidia", part, "lib") for part in ("cu13", "cudnn", "nccl") for path in sys.path)
print(":".join(folder for folder in found if os.path.isdir(folder)))
END
)
cuda_path=$pip_cuda${LD_LIBRARY_PATH:+${pip_cuda:+:}$LD_LIBRARY_PATH}
our_path=$cuda_path
[ ! -d "$bin/lib" ] || our_path=$bin/lib${cuda_path:+:$cuda_path}
export NCCL_NVLS_ENABLE=0  # NVLink multicast can take a shared host's GPUs out of service.
export TELAR_TUNING_FILE=${TELAR_TUNING_FILE:-$out/tuning}  # Every process of ours takes the same products.

mapfile -t table < <(sed 's/#.*//' "$here/models.txt" | awk 'NF')
names=${models//,/ }
[ -n "$names" ] || names=$(printf '%s\n' "${table[@]}" | awk '{ print $1 }' | paste -sd ' ')
model_line() {
  local line
  for line in "${table[@]}"; do [ "${line%%[[:space:]]*}" != "$1" ] || { echo "$line"; return 0; }; done
  fail "--models $1: not in $here/models.txt"
}
for name in $names; do model_line "$name" >/dev/null; done

# run NAME LIMIT COMMAND...: with a time limit, into $out/<NAME>.log; the rest goes on whatever happens.
run() {
  local name=$1 limit=$2 log start=$SECONDS code=0
  shift 2
  log=$out/${name// /-}.log
  if [ -n "$dry" ]; then echo "[$name] timeout $limit $*"; return 0; fi
  printf '%s ... ' "$name"
  timeout -k 20 "$limit" "$@" >"$log" 2>&1 </dev/null || code=$?
  [ "$code" != 0 ] || [[ $name != tests* ]] || tests_passed "$log" || code=1
  printf '%s\t%s\t%s\t%s\n' "$name" "$code" "$((SECONDS - start))" "$log" >>"$out/parts.tsv"
  if [ "$code" = 0 ]; then echo "$((SECONDS - start)) s"; else
    echo "FAILED ($code), the end of $log:"
    tail -n 15 "$log"
  fi
}
tests_passed() {  # GoogleTest says 0 when everything was skipped: no GPU was tested then.
  grep -qE '^\[  PASSED  \] [1-9][0-9]* test' "$1" && ! grep -qE '^\[  PASSED  \] 0 test|no test was run' "$1"
}
show() { [ -n "$dry" ] || [ ! -s "$1" ] || tail -n 60 "$1"; }  # A benchmark's own table.
skip() { echo "$1: skipped, $2"; }

if [ -z "$dry" ]; then
  mkdir -p "$out"
  rm -f "$out"/parts.tsv "$out"/{step,ours,kernels}-*.json "$out"/peer-*.log
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,temperature.gpu --format=csv,noheader || true
fi
us=(env "LD_LIBRARY_PATH=$our_path" "TELAR_SOURCE_DIR=$source_dir")

if wants tests; then
  shopt -s nullglob
  tests=("$bin"/cuda_*_test)
  [ -z "$dry" ] || tests=("$bin"/cuda_kernels_test "$bin"/cuda_library_test)
  [ ${#tests[@]} -gt 0 ] || tests=("$bin/cuda_kernels_test")  # Shown as failed.
  for test in "${tests[@]}"; do run "tests $(basename "$test")" 240 "${us[@]}" "$test"; done
  run "tests train_golden_test" 240 "${us[@]}" TELAR_BACKEND=cuda "$bin/train_golden_test"
fi

if wants sanitize; then
  # Not what is slow under it (tensors past 2^31 elements), nor what makes errors on purpose.
  sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer) || sanitizer=compute-sanitizer
  for tool in memcheck racecheck; do
    options=(--tool "$tool" --error-exitcode 99)
    # What cuBLASLt's and cuDNN's kernels order by copy engines and barriers, racecheck takes for races.
    [ "$tool" = memcheck ] || options+=(--kernel-name-exclude kns=nvjet --kernel-name-exclude kns=cudnn)
    run "sanitize $tool" 300 "${us[@]}" "$sanitizer" "${options[@]}" "$bin/cuda_kernels_test" \
      --gtest_brief=1 --gtest_filter='-*BigIndex*:*ACaptureThatFails*:Launches*'
  done
fi

if wants kernels; then
  # A small and a large width stand for all, unless models were named.
  kernel_models="gpt2-124m llama3-8b-8l"
  [ -z "$models" ] || kernel_models=$names
  for name in $kernel_models; do
    read -ra fields < <(model_line "$name")
    shapes=${fields[1]%%+*}
    run "kernels $name" 240 "${us[@]}" "$bin/bench_kernels" --backend cuda --shapes "$shapes" --json "$out/kernels-$name.json"
    show "$out/kernels-$name.log"
  done
fi

# step FIELDS OF models.txt, then a name without extension for JSON, and more arguments.
step() {
  local preset=$2 sequence=$3 micro=$4 accum=$5 steps=$6 json=$9
  shift 9
  local more=()
  [[ $preset != *+* ]] || more=(--layers "${preset##*+layers=}")
  [ -z "$quick" ] || steps=$(((steps + 1) / 2))
  command=("${us[@]}" "$bin/bench_step" --backend cuda --preset "${preset%%+*}" "${more[@]}" --seq "$sequence" --micro "$micro"
           --accum "$accum" --steps "$steps" --warmup 3 --json "$json" "$@")
}

if wants step; then
  for name in $names; do
    read -ra fields < <(model_line "$name")
    step "${fields[@]}" "$out/step-$name.json" --profile
    run "step $name" 180 "${command[@]}"
    show "$out/step-$name.log"
  done
fi

# peer FIELDS OF models.txt: into `command`, or a reason into `why`.
peer() {
  local sequence=$3 micro=$4 accum=$5 steps=$6 kind a b c
  IFS=: read -r kind a b c <<<"$7"
  command=() why=''
  [ -z "$quick" ] || steps=$(((steps + 1) / 2))
  case $kind in
    llm.c)
      [ -x "$peers/llmc/train_gpt2cu" ] || [ -n "$dry" ] || { why="no llmc/train_gpt2cu in --peers"; return 0; }
      local path=$cuda_path
      [ ! -d "$peers/llmc/lib" ] || path=${path:+$path:}$peers/llmc/lib
      command=(env "LD_LIBRARY_PATH=$path" "$peers/llmc/train_gpt2cu" -i "$out/random.bin" -j "$out/random.bin" -e "$a"
               -b "$b" -t "$sequence" -d "$((sequence * micro * accum))" -x "$((steps + 2))" -v 1000 -s 0 -m 1 -h 0 -r 0
               -z 0 -pi fs -pf "$out" -pn 1 -pr 0 -pg 1) ;;
    torch)
      [ -r "$peers/torch_llama.py" ] || [ -n "$dry" ] || { why="no torch_llama.py in --peers"; return 0; }
      command=("$python3" "$peers/torch_llama.py" --layers "$a" --seq "$sequence" --mbs "$b" --accum "$c" --steps "$steps") ;;
    figure) why="$a is not run; its figure is compared" ;;
    *) why="unknown peer $kind" ;;
  esac
}

if wants race; then
  if [ -n "$peers" ] && [ -r "$peers/make_bin.py" ]; then
    run "random tokens" 60 "$python3" "$peers/make_bin.py" "$out/random.bin" 2e7
  fi
  if [ -n "$peers" ] && [ -r "$peers/ceilings.py" ]; then
    run ceilings 120 "$python3" "$peers/ceilings.py"
    [ -n "$dry" ] || grep -E 'copy|8192x8192x8192|sdpa_cudnn' "$out/ceilings.log" || true
  fi
  for name in $names; do
    read -ra fields < <(model_line "$name")
    peer "${fields[@]}"
    race=("${command[@]}")
    [ -z "$why" ] || skip "peer of $name" "$why"
    for round in $(seq "$rounds"); do  # In turn, so that a clock that falls meets both.
      step "${fields[@]}" "$out/ours-$name-$round.json"
      run "ours $name $round" 180 "${command[@]}"
      [ ${#race[@]} -eq 0 ] || run "peer $name $round" 240 "${race[@]}"
    done
  done
fi

if wants curve; then
  if [ -z "$text" ] && command -v bible >/dev/null && [ -z "$dry" ]; then
    text=$out/kjv.txt
    bible -l99999 gen1:1-rev22:21 </dev/null | sed 's/^ *[0-9][0-9]* //' >"$text"
  fi
  [ -n "$text" ] || [ -n "$dry" ] || fail "curve needs --text FILE (or Debian's package bible-kjv)"
  rank=$out/telar-rank  # Our libraries for our program alone, not for the python3 that starts it.
  if [ -z "$dry" ]; then
    printf '#!/bin/bash\nLD_LIBRARY_PATH=%q exec %q "$@"\n' "$our_path" "$bin/telar-rank" >"$rank"
    chmod +x "$rank"
    rm -rf "$out/curve"
  fi
  run curve 540 "$python3" "$here/loss_curve.py" --rank-program "$rank" --text "${text:-TEXT}" --out "$out/curve" \
    --steps "$([ -n "$quick" ] && echo 100 || echo 1000)"
  show "$out/curve.log"
fi

[ -z "$dry" ] || exit 0
echo
# shellcheck disable=SC2086  # A list of names.
"$python3" "$here/table.py" "$here/models.txt" "$out" $names
