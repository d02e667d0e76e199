#!/usr/bin/env bash
#
# Tests tools/dev from outside, as a person would call it: bash tools/dev_test.sh
#
# The verbs run on a small checkout made for the purpose, in the build root that
# tools/dev has or makes; how a build root is made is tested with a stand-in for
# mmdebstrap. What wants root (another user, a full disk) is skipped without it.

# The quoted scripts are for the shells that they go to.
# shellcheck disable=SC2016
set -uo pipefail

source_tree=$(cd -P "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
passed=0 failed=0 skipped=0

if [[ -n ${ACCELERATE_INSIDE:-} ]]; then
  echo 'tools/dev_test.sh: run this outside tools/dev' >&2
  exit 2
fi

# check NAME COMMAND...: the command succeeds.
check() {
  local name=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name"
    printf '  status %s, said:\n' "${status:-}"
    sed 's/^/  | /' "$work/out" "$work/err"
  fi
}

skip() {
  skipped=$((skipped + 1))
  echo "skipped: $*"
}

# call COMMAND...: runs it within two minutes, leaving status, $work/out and $work/err.
call() {
  timeout 120 "$@" >"$work/out" 2>"$work/err" </dev/null
  status=$?
}

status_is() { [[ $status == "$1" ]]; }
out_is() { [[ $(<"$work/out") == "$1" ]]; }
out_has() { grep -qF -- "$1" "$work/out"; }
err_has() { grep -qF -- "$1" "$work/err"; }
err_is_one_line() { [[ $(wc -l <"$work/err") == 1 ]]; }
fails_saying() { [[ $status != 0 ]] && err_has "$1"; }

# ---- A small checkout whose launcher and example tell how they were called.

checkout="$work/beside/tree"
dev=$checkout/tools/dev

make_checkout() {
  mkdir -p "$checkout/launch" "$checkout/accelerate/examples/digits" "$checkout/sub" "$checkout/tools"
  cp "$source_tree/WORKSPACE" "$checkout/"
  cp -r "$source_tree"/tools/{dev,packages.txt,third_party} "$checkout/tools/"
  cat >"$checkout/launch/BUILD" <<'END'
sh_binary(
    name = "launcher",
    srcs = ["launcher.sh"],
    visibility = ["//visibility:public"],
)
END
  cat >"$checkout/launch/launcher.sh" <<'END'
#!/bin/bash
shift
echo "launcher in $PWD:"
flags=()
while [[ $1 == --* ]]; do
  flags+=("$1")
  [[ $1 == *=* ]] || { flags+=("$2"); shift; }
  shift
done
echo "launch flags: ${flags[*]}"
exec "$@"
END
  cat >"$checkout/accelerate/examples/digits/BUILD" <<'END'
sh_binary(
    name = "digits",
    srcs = ["digits.sh"],
)
END
  cat >"$checkout/accelerate/examples/digits/digits.sh" <<'END'
#!/bin/bash
echo "on stderr" >&2
echo "program flags: $*"
END
  cat >"$checkout/sub/BUILD" <<'END'
sh_test(
    name = "good_test",
    srcs = ["good_test.sh"],
)

sh_test(
    name = "bad_test",
    srcs = ["bad_test.sh"],
)

sh_binary(
    name = "where",
    srcs = ["where.sh"],
)
END
  printf '#!/bin/bash\nexit 0\n' >"$checkout/sub/good_test.sh"
  printf '#!/bin/bash\nexit 1\n' >"$checkout/sub/bad_test.sh"
  printf '#!/bin/bash\ncd "$BUILD_WORKING_DIRECTORY" && cat "$1"\n' >"$checkout/sub/where.sh"
  chmod +x "$checkout"/*/*.sh "$checkout"/accelerate/examples/digits/*.sh
}

# ---- Verbs that need no build root.

test_usage() {
  call "$dev" help
  check 'help prints the usage' out_has 'usage: tools/dev'
  check 'help succeeds' status_is 0
  call "$dev"
  check 'no verb is a usage error' status_is 2
  check 'no verb prints the usage on stderr' err_has 'usage: tools/dev'
  call "$dev" frobnicate --x
  check 'an unknown verb is a usage error' status_is 2
  check 'an unknown verb is named' err_has "unknown verb 'frobnicate'"
  check 'an unknown verb costs one line' err_is_one_line
}

# mirror_of SOURCES: what tools/dev takes from an apt configuration of that text.
mirror_of() {
  local etc=$work/apt
  rm -rf "$etc"
  mkdir -p "$etc/sources.list.d" "$etc/lists"
  printf '%s\n' 'http://mirror.invalid/debian/' >"$etc/mirrors.list"
  printf 'Dir::Etc "%s";\nDir::State::lists "%s";\n' "$etc" "$etc/lists" >"$etc/conf"
  cat >"$etc/$1"
  APT_CONFIG=$etc/conf ACCELERATE_MIRROR='' call bash -c '. "$1" && mirror' - "$dev"
}

test_mirror() {
  if ! command -v apt-get >/dev/null; then
    skip 'no apt here'
    return
  fi
  mirror_of sources.list <<<'deb [arch=amd64] http://a.invalid/debian/ bookworm main contrib'
  check 'a classic list names the mirror' out_is http://a.invalid/debian
  mirror_of sources.list.d/debian.sources <<<$'Types: deb\nURIs: http://b.invalid/debian\nSuites: trixie trixie-updates\nComponents: main'
  check 'a deb822 file names the mirror' out_is http://b.invalid/debian
  mirror_of sources.list <<<$'deb http://c.invalid/linux/chrome/deb stable main\ndeb http://c.invalid/debian-security bookworm-security main\ndeb http://d.invalid/debian bookworm main'
  check 'third parties and security are passed over' out_is http://d.invalid/debian
  mirror_of sources.list <<<"deb mirror+file:$work/apt/mirrors.list bookworm main"
  check 'a list of mirrors gives its first' out_is http://mirror.invalid/debian
  mirror_of sources.list.d/debian.sources <<<$'Enabled: no\nTypes: deb\nURIs: http://e.invalid/debian\nSuites: trixie\nComponents: main'
  check 'a disabled archive is none' status_is 1
  APT_CONFIG=$work/apt/conf ACCELERATE_MIRROR=http://f.invalid/debian call bash -c '. "$1" && mirror' - "$dev"
  check 'ACCELERATE_MIRROR comes first' out_is http://f.invalid/debian
}

# What is above a checkout directly below / is the host's root.
test_places() {
  call bash -c '. "$1" && placeable ""' - "$dev"
  check 'the root is not shown' status_is 1
  call bash -c '. "$1" && placeable "$2"' - "$dev" "$work/beside"
  check 'what is beside a checkout is' status_is 0
}

# ---- Making a build root, with a stand-in for mmdebstrap.

test_suite() {
  ACCELERATE_SUITE=testing call bash -c '. "$1" && ! host_is_ready && locate_caches && echo "$root_name"' - "$dev"
  check 'another release of Debian has a build root of its own, whatever the host has' out_has root-testing-
}

# build ENVIRONMENT...: a call that finds no build root and would make one.
build() { call env "ACCELERATE_CACHE=$work/cache" "ACCELERATE_SYSTEM_CACHE=$work/none" ACCELERATE_MIRROR=http://127.0.0.1:9/debian "$@" "$dev" shell true; }

no_root_is_left() { ! compgen -G "$work/cache/root-*/" >/dev/null; }

test_making() {
  local name builder
  if bash -c '. "$1" && host_is_ready' - "$dev"; then
    skip 'the host has all packages, so no build root is made'
    return
  elif ((EUID != 0)); then
    skip 'making a build root is tested as root'
    return
  fi
  name=$(bash -c '. "$1" && locate_caches && echo "$root_name"' - "$dev")

  build
  check 'a mirror out of reach is told' fails_saying 'cannot reach the package mirror'
  check 'a failed build leaves nothing' no_root_is_left

  mkdir -p "$work/bin"
  printf '#!/bin/sh\necho "E: the moon is full" >&2\nexit 1\n' >"$work/bin/mmdebstrap"
  chmod +x "$work/bin/mmdebstrap"
  build PATH="$work/bin:$PATH"
  check 'another failure is quoted' fails_saying 'the moon is full'

  mkdir -p "$work/cache/$name" "$work/cache/$name.tmp.1"
  build PATH="$work/bin:$PATH"
  check 'a root without its stamp is not entered' fails_saying 'the moon is full'
  check 'it and what dead builders left are removed' no_root_is_left

  printf '#!/bin/sh\nfor last; do :; done\necho "E: the last word is $last" >&2\nexit 1\n' >"$work/bin/mmdebstrap"
  build PATH="$work/bin:$PATH"
  check 'the mirror goes to mmdebstrap' fails_saying 'the last word is http://127.0.0.1:9/debian'
  mkdir -p "$work/apt/sources.list.d" "$work/apt/lists"
  echo 'deb http://a.invalid/ubuntu noble main universe' >"$work/apt/sources.list"
  printf 'Dir::Etc "%s";\nDir::State::lists "%s";\n' "$work/apt" "$work/apt/lists" >"$work/apt/conf"
  build PATH="$work/bin:$PATH" ACCELERATE_MIRROR= APT_CONFIG="$work/apt/conf"
  check 'without one, as on Ubuntu, mmdebstrap takes its own' err_has "mmdebstrap's own is taken"
  check 'and is given none' fails_saying "the last word is $work/cache/"

  printf '#!/bin/sh\nsleep 100 & wait\n' >"$work/bin/mmdebstrap"
  PATH="$work/bin:$PATH" build &
  builder=$!
  until compgen -G "$work/cache/$name.tmp.*" >/dev/null; do sleep 0.1; done
  call env "ACCELERATE_CACHE=$work/cache" "ACCELERATE_SYSTEM_CACHE=$work/none" timeout 2 "$dev" shell true
  check 'a second call waits' err_has 'waiting for another tools/dev'
  kill "$(compgen -G "$work/cache/$name.tmp.*" | sed 's/.*\.//')"
  wait "$builder"
  check 'an interrupted build leaves nothing' no_root_is_left

  call unshare -m bash -c 'mount -t tmpfs -o size=64m none "$1" && ACCELERATE_CACHE=$1 ACCELERATE_SYSTEM_CACHE=$1 "$2" shell true' - "$work/cache" "$dev"
  check 'a full disk is told' fails_saying 'no space left'
  check 'a full disk costs one line' err_is_one_line

  chmod 755 "$work" "$work/beside"
  call setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=/nonexistent ACCELERATE_CACHE=/dev/shm/accelerate-test.$$ \
    "ACCELERATE_SYSTEM_CACHE=$work/none" "$dev" shell true
  check 'a user who cannot make one is told how' fails_saying "sudo ACCELERATE_SYSTEM_CACHE='$work/none'"
  check 'that costs one line' err_is_one_line
  rm -rf "/dev/shm/accelerate-test.$$"
}

# ---- The verbs, in the build root.

from() { cd "$1" && shift && "$@"; }

test_shell() {
  "$dev" shell true || exit 1 # Makes the build root, which may take a while.
  call "$dev" shell sh -c 'exit 7'
  check 'the exit status passes' status_is 7
  call "$dev" shell printf '[%s]' 'a b' '' c
  check 'arguments pass unchanged' out_is '[a b][][c]'
  call bash -c 'echo typed | "$1" shell cat' - "$dev"
  check 'standard input passes' out_is typed
  from "$checkout/sub" call "$dev" shell pwd
  check 'the directory within the checkout is kept' out_is "$checkout/sub"
  mkdir -p "$work/elsewhere"
  from "$work/elsewhere" call "$dev" shell sh -c 'pwd && touch made'
  check 'a directory outside the checkout is kept' out_is "$work/elsewhere"
  check 'and can be written' test -e "$work/elsewhere/made"
  CPATH=/x CI=yes call "$dev" shell sh -c 'echo "${CPATH-unset} ${CI-unset}"'
  check 'only the listed variables pass' out_is 'unset yes'
  call "$dev" shell "$dev" shell echo nested
  check 'a call within a call runs in place' out_is nested
  call "$dev" shell sh -c 'getent passwd "$(id -u)" && getent hosts localhost'
  check 'the user and localhost have names' status_is 0
}

test_bazel() {
  call bash -c '"$1" demo 2>&1 | tail -n 1' - "$dev"
  check 'demo ends with the last line of its program, through a pipe' out_is 'program flags: '
  call "$dev" demo --steps 3 --num_processes=2 --simulate_seed 7 --lr=0.1
  check 'the launcher gets its flags' out_has 'launch flags: --num_processes=2 --simulate_seed 7'
  check 'the program gets the others' out_has 'program flags: --steps 3 --lr=0.1'
  from / call "$dev" demo
  check 'demo simulates by default' out_has 'launch flags: --simulate 2x4'
  check 'demo runs in the checkout' out_has "launcher in $checkout:"

  call "$dev" test //sub:good_test
  check 'a passing test passes' status_is 0
  check 'and the sandbox is silent' bash -c '! grep -q linux-sandbox "$1"' - "$work/err"
  call "$dev" test
  check 'all tests are the default, and a failing one fails' status_is 3
  from "$checkout/sub" call "$dev" bazel query ':*'
  check 'bazel takes labels relative to the directory' out_has '//sub:good_test'
  echo 'found me' >"$work/beside/file"
  from "$checkout" call "$dev" bazel run --noshow_progress //sub:where -- ../file
  check 'a program run by bazel finds files beside the checkout' out_is 'found me'

  "$dev" shell sh -c 'bazel info release && sleep 8 && bazel info release' >"$work/first" 2>&1 &
  sleep 2
  call "$dev" bazel build //launch:launcher
  check 'two calls at the same time both work' status_is 0
  wait $!
  check 'the first is not disturbed by the second' test $? = 0
}

make_checkout
test_usage
test_mirror
test_places
test_suite
test_making
test_shell
test_bazel
# What Bazel kept of the small checkout.
bash -c '. "$1" && locate_caches && chmod -R u+rwX "$own_cache"/bazel/*/tree-"$(short_hash 8 <<<"$repo")"-* && rm -rf "$own_cache"/bazel/*/tree-"$(short_hash 8 <<<"$repo")"-*' - "$dev"

echo "$passed passed, $failed failed, $skipped skipped"
((failed == 0))
