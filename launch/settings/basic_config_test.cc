#include "launch/settings/basic_config.h"

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/statusor.h"
#include "accelerate/platform/host_files.h"
#include "launch/settings/config_file.h"
#include "launch/settings/machine.h"

namespace accelerate {
namespace {

using launcher::settings::ConfigFile;
using ::testing::HasSubstr;

ConfigFile read(const std::string& path) {
  absl::StatusOr<ConfigFile> config = launcher::settings::load_config_file(path);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : ConfigFile();
}

TEST(WriteBasicConfig, WritesWhatLaunchReadsForThisMachine) {
  const TemporaryFolder home;
  for (const char* name : {"HF_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"}) unsetenv(name);
  setenv("HOME", home.path().c_str(), 1);
  ASSERT_TRUE(write_basic_config());
  const std::string path = launcher::settings::default_config_path({"HOME=" + home.path()});
  const ConfigFile config = read(path);
  const int devices = launcher::settings::this_machine({"HOME=" + home.path()}).devices;
  EXPECT_EQ(config.values["mixed_precision"], "no");
  EXPECT_EQ(config.values["use_cpu"], devices == 0);
  EXPECT_EQ(config.values["num_processes"], devices == 0 ? 1 : devices);
  EXPECT_FALSE(write_basic_config("bf16")) << "there is a file already";
  EXPECT_EQ(read(path).values["mixed_precision"], "no");
}

TEST(WriteBasicConfig, WritesWhereItIsTold) {
  const TemporaryFolder folder;
  ASSERT_TRUE(write_basic_config("BF16", folder.path("a/b.json")));
  EXPECT_EQ(read(folder.path("a/b.json")).values["mixed_precision"], "bf16");
}

TEST(WriteBasicConfig, SaysWhatItRefuses) {
  const TemporaryFolder folder;
  const std::string path = folder.path("c.yaml");
  try {
    write_basic_config("tf32", path);
    FAIL() << "there is no such precision";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("mixed_precision: expected one of no, fp16, bf16, fp8"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_THROW(write_basic_config("no", "/proc/nowhere/c.yaml"), std::invalid_argument);
}

}  // namespace
}  // namespace accelerate
