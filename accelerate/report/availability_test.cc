
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <utility>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/process/real_runtime.h"
#include "accelerate/report/availability.h"
#include "accelerate/report/environment_report.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::unique_ptr<RealRuntime> one_rank(
    std::initializer_list<std::pair<const char*, const char*>> variables = {}) {
  Environment environment;
  for (const char* name : {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "USE_TORCH_XLA",
                           "ACCELERATE_TORCH_DEVICE", "ACCELERATE_USE_CPU"}) {
    environment.unset(name);
  }
  environment.set("RANK", "0");
  environment.set("WORLD_SIZE", "1");
  environment.set("PATH", "");
  for (auto [name, value] : variables) environment.set(name, value);
  return RealRuntime::from_environment(std::move(environment)).value();
}

TEST(Features, AreListedOnceWithTheAnswersOfTheirChecks) {
  auto runtime = one_rank();
  const BuildInfo build = build_info(*runtime);
  EXPECT_THAT(build.libtorch_version, HasSubstr("."));
  EXPECT_FALSE(build.compiler.empty());
  std::set<std::string> names;
  for (const Feature& feature : build.features) {
    EXPECT_TRUE(names.insert(feature.name).second) << feature.name;
    EXPECT_FALSE(feature.note.empty()) << feature.name;
    EXPECT_EQ(is_feature_available(feature.name, *runtime), feature.available) << feature.name;
  }
}

TEST(Features, AnswerForWhatTakesAPackagesPlace) {
  auto runtime = one_rank();
  EXPECT_TRUE(is_torch_distributed_available(*runtime));
  EXPECT_TRUE(is_tqdm_available(*runtime));
  EXPECT_TRUE(is_torchdata_stateful_dataloader_available(*runtime));
  EXPECT_FALSE(is_numpy_available(*runtime));
  EXPECT_TRUE(is_torchao_available(*runtime));
  EXPECT_TRUE(is_fp8_available(*runtime));
  EXPECT_FALSE(is_ipex_available(*runtime));
}

TEST(Features, LookForTheAwsCommandInThePath) {
  EXPECT_FALSE(is_boto3_available(*one_rank()));
  std::string folder = (std::filesystem::temp_directory_path() / "features_test.XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::filesystem::path program = std::filesystem::path(folder) / "aws";
  std::ofstream(program) << "#!/bin/sh\n";
  const std::string path = "/nowhere:" + folder;
  EXPECT_FALSE(is_sagemaker_available(*one_rank({{"PATH", path.c_str()}})));
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  EXPECT_TRUE(is_boto3_available(*one_rank({{"PATH", path.c_str()}})));
  EXPECT_TRUE(is_sagemaker_available(*one_rank({{"PATH", path.c_str()}})));
  std::filesystem::remove_all(folder);
}

TEST(Features, AreRequiredWithAReason) {
  auto runtime = one_rank();
  require_feature("tqdm", *runtime);
  try {
    require_feature("triton", *runtime);
    FAIL() << "triton is not available";
  } catch (const c10::NotImplementedError& error) {
    EXPECT_THAT(error.what_without_backtrace(), AllOf(HasSubstr("triton"), HasSubstr("Python")));
  }
  try {
    require_feature("flux_capacitor", *runtime);
    FAIL() << "no such feature";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                AllOf(HasSubstr("flux_capacitor"), HasSubstr("tqdm")));
  }
}

TEST(Availability, FindsTheDevicesOfThisMachine) {
  auto runtime = one_rank();
  EXPECT_EQ(is_cuda_available(true, *runtime), runtime->device().is_cuda());
  EXPECT_FALSE(is_npu_available(false, *runtime));
  EXPECT_FALSE(is_habana_gaudi1(*runtime));
  EXPECT_TRUE(is_bf16_available(false, *runtime));
  EXPECT_TRUE(is_bf16_available(true, *runtime));
  EXPECT_TRUE(is_fp16_available(*runtime));
  EXPECT_EQ(get_driver_version(*runtime), query_nvidia_gpus().driver_version);
}

TEST(Availability, RefusesArgumentsThatContradict) {
  auto runtime = one_rank();
  EXPECT_THROW(is_torch_xla_available(true, true, *runtime), c10::ValueError);
  EXPECT_THROW(is_mps_available("new", *runtime), c10::ValueError);
  EXPECT_THROW(is_torch_xla_available(false, false, *one_rank({{"USE_TORCH_XLA", "maybe"}})),
               c10::ValueError);
}

TEST(EnvironmentReport, ListsFactsInOrder) {
  auto runtime = one_rank({{"ACCELERATE_MIXED_PRECISION", "bf16"}});
  const EnvironmentReport report = environment_report(*runtime);
  EXPECT_EQ(report.facts.front().name, "`Accelerate` version");
  const std::string text = report.to_string();
  EXPECT_THAT(
      text, AllOf(HasSubstr("- LibTorch version: "), HasSubstr("- Compiler: "),
                  HasSubstr("- NUMA nodes: "), HasSubstr("- System RAM: "),
                  HasSubstr("- LibTorch NPU available: False"), HasSubstr("- Launcher: torchrun\n"),
                  HasSubstr("- Rank: 0 of 1 (1x1), local rank 0\n"),
                  HasSubstr("ACCELERATE_MIXED_PRECISION=bf16")));
  EXPECT_THAT(text, Not(HasSubstr(": \n")));
}

TEST(EnvironmentReport, ShowsWhatKeepsAFactFromBeingKnown) {
  EXPECT_THAT(environment_report(*one_rank({{"USE_TORCH_XLA", "maybe"}})).to_string(),
              HasSubstr("- LibTorch XLA available: unknown (USE_TORCH_XLA=\"maybe\""));
}

TEST(EnvironmentReport, IsJsonOnRequest) {
  EnvironmentReport report{{{"b", "say \"no\""}, {"a", "\xff"}}};
  EXPECT_EQ(report.to_json(), "{\n  \"b\": \"say \\\"no\\\"\",\n  \"a\": \"\xef\xbf\xbd\"\n}");
}

}  // namespace
}  // namespace accelerate
