#include "accelerate/device_map/infer.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace accelerate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

// linear1 of 64 bytes, batchnorm of 72 (40 of them buffers) and linear2 of 100 below `parent`.
void add_model(ModuleTree& tree, ModuleTree::Module parent, double extra_buffers = 0) {
  const auto add = [&](const char* name, const char* class_name, double weight, double bias) {
    const ModuleTree::Module module = tree.add_module(parent, name, class_name);
    tree.add_tensor(module, {.name = "weight", .elements = weight});
    tree.add_tensor(module, {.name = "bias", .elements = bias});
    if (extra_buffers > 0) {
      tree.add_tensor(module, {.name = "table", .elements = extra_buffers / 4, .is_buffer = true});
    }
    return module;
  };
  add("linear1", "Linear", 12, 4);
  const ModuleTree::Module norm = add("batchnorm", "BatchNorm1d", 4, 4);
  tree.add_tensor(norm, {.name = "running_mean", .elements = 4, .is_buffer = true});
  tree.add_tensor(norm, {.name = "running_var", .elements = 4, .is_buffer = true});
  tree.add_tensor(norm, {.name = "count", .dtype = "int64", .elements = 1, .is_buffer = true});
  add("linear2", "Linear", 20, 5);
}

ModuleTree model(double extra_buffers = 0) {
  ModuleTree tree("Model");
  add_model(tree, 0, extra_buffers);
  return tree;
}

ModuleTree three_models(const std::vector<std::string>& names) {
  ModuleTree tree("Sequential");
  for (const std::string& name : names) add_model(tree, tree.add_module(0, name, "Model"));
  return tree;
}

ModuleTree linears(const std::vector<double>& weights) {
  ModuleTree tree("Sequential");
  for (size_t i = 0; i < weights.size(); ++i) {
    const ModuleTree::Module linear = tree.add_module(0, absl::StrCat("linear", i + 1), "Linear");
    tree.add_tensor(linear, {.name = "weight", .elements = weights[i]});
    tree.add_tensor(linear, {.name = "bias", .elements = 1});
  }
  return tree;
}

void tie(ModuleTree& tree, absl::string_view earlier, absl::string_view later) {
  tree.tie(tree.find_tensor(earlier), tree.find_tensor(later));
}

InferredDeviceMap infer(const ModuleTree& tree, absl::string_view limits,
                        const InferOptions& options = {}) {
  const absl::StatusOr<MaxMemory> max_memory = parse_max_memory(limits);
  EXPECT_TRUE(max_memory.ok()) << max_memory.status();
  const auto inferred = infer_auto_device_map(tree, *max_memory, options);
  EXPECT_TRUE(inferred.ok()) << inferred.status();
  EXPECT_TRUE(check_device_map(tree, inferred->map).ok());
  return *inferred;
}

std::string map_of(const ModuleTree& tree, absl::string_view limits,
                   const InferOptions& options = {}) {
  return infer(tree, limits, options).map.json();
}

// ---- Examples of HF Accelerate's tests.

TEST(InferAutoDeviceMap, TheFirstAcceleratorKeepsRoomForTheLargestLayer) {
  EXPECT_EQ(map_of(model(), "0=200,1=200"), R"({"linear1":0,"batchnorm":1,"linear2":1})");
}

// What computes keeps room: the first accelerator and the CPU, or Apple's alone.
TEST(InferAutoDeviceMap, TheHostKeepsRoomUnlessApplesDeviceComputes) {
  EXPECT_EQ(map_of(model(), "0=200,cpu=150"),
            R"({"linear1":0,"batchnorm":"disk","linear2":"disk"})");
  EXPECT_EQ(map_of(model(), "0=200,cpu=172"), R"({"linear1":0,"batchnorm":"cpu","linear2":"cpu"})");
  EXPECT_EQ(map_of(model(), "mps=200,cpu=150"),
            R"({"linear1":"mps","batchnorm":"cpu","linear2":"disk"})");
}

TEST(InferAutoDeviceMap, ATensorOfTheRootHasItsTurnOnceOnAllDevices) {
  ModuleTree tree("Model");
  tree.add_tensor(0, {.name = "a", .elements = 25});
  tree.add_tensor(0, {.name = "b", .elements = 25});
  tree.add_tensor(tree.add_module(0, "c", "Linear"), {.name = "weight", .elements = 3});
  // "b" is still to be placed when "a" has its turns, so both devices keep room for 100 bytes.
  EXPECT_EQ(map_of(tree, "0=150,cpu=150"), R"({"":"disk"})");
}

