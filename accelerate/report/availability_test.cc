
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/host_files.h"
#include "accelerate/process/real_runtime.h"
#include "accelerate/report/availability.h"
#include "accelerate/report/environment_report.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/tracking/tracker.h"

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

// A rank of a simulation, on a device of this family and model with this trait.
class SimulatedRank : public FakeRuntime {
 public:
  explicit SimulatedRank(std::string family = "cpu", std::string model = "",
                         std::optional<DeviceTrait> trait = std::nullopt)
      : family_(std::move(family)), model_(std::move(model)), trait_(trait) {}

  std::string device_family() const override { return family_; }
  std::string device_name() const override { return model_; }
  std::optional<bool> device_has(DeviceTrait trait) const override { return trait == trait_; }
  FileSystem& files() override { return files_; }

 private:
  const std::string family_;
  const std::string model_;
  const std::optional<DeviceTrait> trait_;
  HostFiles files_;
};

TrackerClass tracker_class(const char* name,
                           std::function<std::string(const TrackerServices&)> unavailable) {
  return {.name = name,
          .requires_logging_directory = false,
          .tracker = [](const TrackerSetup&) { return std::unique_ptr<GeneralTracker>(); },
          .unavailable = std::move(unavailable)};
}

// As trackers do that are linked into a program: one can always be used, one not in a simulation,
// and one lacks its package.
const TrackerRegistration kWandb(tracker_class("wandb", nullptr));
const TrackerRegistration kTrackio(tracker_class("trackio", [](const TrackerServices& services) {
  return std::string(services.is_real ? "" : "not in a simulation");
}));
const TrackerRegistration kAim(tracker_class("aim", [](const TrackerServices&) {
  return std::string("its package is not installed");
}));

// A check, the row of build_info() that it has to ask, and its answer in this test.
struct Answer {
  const char* row;
  const char* asked;
  bool (*check)(Runtime&);
  bool expected;
};

template <const auto& check>
Answer answer(const char* row, bool expected) {
  return {row, check.name, [](Runtime& runtime) { return check(runtime); }, expected};
}

// The features of this build, for a simulated rank, for which nothing is looked up on the machine.
std::vector<Answer> all_answers() {
  return {
      answer<is_aim_available>("aim", false),
      answer<is_amdsmi_available>("amdsmi", false),
      answer<is_4bit_bnb_available>("bitsandbytes_4bit", true),
      answer<is_8bit_bnb_available>("bitsandbytes_8bit", true),
      answer<is_bitsandbytes_multi_backend_available>("bitsandbytes_multi_backend", true),
      answer<is_bnb_available>("bnb", true),
      answer<is_boto3_available>("boto3", false),
      answer<is_clearml_available>("clearml", false),
      answer<is_comet_ml_available>("comet_ml", false),
      answer<is_datasets_available>("datasets", false),
      answer<is_deepspeed_available>("deepspeed", true),
      answer<is_dvclive_available>("dvclive", false),
      answer<is_import_timer_available>("import_timer", false),
      answer<is_ipex_available>("ipex", false),
      answer<is_lomo_available>("lomo", true),
      answer<is_matplotlib_available>("matplotlib", false),
      answer<is_megatron_lm_available>("megatron_lm", false),
      answer<is_mlflow_available>("mlflow", false),
      answer<is_msamp_available>("msamp", true),
      answer<is_numpy_available>("numpy", false),
      answer<is_pandas_available>("pandas", false),
      answer<is_peft_available>("peft", false),
      answer<is_pippy_available>("pippy", false),
      answer<is_pynvml_available>("pynvml", false),
      answer<is_pytest_available>("pytest", false),
      answer<is_rich_available>("rich", false),
      answer<is_sagemaker_available>("sagemaker", false),
      answer<is_schedulefree_available>("schedulefree", true),
      answer<is_swanlab_available>("swanlab", false),
      answer<is_tensorboard_available>("tensorboard", false),
      answer<is_timm_available>("timm", false),
      answer<is_torch_distributed_available>("torch_distributed", true),
      answer<is_torchao_available>("torchao", true),
      answer<is_torchdata_available>("torchdata", true),
      answer<is_torchdata_stateful_dataloader_available>("torchdata_stateful_dataloader", true),
      answer<is_torchvision_available>("torchvision", false),
      answer<is_tqdm_available>("tqdm", true),
      answer<is_trackio_available>("trackio", false),
      answer<is_transformer_engine_available>("transformer_engine", true),
      answer<is_transformer_engine_mxfp8_available>("transformer_engine_mxfp8", true),
      answer<is_transformers_available>("transformers", false),
      answer<is_triton_available>("triton", false),
      answer<is_wandb_available>("wandb", true),
      answer<is_weights_only_available>("weights_only", true),
  };
}

