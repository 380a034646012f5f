#!/bin/bash
# Fuzzes each target for a while, with AddressSanitizer and UBSan; needs clang.
#   tests/fuzz/run.sh SECONDS [TARGET...]    targets as below; default: all
# New inputs that reach new code go to build/fuzz/corpus/TARGET. An input that crashes is left in build/fuzz/found as
# TARGET-crash-...: mend the code, then keep the input in tests/fuzz/corpus/TARGET, where every test run tries it again.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
[[ ${1:-} =~ ^[1-9][0-9]*$ ]] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
seconds=$1
shift
[ $# -gt 0 ] || set -- spec checkpoint data tokenizer trace config rank rpc
jobs=${JOBS:-$(nproc)}

cmake -S . -B build/fuzz -G Ninja -Wno-dev -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_COMPILER=clang \
  -DCMAKE_CXX_COMPILER=clang++ -DFUZZ=ON -DWITH_CUDA=OFF -DUNITY=ON >build/fuzz.configure.log 2>&1 ||
  { cat build/fuzz.configure.log >&2; exit 1; }
cmake --build build/fuzz -j "$jobs" --target "${@/#/fuzz_}"

# Weighing inputs by how rare what they reach is (-entropic=1) takes nine tenths of the time where much is reached: rpc.
mkdir -p build/fuzz/found
status=0
for target in "$@"; do
  mkdir -p "build/fuzz/corpus/$target"
  echo "== $target, $seconds s"
  "build/fuzz/bin/fuzz_$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -max_len=65536 -entropic=0 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/found/$target-" "build/fuzz/corpus/$target" "tests/fuzz/corpus/$target" \
    >"build/fuzz/$target.log" 2>&1 || { status=1; tail -n 40 "build/fuzz/$target.log"; }
  grep -E '^stat::(number_of_executed_units|new_units_added|peak_rss_mb)' "build/fuzz/$target.log" || true
done
exit "$status"
