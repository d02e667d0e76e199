#include "tools/lint/source_tree.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include "accelerate/platform/child.h"

namespace accelerate::tidy {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::string contents{std::istreambuf_iterator<char>(stream), {}};
  if (!stream.is_open() || stream.bad()) throw std::runtime_error("cannot read " + path.string());
  return contents;
}

bool is_left_out(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  return entry.is_symlink() ||
         (entry.is_directory() && (name.starts_with('.') || name.starts_with("bazel-")));
}

}  // namespace

std::vector<std::string> list_with_git(const fs::path& root) {
  // Without a .git of its own the folder would be judged as a part of whatever is around it. The
  // checkout may belong to another user than the one who tests it.
  if (!fs::exists(root / ".git")) return {};
  const absl::StatusOr<ChildResult> git =
      run_command({"git", "-c", "safe.directory=*", "-C", root.string(), "ls-files", "-z",
                   "--cached", "--others", "--exclude-standard"},
                  {.collects_errors = false});
  if (!git.ok() || git->exit_code != 0) return {};
  std::istringstream output(git->output);
  std::vector<std::string> paths;
  for (std::string path; std::getline(output, path, '\0');) paths.push_back(path);
  std::erase_if(paths, [&](const std::string& path) {
    return !fs::is_regular_file(fs::symlink_status(root / path));  // Deleted, or a link.
  });
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());  // Unmerged files come thrice.
  return paths;
}

std::vector<std::string> list_by_walking(const fs::path& root) {
  std::vector<std::string> paths;
  fs::recursive_directory_iterator entry(root);
  for (; entry != fs::recursive_directory_iterator(); ++entry) {
    if (is_left_out(*entry)) {
      entry.disable_recursion_pending();
    } else if (entry->is_regular_file()) {
      paths.push_back(entry->path().lexically_relative(root).generic_string());
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<File> read_source_tree(const fs::path& root) {
  std::vector<std::string> paths = list_with_git(root);
  if (paths.empty()) paths = list_by_walking(root);
  std::vector<File> files;
  for (const std::string& path : paths) files.push_back({path, read(root / path)});
  return files;
}

}  // namespace accelerate::tidy