TEST(Features, HaveAnAnswerEach) {
  SimulatedRank simulated;
  std::set<std::string> rows{"hwloc"};  // It has no check of its own.
  for (const Answer& each : all_answers()) {
    EXPECT_STREQ(each.asked, each.row);
    EXPECT_EQ(each.check(simulated), each.expected) << each.row;
    rows.insert(each.row);
  }
  for (const Feature& feature : build_info(simulated).features) {
    EXPECT_TRUE(rows.contains(feature.name)) << feature.name << " is in no row of this test";
  }
  EXPECT_EQ(rows.size(), build_info(simulated).features.size());
}

TEST(Features, LookAroundOnARealRankAlone) {
  auto runtime = one_rank();
  for (const Answer& each : all_answers()) {
    const std::string row = each.row;
    if (row == "amdsmi" || row == "pynvml" || row == "trackio") continue;
    EXPECT_EQ(each.check(*runtime), each.expected) << row;
  }
  EXPECT_EQ(is_pynvml_available(*runtime), has_nvml());
  EXPECT_TRUE(is_trackio_available(*runtime));
}

TEST(Features, ThatAreTrackersFollowTheRanksOwnRegistry) {
  SimulatedRank simulated;
  simulated.shared<TrackerRegistry>([] {
    auto own = std::make_shared<TrackerRegistry>(TrackerRegistry::linked());
    own->add(tracker_class("wandb", [](const TrackerServices&) { return std::string("away"); }));
    own->add(tracker_class("mlflow", nullptr));
    return own;
  });
  EXPECT_FALSE(is_wandb_available(simulated));
  EXPECT_TRUE(is_mlflow_available(simulated));
  EXPECT_FALSE(is_swanlab_available(simulated)) << "is not linked";
}

TEST(Features, OfPackagesTakeALeastVersion) {
  SimulatedRank simulated;
  EXPECT_FALSE(is_numpy_available("1.25.0", simulated));
  EXPECT_TRUE(is_bnb_available("0.43", simulated));
  EXPECT_TRUE(is_bnb_available("", simulated));
  EXPECT_THROW(is_numpy_available("new", simulated), c10::ValueError);
  EXPECT_THROW(is_bnb_available("torch", simulated), c10::ValueError);
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
  EXPECT_TRUE(is_fp8_available(*runtime));
}

