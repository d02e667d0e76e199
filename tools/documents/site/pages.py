#!/usr/bin/env python3
"""pages.py REPO FOLDER: writes FOLDER/mkdocs.yml and FOLDER/pages, from which MkDocs makes the site of the pages.

The navigation is that of accelerate/docs/README.md: a group for each of its headings, and a group in it for each line that ends
with a colon above a list. Behind it stand the READMEs of folders, and what contributors read. Pages keep their places, so that
links between them stay as they are, and their headings have the identifiers that they have elsewhere. A link to a file that is not a
page becomes the file's path. A page that no list names, or a link to a page or heading that is not there, is a warning of
MkDocs's, and so an error of ci/site.sh.
"""
import json
import os
import re
import shutil
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from filter import slug  # noqa: E402

DOCS = "accelerate/docs"
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")

# The theme brings its fonts and its search along; highlighting happens here, and not in the browser.
CONFIGURATION = {
    "site_name": "Accelerate for C++",
    "docs_dir": "pages",
    "use_directory_urls": False,
    "strict": True,
    "theme": {"name": "readthedocs", "highlightjs": False, "navigation_depth": 3, "titles_only": True},
    "plugins": ["search"],
    "extra_css": ["pages.css"],
    "markdown_extensions": ["attr_list", {"toc": {"permalink": True}},
                            {"codehilite": {"guess_lang": False, "noclasses": True}}],
    "validation": {"omitted_files": "warn", "absolute_links": "warn", "unrecognized_links": "warn", "anchors": "warn"},
}


def read(repo, path):
    with open(os.path.join(repo, path), encoding="utf-8") as file:
        return file.read()


def pages_of(repo):
    """The pages of the checkout: those of documents, and the texts beside sources."""
    found = []
    for folder, folders, names in os.walk(repo):
        folders[:] = sorted(name for name in folders
                            if not name.startswith(".") and not os.path.islink(os.path.join(folder, name)))
        found += [os.path.relpath(os.path.join(folder, name), repo) for name in sorted(names) if name.endswith(".md")]
    return found


def linked(line, page):
    """The pages that a line links to, by their paths in the checkout."""
    for _, target in LINK.findall(line):
        name = target.partition("#")[0]
        if name.endswith(".md") and not re.match(r"[a-z]+:", target):
            yield os.path.normpath(os.path.join(os.path.dirname(page), name))


def groups_of(text, page):
    """[(heading, [page or (line with a colon, [page])])] of the lists below the headings of a page."""
    groups = []
    for line in text.splitlines():
        if heading := re.match(r"## +(.*)", line):
            groups.append((heading[1], []))
        elif groups and re.fullmatch(r"\w.*:", line):
            groups[-1][1].append((line[:-1], []))
        elif groups and line.startswith("- "):
            entries = groups[-1][1]
            into = entries[-1][1] if entries and isinstance(entries[-1], tuple) else entries
            # What an entry says behind its colon may lead to pages that stand elsewhere.
            into += linked(line.partition(": ")[0], page)
    return groups


def navigation(repo, pages):
    index = f"{DOCS}/README.md"
    listed = [(title, entries) for title, entries in groups_of(read(repo, index), index) if entries]
    named = {"README.md", index}
    for _, entries in listed:
        for entry in entries:
            named |= set(entry[1]) if isinstance(entry, tuple) else {entry}
    folders = [page for page in pages if page.startswith(("accelerate/", "simulator/", "launch/", "trackers/")) and
               not page.startswith(DOCS + "/") and page not in named]
    others = [page for page in pages if ("/" not in page or page.endswith("/README.md")) and page not in named and
              page not in folders]
    listed += [group for group in (("Folders", folders), ("For contributors", others)) if group[1]]
    nav = ["README.md", index]
    for title, entries in listed:
        nav.append({title: [{entry[0]: entry[1]} if isinstance(entry, tuple) else entry for entry in entries]})
    return nav


def rewritten(repo, page, pages):
    """The page as MkDocs's Markdown understands it."""
    def link(found):
        text, target = found.groups()
        if re.match(r"[a-z]+:", target):
            return found[0]
        name, hash_sign, anchor = target.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(page), name)) if name else page
        if os.path.isdir(os.path.join(repo, path)) and os.path.join(path, "README.md") in pages:
            return f"[{text}]({name.rstrip('/')}/README.md{hash_sign}{anchor})"
        if path in pages or not os.path.exists(os.path.join(repo, path)):
            return found[0]  # One that is not there is a warning.
        return text if text.strip("`").rstrip("/") == path else f"{text} (`{path}`)"

    lines, inside = [], False
    for line in read(repo, page).splitlines():
        if line.startswith("```"):
            language = line[3:].split()[:1]
            line = "```" if inside else "```" + "".join(language).replace("output", "text")
            inside = not inside
        elif not inside and not line.startswith("    "):
            if heading := re.match(r"(#+ .*?)\s*$", line):
                line = f"{heading[1]} {{#{slug(heading[1].lstrip('# '))}}}"
            else:
                # Links in code are text.
                parts = re.split(r"(`[^`]*`(?!\]))", line)
                parts[::2] = [LINK.sub(link, part) for part in parts[::2]]
                line = "".join(parts)
        lines.append(line)
    return "\n".join(lines) + "\n"


def main(repo, folder):
    pages = pages_of(repo)
    for page in pages:
        copy = os.path.join(folder, "pages", page)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        with open(copy, "w", encoding="utf-8") as file:
            file.write(rewritten(repo, page, set(pages)))
    images = os.path.join(folder, "pages", DOCS, "images")
    shutil.rmtree(images, ignore_errors=True)
    shutil.copytree(os.path.join(repo, DOCS, "images"), images)
    shutil.copy(os.path.join(os.path.dirname(os.path.realpath(__file__)), "pages.css"), os.path.join(folder, "pages"))
    with open(os.path.join(folder, "mkdocs.yml"), "w", encoding="utf-8") as file:
        json.dump({**CONFIGURATION, "nav": navigation(repo, pages)}, file, indent=1)  # JSON is YAML
    print(f"{len(pages)} pages")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(os.path.realpath(sys.argv[1]), sys.argv[2])
