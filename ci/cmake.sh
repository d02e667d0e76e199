#!/usr/bin/env bash
#
# ci/cmake.sh [BUILD_DIR]: the whole project compiled by CMake, installed, and used in each way that
# accelerate/docs/cmake.md tells of.
#
# //integration_tests/outside:install_test does a part of it with the objects that Bazel compiled. Here
# CMake compiles all of them, and each installed header by itself. A BUILD_DIR that is given stays, and
# serves the next run. The commands are those of README.md and accelerate/docs/install.md. The Debian packages stay in .ci/out.
#
# The project is compiled by CC and CXX: clang unless they are set, because g++ takes five times as long (ci/gcc.sh is for
# it). What uses it is compiled by g++, as its authors do, and so is each header.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
readonly cc=${CC:-clang} cxx=${CXX:-clang++}
if [[ -z ${ACCELERATE_INSIDE:-} ]]; then
  ACCELERATE_PACKAGES='tools/packages.txt tools/deb_packages.txt' tools/dev shell env "CC=$cc" "CXX=$cxx" ci/cmake.sh "$@"
  exec integration_tests/outside/bare_tree.sh .ci/out/*accelerate-cpp*.deb
fi
readonly repo=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
readonly build=${1:-$work/build} installed=$work/installed compilers=("-DCMAKE_C_COMPILER=$cc" "-DCMAKE_CXX_COMPILER=$cxx")
unset CC CXX

# quietly COMMAND...: what it says is shown only if it fails.
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log"; echo "FAILED: $*"; exit 1; }; }

cmake -S . -B "$build" -G Ninja "${compilers[@]}" -DACCELERATE_DEVICE_TESTS=ON
readonly began=$SECONDS
cmake --build "$build"
echo "compiled in $((SECONDS - began)) s"
cmake --install "$build" --prefix "$installed" >"$work/install.log"
"$build/device_checks"

# ---- What is installed.

# Every installed header compiles on its own.
check_header() {
  g++ -std=c++20 -fsyntax-only -x c++ -DUSE_C10D_GLOO -I "$1" -isystem /usr/include/torch/csrc/api/include \
    - <<<"#include \"$2\"" || { echo "does not compile on its own: $2"; return 1; }
}
export -f check_header
[[ $(ls "$installed/include") == accelerate ]] || { echo "in the folder of all headers: $(ls "$installed/include")"; exit 1; }
cd "$installed/include/accelerate"
find . -name '*.h' -printf '%P\0' |
  xargs -0 -P "$(nproc)" -I {} bash -c 'check_header "$@"' check_header "$PWD" {}
echo 'installed headers compile on their own'
cd "$repo"
for file in LICENSE NOTICE README.md accelerate/docs/quicktour.md accelerate/examples/minimal/main.cc; do
  cmp "$file" "$installed/share/doc/accelerate-cpp/$file"
done

# The programs of a project outside: runs NAME LAUNCHER TRAIN.
runs() {
  local ranks
  for ranks in '--simulate 1x2' '--num_processes 2'; do
    # shellcheck disable=SC2086
    "$2" launch $ranks "$3" | tee "$work/said"
    grep -q 'ranks 2 loss 0.17720' "$work/said" || { echo "FAILED: $1, $ranks"; exit 1; }
  done
  echo "$1: all well"
}

# Ubuntu's g++ drops libraries that nothing names, so everything is linked like that.
fast=(-DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG" -DCMAKE_EXE_LINKER_FLAGS=-Wl,--as-needed)
readonly consumer=integration_tests/outside/consumer
quietly cmake -S $consumer -B "$work/found" -G Ninja "${fast[@]}" "-DCMAKE_PREFIX_PATH=$installed"
quietly cmake --build "$work/found"
runs find_package "$work/found/launcher" "$work/found/train"

# All examples, in the folder that is installed.
quietly cmake -S "$installed/share/doc/accelerate-cpp/accelerate/examples" -B "$work/examples" -G Ninja "${fast[@]}" \
  "-DCMAKE_PREFIX_PATH=$installed"
quietly cmake --build "$work/examples" --target lm
quietly cmake --build "$work/examples"
echo "$(find "$work/examples" -maxdepth 3 -type f -executable -not -path '*/CMakeFiles/*' | wc -l) examples are built"
"$installed/bin/accelerate" launch --simulate 2x4 "$work/examples/minimal/minimal"

PKG_CONFIG_PATH=$(dirname "$(find "$installed" -name accelerate.pc)")
export PKG_CONFIG_PATH
readonly by_hand=$work/by_hand
mkdir "$by_hand"
# shellcheck disable=SC2046
g++ -O0 -Wl,--as-needed $consumer/train.cc -o "$by_hand/train" \
  $(pkg-config --cflags --libs accelerate-simulator accelerate-trackers)
runs pkg-config "$installed/bin/accelerate" "$by_hand/train"

# ---- Other builds, of the objects that are there.

for name in accelerate accelerate_simulator_library accelerate_trackers_library; do
  # Files of different folders have the same name: no member replaces another.
  find "$build/CMakeFiles/$name.dir" -name '*.o' -print0 | xargs -0 ar qcS "$work/$name.a"
  ranlib "$work/$name.a"
done
cp "$build/libaccelerate_launch.a" "$work"
cat >"$work/objects.txt" <<'END'
library accelerate accelerate.a
library simulator accelerate_simulator_library.a
library trackers accelerate_trackers_library.a
library launch libaccelerate_launch.a
END
readonly built=-DACCELERATE_BUILT_OBJECTS=$work/objects.txt

# The sources as a repository of git, and as a folder.
mkdir "$work/sources"
tar --exclude='./.git' --exclude='./.ci/out' --exclude='./bazel-*' --exclude=./build -c . | tar -x -C "$work/sources"
git -C "$work/sources" init -q -b main
git -C "$work/sources" add -A
git -C "$work/sources" -c user.name=ci -c user.email=ci@localhost commit -q -m sources
for way in FetchContent add_subdirectory; do
  quietly cmake -S $consumer -B "$work/$way" -G Ninja "${fast[@]}" "$built" -DWAY=$way "-DACCELERATE_CPP=$work/sources"
  quietly cmake --build "$work/$way"
  runs $way "$work/$way/launcher" "$work/$way/train"
  # What the project around it installs is its own.
  DESTDIR=$work/$way/installed cmake --install "$work/$way" >/dev/null
  [[ ! -d $work/$way/installed ]] || { echo "FAILED: $way installs what its project did not ask for"; exit 1; }
done

quietly cmake -S . -B "$work/tree" -G Ninja "${fast[@]}" "$built" -DACCELERATE_EXAMPLES=ON
quietly cmake --build "$work/tree" --target accelerate_launcher digits
"$work/tree/bin/accelerate" launch --simulate 2x4 "$work/tree/accelerate/examples/digits/digits" --epochs 1

# The presets. The launcher is compiled with each one's flags, and started. clang's sanitizers are a package of their own.
for preset in debug asan; do
  with=("${compilers[@]}")
  [[ $preset != asan ]] || with=(-DCMAKE_C_COMPILER=gcc -DCMAKE_CXX_COMPILER=g++)
  quietly cmake --preset $preset -B "$work/$preset" "${with[@]}"
  quietly cmake --build "$work/$preset" --target accelerate_launcher
  ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0:allow_user_poisoning=0 "$work/$preset/bin/accelerate" launch --simulate 1x2 "$work/found/train"
  rm -r "${work:?}/$preset"
done
quietly cmake --preset release -B "$work/release" "${compilers[@]}" "$built"
quietly cmake --preset deb -B "$work/deb" "${compilers[@]}" "$built"
quietly cmake --build "$work/deb" --target package
mkdir -p .ci/out
rm -f .ci/out/*accelerate-cpp*.deb
cp "$work"/deb/*accelerate-cpp*.deb .ci/out
for package in .ci/out/*accelerate-cpp*.deb; do dpkg-deb --field "$package" Package Version Architecture Depends; done
echo 'cmake: all well'
