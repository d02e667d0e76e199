#!/usr/bin/env python3
"""filter.py FOLDER FILE...: copies headers and pages to FOLDER, as Doxygen understands them.

One process for all files: as Doxygen's INPUT_FILTER it would be started for each of them twice.

Headers stay as they are written for readers of the source:
  - the comment at the head of a file becomes the file's documentation;
  - "Errors:", "Threads:", "Mirrors:" and the like begin sections of their own;
  - a command, tag or link that Doxygen would see in prose is only prose.
Pages (Markdown) get an identifier for each heading, and links between pages lead to these; a link to
a file that is not on the site becomes the file's path. A link to a page or heading that is not
there stays as \\ref, so that Doxygen warns of it.
"""

import os
import re
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
SECTIONS = "Errors|Threads|Mirrors|Differs|Units|Shapes|Ownership|Source|Template"
# Doxygen's own commands that comments of this tree use.
COMMANDS = "pre|post|file|par|ref|code|endcode"


def prose(text):
    """Escapes what Doxygen would take for markup, outside of backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    for i in range(0, len(parts), 2):
        part = re.sub(rf"\\(?!(?:{COMMANDS})\b)", r"\\\\", parts[i])
        part = part.replace("@", r"\@").replace("<", r"\<").replace("#", r"\#").replace("%", r"\%")
        parts[i] = part.replace("::", r"\::") if re.match(r"^\s*::", part) else part
    return "".join(parts)


def section(indent, text):
    """Splits a comment's text at sections, each of which becomes a paragraph with a title."""
    text = re.sub(rf"(?<=[.;] )({SECTIONS}):\s+", r"\n\1: ", text)
    lines = []
    for piece in text.split("\n"):
        found = re.match(rf"\s?({SECTIONS}):\s*(.*)$", piece)
        if found:
            lines += [f"{indent}///", f"{indent}/// \\par {found[1]}", f"{indent}/// {prose(found[2])}"]
        else:
            lines.append(f"{indent}///{prose(piece)}")
    return "\n".join(lines)


def snake_case(name):
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def with_class_comment(text, path):
    """Gives the class that a header is named for the comment at the head of the file, where it has
    none of its own: that is where a header documents its class."""
    head = re.match(r"(?:///[^\n]*\n)+", text)
    if not head:
        return text
    stem = os.path.splitext(os.path.basename(path))[0]
    for found in re.finditer(r"^(?:class|struct) (?:\w+\(\w*\) )?(\w+)[^;{]*\{", text, re.M):
        if snake_case(found[1]) != stem:
            continue
        before = text[: found.start()]
        # A template's line stands between a comment and its class.
        template = re.search(r"(template <[^\n]*>\n)$", before)
        at = template.start() if template else found.start()
        if not re.search(r"///[^\n]*\n$", text[:at]):
            return text[:at] + head[0] + text[at:]
    return text


def header(text):
    lines = []
    in_code = False  # within a fence
    after_section = False
    after_blank = False  # or after a sample
    if text.startswith("///"):
        lines.append("/// \\file\n///")
    for line in text.split("\n"):
        found = re.match(r"^(\s*)///(?!/)(?!<)(.*)$", line)
        if not found:
            after_section = after_blank = False
            trailing = re.match(r"^(.*///<)(.*)$", line)
            lines.append(trailing[1] + prose(trailing[2]) if trailing else line)
            continue
        indent, rest = found[1], found[2]
        if rest.strip().startswith("```"):
            in_code = not in_code
            lines.append(line)
            continue
        starts_section = re.match(rf"^ ({SECTIONS}):", rest)
        is_continuation = after_section and re.match(r"^ {4,}\S", rest)
        if in_code:
            lines.append(line)
            continue
        # A sample is indented, under an empty line of the comment.
        is_sample = after_blank and re.match(r"^ {3,}\S", rest) and not is_continuation
        after_blank = is_sample or not rest.strip()
        if is_sample:
            lines.append(f"{indent}///    {rest}")
            continue
        if is_continuation:
            rest = " " + rest.strip()
        else:
            after_section = bool(starts_section) or bool(re.search(rf"[.;] ({SECTIONS}): ", rest))
        lines.append(section(indent, rest))
    return "\n".join(lines)


def page_id(path):
    """The identifier of a page, by its path in the tree."""
    return "page_" + re.sub(r"[^A-Za-z0-9]", "_", os.path.splitext(path)[0])


def slug(heading):
    """The identifier that Markdown viewers give a heading."""
    text = re.sub(r"`|\[|\]\([^)]*\)|\]", "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def is_page(path):
    return path in PAGES


PAGES = set()


def rewrite_links(line, path):
    def link(found):
        text, target = found[1], found[2]
        if re.match(r"^[a-z]+:", target):
            return found[0]
        name, _, anchor = target.partition("#")
        there = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
        if os.path.isdir(os.path.join(ROOT, there)):
            readme = os.path.join(there, "README.md")
            there = readme if is_page(readme) else there
        if is_page(there):
            identifier = page_id(there) + (("_" + anchor) if anchor else "")
            title = text.replace('"', "'").replace("`", "")
            return f'\\ref {identifier} "{title}"'
        if not os.path.exists(os.path.join(ROOT, there)):
            return f'\\ref no_file_{page_id(there)} "{text}"'
        return text if text.strip("`").rstrip("/") == there.rstrip("/") else f"{text} (`{there}`)"

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", link, line)


def pictures(text):
    """Pictures in HTML stay as they are; the lane copies their files beside the site's pages."""
    def picture(found):
        html = re.sub(r'(src|srcset)="(?:[^"]*/)?([^"/]+)"', r'\1="\2"', found[0].replace("\n", " "))
        return f"\\htmlonly {html} \\endhtmlonly"

    return re.sub(r"<picture>.*?</picture>", picture, text, flags=re.S)


def page(text, path):
    text = pictures(text)
    lines = []
    fence = None
    has_title = False
    for line in text.split("\n"):
        if re.match(r"^\s*```", line):
            fence = None if fence else "```"
            # Doxygen takes the language in braces.
            lines.append(re.sub(r"^(\s*```)(\w+).*$", r"\1{.\2}", line).replace("{.cpp}", "{.cpp}"))
            continue
        if fence or line.startswith("    "):
            lines.append(line)
            continue
        heading = re.match(r"^(#+) (.*?)\s*$", line)
        if heading:
            title = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading[2]).replace("`", "")
            identifier = page_id(path)
            if has_title or len(heading[1]) > 1:
                identifier += "_" + slug(heading[2])
            elif path == "README.md":
                lines.append(f"# {title} {{#mainpage}}\n\n\\anchor {identifier}")
                has_title = True
                continue
            has_title = True
            lines.append(f"{heading[1]} {title} {{#{identifier}}}")
            continue
        # Doxygen's commands may begin with @, too, and a quote ends its code that begins with one backtick.
        parts = re.split(r"(`[^`]*`)", line)
        parts[::2] = [part.replace("@", r"\@") for part in parts[::2]]
        parts[1::2] = [f"`{part}`" if "'" in part else part for part in parts[1::2]]
        lines.append(rewrite_links("".join(parts), path))
    return "\n".join(lines)


def main():
    folder, files = sys.argv[1], sys.argv[2:]
    PAGES.update(name for name in files if name.endswith(".md"))
    for path in files:
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            text = file.read()
        copy = os.path.join(folder, path)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        with open(copy, "w", encoding="utf-8") as file:
            file.write(page(text, path) if path.endswith(".md") else header(with_class_comment(text, path)))


if __name__ == "__main__":
    main()