TEST(Features, LookForTheAwsCommandInThePath) {
  EXPECT_FALSE(is_boto3_available(*one_rank()));
  const TemporaryFolder folder;
  const std::filesystem::path program = folder.path("aws");
  std::ofstream(program) << "#!/bin/sh\n";
  const std::string path = "/nowhere:" + folder.path();
  EXPECT_FALSE(is_sagemaker_available(*one_rank({{"PATH", path.c_str()}})));
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  EXPECT_TRUE(is_boto3_available(*one_rank({{"PATH", path.c_str()}})));
  EXPECT_TRUE(is_sagemaker_available(*one_rank({{"PATH", path.c_str()}})));
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

// A PCI bus with these devices, each of a vendor and a model.
std::string pci_bus(const std::string& name,
                    const std::vector<std::pair<std::string, std::string>>& devices) {
  const std::filesystem::path bus = std::filesystem::path(::testing::TempDir()) / name;
  std::filesystem::remove_all(bus);
  std::filesystem::create_directories(bus);
  for (const auto& [vendor, model] : devices) {
    const auto folder = bus / ("0000:0" + model.substr(2));
    std::filesystem::create_directory(folder);
    std::ofstream(folder / "vendor") << vendor << "\n";
    std::ofstream(folder / "device") << model << "\n";
  }
  return bus.string();
}

TEST(Availability, TellsTheFirstGaudiFromItsSuccessors) {
  using internal::has_gaudi1;
  EXPECT_TRUE(has_gaudi1(pci_bus("gaudi", {{"0x8086", "0x1237"}, {"0x1da3", "0x1000"}})));
  EXPECT_TRUE(has_gaudi1(pci_bus("secured_gaudi", {{"0x1da3", "0x1010"}})));
  EXPECT_FALSE(has_gaudi1(pci_bus("gaudi2", {{"0x1da3", "0x1020"}, {"0x1da3", "0x1060"}})));
  EXPECT_FALSE(has_gaudi1(pci_bus("another_maker", {{"0x8086", "0x1000"}})));
  EXPECT_FALSE(has_gaudi1(pci_bus("empty", {}) + "/nowhere"));
}

TEST(Availability, OfASimulatedGaudiFollowsItsGeneration) {
  const SimulatedRank first("hpu", "gaudi", DeviceTrait::kFirstGaudi);
  EXPECT_TRUE(is_habana_gaudi1(first));
  EXPECT_FALSE(is_fp16_available(first));
  const SimulatedRank second("hpu", "gaudi2");
  EXPECT_FALSE(is_habana_gaudi1(second));
  EXPECT_TRUE(is_fp16_available(second));
  EXPECT_FALSE(is_habana_gaudi1(SimulatedRank("gpu", "gaudi", DeviceTrait::kFirstGaudi)))
      << "is not an HPU";
}

TEST(Availability, OfRocmFollowsTheMakerOfTheGpu) {
  const SimulatedRank amd("gpu", "of_amd", DeviceTrait::kRocm);
  EXPECT_TRUE(is_rocm_available(false, amd));
  EXPECT_THAT(get_gpu_info(amd).names, ::testing::IsEmpty()) << "are NVIDIA's";
  const SimulatedRank nvidia("gpu", "of_nvidia");
  EXPECT_FALSE(is_rocm_available(false, nvidia));
  EXPECT_THAT(get_gpu_info(nvidia).names, ::testing::ElementsAre("of_nvidia"));
  EXPECT_FALSE(is_rocm_available(false, SimulatedRank("hpu", "other", DeviceTrait::kRocm)));
}

TEST(Availability, OfADeviceIsForRanksOfItsFamilyAlone) {
  using Check = std::function<bool(const Runtime&)>;
  const std::vector<std::pair<std::string, Check>> checks = {
      {"gpu", [](const Runtime& rank) { return is_cuda_available(false, rank); }},
      {"xpu", [](const Runtime& rank) { return is_xpu_available(false, rank); }},
      {"xpu", [](const Runtime& rank) { return is_xccl_available(rank); }},
      {"npu", [](const Runtime& rank) { return is_npu_available(false, rank); }},
      {"mlu", [](const Runtime& rank) { return is_mlu_available(false, rank); }},
      {"musa", [](const Runtime& rank) { return is_musa_available(false, rank); }},
      {"sdaa", [](const Runtime& rank) { return is_sdaa_available(false, rank); }},
      {"neuron", [](const Runtime& rank) { return is_neuron_available(false, rank); }},
      {"hpu", [](const Runtime& rank) { return is_hpu_available(false, rank); }},
      {"mps", [](const Runtime& rank) { return is_mps_available("1.12", rank); }},
      {"tpu", [](const Runtime& rank) { return is_torch_xla_available(false, false, rank); }},
  };
  for (const auto& [family, check] : checks) {
    for (const char* own :
         {"cpu", "gpu", "xpu", "npu", "mlu", "musa", "sdaa", "neuron", "hpu", "mps", "tpu"}) {
      EXPECT_EQ(check(SimulatedRank(own)), family == own) << family << ", on a rank with " << own;
    }
  }
  EXPECT_FALSE(is_mps_available("1000", SimulatedRank("mps"))) << "LibTorch is older";
}

TEST(Availability, KnowsOnWhichDevicesThisProcessHasAContext) {
  auto runtime = one_rank();
  // Asking makes a tensor on the device where there is one.
  const bool has_gpu = is_cuda_available(/*check_device=*/true, *runtime);
  EXPECT_EQ(!initialized_devices().empty(), has_gpu);
}

TEST(Availability, RefusesArgumentsThatContradict) {
  auto runtime = one_rank();
  EXPECT_THROW(is_torch_xla_available(true, true, *runtime), c10::ValueError);
  EXPECT_THROW(is_mps_available("new", *runtime), c10::ValueError);
  EXPECT_THROW(is_torch_xla_available(false, false, *one_rank({{"USE_TORCH_XLA", "maybe"}})),
               c10::ValueError);
}

TEST(EnvironmentReport, ListsFactsInOrder) {
  auto runtime = one_rank({{"ACCELERATE_MIXED_PRECISION", "bf16"},
                           {"FSDP_VERSION", "2"},
                           {"AWS_SECRET_ACCESS_KEY", "hidden"}});
  const EnvironmentReport report = environment_report(*runtime);
  EXPECT_EQ(report.facts.front().name, "`Accelerate` version");
  const std::string text = report.to_string();
  EXPECT_THAT(
      text, AllOf(HasSubstr("- LibTorch version: "), HasSubstr("- Compiler: "),
                  HasSubstr("- NUMA nodes: "), HasSubstr("- System RAM: "),
                  HasSubstr("- LibTorch NPU available: False"), HasSubstr("- Launcher: torchrun\n"),
                  HasSubstr("- Rank: 0 of 1 (1x1), local rank 0\n"),
                  HasSubstr("ACCELERATE_MIXED_PRECISION=bf16"), HasSubstr("FSDP_VERSION=2")));
  EXPECT_THAT(text, Not(HasSubstr(": \n")));
  EXPECT_THAT(text, Not(HasSubstr("hidden")));
}

TEST(EnvironmentReport, CountsAConfigurationInAVariableAndDoesNotShowIt) {
  // The last two have the same text, {"a": "hidden~~?"}, in both alphabets of base64.
  for (const char* whole : {"{\"a\": \"hidden\"}", " \n{\"a\": 1}", "eyJhIjogImhpZGRlbn5+PyJ9",
                            "eyJhIjogImhpZGRlbn5-PyJ9"}) {
    const std::string text =
        environment_report(*one_rank({{"ACCELERATE_DEEPSPEED_CONFIG_FILE", whole}})).to_string();
    EXPECT_THAT(text, HasSubstr("ACCELERATE_DEEPSPEED_CONFIG_FILE=(JSON, " +
                                std::to_string(std::string(whole).size()) + " characters)"));
    EXPECT_THAT(text, Not(HasSubstr(whole)));
  }
  for (const char* path : {"ds_config.json", "/jobs/e/zero", "none", ""}) {
    EXPECT_THAT(
        environment_report(*one_rank({{"ACCELERATE_DEEPSPEED_CONFIG_FILE", path}})).to_string(),
        HasSubstr("ACCELERATE_DEEPSPEED_CONFIG_FILE=" + std::string(path)));
  }
}

TEST(EnvironmentReport, HasTheVariablesOfOtherLibraries) {
  for (const char* name : {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HIP_VISIBLE_DEVICES",
                           "ROCR_VISIBLE_DEVICES"}) {
    EXPECT_THAT(environment_report(*one_rank({{name, "0"}})).to_string(),
                HasSubstr(std::string(name) + "=0"));
  }
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
