#include "accelerate/device_map/device_map.h"

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/device_map/infer.h"

namespace accelerate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsNull;
using testing::Pair;

DeviceMap map_of(absl::string_view json) {
  const absl::StatusOr<DeviceMap> map = DeviceMap::parse(json);
  EXPECT_TRUE(map.ok()) << map.status();
  return map.value_or(DeviceMap());
}

std::string error_of(const absl::Status& status) { return std::string(status.message()); }

TEST(DevicePlacement, IsReadFromItsText) {
  for (const char* text : {"0", "17", "mps", "cpu", "disk", "cuda:1", "meta"}) {
    const absl::StatusOr<DevicePlacement> placement = DevicePlacement::parse(text);
    ASSERT_TRUE(placement.ok()) << text;
    EXPECT_EQ(placement->text(), text);
  }
  EXPECT_EQ(*DevicePlacement::parse("3"), DevicePlacement::accelerator(3));
  EXPECT_TRUE(DevicePlacement::parse("cuda:1")->is_named());
  EXPECT_TRUE(DevicePlacement::parse("disk")->is_offloaded());
  EXPECT_EQ(DevicePlacement::cpu().index(), -1);
}

TEST(DevicePlacement, RefusesWhatIsNoDevice) {
  EXPECT_THAT(error_of(DevicePlacement::parse("").status()), HasSubstr("empty name"));
  EXPECT_THAT(error_of(DevicePlacement::parse("-1").status()), HasSubstr("-1 is not the index"));
  EXPECT_THAT(error_of(DevicePlacement::parse("4294967296").status()), HasSubstr("4294967296"));
}

TEST(DevicePlacement, AcceleratorsComeBeforeTheHostAndItBeforeDisk) {
  EXPECT_LT(DevicePlacement::accelerator(2), DevicePlacement::accelerator(10));
  EXPECT_LT(DevicePlacement::accelerator(10), DevicePlacement::mps());
  EXPECT_LT(DevicePlacement::mps(), DevicePlacement::cpu());
  EXPECT_LT(DevicePlacement::cpu(), DevicePlacement::disk());
}

TEST(DeviceMap, TheLongestNameAroundATensorCounts) {
  const DeviceMap map = map_of(R"({"a": 0, "a.b": 1, "ab": "cpu", "": "disk"})");
  EXPECT_EQ(map.find("a.x")->text(), "0");
  EXPECT_EQ(map.find("a.b")->text(), "1");
  EXPECT_EQ(map.find("a.b.c.weight")->text(), "1");
  EXPECT_EQ(map.find("a.bc")->text(), "0");
  EXPECT_EQ(map.find("ab.weight")->text(), "cpu");
  EXPECT_EQ(map.find("weight")->text(), "disk");
  EXPECT_EQ(map.find("")->text(), "disk");
  EXPECT_THAT(map.find_exact("a.x"), IsNull());
  EXPECT_THAT(map_of(R"({"a": 0})").find("b.weight"), IsNull());
}

TEST(DeviceMap, KeepsItsOrderThroughJson) {
  const std::string text = R"({"z":1,"b":"cpu","a":"disk","c":"cuda:0"})";
  EXPECT_EQ(map_of(text).json(), text);
  EXPECT_EQ(map_of(R"({"m": "2"})").json(), R"({"m":2})");
  EXPECT_EQ(map_of(R"({"": 0, "a.b": "cpu"})").text(), "(model): 0\na.b: cpu\n");
}

TEST(DeviceMap, SettingAgainMovesAName) {
  DeviceMap map = map_of(R"({"a": 0, "b": 1})");
  map.set("a", DevicePlacement::disk());
  EXPECT_THAT(map.entries(), ElementsAre(Pair("a", DevicePlacement::disk()),
                                         Pair("b", DevicePlacement::accelerator(1))));
  EXPECT_EQ(map, map_of(R"({"b": 1, "a": "disk"})"));
  EXPECT_FALSE(map == map_of(R"({"b": 1, "a": 0})"));
}

