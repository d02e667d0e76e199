# For lanes that look at what programs print: `. ci/want.sh LANE`; then $failures counts.
# shellcheck shell=bash

readonly want_lane=$1
failures=0

# want WHAT FILE PATTERN...: the file has a line for each pattern. Prints what the last one matched, or
# the patterns that nothing matched and the file.
want() {
  local what=$1 file=$2 pattern missing=()
  for pattern in "${@:3}"; do
    grep -Eq -- "$pattern" "$file" || missing+=("$pattern")
  done
  if ((${#missing[@]})); then
    failures=$((failures + 1))
    printf '%s: %s: FAILED: no line has:\n' "$want_lane" "$what"
    printf '  %s\n' "${missing[@]}"
    sed 's/^/    /' "$file"
  else
    echo "$want_lane: $what: $(grep -Eo -- "${!#}" "$file" | tail -n 1)"
  fi
}
