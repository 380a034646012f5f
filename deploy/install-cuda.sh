#!/bin/bash
# Brings what the CUDA backend needs to a GPU node that has only the driver: cuBLASLt, cuDNN 9, NCCL 2.28 or later and, to build
# there, nvcc and headers. From NVIDIA's Debian/Ubuntu repository, or from the wheels that NVIDIA puts on PyPI.
#   install-cuda.sh [option]...
#     --runtime-only       libraries alone: enough to run what was built elsewhere
#     --from HOW           packages | wheels; default: packages where NVIDIA's repository answers, else wheels
#     --prefix DIR         where wheels go, and the only place that is looked at; default: /opt/telar/cuda, and all usual places
#     --wheels DIR         wheels that were brought here by hand, instead of pip's download; implies --from wheels
#     --check              say what is there and what lacks, change nothing
#     --dry-run            say what would be done, change nothing
# All there: nothing done. Exit 0: all there; 1: not, and why; 2: wrong arguments; 3: the driver is too old for CUDA 13.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly least_driver=580 least_nccl=2.28 default_prefix=/opt/telar/cuda
readonly repository=https://developer.download.nvidia.com/compute/cuda/repos keyring=cuda-keyring_1.1-1_all.deb
# One set of versions that was built and measured together.
readonly runtime_wheels=(nvidia-cublas==13.1.0.3 nvidia-cuda-nvrtc==13.0.88 nvidia-cudnn-cu13==9.19.0.56 nvidia-nccl-cu13==2.28.9)
readonly build_wheels=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96
  nvidia-cuda-cccl==13.0.85 nvidia-cuda-culibos==13.0.85)
readonly runtime_packages=(libcublas-13-0 cuda-nvrtc-13-0 libcudnn9-cuda-13 libnccl2)
readonly build_packages=(cuda-nvcc-13-0 cuda-cudart-dev-13-0 cuda-cccl-13-0 libcublas-dev-13-0 libcudnn9-dev-cuda-13 libnccl-dev)

runtime='' from='' prefix='' wheels='' check='' dry=''
fail() { echo "install-cuda.sh: $*" >&2; exit 1; }
usage() { echo "install-cuda.sh: $*" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --runtime-only) runtime=1 ;;
    --check) check=1 ;;
    --dry-run) dry=1 ;;
    --from|--prefix|--wheels)
      [ $# -ge 2 ] || usage "$1 needs a value"
      printf -v "${1#--}" %s "$2"
      shift ;;
    *) sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
  shift
done
[ -z "$wheels" ] || { wheels=$(realpath -e -- "$wheels") || usage "--wheels: no such folder"; from=${from:-wheels}; }
case ${from:=auto} in auto|packages|wheels) ;; *) usage "--from $from: packages or wheels" ;; esac
[ "$from" != packages ] || [ -z "$wheels$prefix" ] || usage "--prefix and --wheels go with --from wheels"
[ -z "$prefix" ] || { prefix=$(realpath -m -- "$prefix"); [ "$from" != auto ] || from=wheels; }

# --- What is there ------------------------------------------------------------------------------------------------------
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }  # at_least HAVE WANTED

driver_version() {
  nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 | grep -oE '^[0-9.]+' ||
    sed -n 's/^NVRM version:.* \([0-9]\+\.[0-9.]\+\) .*/\1/p' /proc/driver/nvidia/version 2>/dev/null | grep . || true
}

if [ -n "$prefix" ]; then roots=("$prefix"); else roots=("${CUDA_HOME:-/usr/local/cuda}" "$default_prefix" /usr); fi

library() {  # Path of the library $1, if it is here.
  local root folder
  for root in "${roots[@]}"; do
    for folder in lib64 lib lib/x86_64-linux-gnu; do
      [ ! -e "$root/$folder/$1" ] || { echo "$root/$folder/$1"; return 0; }
    done
  done
  if [ -z "$prefix" ]; then { ldconfig -p 2>/dev/null || true; } | sed -n "s|^[[:space:]]*$1 .*=> ||p" | head -n 1; fi
}
header() {
  local root folder
  for root in "${roots[@]}"; do
    for folder in include include/x86_64-linux-gnu; do
      [ ! -e "$root/$folder/$1" ] || { echo "$root/$folder/$1"; return 0; }
    done
  done
}
nccl_version() { grep -aoE -m 1 'NCCL version [0-9.]+' "$1" | head -n 1 | grep -oE '[0-9.]+$' || true; }
nvcc_version() { "$1" --version 2>/dev/null | grep -oE 'release [0-9.]+' | grep -oE '[0-9.]+' || true; }

