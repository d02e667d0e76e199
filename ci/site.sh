#!/usr/bin/env bash
#
# ci/site.sh [DIR]: the site of the pages, with search, by MkDocs; DIR is .ci/out/pages_site unless given.
#
# The navigation is that of accelerate/docs/README.md. A link to a page or heading that is not there, and a page that no list
# there names, are errors. The headers' reference is ci/docs.sh's site. Search needs a server, such as
#
#   python3 -m http.server --directory .ci/out/pages_site
#
# MkDocs comes from the build root of ci/docs.sh (tools/docs_packages.txt).
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -z ${ACCELERATE_INSIDE:-} ]]; then
  ACCELERATE_PACKAGES=tools/docs_packages.txt exec tools/dev shell ci/site.sh "$@"
fi
out=$(realpath -m "${1:-.ci/out/pages_site}")
work=$(mktemp -d)
readonly out work
trap 'rm -rf "$work"' EXIT

pages=$(tools/documents/site/pages.py . "$work")
mkdocs build --quiet --config-file "$work/mkdocs.yml" --site-dir "$out"
cp -rL /usr/share/sphinx_rtd_theme/static/fonts "$out"  # Debian's style sheet looks for them there.
# What a reader looks for is found: the index has the headings and texts of pages.
for words in gather_for_metrics load_latest_state 'Use this when'; do
  grep -q "$words" "$out/search/search_index.json" || { echo "site: the search does not know $words" >&2; exit 1; }
done
echo "site: $pages in $out/index.html"
