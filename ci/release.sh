#!/usr/bin/env bash
#
# ci/release.sh [debian|wheel]: what users download, in .ci/out/release, with SHA256SUMS. By hand; both halves unless named.
#
#   debian  on Debian 13's LibTorch: three packages (library, headers, tools), and a tar of the same files
#   wheel   on pip's newest torch, its part for CPUs: a wheel with the examples digits and lm, and a tar. Built in a root of
#           Debian 12, whose C library is older than those of users, with what it needs beside LibTorch from sources
#
# A tar's name has the LibTorch and the C++ ABI that it is for; CMake's package and the wheel refuse another one and name both.
# Without trackers and MPI, the wheel needs nothing of the system. ci/pip_torch.sh says what TORCH and PYTHON are.
# ci/first_hour.sh installs what this has made. The version is that of accelerate/base/version.h, whose changes CHANGELOG.md has.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
readonly out=$PWD/.ci/out/release
mkdir -p "$out"

# archive TREE: a tar of an installed tree, the same bytes for the same files.
archive() {
  local name
  name=accelerate-cpp-$(python3 -c '
import json, sys
release = json.load(open(sys.argv[1]))
print("{version}-libtorch{libtorch}-cxx11abi{cxx11_abi}".format(**release))' "$1/share/accelerate-cpp/release.json")-linux-$(uname -m)
  tar -c --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --transform="s,^\./,$name/," -C "$1" . |
    gzip -9n >"$out/$name.tar.gz"
  echo "release: $out/$name.tar.gz"
}

inside_debian() {
  local build=.ci/out/release-debian tree
  tree=$(mktemp -d)
  cmake --preset deb -B "$build" -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++
  cmake --build "$build"
  cmake --build "$build" --target package
  rm -f "$out"/*.deb
  cp "$build"/*accelerate-cpp*.deb "$out"
  cmake --install "$build" --prefix "$tree" >/dev/null
  archive "$tree"
  rm -rf "$tree"
}

inside_wheel() {
  local build=.ci/out/release-wheel tree
  tree=$(mktemp -d)
  # shellcheck disable=SC2016 # $ORIGIN is for the loader
  cmake -S . -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang-16 -DCMAKE_CXX_COMPILER=clang++-16 \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_LIBDIR=lib '-DACCELERATE_TORCH_RPATH=$ORIGIN/../../torch/lib' \
    "-DCMAKE_PREFIX_PATH=$(echo "$NEWEST_TORCH"/lib/python3*/site-packages/torch)" \
    "-DACCELERATE_DEPENDENCIES=$PWD/.ci/out/release-dependencies" \
    -DACCELERATE_CUDA=OFF -DACCELERATE_MPI=OFF -DACCELERATE_TRACKERS=OFF -DACCELERATE_EXAMPLES=ON
  cmake --build "$build" --target accelerate_release
  cmake --install "$build" --prefix "$tree" --strip >/dev/null
  rm -f "$out"/*.whl
  echo "release: $(tools/release/wheel.py "$tree" "$out")"
  archive "$tree"
  rm -rf "$tree"
}

case ${1:-} in
  inside-debian) inside_debian; exit ;;
  inside-wheel) inside_wheel; exit ;;
  debian | wheel) halves=("$1") ;;
  '') halves=(debian wheel) ;;
  *) echo 'usage: ci/release.sh [debian|wheel]' >&2; exit 2 ;;
esac
for half in "${halves[@]}"; do
  if [[ $half == debian ]]; then
    ACCELERATE_PACKAGES='tools/packages.txt tools/deb_packages.txt' tools/dev shell ci/release.sh inside-debian
  else
    . ci/pip_torch.sh release
    [[ -d .ci/out/release-dependencies ]] || ci/gpu_dependencies.sh .ci/out/release-dependencies
    ACCELERATE_SUITE=bookworm ACCELERATE_PACKAGES=tools/release/packages.txt \
      tools/dev shell env "NEWEST_TORCH=$NEWEST_TORCH" ci/release.sh inside-wheel
  fi
done
cd "$out"
rm -f SHA256SUMS
sha256sum -- * >/tmp/accelerate-sums.$$
mv /tmp/accelerate-sums.$$ SHA256SUMS
cat SHA256SUMS