TEST(InferAutoDeviceMap, OtherAcceleratorsAreFilledToTheLastByte) {
  EXPECT_EQ(map_of(model(), "0=200,1=172,2=200"), R"({"linear1":0,"batchnorm":1,"linear2":1})");
  EXPECT_EQ(map_of(model(), "0=200,1=171,2=200"), R"({"linear1":0,"batchnorm":1,"linear2":2})");
}

TEST(InferAutoDeviceMap, ATiedWeightCountsOnce) {
  ModuleTree tree = model();
  tie(tree, "linear2.weight", "linear1.weight");
  EXPECT_EQ(map_of(tree, "0=200,1=200"), R"({"":0})");
}

TEST(InferAutoDeviceMap, AModuleThatDoesNotFitIsDivided) {
  EXPECT_EQ(map_of(three_models({"0", "1", "2"}), "0=500,1=500"),
            R"({"0":0,"1.linear1":0,"1.batchnorm":0,"1.linear2":1,"2":1})");
}

TEST(InferAutoDeviceMap, ClassesThatAreNotSplitStayWhole) {
  EXPECT_EQ(
      map_of(three_models({"0", "1", "2"}), "0=500,1=500", {.no_split_module_classes = {"Model"}}),
      R"({"0":0,"1":1,"2":1})");
}

TEST(InferAutoDeviceMap, OnlyTheTiedPartOfALaterModuleComesAlong) {
  ModuleTree tree = three_models({"layer1", "layer2", "layer3"});
  tie(tree, "layer1.linear2.weight", "layer3.linear2.weight");
  const DeviceMap expected = *DeviceMap::parse(R"({"layer1": 0, "layer3.linear2": 0, "layer2": 1,)"
                                               R"( "layer3.linear1": 1, "layer3.batchnorm": 1})");
  EXPECT_EQ(infer(tree, "0=400,1=500").map, expected);
}

TEST(InferAutoDeviceMap, TwoPairsOfTiedLayersAreTwoPlaces) {
  ModuleTree tree = linears({19, 41, 19, 41});
  tie(tree, "linear1.weight", "linear3.weight");
  tie(tree, "linear2.weight", "linear4.weight");
  EXPECT_EQ(infer(tree, "0=255,1=400").map,
            *DeviceMap::parse(R"({"linear1": 0, "linear2": 1, "linear3": 0, "linear4": 1})"));
}

// A search that looked at each of them for each of them would not end.
TEST(InferAutoDeviceMap, ThousandsMayShareATensor) {
  constexpr int kLayers = 2000;
  ModuleTree tree = linears(std::vector<double>(kLayers, 10));
  const ModuleTree::Tensor first = tree.find_tensor("linear1.weight");
  for (ModuleTree::Tensor each = first + 2; each < 2 * kLayers; each += 2) tree.tie(first, each);
  // 40 bytes for all, and 4 for each.
  EXPECT_EQ(map_of(tree, "0=8044,1=8040"), R"({"":0})");
  EXPECT_EQ(map_of(tree, "0=8043,1=8040"), R"({"":1})");
  EXPECT_EQ(infer(tree, "0=8000,1=8040", {.fallback_allocation = true}).devices[1].used, 8040);
}

TEST(InferAutoDeviceMap, BuffersOnTheHostWantRoomOnAnAccelerator) {
  const ModuleTree tree = model(/*extra_buffers=*/80);
  const InferredDeviceMap inferred = infer(tree, "0=330,cpu=1GB");
  EXPECT_EQ(inferred.map.json(), R"({"linear1":0,"batchnorm":"cpu","linear2":"cpu"})");
  EXPECT_EQ(inferred.buffers_without_room, 200);
  EXPECT_THAT(inferred.warnings(), ElementsAre(HasSubstr("take 200 bytes")));
  EXPECT_THAT(infer(tree, "0=330,cpu=1GB", {.offload_buffers = true}).warnings(), IsEmpty());
  // The second accelerator has room for them, or has not.
  EXPECT_EQ(map_of(tree, "0=330,1=160,cpu=1GB"), R"({"linear1":0,"batchnorm":1,"linear2":"cpu"})");
  EXPECT_EQ(infer(tree, "0=330,1=160,cpu=1GB").buffers_without_room, 80);
  EXPECT_THAT(infer(tree, "0=330,1=1,2=290,cpu=1GB", {.no_split_module_classes = {}}).warnings(),
              testing::Not(testing::Contains(HasSubstr("buffers"))));
}

