#!/usr/bin/env bash
#
# ci/release.sh [debian|wheel|tar]...: what users download, in .ci/out/release, with SHA256SUMS. By hand; all parts unless named.
#
#   debian  on Debian 13's LibTorch: three packages (library, headers, tools)
#   wheel   on pip's newest torch, its part for CPUs: a wheel with the examples digits and lm. Built in a root of
#           Debian 12, whose C library is older than those of users, with what it needs beside LibTorch from sources
#   tar     a tar of the files of each of the two builds, of those that were compiled to their end; nothing is compiled
#
# The builds stay in .ci/out: a part that was stopped goes on where it was. Each part prints its seconds.
# A tar's name has the LibTorch and the C++ ABI that it is for; CMake's package and the wheel refuse another one and name both.
# Without trackers and MPI, the wheel needs nothing of the system. ci/pip_torch.sh says what TORCH, PYTHON and NEWEST_TORCH are.
# ci/first_hour.sh installs what this has made. The version is that of accelerate/base/version.h, whose changes CHANGELOG.md has.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
readonly out=$PWD/.ci/out/release debian_build=.ci/out/release-debian wheel_build=.ci/out/release-wheel
readonly dependencies=$PWD/.ci/out/release-dependencies
mkdir -p "$out"

in_debian() { ACCELERATE_PACKAGES='tools/packages.txt tools/deb_packages.txt' tools/dev shell "$@"; }
in_wheel() { ACCELERATE_SUITE=bookworm ACCELERATE_PACKAGES=tools/release/packages.txt tools/dev shell "$@"; }

# ---- What is run in a build root.

# timed WHAT COMMAND...: the command, and then its seconds.
timed() {
  local began=$SECONDS
  "${@:2}"
  echo "release: $1: $((SECONDS - began)) s"
}

# install_tree BUILD: sets tree to a folder with what the build installs, which is removed at the end.
install_tree() {
  tree=$(mktemp -d)
  trap 'rm -rf "$tree"' EXIT
  chmod 755 "$tree" # as a tar has it
  cmake --install "$1" --prefix "$tree" --strip >/dev/null
}

inside_debian() {
  cmake --preset deb -B "$debian_build" -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++
  rm -f "$debian_build/whole"
  timed 'compiling for Debian' cmake --build "$debian_build"
  touch "$debian_build/whole"
  rm -f "$debian_build"/*.deb
  timed 'packages' cmake --build "$debian_build" --target package
  rm -f "$out"/*.deb
  cp "$debian_build"/*.deb "$out"
}

inside_wheel() {
  local wheel
  # shellcheck disable=SC2016 # $ORIGIN is for the loader
  cmake -S . -B "$wheel_build" -G Ninja -DCMAKE_C_COMPILER=clang-16 -DCMAKE_CXX_COMPILER=clang++-16 \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_LIBDIR=lib '-DACCELERATE_TORCH_RPATH=$ORIGIN/../../torch/lib' \
    "-DCMAKE_PREFIX_PATH=$(echo "$NEWEST_TORCH"/lib/python3*/site-packages/torch)" \
    "-DACCELERATE_DEPENDENCIES=$dependencies" \
    -DACCELERATE_CUDA=OFF -DACCELERATE_MPI=OFF -DACCELERATE_TRACKERS=OFF -DACCELERATE_EXAMPLES=ON
  rm -f "$wheel_build/whole"
  # No other lane compiles with these: all that does not compile is said at once.
  timed 'compiling for the wheel' cmake --build "$wheel_build" --target accelerate_release abseil/all -- -k 0
  touch "$wheel_build/whole"
  install_tree "$wheel_build"
  rm -f "$out"/*.whl*
  wheel=$(tools/release/wheel.py "$tree" "$out")
  echo "release: $wheel"
}

# inside_tar BUILD: a tar of what it installs, the same bytes for the same files.
inside_tar() {
  local name
  install_tree "$1"
  name=$(python3 -c '
import json, platform, sys
release = json.load(open(sys.argv[1]))
print("accelerate-cpp-{version}-libtorch{libtorch}-cxx11abi{cxx11_abi}-linux-{machine}".format(machine=platform.machine(), **release))
' "$tree/share/accelerate-cpp/release.json")
  tar -c --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --transform="flags=r;s,^\.,$name," -C "$tree" . |
    gzip -9n >"$out/$name.tar.gz.part"
  mv "$out/$name.tar.gz.part" "$out/$name.tar.gz"
  echo "release: $out/$name.tar.gz"
}

# ---- The parts.

debian() { in_debian ci/release.sh inside_debian; }

wheel() {
  local torch
  # Where pip reaches no registry, the script says so and ends well.
  # shellcheck source=ci/pip_torch.sh
  torch=$(set -e; . ci/pip_torch.sh release >&2; echo "$NEWEST_TORCH")
  [[ -n $torch ]] || return 0
  if [[ ! -d $dependencies ]]; then
    rm -rf "$dependencies.new"
    ci/gpu_dependencies.sh "$dependencies.new"
    mv "$dependencies.new" "$dependencies"
  fi
  in_wheel env "NEWEST_TORCH=$torch" ci/release.sh inside_wheel
}

tar_files() {
  rm -f "$out"/*.tar.gz*
  [[ ! -e $debian_build/whole ]] || in_debian ci/release.sh inside_tar "$debian_build"
  [[ ! -e $wheel_build/whole ]] || in_wheel ci/release.sh inside_tar "$wheel_build"
}

write_sums() (
  cd "$out"
  shopt -s nullglob
  files=(*.deb *.tar.gz *.whl)
  rm -f SHA256SUMS
  ((${#files[@]} == 0)) || sha256sum "${files[@]}" >SHA256SUMS
)

case ${1:-} in
  inside_debian | inside_wheel | inside_tar) "$@"; exit ;;
esac
(($#)) || set -- debian wheel tar
for part; do
  [[ $part == @(debian|wheel|tar) ]] || { echo 'usage: ci/release.sh [debian|wheel|tar]...' >&2; exit 2; }
done
trap write_sums EXIT # also of what is there when a part has failed
for part; do
  case $part in
    tar) timed "$part" tar_files ;;
    *) timed "$part" "$part" ;;
  esac
done
write_sums
[[ ! -e $out/SHA256SUMS ]] || cat "$out/SHA256SUMS"
