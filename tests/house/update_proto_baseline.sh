#!/bin/bash
# Takes additions to the contract into proto/baseline.txt. What was taken back it does not take: see proto_test.cc.
#   update_proto_baseline.sh [BUILD-DIR]    default: build/release; its proto_test must be built
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${1:-$root/build/release}
TELAR_UPDATE_PROTO_BASELINE=1 TELAR_SOURCE_DIR=$root "$build/bin/proto_test" --gtest_brief=1 \
  --gtest_filter=Proto.NothingOfTheContractIsTakenBack
git -C "$root" --no-pager diff --stat -- proto/baseline.txt