TEST(DeviceMap, RefusesWhatIsNoMap) {
  const auto error = [](absl::string_view text) {
    return error_of(DeviceMap::parse(text).status());
  };
  EXPECT_THAT(error("[]"), HasSubstr("JSON object"));
  EXPECT_THAT(error("{"), HasSubstr("JSON object"));
  EXPECT_THAT(error(R"({"a": 0, "a": 1})"), HasSubstr("it has \"a\" twice"));
  EXPECT_THAT(error(R"({"a": -1})"), HasSubstr("-1 is not the index"));
  EXPECT_THAT(error(R"({"a": 1.5})"), HasSubstr("1.5 is not a device"));
  EXPECT_THAT(
      error(R"({"a": {"b": 0}})"),
      HasSubstr("is not a device; give an index, \"cpu\", \"disk\" or a device's name at \"/a\""));
}

TEST(CleanDeviceMap, ChangesWhatIsBelowAModule) {
  const DeviceMap map = map_of(R"({"a.x": 0, "b.x": 1, "a.y": 0, "b.y.v": 1, "b.y.w": 1})");
  EXPECT_EQ(clean_device_map(map, "b").json(), R"({"a.x":0,"a.y":0,"b":1})");
  EXPECT_EQ(clean_device_map(map, "b.y").json(), R"({"a.x":0,"b.x":1,"a.y":0,"b.y":1})");
  EXPECT_EQ(clean_device_map(map, "c"), map);
}

TEST(CleanDeviceMap, AModuleStandsForPartsOnOneDevice) {
  EXPECT_EQ(clean_device_map(map_of(R"({"a.x": 0, "a.y": 0, "b": 1})")).json(), R"({"b":1,"a":0})");
  EXPECT_EQ(clean_device_map(map_of(R"({"a.b.x": 0, "a.b.y": 0, "a.c": 1, "d": 1})")).json(),
            R"({"a.c":1,"d":1,"a.b":0})");
  EXPECT_EQ(clean_device_map(map_of(R"({"a.b.x": 0, "a.c": 0, "d.e": 0})")).json(), R"({"":0})");
  EXPECT_EQ(clean_device_map(map_of(R"({"a.b": 0, "c": 1})")).json(), R"({"a.b":0,"c":1})");
  EXPECT_TRUE(clean_device_map(DeviceMap()).empty());
}

TEST(CleanDeviceMap, NamesOfWhichOneBeginsTheOtherAreApart) {
  EXPECT_EQ(clean_device_map(map_of(R"({"ab": 0, "a.x": 0, "a.y": 0, "c": 1})")),
            map_of(R"({"ab": 0, "c": 1, "a": 0})"));
}

TEST(CleanDeviceMap, AModulesOwnDeviceIsNotOverwritten) {
  const DeviceMap map = map_of(R"({"a": 0, "a.x": 1, "a.y": 1, "b": 0})");
  EXPECT_EQ(clean_device_map(map), map);
}

// linear1 -> batchnorm, with a buffer that state dicts leave out.
ModuleTree small_tree() {
  ModuleTree tree("Small");
  const ModuleTree::Module linear = tree.add_module(0, "linear1", "Linear");
  tree.add_tensor(linear, {.name = "weight", .elements = 12});
  tree.add_tensor(linear, {.name = "bias", .elements = 4});
  const ModuleTree::Module norm = tree.add_module(0, "batchnorm", "BatchNorm1d");
  tree.add_tensor(norm, {.name = "weight", .dtype = "float16", .elements = 4});
  tree.add_tensor(norm, {.name = "mask", .dtype = "bool", .elements = 9, .is_buffer = true});
  tree.add_tensor(norm, {.name = "count",
                         .dtype = "int64",
                         .elements = 1,
                         .is_buffer = true,
                         .is_persistent = false});
  return tree;
}

TEST(CheckDeviceMap, NamesTheTensorsThatAreLeftOut) {
  const ModuleTree tree = small_tree();
  EXPECT_TRUE(check_device_map(tree, map_of(R"({"": 0})")).ok());
  EXPECT_TRUE(check_device_map(
                  tree, map_of(R"({"linear1": 0, "batchnorm.weight": 1, "batchnorm.mask": 1})"))
                  .ok());
  EXPECT_THAT(error_of(check_device_map(tree, map_of(R"({"linear1.bias": 0})"))),
              HasSubstr("no device for linear1.weight, batchnorm.weight, batchnorm.mask"));
  EXPECT_THAT(names_without_module(tree, map_of(R"({"": 0, "linear1.bias": 0, "linear2": 1})")),
              ElementsAre("linear1.bias", "linear2"));
}

