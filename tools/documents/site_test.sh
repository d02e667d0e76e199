#!/usr/bin/env bash
#
# What ci/site.sh gives to MkDocs: each page of the checkout has one place in the navigation, and links and headings of a small
# checkout become what MkDocs understands.
set -euo pipefail
repo=$(dirname "$(realpath .clang-format)")
readonly repo small=$TEST_TMPDIR/small site=$TEST_TMPDIR/site

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# write_site CHECKOUT: what MkDocs reads.
write_site() {
  rm -rf "$site"
  mkdir -p "$site"
  python3 "$repo/tools/documents/site/pages.py" "$1" "$site"
}

write_site "$repo"
python3 - "$site" <<'END' || fail 'the navigation'
import collections, json, os, sys
site = sys.argv[1]

def pages(entries):
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from pages(value) if isinstance(value, list) else [value]

nav = json.load(open(os.path.join(site, "mkdocs.yml")))["nav"]
found = collections.Counter(pages(nav))
copied = {os.path.relpath(os.path.join(folder, name), os.path.join(site, "pages"))
          for folder, _, names in os.walk(os.path.join(site, "pages")) for name in names if name.endswith(".md")}
assert set(found) == copied, set(found) ^ copied
assert max(found.values()) == 1, found.most_common(3)
titles = [title for entry in nav if isinstance(entry, dict) for title in entry]
assert titles[:4] == ["Start", "How to", "Concepts", "Reference"], titles
END

mkdir -p "$small/accelerate/docs/images" "$small/launch"
echo '# Launcher' >"$small/launch/README.md"
echo 'int x;' >"$small/launch/x.h"
echo '# Library' >"$small/README.md"
echo '# Two' >"$small/accelerate/docs/two.md"
cat >"$small/accelerate/docs/README.md" <<'END'
# Documents

## Start

Train:

- [one.md](one.md): a page about [two](two.md).

## Reference

- [two.md](two.md): another.
END
cat >"$small/accelerate/docs/one.md" <<'END'
# One

## What `prepare` does, and why

See [two](two.md), [the launcher](../../launch), [a header](../../launch/x.h), `[code](two.md)`.

```output
# not a heading
```
END
write_site "$small"
diff - "$site/pages/accelerate/docs/one.md" <<'END' || fail 'a page'
# One {#one}

## What `prepare` does, and why {#what-prepare-does-and-why}

See [two](two.md), [the launcher](../../launch/README.md), a header (`launch/x.h`), `[code](two.md)`.

```text
# not a heading
```
END
python3 - "$site/mkdocs.yml" <<'END' || fail 'the groups'
import json, sys
docs = "accelerate/docs/"
wanted = ["README.md", docs + "README.md", {"Start": [{"Train": [docs + "one.md"]}]}, {"Reference": [docs + "two.md"]},
          {"Folders": ["launch/README.md"]}]
found = json.load(open(sys.argv[1]))["nav"]
assert found == wanted, found
END
echo 'site: all well'
