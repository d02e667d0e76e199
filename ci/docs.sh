#!/usr/bin/env bash
#
# ci/docs.sh [DIR]: the site of pages and headers, by Doxygen; DIR/index.html opens it.
#
# README.md is the main page, accelerate/docs and the READMEs of folders are pages, and the headers that
# programs include are the reference. A warning of Doxygen's is an error: a link to a page, heading
# or file that is not there, a parameter that was renamed. DIR is .ci/out/site unless given.
#
# Doxygen comes from a build root of its own (tools/docs_packages.txt).
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -z ${ACCELERATE_INSIDE:-} ]]; then
  ACCELERATE_PACKAGES=tools/docs_packages.txt exec tools/dev shell ci/docs.sh "$@"
fi
out=$(realpath -m "${1:-.ci/out/site}")
readonly out
mkdir -p "$out"

pages=(README.md CHANGELOG.md)
for page in accelerate/README.md accelerate/docs/*.md accelerate/docs/decisions/*.md simulator/README.md \
  simulator/*/README.md simulator/docs/*.md launch/README.md trackers/README.md integration_tests/README.md ci/README.md; do
  [[ -f $page ]] && pages+=("$page")
done
# What programs include; a header that only the library's own files include is none of the reference.
mapfile -t headers < <(find accelerate trackers simulator/{cluster,device,disk,hardware,report,trace} launch/settings/basic_config.h \
  -name '*.h' -not -path '*/testing/*' -not -path '*/examples/*' -not -path '*/fuzz/*' | sort)
images=("$PWD"/accelerate/docs/images/*)
readonly pages headers images

version=$(sed -n 's/.*kAccelerateVersion\[\] = "\(.*\)".*/\1/p' accelerate/base/version.h)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tools/documents/site/filter.py "$work/input" "${pages[@]}" "${headers[@]}"
# FULL_PATH_NAMES and pages by their paths: INPUT is the copy, from which paths begin.
{
  cat tools/documents/site/Doxyfile
  printf '%s\n' "INPUT = \"$work/input\"" "STRIP_FROM_PATH = \"$work/input\"" "STRIP_FROM_INC_PATH = \"$work/input\"" "USE_MDFILE_AS_MAINPAGE = \"$work/input/README.md\"" \
    "OUTPUT_DIRECTORY = \"$out\"" "HTML_EXTRA_STYLESHEET = \"$PWD/tools/documents/site/style.css\"" \
    "HTML_EXTRA_FILES = ${images[*]}" "PROJECT_NUMBER = $version" "WARN_LOGFILE = \"$work/warnings\""
} | doxygen -

if [[ -s $work/warnings ]]; then
  sed "s|$work/input/||" "$work/warnings" >&2
  echo "docs: $(grep -c . "$work/warnings") lines of warnings" >&2
  exit 1
fi
echo "docs: ${#pages[@]} pages and ${#headers[@]} headers in $out/index.html"