TEST(ModuleTree, FindsWhatItHas) {
  const ModuleTree tree = small_tree();
  EXPECT_EQ(tree.module_path(tree.find_module("batchnorm")), "batchnorm");
  EXPECT_EQ(tree.find_module(""), 0);
  EXPECT_EQ(tree.find_module("batch"), -1);
  EXPECT_EQ(tree.tensor_path(tree.find_tensor("batchnorm.mask")), "batchnorm.mask");
  EXPECT_EQ(tree.find_tensor("linear1.mask"), -1);
}

TEST(Dtypes, HaveTheirBytesUnderEveryName) {
  const std::pair<double, std::vector<const char*>> groups[] = {
      {0.125, {"bool", "uint1"}},
      {0.25, {"uint2", "int2", "quint2x4"}},
      {0.375, {"uint3"}},
      {0.5, {"uint4", "int4", "quint4x2"}},
      {0.625, {"uint5"}},
      {0.75, {"uint6"}},
      {0.875, {"uint7"}},
      {1,
       {"uint8", "int8", "quint8", "qint8", "fp8", "float8_e4m3fn", "float8_e5m2",
        "float8_e4m3fnuz", "float8_e5m2fnuz", "bits8"}},
      {2, {"int16", "uint16", "short", "float16", "half", "bfloat16", "bits16"}},
      {4, {"int32", "int", "uint32", "qint32", "float32", "float", "complex32"}},
      {8, {"int64", "long", "uint64", "float64", "double", "complex64"}},
      {16, {"complex128"}}};
  for (const auto& [bytes, names] : groups) {
    for (const char* name : names) {
      EXPECT_EQ(dtype_bytes(name).value_or(-1), bytes) << name;
      EXPECT_EQ(dtype_bytes(std::string("torch.") + name).value_or(-1), bytes) << name;
    }
  }
  EXPECT_FALSE(dtype_bytes("").ok());
  EXPECT_FALSE(dtype_bytes("Float32").ok());
}

// What counts or tells true from false keeps its dtype.
TEST(Dtypes, OfIntegersAreKept) {
  for (const char* name : {"int8", "torch.int64", "uint4", "bool", "torch.bool"}) {
    EXPECT_TRUE(is_kept_dtype(name)) << name;
  }
  for (const char* name : {"float32", "torch.bfloat16", "half", "complex64", "quint8", "fp8"}) {
    EXPECT_FALSE(is_kept_dtype(name)) << name;
  }
}

TEST(ModuleSizes, CountEveryModuleAndTensor) {
  const auto sizes = compute_module_sizes(small_tree());
  ASSERT_TRUE(sizes.ok());
  EXPECT_THAT(*sizes, ElementsAre(Pair("", 81.125), Pair("linear1", 64.0),
                                  Pair("linear1.weight", 48.0), Pair("linear1.bias", 16.0),
                                  Pair("batchnorm", 17.125), Pair("batchnorm.weight", 8.0),
                                  Pair("batchnorm.mask", 1.125), Pair("batchnorm.count", 8.0)));
  EXPECT_THAT(get_module_leaves(*sizes),
              ElementsAre("linear1.weight", "linear1.bias", "batchnorm.weight", "batchnorm.mask",
                          "batchnorm.count"));
  const auto buffers = compute_module_sizes(small_tree(), {}, /*buffers_only=*/true);
  EXPECT_THAT(*buffers, ElementsAre(Pair("", 9.125), Pair("batchnorm", 9.125),
                                    Pair("batchnorm.mask", 1.125), Pair("batchnorm.count", 8.0)));
  EXPECT_EQ(*compute_module_total_buffer_size(small_tree()), 9.125);
}

