#include "accelerate/platform/temporary_folder.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace accelerate {
namespace {

TEST(TemporaryFolder, IsNewAndGoesWithItsContents) {
  std::string path;
  {
    const TemporaryFolder folder("test_of_folders_"), other("test_of_folders_");
    path = folder.path();
    EXPECT_NE(path, other.path());
    EXPECT_NE(path.find("/test_of_folders_"), std::string::npos);
    std::ofstream(folder.path("file")) << "text";
    EXPECT_TRUE(std::filesystem::exists(path + "/file"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(TemporaryFolder, IsNamedWhereItCannotBeMade) {
  const absl::Status failed = make_temporary_folder("no/such/folder").status();
  EXPECT_TRUE(absl::IsUnavailable(failed));
  EXPECT_NE(failed.message().find("no/such/folder"), std::string::npos);
}

}  // namespace
}  // namespace accelerate
