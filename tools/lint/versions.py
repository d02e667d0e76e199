#!/usr/bin/env python3
"""versions.py REPO: versions that stand in several files agree with the one that decides. Prints what does not.

  release     accelerate/base/version.h, which CMake and the launcher read
  LibTorch    the oldest, in accelerate/tensors/libtorch_releases.h
  CMake       the oldest, in CMakeLists.txt
  libraries   those of tools/third_party/repositories.bzl are those that MODULE.bazel uses
  downloads   whatever a script or a rule downloads has a checksum beside it; apt and pip check by themselves
"""
import os
import re
import sys

DOWNLOAD = re.compile(r"\b(wget|curl)\b.*https?://|\b(download(_and_extract)?|http_archive|http_file)\(|\bURL\s+\"?https?://")
CHECKSUM = re.compile(r"sha256|integrity|URL_HASH", re.IGNORECASE)
CHECKSUM_WITHIN = 6  # lines
SCRIPTS = (".sh", ".bzl", ".bazel", ".cmake", ".yml", "WORKSPACE", "Dockerfile", "CMakeLists.txt", "tools/dev", ".ci/run")


def files_of(repo):
    for folder, folders, names in os.walk(repo):
        folders[:] = sorted(each for each in folders
                            if each not in (".git", "out", "build") and not each.startswith("bazel-"))
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), repo)
            if path.endswith(SCRIPTS + (".md",)):
                with open(os.path.join(repo, path), encoding="utf-8") as file:
                    yield path, file.read()


class Check:
    def __init__(self, repo):
        self.repo = repo
        self.wrong = []

    def read(self, path):
        with open(os.path.join(self.repo, path), encoding="utf-8") as file:
            return file.read()

    def source(self, path, pattern):
        """The version that decides."""
        found = re.search(pattern, self.read(path))
        if not found:
            raise SystemExit(f"{path}: nothing is like {pattern}")
        return found.group(1)

    def say(self, path, text, position, problem):
        line = text.count("\n", 0, position) + 1
        self.wrong.append(f"{path}:{line}: {problem}")

    def agree(self, path, text, pattern, version, source, prefix=False):
        """Each version that the pattern finds is the version, or with `prefix` the first numbers of it."""
        for found in re.finditer(pattern, text):
            if found.group(1) != version and not (prefix and version.startswith(found.group(1) + ".")):
                self.say(path, text, found.start(), f"{found.group(0)}: {source} has {version}")

    def run(self):
        release = self.source("accelerate/base/version.h", r'kAccelerateVersion\[\] = "([\d.]+)"')
        torch = self.source("accelerate/tensors/libtorch_releases.h", r"built with, ([\d.]+) to")
        cmake = self.source("CMakeLists.txt", r"cmake_minimum_required\(VERSION ([\d.]+)\)")
        self.agree("MODULE.bazel", self.read("MODULE.bazel"), r'\A(?:#.*\n)*module\((?:[^)]*\W)?version = "([^"]*)"', release,
                   "accelerate/base/version.h")
        port = "tools/release/vcpkg/accelerate-cpp/vcpkg.json"
        if os.path.exists(os.path.join(self.repo, port)):
            self.agree(port, self.read(port), r'"version": "([^"]*)"', release, "accelerate/base/version.h")
        self.agree("CHANGELOG.md", self.read("CHANGELOG.md").split("\n## Unreleased", 1)[-1], r"\A[\s\S]*?\n## (\d\S*)", release,
                   "accelerate/base/version.h")
        for path, text in files_of(self.repo):
            self.agree(path, text, r"find_package\(Accelerate ([\d.]+)", release, "accelerate/base/version.h", prefix=True)
            self.agree(path, text, r"LibTorch (?:of )?(\d[\d.]*\d) or newer", torch, "accelerate/tensors/libtorch_releases.h")
            self.agree(path, text, r"cmake_minimum_required\(VERSION ([\d.]+)\)", cmake, "CMakeLists.txt")
            self.agree(path, text, r"CMake (\d[\d.]*\d)(?: or newer|,)", cmake, "CMakeLists.txt")
            if not path.endswith(".md"):
                self.downloads(path, text)
        self.agree("tools/dev", self.read("tools/dev"), r"libtorch-dev 2>/dev/null\)\" ge ([\d.]+)", torch,
                   "accelerate/tensors/libtorch_releases.h")
        self.libraries()
        return self.wrong

    def downloads(self, path, text):
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if DOWNLOAD.search(line) and not CHECKSUM.search("\n".join(lines[number:number + CHECKSUM_WITHIN])):
                self.wrong.append(f"{path}:{number + 1}: a download without a checksum: {line.strip()}")

    def libraries(self):
        rules = self.read("tools/third_party/repositories.bzl").split("\ndef libraries(", 1)[-1].split("\ndef ", 1)[0]
        made = set(re.findall(r'\bname = "([^"]+)"', rules))
        used = re.search(r"use_repo\(\s*third_party,([^)]*)\)", self.read("MODULE.bazel"))
        used = set(re.findall(r'"([^"]+)"', used.group(1))) if used else set()
        for name in sorted(made ^ used):
            where = "tools/third_party/repositories.bzl" if name in made else "MODULE.bazel"
            self.wrong.append(f"MODULE.bazel: of {name}, only {where} knows")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    problems = Check(sys.argv[1]).run()
    print("\n".join(problems) if problems else "versions agree")
    sys.exit(bool(problems))