TEST(InferAutoDeviceMap, ADeviceThatIsTooSmallStaysEmpty) {
  // 200 bytes, then 64, with 200 kept for what comes later.
  const ModuleTree tree = linears({49, 15});
  const InferredDeviceMap inferred = infer(tree, "0=256,cpu=1000");
  EXPECT_EQ(inferred.map.json(), R"({"":"cpu"})");
  EXPECT_THAT(inferred.too_small, ElementsAre(Pair(DevicePlacement::accelerator(0), 264.0)));
  EXPECT_THAT(inferred.warnings(), ElementsAre(HasSubstr("device 0 stays empty")));
}

TEST(InferAutoDeviceMap, ALaterModuleThatFitsMayFillTheDevice) {
  ModuleTree tree = linears({49, 15});
  const ModuleTree::Module deep = tree.add_module(0, "deep", "Block");
  tree.add_tensor(tree.add_module(deep, "0", "Linear"), {.name = "weight", .elements = 30});
  tree.add_tensor(tree.add_module(deep, "1", "Linear"), {.name = "weight", .elements = 4});
  EXPECT_EQ(infer(tree, "0=220,cpu=1000").map.find("deep.1")->text(), "cpu");
  const InferredDeviceMap inferred = infer(tree, "0=220,cpu=1000", {.fallback_allocation = true});
  EXPECT_EQ(inferred.map.find("deep.1")->text(), "0");
  EXPECT_EQ(inferred.map.find("linear1")->text(), "cpu");
  EXPECT_THAT(inferred.too_small, IsEmpty());
}

// ---- What HF Accelerate leaves open or fails at.

TEST(FallbackAllocate, FindsTheFirstPartThatFits) {
  ModuleTree tree = three_models({"a", "b"});
  const std::vector<std::string> all = {"a", "b"};
  const auto whole = fallback_allocate(tree, all, 236);
  ASSERT_TRUE(whole.ok() && *whole);
  EXPECT_EQ((*whole)->name, "a");
  EXPECT_THAT((*whole)->remaining, ElementsAre("b"));
  const auto part = fallback_allocate(tree, all, 64);
  ASSERT_TRUE(part.ok() && *part);
  EXPECT_EQ((*part)->name, "a.linear1");
  EXPECT_THAT((*part)->remaining, ElementsAre("a.batchnorm", "a.linear2", "b"));
  // With its tie it takes more.
  tie(tree, "a.linear1.weight", "b.linear2.weight");
  const auto untied = fallback_allocate(tree, all, 72);
  ASSERT_TRUE(untied.ok() && *untied);
  EXPECT_EQ((*untied)->name, "a.batchnorm");
  EXPECT_FALSE(*fallback_allocate(tree, all, 10));
  EXPECT_FALSE(*fallback_allocate(tree, all, 236, {.no_split_module_classes = {"Model"}}));
  EXPECT_THAT(
      fallback_allocate(tree, std::vector<std::string>{"a", "a.linear1"}, 1).status().message(),
      HasSubstr("overlap"));
  EXPECT_THAT(fallback_allocate(tree, std::vector<std::string>{"c"}, 1).status().message(),
              HasSubstr("\"c\""));
}

TEST(InferAutoDeviceMap, TiesAcrossDividedModulesStayTogether) {
  ModuleTree tree = three_models({"a", "b"});
  tree.add_tensor(0, {.name = "weight", .elements = 20});
  tie(tree, "weight", "b.linear2.weight");
  const DeviceMap map = infer(tree, "0=300,1=150,2=500").map;
  EXPECT_EQ(*map.find("weight"), *map.find("b.linear2.weight"));
}