row() { printf '%-16s %-8s %s\n' "$@"; }
# survey: a row a thing; the names of what lacks into `lacking`.
survey() {
  local name file found version nvcc
  lacking=()
  while read -r name file; do
    found=$(library "$file")
    version=''
    [ "$name" != NCCL ] || [ -z "$found" ] || version=$(nccl_version "$found")
    if [ -z "$found" ]; then row "$name" missing "no $file"
    elif [ -n "$version" ] && ! at_least "$version" "$least_nccl"; then
      row "$name" "too old" "$found is $version, $least_nccl is the least"
    else
      row "$name" ok "$found${version:+ ($version)}"
      continue
    fi
    lacking+=("$name")
  done <<END
cuBLASLt libcublasLt.so.13
NVRTC libnvrtc.so.13
cuDNN libcudnn.so.9
NCCL libnccl.so.2
END
  [ -z "$runtime" ] || return 0
  for file in cublasLt.h cudnn_version.h nccl.h cuda_runtime.h; do
    found=$(header "$file")
    if [ -n "$found" ]; then row "$file" ok "$found"; else
      row "$file" missing "needed to build"
      lacking+=("$file")
    fi
  done
  nvcc=''
  for found in "${roots[@]}"; do [ -n "$nvcc" ] || [ ! -x "$found/bin/nvcc" ] || nvcc=$found/bin/nvcc; done
  version=${nvcc:+$(nvcc_version "$nvcc")}
  if [ -z "$nvcc" ]; then row nvcc missing "needed to build"
  elif ! at_least "${version:-0}" 13; then row nvcc "too old" "$nvcc is ${version:-of no known version}, 13.0 is the least"
  else
    row nvcc ok "$nvcc ($version)"
    return 0
  fi
  lacking+=(nvcc)
}

driver=$(driver_version)
if [ -z "$driver" ]; then row driver missing "no NVIDIA driver answers; $least_driver or later is needed to run"
elif at_least "$driver" "$least_driver"; then row driver ok "$driver"
else row driver "too old" "$driver; CUDA 13 needs $least_driver or later"; fi
survey
if [ -n "$driver" ] && ! at_least "$driver" "$least_driver"; then
  echo "install-cuda.sh: update the driver to $least_driver or later first; it is $driver" >&2
  exit 3
fi
if [ -n "$check" ]; then
  [ -n "$driver" ] || lacking=(driver "${lacking[@]}")
  [ ${#lacking[@]} -gt 0 ] || exit 0
  fail "lacking: ${lacking[*]}"
fi
if [ ${#lacking[@]} -eq 0 ]; then
  echo "All there; nothing to do."
  exit 0
fi
[ "$(uname -m)" = x86_64 ] || fail "$(uname -m): only x86_64 is known here"

# --- How ----------------------------------------------------------------------------------------------------------------
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
can_be_root() { [ "$(id -u)" = 0 ] || command -v sudo >/dev/null; }
can_add_packages() { can_be_root && command -v apt-get >/dev/null; }
do_it() { if [ -n "$dry" ]; then echo "would run: $*"; else "$@"; fi; }

distribution() {  # As NVIDIA's repository calls it; nothing for one that it does not have.
  # shellcheck source=/dev/null
  (. "${OS_RELEASE:-/etc/os-release}"; case "$ID $VERSION_ID" in
    "debian 12") echo debian12 ;;
    "ubuntu 22.04") echo ubuntu2204 ;;
    "ubuntu 24.04") echo ubuntu2404 ;;
  esac) 2>/dev/null || true
}
download() {  # download URL FILE
  if command -v curl >/dev/null; then curl -fsSL --connect-timeout 10 --max-time 120 -o "$2" "$1"
  elif command -v wget >/dev/null; then wget -q --timeout=10 --tries=2 -O "$2" "$1"
  else return 1; fi
}
have_downloader() {  # A bare machine has none, and no certificates.
  command -v curl >/dev/null || command -v wget >/dev/null || do_it "$here/install-packages.sh" curl ca-certificates
}

work=$(mktemp -d -p "${TMPDIR:-/var/tmp}")  # Gigabytes; /tmp may be memory.
trap 'rm -rf "$work"' EXIT
name=$(distribution)
if [ "$from" = auto ]; then
  if [ -n "$name" ] && can_add_packages && have_downloader &&
    download "$repository/$name/x86_64/$keyring" "$work/$keyring" 2>/dev/null; then from=packages; else from=wheels; fi
  echo "Takes NVIDIA's $from."
fi

install_packages() {
  local names=("${runtime_packages[@]}")
  [ -n "$runtime" ] || names+=("${build_packages[@]}")
  [ -n "$name" ] || fail "NVIDIA's repository is for Debian 12, Ubuntu 22.04 and 24.04; this is $(
    sed -n 's/^PRETTY_NAME=//p' "${OS_RELEASE:-/etc/os-release}"): try --from wheels"
  can_be_root || fail "not root and no sudo"
  if ! dpkg-query -W -f '${db:Status-Status}' cuda-keyring 2>/dev/null | grep -q '^installed'; then
    if [ -n "$dry" ]; then echo "would fetch: $repository/$name/x86_64/$keyring"
    elif [ ! -s "$work/$keyring" ]; then
      have_downloader
      download "$repository/$name/x86_64/$keyring" "$work/$keyring" ||
        fail "$repository/$name/x86_64/$keyring cannot be fetched; try --from wheels"
    fi
    do_it "${as_root[@]}" dpkg -i "$work/$keyring"
  fi
  do_it "$here/install-packages.sh" "${names[@]}"
}

