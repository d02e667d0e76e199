#!/usr/bin/env bash
#
# ci/gpu_dependencies.sh DIR: fills DIR with what CMake needs beside LibTorch, for a machine that has
# neither the packages nor a network (-DACCELERATE_DEPENDENCIES=DIR, ci/gpu.sh).
#
# Libraries that are compiled come as the sources of Debian's packages, so that the machine's own
# compiler, C library and C++ ABI are those they are built with. For header-only ones, and for Gloo,
# which LibTorch contains without its headers, the build root's headers are copied. All in all 8 MB.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
(($# == 1)) || { echo 'usage: ci/gpu_dependencies.sh DIR' >&2; exit 2; }
readonly max_kib=$((64 * 1024))

if [[ -z ${ACCELERATE_INSIDE:-} ]]; then
  out=$(realpath -m "$1")
  mkdir -p "$out"
  # The build root's folders are its own: what is to stay comes out through a pipe.
  tools/dev shell ci/gpu_dependencies.sh - | tar -x -C "$out"
  kib=$(du -sk "$out" | cut -f 1)
  ((kib < max_kib)) || { echo "$out has $kib KiB, more than $max_kib" >&2; exit 1; }
  echo "$out: $kib KiB"
  exit
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{apt/partial,sources,out/include}

# fetch PACKAGE SUITE: its upstream sources, by an apt that knows of sources and shares nothing else.
fetch() {
  local options=(-o "Dir::Etc::SourceList=$work/$2.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State=$work/apt/$2" -o "Dir::Cache=$work/apt/cache" -o APT::Sandbox::User=root -q)
  if [[ ! -e $work/$2.list ]]; then
    mkdir -p "$work/apt/$2/partial"
    awk -v suite="$2" '$1 == "deb" { print "deb-src", $2, suite, "main"; exit }' /etc/apt/sources.list >"$work/$2.list"
    apt-get "${options[@]}" update
  fi
  (cd "$work/sources" && apt-get "${options[@]}" --tar-only source "$1")
}

for package in abseil yaml-cpp hwloc; do
  # A mirror may lack a source: the release before has one that does as well.
  fetch "$package" trixie >&2 || fetch "$package" bookworm >&2
  archive=$(find "$work/sources" -name "${package}_*.orig.tar.*" ! -name '*.asc')
  mv "$archive" "$work/out/$package.tar.${archive##*.tar.}"
done
cp -r /usr/include/{nlohmann,CLI,gloo} "$work/out/include"
tar -c -C "$work/out" .
