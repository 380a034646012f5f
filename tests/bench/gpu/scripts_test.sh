#!/bin/bash
# bench/gpu without a GPU: the scripts parse, run.sh calls what models.txt says, with programs that only pretend, and the table
# of figures made up here is the one expected.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
gpu=$root/bench/gpu
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "scripts_test.sh: $*"; exit 1; }

for script in "$gpu"/*.sh; do
  bash -n "$script"
  if command -v shellcheck >/dev/null; then shellcheck "$script"; else echo "no shellcheck here"; fi
done
for script in "$gpu"/*.py; do
  python3 - "$script" <<'END'
import ast, sys
ast.parse(open(sys.argv[1]).read(), sys.argv[1])
END
done

# The order of samples that sampler_test holds the engine to, and the schedule's ends.
python3 - "$gpu" <<'END'
import sys, types
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import loss_curve
order = loss_curve.Order(1000, 10, 42)
assert [order.position(i) for i in (0, 1, 2, 98, 99, 1000000)] == [821, 111, 641, 721, 122, 618]
options = types.SimpleNamespace(rate=1.0, warmup=10, steps=110)
rates = [loss_curve.learning_rate(options, step) for step in (1, 10, 60, 110)]
assert all(abs(a - b) < 1e-12 for a, b in zip(rates, (0.1, 1.0, 0.55, 0.1))), rates
END

# Every line of layouts.txt makes a spec, and is compared with what it names: an earlier line, or a way of torch_llama.py.
python3 - "$gpu" <<'END'
import pathlib, sys
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import layouts
seen = set()
for line in layouts.read_lines(pathlib.Path(sys.argv[1]) / "layouts.txt"):
    assert set(line) == {"name", "preset", "sequence", "micro", "global", "parallel", "against", "target"}, line
    assert line["name"] not in seen and line["against"] in seen | {"-", "torch:ddp", "torch:fsdp"}, line
    seen.add(line["name"])
    spec = layouts.spec_of(line, "/x.bin", 10)
    assert spec["resources"]["devices"] == layouts.degrees(line)[1], line
    assert spec["batch"]["global"] % (spec["batch"]["micro"] * spec["parallel"].get("data", 1)) == 0, line
    assert line["target"] == "-" or line["against"] != "-", line
assert "llama-zero1" in seen
END

# --- The table ----------------------------------------------------------------------------------------------------------
out=$work/canned
mkdir "$out"
step() { echo "{\"tokens_per_second\": $1, \"mfu\": $2}" >"$out/$3.json"; }
llmc() {  # Two slow steps first, then milliseconds around $1.
  for ms in 9000.00 5000.00 "$1" "$((${1%.*} + 7)).50" "$((${1%.*} - 3)).25"; do
    echo "step    1/5 | loss 9.1 (+nanz)| norm 2.0 (+nanz)| lr 3.00e-04 | $ms ms | -100.0% bf16 MFU | 1 tok/s"
  done >"$out/$2.log"
}
step 640000.4 0.515 ours-gpt2-124m-1
step 655360 0.5274 ours-gpt2-124m-2
llmc 1024.00 peer-gpt2-124m-1  # 524,288 tokens: 512,000 a second
llmc 1048.57 peer-gpt2-124m-2
step 200000 0.46 ours-gpt2-350m-1
llmc 2621.44 peer-gpt2-350m-1
step 160000.5 null step-qwen2.5-0.5b
step 43400 0.62 ours-llama3-8b-8l-1
printf 'a warning\n{"peer": "torch", "tok_s": 40000, "mfu_causal": 0.58}\n' >"$out/peer-llama3-8b-8l-1.log"
echo 'Killed' >"$out/peer-gpt2-774m-1.log"
parts() { printf '%s\t%s\t1\tlog\n' "$@" >"$out/parts.tsv"; }
parts "ours gpt2-124m 1" 0 "ours gpt2-124m 2" 0 "peer gpt2-124m 1" 0 "ours gpt2-350m 1" 0 "step qwen2.5-0.5b" 0
"$gpu/table.py" "$gpu/models.txt" "$out" gpt2-124m gpt2-350m gpt2-774m qwen2.5-0.5b llama3-8b-8l >"$work/table" ||
  fail "table.py failed where nothing had"
sed "s|$out|OUT|" "$work/table" | diff "$(dirname "${BASH_SOURCE[0]}")/table.golden" - || fail "another table than table.golden"
python3 -c 'import json, sys; rows = json.load(open(sys.argv[1]))["rows"]; assert rows[0]["met"] is False and rows[4]["met"]' \
  "$out/results.json" || fail "results.json says something else"

for planted in "tests cuda_kernels_test:1" "peer gpt2-774m 1:0" "ours gpt2-1.5b 1:0" "step gpt2-124m:124"; do
  parts "${planted%:*}" "${planted##*:}"
  if "$gpu/table.py" "$gpu/models.txt" "$out" >"$work/table"; then fail "passed in spite of '$planted'"; fi
  grep -q "^FAILED  ${planted%:*}: " "$work/table" || fail "does not name '$planted'"
done

# --- The runs -----------------------------------------------------------------------------------------------------------
parts=tests,kernels,step,race,curve
"$gpu/run.sh" --dry-run --only "$parts" --peers "$work" --models gpt2-124m,llama3-8b-8l --out OUT >"$work/dry"
for wanted in 'TELAR_BACKEND=cuda .*/train_golden_test$' 'bench_kernels --backend cuda --shapes llama3-8b --json OUT/kernels-llama3-8b-8l.json' \
  '^\[ours gpt2-124m 2\].*bench_step --backend cuda --preset gpt2-124m --seq 1024 --micro 256 --accum 2 --steps 12 .*--json OUT/ours-gpt2-124m-2.json$' \
  '^\[peer gpt2-124m 1\].*train_gpt2cu .*-e d12 -b 64 -t 1024 -d 524288 ' 'bench_step --backend cuda --preset llama3-8b --layers 8 --seq 4096' \
  '^\[peer llama3-8b-8l 1\].*torch_llama.py --layers 8 --seq 4096 --mbs 2 --accum 4' '^\[curve\].*loss_curve.py .*--steps 1000'; do
  grep -qE -- "$wanted" "$work/dry" || { cat "$work/dry"; fail "no command like: $wanted"; }
