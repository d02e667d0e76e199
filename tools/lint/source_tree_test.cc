#include "tools/lint/source_tree.h"

#include <cstdlib>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
fs::path make_tree(const std::string& name) {
  const fs::path root = fs::path(::testing::TempDir()) / name / "it's here";
  fs::remove_all(root);
  write(root / "WORKSPACE", "name\n");
  write(root / ".ignored", "a rule file\n");
  write(root / "a" / "b.txt", "text\n");
  write(root / ".cache" / "c", "");
  write(root / "bazel-out" / "d", "");
  fs::create_symlink("a", root / "link");
  return root;
}

TEST(SourceTree, IsWalkedWithoutDotFoldersBazelsFoldersAndLinks) {
  const fs::path root = make_tree("walked");
  EXPECT_THAT(list_with_git(root), IsEmpty());
  EXPECT_THAT(list_by_walking(root), ElementsAre(".ignored", "WORKSPACE", "a/b.txt"));
}

TEST(SourceTree, IsListedByGitWithoutWhatGitIgnores) {
  const fs::path root = make_tree("listed");
  write(root / ".gitignore", "/bazel-*\n/.cache/\n");
  write(root / "a" / "deleted.txt", "");
  ASSERT_EQ(
      std::system(("cd \"" + root.string() + "\" && git init -q . && git add a && rm a/deleted.txt")
                      .c_str()),
      0);
  EXPECT_THAT(list_with_git(root), ElementsAre(".gitignore", ".ignored", "WORKSPACE", "a/b.txt"));
}

TEST(SourceTree, IsReadAsItIs) {
  const std::vector<File> files = read_source_tree(make_tree("read"));
  ASSERT_EQ(files.size(), 3);
  EXPECT_EQ(files[2].path, "a/b.txt");
  EXPECT_EQ(files[2].contents, "text\n");
}

}  // namespace
}  // namespace accelerate::tidy
