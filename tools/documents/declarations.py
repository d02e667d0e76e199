"""What C++ headers declare: functions with their parameters, classes with their fields, values of enumerations.

No compiler: it reads the headers of this project, which keep to one style.
"""
import os
import re

# Statements that declare nothing that a caller names.
OTHERS = re.compile(r"^(?:friend|using namespace|static_assert|typedef|extern)\b")
NAME_BEFORE = re.compile(r"((?:[A-Za-z_]\w*::)*~?(?:operator\s*\S+|[A-Za-z_]\w*))\s*$")


def without_comments(text):
    text = re.sub(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/',
                  lambda found: found[0] if found[0].startswith('"') else " ", text, flags=re.S)
    return re.sub(r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", "", text, flags=re.M)


def closing(text, start):
    """The place behind the bracket that closes the one at `start`."""
    depth, place = 0, start
    while place < len(text):
        char = text[place]
        if char == '"':
            place = re.compile(r'"(?:[^"\\]|\\.)*"').match(text, place).end()
            continue
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth == 0:
                return place + 1
        place += 1
    return len(text)


def split(text, separator=","):
    """Parts of the text between separators that stand in no bracket of any kind."""
    parts, depth, place, last = [], 0, 0, 0
    while place < len(text):
        char = text[place]
        if char == '"':
            place = re.compile(r'"(?:[^"\\]|\\.)*"').match(text, place).end()
            continue
        if char in "([{" or (char == "<" and re.match(r"[\w>]", text[place - 1:place] or " ")):
            depth += 1
        elif char in ")]}" or (char == ">" and text[place - 1:place] != "-" and depth > 0):
            depth -= 1
        elif char == separator and depth == 0:
            parts.append(text[last:place])
            last = place + 1
        place += 1
    return [part.strip() for part in parts + [text[last:]] if part.strip()]


def variable(text):
    """(type, name, default) of a parameter or field; the default is None without an initialiser."""
    text = " ".join(text.split())
    left, default = text, None
    parts = split(text, "=")
    if len(parts) > 1:
        left, default = parts[0], "=".join(parts[1:]).strip()
    elif match := re.match(r"(.*[\w>&*] \w+)(\{.*\})$", text):
        left, default = match[1], match[2]
    if match := re.match(r"(.*?[\w>&*.])\s*\b(\w+)(?:\[\w*\])?$", left):
        if match[1].strip() not in ("const", "typename", "class"):
            return match[1].strip(), match[2], default
    return left, "", default


def without_macros(text):
    """The text without calls of macros that stand before it, as ACCELERATE_FIELDS(...), which need no semicolon."""
    while match := re.match(r"[A-Z][A-Z0-9_]+(?=\()", text):
        text = text[closing(text, match.end()):].strip()
    return text


def without_template(text):
    while match := re.match(r"template ?<", text):
        depth = 0
        for at in range(match.end() - 1, len(text)):
            depth += {"<": 1, ">": -1}.get(text[at], 0)
            if depth == 0:
                break
        text = text[at + 1:].strip()
    return text


class Declarations:
    """`functions[name]`: a list of parameter lists; `fields[class]`: {name: (type, default)}, under "" the variables
    outside of classes; `names`: everything that is not private; `enumerations`: those of it that are enumerations; `bases[class]`:
    its BASE of `class Class : public BASE<Class>`. A member's name is Class::member; namespaces are left out."""

    def __init__(self, text=""):
        self.functions, self.fields, self.names, self.enumerations, self.bases = {}, {}, set(), set(), {}
        if text:
            self.scope(without_comments(text), ())

    def scope(self, text, classes):
        place, start, hidden = 0, 0, False
        while place < len(text):
            char = text[place]
            if char == '"':
                place = re.compile(r'"(?:[^"\\]|\\.)*"').match(text, place).end()
            elif char in "([":
                place = closing(text, place)
            elif char == ";":
                if not hidden:
                    self.statement(text[start:place], classes)
                place = start = place + 1
            elif char == ":" and classes and re.fullmatch(r"\s*(public|private|protected)\s*", text[start:place]):
                hidden = text[start:place].strip() == "private"
                place = start = place + 1
            elif char == "{":
                end = closing(text, place)
                head, body = " ".join(text[start:place].split()), text[place + 1:end - 1]
                if not self.block(head, body, classes, hidden):
                    place = end  # An initialiser in braces: the statement goes on to its semicolon.
                    continue
                place = start = end
                if match := re.compile(r"\s*;").match(text, place):
                    place = start = match.end()
            else:
                place += 1

    def block(self, head, body, classes, hidden):
        """What stands before and in braces; False if the braces are an initialiser."""
        plain = head = without_template(without_macros(head))
        plain = re.sub(r"^requires ?\(.*?\) (?=\w)", "", plain) if plain.startswith("requires") else plain
        if re.match(r"(inline )?namespace\b", plain) or plain.startswith('extern "C"'):
            self.scope(body, classes)
            return True
        if match := re.match(r"enum (?:class |struct )?(\w+)", plain):
            self.add((*classes, match[1]), hidden)
            self.enumerations.add("::".join((*classes, match[1])))
            for part in split(body):
                self.add((*classes, match[1], re.match(r"\w+", part)[0]), hidden)
            return True
        if match := re.match(r"(?:class|struct|union) (?:C10_\w+ |alignas\(\w+\) )?(\w+)(?:<[^{]*>)?(?: final)?(?: ?: ?(.*))?$", plain):
            self.add((*classes, match[1]), hidden)
            if base := re.search(rf"public (\w+)<{match[1]}>", match[2] or ""):
                self.bases[match[1]] = base[1]
            if not hidden:
                self.scope(body, (*classes, match[1]))
            return True
        if "(" not in plain or plain.endswith("=") or re.search(r"[^=!<>]=(?!=)", plain.split("(")[0]):
            return False
        if not hidden:
            self.statement(head, classes)
        return True

    def add(self, parts, hidden):
        if not hidden:
            self.names.add("::".join(parts))

    def statement(self, text, classes):
        text = re.sub(r"\s*\[\[.*?\]\]\s*", " ", " ".join(text.split())).strip()
        if match := re.match(r"TORCH_ARG\((.*), ?(\w+)\)(?: ?= ?(.*))?$", text):
            self.names.add("::".join((*classes, match[2])))
            self.fields.setdefault("::".join(classes), {})[match[2]] = (match[1], match[3])
            return
        text = without_template(without_macros(text))
        text = re.sub(r"^(?:(?:public|private|protected) ?: ?)+", "", text)
        if not text or OTHERS.match(text) or re.match(r"(class|struct|enum class|enum) \w+$", text):
            return
        if match := re.match(r"using ([\w:]+)(?: =|$)", text):
            self.names.add("::".join((*classes, match[1].split("::")[-1])))
            return
        bare, depth, opened = text, 0, -1
        for at, char in enumerate(bare):  # The first round bracket outside of template arguments.
            if char == "<" and at and re.match(r"[\w>]", bare[at - 1]) and not bare[:at].endswith("operator"):
                depth += 1
            elif char == ">" and depth and bare[at - 1] != "-":
                depth -= 1
            elif char == "=" and depth == 0 and not bare[:at].rstrip().endswith("operator"):
                break
            elif char == "(" and depth == 0:
                before = bare[:at].rstrip()
                if before.endswith("operator") and bare[at:at + 2] == "()":
                    continue
                if re.search(r"\b(requires|decltype|noexcept|explicit|alignas)$", before):
                    continue
                if before.endswith("operator()"):
                    opened = at
                    break
                if not NAME_BEFORE.search(before) or bare[:at].count("(") != bare[:at].count(")"):
                    continue
                opened = at
                break
        if opened >= 0 and not (classes == () and re.match(r"[A-Z_0-9]+$", text[:opened])):
            before = text[:opened].rstrip()
            name = "operator()" if before.endswith("operator()") else NAME_BEFORE.search(before)[1]
            full = "::".join((*classes, name.split("::")[-1] if classes else name))
            inside = text[opened + 1:closing(text, opened) - 1]
            parameters = [variable(part) for part in split(inside) if part != "void"]
            self.functions.setdefault(full, []).append(parameters)
            self.names.add(full)
            return
        if re.search(r"\boperator\b", text):
            return
        for each in split(re.sub(r"^(?:static|inline|constexpr|mutable|thread_local|extern) ", "", text)):
            kind, name, default = variable(each)
            if name:
                self.names.add("::".join((*classes, name)))
                self.fields.setdefault("::".join(classes), {})[name] = (kind, default)


def read(repo, header):
    with open(os.path.join(repo, header), encoding="utf-8") as file:
        return Declarations(file.read())
