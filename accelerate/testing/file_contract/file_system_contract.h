/// One list of what file systems promise, for every FileSystem.
///
///   INSTANTIATE_TEST_SUITE_P(Host, FileSystemContract, ::testing::Values(host()),
///                            file_system_name);
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "accelerate/platform/file_system.h"

namespace accelerate::testing {

struct FileSystemUnderTest {
  std::string name;
  /// A file system and an empty folder in it that a test may use as it likes.
  std::function<std::pair<std::shared_ptr<FileSystem>, std::string>()> make;
};

class FileSystemContract : public ::testing::TestWithParam<FileSystemUnderTest> {
 protected:
  FileSystemContract();

  std::string path(const std::string& name) const { return join_path(folder_, name); }
  /// Makes a file, not durably. The test fails if it cannot.
  void put(const std::string& name, const std::string& contents);
  /// A file's contents, or the error.
  std::string get(const std::string& name);

  std::shared_ptr<FileSystem> files_;
  std::string folder_;
};

inline std::string file_system_name(const ::testing::TestParamInfo<FileSystemUnderTest>& info) {
  return info.param.name;
}

}  // namespace accelerate::testing