install_wheels() {
  local names=("${runtime_wheels[@]}") one file folder=${prefix:-$default_prefix}
  [ -n "$runtime" ] || names+=("${build_wheels[@]}")
  if [ -n "$wheels" ]; then
    command -v python3 >/dev/null || fail "no python3: it unpacks the wheels"
  else
    if ! python3 -m pip --version >/dev/null 2>&1; then
      can_add_packages || fail "python3 with pip is needed; or bring the wheels here and say --wheels DIR: ${names[*]}"
      do_it "$here/install-packages.sh" python3-pip
    fi
    wheels=$work/wheels
    do_it python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: -d "$wheels" "${names[@]}" ||
      fail "pip could not fetch the wheels; bring them here by hand and say --wheels DIR: ${names[*]}"
  fi
  if [ -n "$dry" ]; then
    echo "would unpack below $folder: ${names[*]}"
    return 0
  fi
  local to_root=()
  if ! mkdir -p "$folder" 2>/dev/null || [ ! -w "$folder" ]; then
    can_be_root || fail "$folder cannot be written, and no sudo"
    to_root=("${as_root[@]}")
  fi
  mkdir "$work/all" "$work/tree"
  for one in "${names[@]}"; do
    file=$(compgen -G "$wheels/$(tr - _ <<<"${one%%==*}")-${one##*==}-*.whl" | head -n 1) || fail "$wheels has no wheel of $one"
    python3 -m zipfile -e "$file" "$work/all" || fail "$file cannot be unpacked"
  done
  # One tree, as a toolkit has it: what lies in nvidia/cu13, nvidia/cudnn and nvidia/nccl, side by side.
  for file in "$work"/all/nvidia/*/; do cp -al "$file." "$work/tree/"; done
  find "$work/tree" -name '__init__.py' -delete
  for file in "$work"/tree/bin/* "$work"/tree/nvvm/bin/*; do [ ! -f "$file" ] || chmod 755 "$file"; done  # zipfile forgets.
  for file in "$work"/tree/lib/*.so.*; do  # What linkers look for.
    one=${file%%.so.*}.so
    [ -e "$one" ] || ln -s "$(basename "$file")" "$one"
  done
  mkdir -p "$work/tree/targets/x86_64-linux" "$work/tree/include"
  ln -sfn lib "$work/tree/lib64"
  for one in lib include; do ln -sfn "../../$one" "$work/tree/targets/x86_64-linux/$one"; done
  "${to_root[@]}" mkdir -p "$folder"
  "${to_root[@]}" cp -a --remove-destination "$work/tree/." "$folder/"
  if [ "$folder" = "$default_prefix" ]; then
    echo "$folder/lib" | "${to_root[@]}" tee /etc/ld.so.conf.d/telar-cuda.conf >/dev/null
    "${to_root[@]}" ldconfig
  else
    echo "To run:   export LD_LIBRARY_PATH=$folder/lib"
    [ -n "$runtime" ] || echo "To build: export CUDA_HOME=$folder"
  fi
}

"install_$from"
[ -z "$dry" ] || exit 0
echo
[ -n "$prefix" ] || [ "$from" = packages ] || roots=("$default_prefix" "${roots[@]}")
survey
[ ${#lacking[@]} -eq 0 ] || fail "still lacking after the installation: ${lacking[*]}"
