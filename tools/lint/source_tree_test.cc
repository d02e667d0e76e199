#include "tools/lint/source_tree.h"

#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/child.h"
#include "accelerate/platform/host_files.h"

namespace accelerate::tidy {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

void write(const fs::path& path, const std::string& contents) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << contents;
}

// A folder with files, a dot-folder, what Bazel leaves and a link. Its name wants quoting.
fs::path make_tree(const TemporaryFolder& folder) {
  const fs::path root = folder.path("it's here");
  write(root / "WORKSPACE", "name\n");
  write(root / ".ignored", "a rule file\n");
  write(root / "a" / "b.txt", "text\n");
  write(root / ".cache" / "c", "");
  write(root / "bazel-out" / "d", "");
  fs::create_symlink("a", root / "link");
  return root;
}

TEST(SourceTree, IsWalkedWithoutDotFoldersBazelsFoldersAndLinks) {
  const TemporaryFolder folder;
  const fs::path root = make_tree(folder);
  EXPECT_THAT(list_with_git(root), IsEmpty());
  EXPECT_THAT(list_by_walking(root), ElementsAre(".ignored", "WORKSPACE", "a/b.txt"));
}

TEST(SourceTree, IsListedByGitWithoutWhatGitIgnores) {
  const TemporaryFolder folder;
  const fs::path root = make_tree(folder);
  write(root / ".gitignore", "/bazel-*\n/.cache/\n");
  write(root / "a" / "deleted.txt", "");
  const auto made =
      run_shell("cd \"" + root.string() + "\" && git init -q . && git add a && rm a/deleted.txt");
  ASSERT_TRUE(made.ok());
  ASSERT_EQ(made->exit_code, 0) << made->output;
  EXPECT_THAT(list_with_git(root), ElementsAre(".gitignore", ".ignored", "WORKSPACE", "a/b.txt"));
}

TEST(SourceTree, IsReadAsItIs) {
  const TemporaryFolder folder;
  const std::vector<File> files = read_source_tree(make_tree(folder));
  ASSERT_EQ(files.size(), 3);
  EXPECT_EQ(files[2].path, "a/b.txt");
  EXPECT_EQ(files[2].contents, "text\n");
}

}  // namespace
}  // namespace accelerate::tidy
