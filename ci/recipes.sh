#!/usr/bin/env bash
#
# ci/recipes.sh: the recipes of other package managers (tools/release), in the eyes of these package managers.
#
#   conan   reads the recipe, and takes the checkout's files as it says into a cache of its own; it comes from the Python registry
#   vcpkg   checks the manifest, if it is on PATH (it is in no registry of packages)
#
# Nothing is compiled. What cannot be had here is left out with one line. PYTHON names the Python that gets the virtual environment (python3); it stays in the cache.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
readonly python=${PYTHON:-python3}
readonly place=${ACCELERATE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/accelerate-cpp}/recipes
version=$(sed -n 's/.*kAccelerateVersion\[\] = "\(.*\)".*/\1/p' accelerate/base/version.h)
work=$(mktemp -d)
readonly version work
trap 'rm -rf "$work"' EXIT

say() { echo "recipes: $*"; }
fail() {
  say "FAILED: $*" >&2
  exit 1
}

# quietly COMMAND...: what it says is shown only if it fails.
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "$*"; }; }

tried=()
if [[ -x $place/bin/conan ]] ||
  { "$python" -m venv "$place" && "$place/bin/pip" install --quiet conan; } >"$work/log" 2>&1; then
  export CONAN_HOME=$work/conan
  quietly "$place/bin/conan" profile detect
  "$place/bin/conan" inspect tools/release/conan >"$work/recipe" 2>"$work/log" || { cat "$work/log" >&2; fail 'conan inspect'; }
  grep -qx "version: $version" "$work/recipe" || fail "conanfile.py has another version than $version"
  quietly "$place/bin/conan" export tools/release/conan
  tried+=("$("$place/bin/conan" --version)")
else
  say "conan cannot be installed here: $(tail -n 1 "$work/log")"
fi
if command -v vcpkg >/dev/null; then
  cp tools/release/vcpkg/accelerate-cpp/vcpkg.json "$work/vcpkg.json"
  quietly vcpkg format-manifest "$work/vcpkg.json"
  cmp -s tools/release/vcpkg/accelerate-cpp/vcpkg.json "$work/vcpkg.json" || fail 'vcpkg would write vcpkg.json in another form'
  tried+=("$(vcpkg version | head -n 1)")
else
  say 'vcpkg is not here'
fi
((${#tried[@]})) || { say 'nothing was checked'; exit 0; }
say "all well by ${tried[*]}"