TEST(InferAutoDeviceMap, NamesThatEndAlikeAreNotTied) {
  // "weight" is the end of "linear2.weight", and not a part of it.
  ModuleTree tree("Model");
  tree.add_tensor(0, {.name = "weight", .elements = 1});
  add_model(tree, 0);
  add_model(tree, tree.add_module(0, "more", "Model"));
  tie(tree, "linear2.bias", "more.linear2.bias");
  EXPECT_EQ(infer(tree, "0=72,1=1000").map.find("more.linear2")->text(), "1");
  EXPECT_EQ(infer(tree, "0=172,1=1000").map.find("linear1")->text(), "0");
}

TEST(InferAutoDeviceMap, BuffersOfADividedModuleAreInTheMap) {
  ModuleTree tree("Model");
  const ModuleTree::Module block = tree.add_module(0, "block", "Block");
  tree.add_tensor(block, {.name = "scale", .elements = 5});
  tree.add_tensor(block, {.name = "table", .elements = 10, .is_buffer = true});
  add_model(tree, block);
  EXPECT_EQ(map_of(tree, "0=200,1=500"),
            R"({"block.scale":0,"block.table":0,"block.linear1":1,"block.batchnorm":1,)"
            R"("block.linear2":1})");
}

TEST(InferAutoDeviceMap, FractionsOfBytesAreNoObstacleToFallback) {
  ModuleTree tree("Model");
  tree.add_tensor(tree.add_module(0, "a", "A"),
                  {.name = "mask", .dtype = "bool", .elements = 81, .is_buffer = true});
  tree.add_tensor(tree.add_module(0, "b", "B"), {.name = "weight", .elements = 1});
  tree.add_tensor(tree.add_module(0, "c", "C"), {.name = "weight", .elements = 5});
  EXPECT_EQ(map_of(tree, "0=24,cpu=100", {.fallback_allocation = true}),
            R"({"b":0,"a":"cpu","c":"cpu"})");
}

TEST(InferAutoDeviceMap, RefusesDevicesItDoesNotKnow) {
  const auto error = [](MaxMemory limits) {
    return std::string(infer_auto_device_map(model(), limits).status().message());
  };
  EXPECT_THAT(error({{*DevicePlacement::parse("cuda:0"), 5}}), HasSubstr("\"cuda:0\""));
  EXPECT_THAT(error({{DevicePlacement::cpu(), -5}}), HasSubstr("cannot be negative"));
}

TEST(InferAutoDeviceMap, ExplainsEveryDecisionWithItsNumbers) {
  ModuleTree tree = model();
  tie(tree, "linear1.bias", "batchnorm.weight");
  const InferredDeviceMap inferred = infer(tree, "0=200,1=200", {.explain = true});
  EXPECT_EQ(
      explain(inferred),
      "linear1: 64 bytes, 120 with batchnorm (tied); device 0 has 100 left, and keeps 100 for "
      "the largest layer: goes to the next device\n"
      "linear1: 64 bytes, 120 with batchnorm (tied); device 1 has 200 left: placed\n"
      "linear2: 100 bytes; device 1 has 80 left: goes to the next device\n"
      "linear2: 100 bytes; device disk: placed\n"
      "device 0: 0 bytes of 200, 100 kept free\n"
      "device 1: 120 bytes of 200\n"
      "device disk: 100 bytes\n"
      "warning: device 0 stays empty: the module whose turn it was takes 220 bytes there, "
      "with the room kept for the largest layer\n");
  EXPECT_THAT(infer(tree, "0=200,1=200").explanation, IsEmpty());
}

// ---- Many models.

class RandomTree {
 public:
  explicit RandomTree(uint64_t seed) : random_(seed) {
    fill(0, 0);
    const int ties = below(4);
    for (int i = 0; i < ties && tree_.tensors().size() > 1; ++i) {
      const auto any = [&] { return below(static_cast<int>(tree_.tensors().size())); };
      const int a = any();
      const int b = any();
      if (!tree_.tensor(a).is_buffer && !tree_.tensor(b).is_buffer) tree_.tie(a, b);
    }
  }

  const ModuleTree& tree() const { return tree_; }
  int below(int limit) { return std::uniform_int_distribution<int>(0, limit - 1)(random_); }

