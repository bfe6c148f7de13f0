#!/usr/bin/env bash
# Builds the native kernels in place: make_native.sh <folder of cmake and ninja>
#
# Incremental. Without a C++ compiler it says so and succeeds: tokumx then runs on
# its portable kernels.
set -euo pipefail

tools=$1
cd "$(dirname "$0")/.."

if ! command -v "${CXX:-c++}" >/dev/null; then
  echo "make: no C++ compiler; without native kernels (apt-get install g++)" >&2
  exit 0
fi

mkdir -p core/build
exec 9>core/build/mutex
flock 9

if [ ! -e core/build/native/build.ninja ]; then
  echo "make: building the native kernels, a minute or two" >&2
  "$tools/cmake" -S core -B core/build/native -G Ninja \
    -DCMAKE_MAKE_PROGRAM="$PWD/$tools/ninja" \
    -DTOKUMX_OUTPUT="$PWD/core/src/tokumx/native" >core/build/configure.log || {
    cat core/build/configure.log >&2
    exit 1
  }
fi
"$tools/ninja" -C core/build/native --quiet