TEST(ModuleSizes, ADtypeMakesTensorsSmallerButNeverLarger) {
  const SizeOptions half = {.dtype = "torch.float16",
                            .special_dtypes = {{"linear1.bias", "float64"}, {"none", "int8"}}};
  const auto sizes = compute_module_sizes(small_tree(), half);
  ASSERT_TRUE(sizes.ok());
  EXPECT_THAT(*sizes,
              testing::IsSupersetOf({Pair("linear1.weight", 24.0), Pair("linear1.bias", 32.0),
                                     Pair("batchnorm.mask", 1.125), Pair("batchnorm.count", 8.0)}));
  EXPECT_THAT(*compute_module_sizes(small_tree(), {.dtype = "float64"}),
              testing::Contains(Pair("linear1.weight", 48.0)));
  EXPECT_THAT(error_of(compute_module_sizes(small_tree(), {.dtype = "float12"}).status()),
              HasSubstr("\"float12\" is not a dtype"));
}

TEST(ModuleSizes, ATensorWithSeveralNamesCountsOnce) {
  ModuleTree tree("Tied");
  for (const char* name : {"a", "b"}) {
    const ModuleTree::Module linear = tree.add_module(0, name, "Linear");
    tree.add_tensor(linear, {.name = "weight", .elements = 10});
    tree.add_tensor(linear, {.name = "bias", .elements = 1});
  }
  tree.tie(tree.find_tensor("a.weight"), tree.find_tensor("b.weight"));
  EXPECT_THAT(*compute_module_sizes(tree),
              ElementsAre(Pair("", 48.0), Pair("a", 44.0), Pair("a.weight", 40.0),
                          Pair("a.bias", 4.0), Pair("b", 4.0), Pair("b.bias", 4.0)));
  EXPECT_THAT(tree.tied_parameters(), ElementsAre(ElementsAre("a.weight", "b.weight")));
  const auto with_ties = get_module_size_with_ties(tree, "a", {"b"});
  ASSERT_TRUE(with_ties.ok());
  EXPECT_EQ(with_ties->bytes, 48);
  EXPECT_THAT(with_ties->tied, ElementsAre("b"));
  EXPECT_EQ(get_module_size_with_ties(tree, "b", {"a"})->bytes, 48);
  EXPECT_EQ(get_module_size_with_ties(tree, "a", {})->bytes, 44);
  EXPECT_THAT(error_of(get_module_size_with_ties(tree, "c", {}).status()), HasSubstr("\"c\""));
}

TEST(ModuleSizes, TheLargestLayerIsNotDividedFurther) {
  ModuleTree tree = small_tree();
  EXPECT_EQ(calculate_maximum_sizes(tree)->total, 81.125);
  EXPECT_THAT(calculate_maximum_sizes(tree)->largest_layer.names, ElementsAre("linear1"));
  const ModuleTree::Module block = tree.add_module(0, "block", "Block");
  for (const char* name : {"0", "1"}) {
    tree.add_tensor(tree.add_module(block, name, "Linear"), {.name = "weight", .elements = 16});
  }
  const auto split = get_max_layer_size(tree);
  EXPECT_EQ(split->bytes, 64);
  EXPECT_THAT(split->names, ElementsAre("linear1", "block.0", "block.1"));
  const auto whole = get_max_layer_size(tree, {"Block"});
  EXPECT_EQ(whole->bytes, 128);
  EXPECT_THAT(whole->names, ElementsAre("block"));
}

TEST(MaxMemory, IsReadFromJsonAndFromWords) {
  const auto expected = ElementsAre(
      Pair(DevicePlacement::accelerator(0), 5e9), Pair(DevicePlacement::accelerator(1), 1048576.0),
      Pair(DevicePlacement::cpu(), 125000000.0), Pair(DevicePlacement::disk(), 7.0));
  EXPECT_THAT(*parse_max_memory(R"({"disk": 7, "cpu": "1Gb", "1": "1MiB", "0": "5.0GB"})"),
              expected);
  EXPECT_THAT(*parse_max_memory("cpu=1Gb, disk=7 ,0=5.0GB,1=1MiB"), expected);
}