  MaxMemory limits() {
    const auto total = static_cast<int>(
        compute_module_sizes(tree_)->empty() ? 1 : compute_module_sizes(tree_)->front().second);
    MaxMemory limits;
    const int accelerators = below(4);
    for (int i = 0; i < accelerators; ++i) {
      limits.emplace_back(DevicePlacement::accelerator(i), below(total + 2));
    }
    if (below(4) > 0) limits.emplace_back(DevicePlacement::cpu(), below(total + 2));
    return limits;
  }

  InferOptions options() {
    InferOptions options;
    if (below(2) == 0) options.no_split_module_classes = {absl::StrCat("Class", below(3))};
    if (below(3) == 0) options.sizes.dtype = "float16";
    options.clean_result = below(2) == 0;
    options.offload_buffers = below(2) == 0;
    options.fallback_allocation = below(2) == 0;
    return options;
  }

 private:
  void fill(ModuleTree::Module module, int depth) {
    const char* const dtypes[] = {"float32", "bfloat16", "int64", "bool"};
    const int tensors = below(3);
    for (int i = 0; i < tensors; ++i) {
      tree_.add_tensor(module, {.name = i == 0 ? "weight" : absl::StrCat("tensor", i),
                                .dtype = dtypes[below(4)],
                                .elements = 1.0 * below(20),
                                .is_buffer = below(3) == 0});
    }
    const int children = depth < 4 ? below(4) : 0;
    for (int i = 0; i < children; ++i) {
      fill(tree_.add_module(module, absl::StrCat(i), absl::StrCat("Class", below(3))), depth + 1);
    }
  }

  std::mt19937_64 random_;
  ModuleTree tree_;
};

// Bytes on each device, with every tensor counted once where it lies, straight from the names.
std::map<DevicePlacement, double> bytes_by_device(const ModuleTree& tree, const DeviceMap& map,
                                                  const std::string& dtype) {
  std::map<DevicePlacement, double> bytes;
  std::map<ModuleTree::Tensor, DevicePlacement> place;
  for (ModuleTree::Tensor i = 0; i < static_cast<int>(tree.tensors().size()); ++i) {
    const ModuleTree::TensorInfo& tensor = tree.tensor(i);
    const DevicePlacement* device = map.find(tree.tensor_path(i));
    if (device == nullptr) {
      ADD_FAILURE() << tree.tensor_path(i) << " is not in the map";
      continue;
    }
    const auto [found, is_new] = place.emplace(tensor.identity, *device);
    EXPECT_EQ(found->second, *device) << tree.tensor_path(i) << " is apart from its tie";
    const double own = *dtype_bytes(tensor.dtype);
    const bool is_converted = dtype == "float16" && !is_kept_dtype(tensor.dtype);
    if (is_new) bytes[*device] += tensor.elements * (is_converted ? std::min(own, 2.0) : own);
  }
  return bytes;
}

TEST(InferAutoDeviceMap, HoldsItsPromisesForTenThousandModels) {
  for (uint64_t seed = 0; seed < 10000 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RandomTree random(seed);
    const MaxMemory limits = random.limits();
    const InferOptions options = random.options();
    const auto inferred = infer_auto_device_map(random.tree(), limits, options);
    ASSERT_TRUE(inferred.ok()) << inferred.status();

    const auto bytes = bytes_by_device(random.tree(), inferred->map, options.sizes.dtype);
    for (const DeviceUse& use : inferred->devices) {
      const auto found = bytes.find(use.device);
      EXPECT_EQ(found == bytes.end() ? 0 : found->second, use.used) << use.device.text();
      if (use.limit) EXPECT_LE(use.used, *use.limit) << use.device.text();
    }

    // The order in which limits are given, and that of the entries, mean nothing.
    MaxMemory turned(limits.rbegin(), limits.rend());
    EXPECT_EQ(infer_auto_device_map(random.tree(), turned, options)->map.json(),
              inferred->map.json());
    std::vector<DeviceMap::Entry> entries = inferred->map.entries();
    std::ranges::reverse(entries);
    EXPECT_EQ(clean_device_map(DeviceMap(entries)), clean_device_map(inferred->map));
    const auto cleaned =
        bytes_by_device(random.tree(), clean_device_map(inferred->map), options.sizes.dtype);
    EXPECT_EQ(cleaned, bytes);
  }
}

}  // namespace
}  // namespace accelerate
