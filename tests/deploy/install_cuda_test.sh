#!/bin/bash
# deploy/install-cuda.sh on a machine that has no CUDA, driver or network, whatever this one has: empty wheels of the right
# names stand in for NVIDIA's, and what it asks of the system is answered by the fakes below. Changes nothing outside a
# temporary folder.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
script=$root/deploy/install-cuda.sh
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "install_cuda_test.sh: $*"; [ ! -s "$work/said" ] || cat "$work/said"; exit 1; }

bash -n "$script"
if command -v shellcheck >/dev/null; then shellcheck "$script"; else echo "no shellcheck here"; fi

mkdir "$work/fakes" "$work/wheels"
fake() { printf '#!/bin/bash\n%s\n' "$2" >"$work/fakes/$1"; chmod +x "$work/fakes/$1"; }
for program in ldconfig dpkg-query curl wget sudo apt-get; do fake "$program" 'exit 1'; done
fake nvidia-smi 'echo 580.95.05'
printf 'ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04 LTS"\n' >"$work/ubuntu"
printf 'ID=fedora\nVERSION_ID=42\nPRETTY_NAME="Fedora"\n' >"$work/fedora"
export PATH=$work/fakes:$PATH CUDA_HOME=$work/nothing OS_RELEASE=$work/ubuntu TMPDIR=$work

# expect CODE ARGUMENT...: its exit code, and what it says in $work/said.
expect() {
  local wanted=$1 code=0
  shift
  "$script" "$@" >"$work/said" 2>&1 || code=$?
  [ "$code" = "$wanted" ] || fail "install-cuda.sh $* exited $code, not $wanted"
}
says() { grep -qE -- "$1" "$work/said" || fail "does not say: $1"; }
is_silent_on() { if grep -qE -- "$1" "$work/said"; then fail "says: $1"; fi; }

python3 - "$script" "$work/wheels" <<'END'
import re, sys, zipfile
holds = {
    "nvidia-cublas": {"cu13/lib/libcublasLt.so.13": "", "cu13/include/cublasLt.h": ""},
    "nvidia-cuda-nvrtc": {"cu13/lib/libnvrtc.so.13": ""},
    "nvidia-cudnn-cu13": {"cudnn/lib/libcudnn.so.9": "", "cudnn/include/cudnn_version.h": "", "cudnn/__init__.py": ""},
    "nvidia-nccl-cu13": {"nccl/lib/libnccl.so.2": "\0NCCL version 2.28.9+cuda13.0\n\0", "nccl/include/nccl.h": ""},
    "nvidia-cuda-nvcc": {"cu13/bin/nvcc": "#!/bin/bash\necho Cuda compilation tools, release 13.0, V13.0.88\n"},
    "nvidia-cuda-runtime": {"cu13/include/cuda_runtime.h": ""},
}
names = set(re.findall(r"(nvidia-[a-z0-9-]+)==([0-9.]+)", open(sys.argv[1]).read()))
assert holds.keys() <= {name for name, _ in names}, names
for name, version in names:
    with zipfile.ZipFile(f"{sys.argv[2]}/{name.replace('-', '_')}-{version}-py3-none-manylinux1_x86_64.whl", "w") as wheel:
        for path, text in holds.get(name, {"cu13/include/other.h": ""}).items():
            wheel.writestr("nvidia/" + path, text)
END

# --- Nothing there ------------------------------------------------------------------------------------------------------
prefix=$work/cuda
expect 1 --check --prefix "$prefix"
says '^driver +ok +580\.95\.05$'
says '^cuDNN +missing +no libcudnn\.so\.9$'
says 'lacking: cuBLASLt NVRTC cuDNN NCCL cublasLt\.h .*nvcc$'
expect 1 --check --prefix "$prefix" --runtime-only
says 'lacking: cuBLASLt NVRTC cuDNN NCCL$'
expect 0 --dry-run --prefix "$prefix" --wheels "$work/wheels"
says '^would unpack below .*/cuda: nvidia-cublas==.* nvidia-cuda-nvcc=='
[ ! -e "$prefix" ] || fail "--dry-run left $prefix"
expect 0 --dry-run --from packages --runtime-only
says '^would fetch: https://.*/ubuntu2404/x86_64/cuda-keyring.*\.deb$'
says '^would run: .*/install-packages\.sh libcublas-13-0 cuda-nvrtc-13-0 libcudnn9-cuda-13 libnccl2$'
expect 0 --dry-run --from packages
says 'libnccl2 cuda-nvcc-13-0 .*libnccl-dev$'
OS_RELEASE=$work/fedora expect 1 --dry-run --from packages
says 'this is "Fedora": try --from wheels'
fake python3 "[ \"\$2\" != pip ] && exec $(command -v python3) \"\$@\"; exit 1"
expect 0 --dry-run --prefix "$prefix"
says '^would run: .*/install-packages\.sh python3-pip$'
rm "$work/fakes/python3"

# --- A driver that is too old, and none ---------------------------------------------------------------------------------
fake nvidia-smi 'echo 570.172.08'
expect 3 --prefix "$prefix" --wheels "$work/wheels"
says 'update the driver to 580 or later first; it is 570\.172\.08'
[ ! -e "$prefix" ] || fail "installed beside a driver that is too old"
fake nvidia-smi 'echo 1000.10'
expect 1 --check --prefix "$prefix"
says '^driver +ok +1000\.10$'

# --- Wheels brought by hand ---------------------------------------------------------------------------------------------
expect 0 --prefix "$prefix" --wheels "$work/wheels" --runtime-only
says "LD_LIBRARY_PATH=$prefix/lib$"
says '^NCCL +ok .*\(2\.28\.9\)$'
[ "$(readlink "$prefix/lib/libcudnn.so")" = libcudnn.so.9 ] || fail "a linker would not find libcudnn.so"
[ ! -e "$prefix/bin/nvcc" ] || fail "--runtime-only brought nvcc"
expect 0 --prefix "$prefix" --wheels "$work/wheels" --runtime-only
says '^All there; nothing to do\.$'
expect 0 --prefix "$prefix" --wheels "$work/wheels"
says "CUDA_HOME=$prefix$"
says '^nvcc +ok +.*/bin/nvcc \(13\.0\)$'
expect 0 --check --prefix "$prefix"
is_silent_on missing
[ -z "$(find "$prefix" -name '__init__.py')" ] || fail "left Python's files in the prefix"

printf 'NCCL version 2.27.7+cuda12.9' >"$prefix/lib/libnccl.so.2"
expect 1 --check --prefix "$prefix"
says '^NCCL +too old +.*is 2\.27\.7, 2\.28 is the least$'
rm "$work"/wheels/nvidia_nccl*
expect 1 --prefix "$prefix" --wheels "$work/wheels"
says 'has no wheel of nvidia-nccl-cu13=='

# --- Arguments ----------------------------------------------------------------------------------------------------------
for wrong in "--from tarball" "--prefix" "--from packages --prefix /x" "--nonsense"; do
  # shellcheck disable=SC2086  # Several arguments.
  expect 2 $wrong
done
echo "install-cuda.sh is sound"