done

mkdir -p "$work/bin/lib" "$work/peers/llmc"
fake() { printf '#!/bin/bash\n%s\n' "$2" >"$work/$1"; chmod +x "$work/$1"; }
# shellcheck disable=SC2016  # For the fakes to expand.
{
  fake bin/telar-rank true
  fake bin/cuda_kernels_test 'echo "[  PASSED  ] 3 tests."'
  fake bin/train_golden_test 'echo "[  PASSED  ] 2 tests."; [ "$TELAR_BACKEND" = cuda ]'
  fake bin/bench_kernels '[[ $LD_LIBRARY_PATH == */bin/lib* ]]'
  fake bin/bench_step 'while [ "$1" != --json ]; do shift; done; echo "{\"tokens_per_second\": 7e5, \"mfu\": 0.5}" >"$2"'
  fake peers/llmc/train_gpt2cu '[[ $LD_LIBRARY_PATH != */bin/lib* ]] && for i in 1 2 3; do
    echo "step $i/3 | loss 9 | 1000.00 ms | -100.0% bf16 MFU | 1 tok/s"; done'
}
run() { "$gpu/run.sh" --bin "$work/bin" --peers "$work/peers" --out "$work/out" --models gpt2-124m --quick "$@" >"$work/said" 2>&1; }
run || { cat "$work/said"; fail "run.sh failed with programs that pass"; }
grep -qE '^gpt2-124m +700,000 +50\.0% +llm\.c +524,288 +1\.335 +1\.30  met$' "$work/said" || { cat "$work/said"; fail "no such row"; }
fake bin/cuda_kernels_test 'echo "[  PASSED  ] 0 tests."; echo "[  SKIPPED ] 96 tests, listed below:"'
fake bin/bench_kernels 'echo broken; exit 3'
if run; then fail "run.sh passed with a broken program"; fi
for wanted in 'FAILED  tests cuda_kernels_test: exit 1' 'FAILED  kernels gpt2-124m: exit 3' '^gpt2-124m +700,000'; do
  grep -qE "$wanted" "$work/said" || { cat "$work/said"; fail "does not say: $wanted"; }
done
if run --models nonsense; then fail "took a model that it does not know"; fi
echo "bench/gpu scripts are sound"
