/// The files of a checkout, for rules that look at all of them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tools/lint/tidy.h"

namespace accelerate::tidy {

/// Reads what belongs to the checkout, by path: the files that git tracks or would track, so
/// without what .gitignore names; where there is no git, all files but those of dot-folders and
/// bazel-*. Links are left out. Errors: std::runtime_error naming the file.
std::vector<File> read_source_tree(const std::filesystem::path& root);

/// The two ways to list the files. Paths are relative to the root, sorted.
/// `list_with_git` is empty if git is missing or does not know the folder.
std::vector<std::string> list_with_git(const std::filesystem::path& root);
std::vector<std::string> list_by_walking(const std::filesystem::path& root);

}  // namespace accelerate::tidy
