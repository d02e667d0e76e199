#!/usr/bin/env bash
#
# ci/report.sh [DIR]: the simulator's HTML report, in a browser.
#
# Writes sample reports for 8 and for 512 ranks, opens them in headless Chromium and looks whether
# they show what they should, without an error of a script; then uses a copy of each by wheel,
# pointer and keyboard, and shows another run beside it (simulator/report/drive_page.js). Screenshots,
# light and dark, stay in DIR, a new folder below TMPDIR unless given, for a person to look at.
#
# Chromium is not a part of the build root, whose size it would more than double: the lane takes the host's,
# or the one that CHROMIUM names.
set -euo pipefail
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

readonly rank_counts=(8 512)
readonly width=1400 height=2400
readonly max_page_bytes=$((20 * 1000 * 1000))

find_browser() {
  local name
  for name in ${CHROMIUM:+"$CHROMIUM"} chromium chromium-browser google-chrome; do
    command -v "$name" && return
  done
  echo 'ci/report.sh: no Chromium here. On Debian: sudo apt-get install --no-install-recommends chromium fonts-dejavu-core' >&2
  echo 'ci/report.sh: elsewhere set CHROMIUM to the path of Chromium or Chrome' >&2
  return 1
}

browser=$(find_browser)
out=$(realpath -m "${1:-$(mktemp -d -t report-XXXXXX)}")
mkdir -p "$out"
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT

# Writes the reports, and beside each what it must show. The build root sees the folder it is entered from.
make_samples() {
  cd "$out"
  # shellcheck disable=SC2016
  "$repo/tools/dev" shell bash -euc '
    cd "$1"
    bazel build --noshow_progress --ui_event_filters=-info //simulator/testing/report:sample_report
    sample=$(bazel info bazel-bin 2>/dev/null)/simulator/testing/report/sample_report
    for ranks in "${@:3}"; do "$sample" --ranks "$ranks" --out "$2/$ranks" >"$2/$ranks.expected"; done
    "$sample" --layers 14 --out "$2/other" >"$2/other.expected"
  ' make_samples "$repo" "$out" "${rank_counts[@]}"
}

# browse LOG PAGE FLAG...: the page in a browser that knows nothing and reaches nothing.
browse() {
  local log=$1 page=$2
  shift 2
  rm -rf "${profile:?}"/*
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-quic --no-first-run \
    --disable-background-networking --disable-component-update --disable-sync --hide-scrollbars \
    --user-data-dir="$profile" --window-size="$width,$height" --virtual-time-budget=20000 \
    --enable-logging=stderr "$@" "file://$page" 2>"$log"
}

problems=0
problem() {
  echo "  WRONG: $*"
  problems=$((problems + 1))
}

# attribute NAME: of the page's html element in a dump on stdin.
attribute() { grep -o '<html[^>]*>' | head -n 1 | grep -o " data-$1=\"[^\"]*\"" | cut -d '"' -f 2; }

no_errors() {
  local error
  error=$(attribute error <"$1.html" || true)
  [[ -z $error ]] || problem "$1.html: $error"
  ! grep -F 'CONSOLE' "$1.log" || problem "$1.log: messages on the browser's console"
}

# The page as it opens.
check_page() {
  local ranks=$1 name expected found bytes
  browse "$out/$ranks-opened.log" "$out/$ranks/report.html" --dump-dom >"$out/$ranks-opened.html" ||
    problem 'the browser failed'
  no_errors "$out/$ranks-opened"
  [[ $(attribute ready <"$out/$ranks-opened.html") == 1 ]] || problem 'the page did not get ready'
  while read -r name expected; do
    found=$(attribute "$name" <"$out/$ranks-opened.html" || true)
    [[ $found == "$expected" ]] || problem "$name: the page says '$found', the trace $expected"
  done <"$out/$ranks.expected"
  bytes=$(stat -c %s "$out/$ranks/report.html")
  ((bytes < max_page_bytes)) || problem "the page has $bytes bytes"
  echo "  expected: $(tr '\n' ' ' <"$out/$ranks.expected")in fewer than $max_page_bytes bytes; these are $bytes"
}

# A copy of the page that a script uses as a person would. It ends with the other run shown, too.
check_use() {
  local ranks=$1
  {
    cat "$out/$ranks/report.html"
    echo '<script type="text/plain" id="other">'
    base64 "$out/other/report.html"
    echo '</script>'
    echo '<script>'
    cat "$repo/simulator/report/drive_page.js"
    echo '</script>'
  } >"$out/$ranks/driven.html"
  browse "$out/$ranks-driven.log" "$out/$ranks/driven.html" --dump-dom >"$out/$ranks-driven.html" ||
    problem 'the browser failed'
  no_errors "$out/$ranks-driven"
  if [[ $(attribute driven <"$out/$ranks-driven.html") == 1 ]]; then
    echo '  used by wheel, pointer and keyboard, alone and with another run'
  else
    problem 'the page could not be used to the end'
  fi
}

# take_pictures RANKS PAGE: Blink's preferred colour scheme is 0 for dark, 1 for light.
take_pictures() {
  local ranks=$1 page=$2 scheme name picture
  for scheme in 1 0; do
    name=$([[ $scheme == 0 ]] && echo dark || echo light)
    picture=$out/$page-$ranks-$name.png
    rm -f "$picture"
    browse "$out/$ranks-$name.log" "$out/$ranks/$page.html" --screenshot="$picture" \
      "--blink-settings=preferredColorScheme=$scheme" || problem 'the browser failed'
    # A page of one colour has a few thousand bytes.
    [[ -s $picture && $(stat -c %s "$picture") -gt 50000 ]] || problem "nothing to see in $picture"
    echo "  $picture"
  done
}

make_samples
for ranks in "${rank_counts[@]}"; do
  echo "== $ranks ranks"
  check_page "$ranks"
  check_use "$ranks"
  take_pictures "$ranks" report
  take_pictures "$ranks" driven
done
if ((problems)); then
  echo "report: $problems problems; see $out"
  exit 1
fi
echo "report: all well; look at the pictures in $out"