TEST(MaxMemory, RefusesWhatIsNoLimit) {
  const auto error = [](absl::string_view text) {
    return error_of(parse_max_memory(text).status());
  };
  EXPECT_THAT(error("0"), HasSubstr("\"0\" is not a limit"));
  EXPECT_THAT(error("0=5XB"), HasSubstr("the limit of device 0: \"5XB\" is not a size"));
  EXPECT_THAT(error("gpu=5"), HasSubstr("\"gpu\""));
  EXPECT_THAT(error("0=-5"), HasSubstr("cannot be negative"));
  EXPECT_THAT(error("0=5,0=6"), HasSubstr("device 0 has two limits"));
  EXPECT_THAT(error(R"({"0": "12"})"), HasSubstr("\"12\" is not a size"));
  EXPECT_THAT(error(R"({"0": 1.5})"), HasSubstr("1.5 is neither"));
  EXPECT_THAT(error("{"), HasSubstr("JSON"));
}

// Bytes 64, 72 and 100, of leaf modules.
ModuleTree three_layers() {
  ModuleTree tree("Three");
  for (const auto& [name, elements] :
       {std::pair("linear1", 16), std::pair("batchnorm", 18), std::pair("linear2", 25)}) {
    tree.add_tensor(tree.add_module(0, name, name), {.name = "weight", .elements = 1.0 * elements});
  }
  return tree;
}

MaxMemory balanced(absl::string_view limits, const BalanceOptions& options = {}) {
  return *get_balanced_memory(three_layers(), *parse_max_memory(limits), options);
}

MaxMemory limits(absl::string_view text) { return *parse_max_memory(text); }

TEST(BalancedMemory, EachAcceleratorButTheLastGetsItsPart) {
  // 236 / 2, and 1.25 times the mean of the layers, 78.
  EXPECT_EQ(balanced("0=300,1=300"), limits("0=215,1=300"));
  EXPECT_EQ(balanced("0=150,1=300,cpu=9"), limits("0=150,1=300,cpu=9"));
  // 1.25 times the largest block, 100.
  EXPECT_EQ(balanced("0=300,1=500", {.no_split_module_classes = {"linear2"}}),
            limits("0=243,1=500"));
  EXPECT_EQ(balanced("0=0,1=300,2=300"), limits("0=0,1=215,2=300"));
}

// Models repeat a block: the first of a class stands for all of it, of several classes the largest.
TEST(BalancedMemory, GoesByTheFirstBlockOfEachClass) {
  ModuleTree tree("Model");
  for (const auto& [name, class_name, elements] :
       {std::tuple("a", "Small", 10), std::tuple("b", "Large", 25), std::tuple("c", "Large", 40),
        std::tuple("d", "Small", 1), std::tuple("e", "Small", 1), std::tuple("f", "Small", 1)}) {
    tree.add_tensor(tree.add_module(0, name, class_name),
                    {.name = "weight", .elements = 1.0 * elements});
  }
  const auto plan = [&](const std::vector<std::string>& classes) {
    return *get_balanced_memory(tree, *parse_max_memory("0=1000,1=1000"),
                                {.no_split_module_classes = classes});
  };
  // 312 bytes, a half on each; 52 are the mean, 40 and 100 the first blocks.
  EXPECT_EQ(plan({}), limits("0=221,1=1000"));
  EXPECT_EQ(plan({"Small"}), limits("0=221,1=1000")) << "the mean is larger";
  EXPECT_EQ(plan({"Large"}), limits("0=281,1=1000"));
  EXPECT_EQ(plan({"Small", "Large"}), limits("0=281,1=1000"));
  EXPECT_EQ(plan({"Large", "Small"}), limits("0=281,1=1000"));
}

TEST(BalancedMemory, Device0GetsWhatOthersCannotTake) {
  EXPECT_EQ(balanced("0=200,1=200,cpu=500", {.low_zero = true}), limits("0=36,1=200,cpu=500"));
  EXPECT_EQ(balanced("0=20,1=200", {.low_zero = true}), limits("0=20,1=200"));
  EXPECT_EQ(balanced("0=300,1=300", {.low_zero = true}), limits("0=0,1=300"));
}

TEST(BalancedMemory, OneAcceleratorKeepsATenthOfItsFreeMemory) {
  EXPECT_EQ(balanced("0=1000,cpu=50", {.low_zero = true, .limits_are_free_memory = true}),
            limits("0=900,cpu=50"));
  EXPECT_EQ(balanced("0=1000"), limits("0=1000"));
  EXPECT_EQ(balanced("cpu=50,disk=3", {.limits_are_free_memory = true}), limits("cpu=50,disk=3"));
}

}  // namespace
}  // namespace accelerate
