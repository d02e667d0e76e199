#!/usr/bin/env bash
#
# bare_tree.sh DEB...: apt installs the packages, with what they depend on, in a Debian tree that has a compiler, CMake
# and pkg-config and nothing of this project's. There the quick tour's program is built, by CMake and by pkg-config, and run.
#
# As root, with a network: the tree is made by mmdebstrap as tools/dev makes its own, and removed.
set -euo pipefail
mapfile -t debs < <(realpath "$@")
readonly debs
# shellcheck source=tools/dev
. "$(dirname "${BASH_SOURCE[0]}")/../../tools/dev"
((EUID == 0)) || { echo 'the package was not tried: that takes root'; exit 0; }
locate_caches
need_commands bwrap=bubblewrap mmdebstrap=mmdebstrap
readonly tree=${TMPDIR:-/var/tmp}/accelerate-bare.$$
trap 'rm -rf --one-file-system "$tree"' EXIT

mapfile -t options < <(apt_options)
copied=$(printf "'%s' " "${debs[@]}")
# shellcheck disable=SC2016
mmdebstrap "${options[@]}" --variant=apt --include=g++,cmake,ninja-build,pkgconf \
  "--customize-hook=cp $copied \"\$1/tmp\"" \
  '--customize-hook=chroot "$1" sh -c "apt-get install -y --no-install-recommends /tmp/*.deb"' \
  "$suite" "$tree" "$(mirror)" >"$tree.log" 2>&1 || { tail -n 30 "$tree.log"; exit 1; }
rm "$tree.log"
echo "installed: $(chroot "$tree" dpkg-query -W '*accelerate-cpp*' | tr '\n' ' ')"

mkdir "$tree/tour"
for file in train.cc CMakeLists.txt; do
  python3 "$repo/tools/documents/run_page.py" --cut "$file" "$repo/accelerate/docs/quicktour.md" >"$tree/tour/$file"
done
cat >"$tree/tour/all.sh" <<'END'
set -euo pipefail
# has_ranks N COMMAND...: the command ends well, and its program had N ranks.
has_ranks() {
  local ranks=$1 said
  shift
  said=$("$@" 2>&1) || { echo "FAILED: $* said: $said"; exit 1; }
  [[ $said == *"ranks: $ranks, loss "* ]] || { echo "FAILED: $* has not $ranks ranks: $said"; exit 1; }
  echo "$said: $*"
}
accelerate --version
cmake -S . -B build -G Ninja >log 2>&1 && cmake --build build >log 2>&1 || { cat log; exit 1; }
g++ train.cc -o by_hand $(pkg-config --cflags --libs accelerate)
g++ train.cc -o simulated $(pkg-config --cflags --libs accelerate-simulator)
for program in build/train by_hand simulated; do
  has_ranks 1 "./$program"
  has_ranks 2 accelerate launch --num_processes 2 "./$program"
done
has_ranks 8 accelerate launch --simulate 2x4:h100 build/train
has_ranks 8 accelerate launch --simulate 2x4:h100 ./simulated
accelerate test
[[ -s /usr/share/man/man1/accelerate-launch.1 ]] || { echo 'FAILED: man has no page'; exit 1; }
END
bwrap --bind "$tree" / --dev-bind /dev /dev --proc /proc --unshare-pid --setenv LANG C.UTF-8 --setenv HOME /root \
  --chdir /tour /bin/bash all.sh
chroot "$tree" dpkg --purge accelerate-cpp libaccelerate-cpp libaccelerate-cpp-dev >/dev/null
left=$(cd "$tree" && find usr -name '*accelerate*' -print -quit)
[[ -z $left ]] || { echo "FAILED: the package leaves $left"; exit 1; }
echo 'the package: all well'
