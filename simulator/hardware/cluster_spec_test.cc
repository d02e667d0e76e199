#include "simulator/hardware/cluster_spec.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "simulator/hardware/kernel_table_text.h"
#include "simulator/hardware/kernel_tables.h"
#include "simulator/hardware/kernel_time.h"
#include "simulator/hardware/presets.h"

namespace accelerate::simulator {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ClusterSpec parsed(const std::string& text) {
  absl::StatusOr<ClusterSpec> spec = ClusterSpec::parse(text);
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  return spec.value_or(ClusterSpec());
}

std::string error_of(const std::string& text) {
  return std::string(ClusterSpec::parse(text).status().message());
}

// A file that lasts as long as the test.
std::string write_file(const std::string& name, const std::string& contents) {
  const std::string path = absl::StrCat(::testing::TempDir(), name);
  std::ofstream(path) << contents;
  return path;
}

TEST(ClusterSpec, ReadsNodesAndRanks) {
  auto spec = ClusterSpec::parse("2x4");
  ASSERT_TRUE(spec.ok());
  EXPECT_EQ(spec->num_nodes, 2);
  EXPECT_EQ(spec->ranks_per_node, 4);
  EXPECT_EQ(spec->world_size(), 8);
  EXPECT_EQ(spec->to_string(), "2x4");
  EXPECT_FALSE(spec->device.has_value());
}

TEST(ClusterSpec, PointsAtTheCharacterOfABadShape) {
  struct Case {
    const char* text;
    const char* expected;
  };
  for (const Case& c : {
           Case{"", "a number of nodes from 1 to 16384 at character 1"},
           Case{"x4", "a number of nodes from 1 to 16384 at character 1"},
           Case{"x4:h100", "a number of nodes from 1 to 16384 at character 1"},
           Case{"2", "'x' at character 2"},
           Case{"2*4", "'x' at character 2"},
           Case{"2x", "a number of ranks per node from 1 to 16384 at character 3"},
           Case{"2x0", "a number of ranks per node from 1 to 16384 at character 3"},
           Case{"2x4 warp", "the end at character 4\n  2x4 warp\n     ^"},
           Case{"2x4,nic=200Gbps", "the end at character 4"},
           Case{"-1x4", "a number of nodes"},
           Case{"128x129", "at most 16384 ranks in all at character 5"},
           Case{"99999999999x1", "a number of nodes"},
           Case{"h100", "a number of nodes from 1 to 16384 at character 1"},
       }) {
    EXPECT_THAT(error_of(c.text), HasSubstr(c.expected)) << c.text;
  }
}

TEST(CheckDevices, RefusesMoreInANodeThanLibTorchCounts) {
  const auto error = [](const std::string& text) {
    return std::string(internal::check_devices(parsed(text), text).message());
  };
  for (const char* text : {"2x200", "2x127:h100", "1x31:h100,devices=4"})
    EXPECT_EQ(error(text), "");
  const std::pair<const char*, int> cases[] = {
      {"2x200:h100", 200},
      {"2x4:h100,devices=1000", 4000},
      {R"({"num_nodes": 2, "ranks_per_node": 128, "device": "h100"})", 128},
      {R"({"num_nodes": 2, "ranks_per_node": 8, "device": "h100", "devices_per_rank": 16})", 128}};
  for (const auto& [text, count] : cases) {
    EXPECT_EQ(error(text), absl::StrCat("bad topology \"", text, "\": a node has ", count,
                                        " devices, and LibTorch counts 127 at most: divide the "
                                        "ranks among more nodes"));
  }
}

TEST(ClusterSpec, PutsDevicesIntoTheirUsualNode) {
  const ClusterSpec spec = parsed("2x4:h100");
  EXPECT_EQ(spec.num_nodes, 2);
  EXPECT_EQ(spec.ranks_per_node, 4);
  EXPECT_EQ(*spec.device, *find_device("h100"));
  EXPECT_EQ(spec.node_fabric, NodeFabric::kSwitch);
  EXPECT_EQ(spec.network_fabric, NetworkFabric::kRails);
  EXPECT_EQ(spec.nics_per_node, 4);
  EXPECT_EQ(parsed("2x4:max1550").nics_per_node, 8);
  EXPECT_EQ(parsed("2x4:cpu").nics_per_node, 1);
  EXPECT_EQ(parsed("4x8:910b").device->name, "ascend910b");
}

TEST(ClusterSpec, ReadsEveryKey) {
  const ClusterSpec spec = parsed(
      "2x8:a100,mem=4GiB,hbm=1TB/s,flops=156TFLOPS,launch=7us,host=12GB/s,node=mesh,link=10GB/s,"
      "link_latency=300ns,fabric=fat-tree,nics=2,nic=200Gbps,nic_latency=1.5us,disk=7GB/s,"
      "disk_latency=50us");
  EXPECT_EQ(spec.device->name, "a100-80");
  EXPECT_EQ(spec.device->memory_bytes, int64_t{4} << 30);
  EXPECT_EQ(spec.device->memory_bytes_per_second, 1e12);
  EXPECT_EQ(spec.device->flops(MathType::kBf16), 156e12);
  EXPECT_EQ(spec.device->flops(MathType::kInt8), 312e12);
  EXPECT_EQ(spec.device->flops(MathType::kFp32), 9.75e12);
  EXPECT_EQ(spec.device->launch_ns, 7000);
  EXPECT_EQ(spec.device->host_bytes_per_second, 12e9);
  EXPECT_EQ(spec.node_fabric, NodeFabric::kMesh);
  EXPECT_EQ(spec.node_link, (LinkModel{10e9, 300}));
  EXPECT_EQ(spec.network_fabric, NetworkFabric::kFatTree);
  EXPECT_EQ(spec.nics_per_node, 2);
  EXPECT_EQ(spec.nic, (LinkModel{25e9, 1500}));
  EXPECT_EQ(spec.disk, (DiskModel{7e9, 50000}));
}

TEST(ClusterSpec, GivesNodesOfNamedDevicesADiskThatTakesTime) {
  EXPECT_FALSE(parsed("2x4").disk.takes_time());
  EXPECT_EQ(parsed("2x4:h100").disk, (DiskModel{3.5e9, 80000}));
  EXPECT_EQ(parsed("tpu-v4:2x2x4,disk=1GB/s").disk, (DiskModel{1e9, 80000}));
  EXPECT_EQ(parsed("2x4:h100,disk_latency=1ms").disk, (DiskModel{3.5e9, 1000000}));
  EXPECT_EQ(parsed("2x4:h100,disk=off").disk, DiskModel());
  EXPECT_EQ(parsed("2x4:h100,disk=off").to_string(), "2x4:h100,disk=off");
  const std::string json = R"({"num_nodes": 2, "ranks_per_node": 4, "device": "h100", "disk": )";
  EXPECT_EQ(parsed(json + "\"off\"}"), parsed("2x4:h100,disk=off"));
  EXPECT_EQ(parsed(json + "{\"bytes_per_second\": \"1GB/s\"}}"), parsed("2x4:h100,disk=1GB/s"));
}

TEST(ClusterSpec, DoesNotMindTheOrderOfKeys) {
  EXPECT_EQ(parsed("2x8:h100,link=20GB/s,node=pcie,nics=2,fabric=fat-tree"),
            parsed("2x8:h100,fabric=fat-tree,nics=2,node=pcie,link=20GB/s"));
}

TEST(ClusterSpec, DerivesLinksFromAnotherFabric) {
  EXPECT_EQ(parsed("1x8:h100,node=pcie").node_link.bytes_per_second, 64e9);
  EXPECT_EQ(parsed("1x8:a100,node=mesh").node_link.bytes_per_second, 300e9 / 7);
  EXPECT_EQ(parsed("1x8:mi300x,node=switch").node_link.bytes_per_second, 7 * 64e9);
  EXPECT_EQ(parsed("2x8:h100,fabric=ethernet").nics_per_node, 1);
  EXPECT_EQ(parsed("2x6:v100,fabric=rails").nics_per_node, 6);
}

TEST(ClusterSpec, ReadsATorusByItsAxes) {
  const ClusterSpec spec = parsed("tpu-v4:2x2x4");
  EXPECT_THAT(spec.torus, ElementsAre(2, 2, 4));
  EXPECT_EQ(spec.world_size(), 16);
  EXPECT_EQ(spec.num_nodes, 4);
  EXPECT_EQ(spec.ranks_per_node, 4);
  EXPECT_EQ(spec.node_fabric, NodeFabric::kTorus);
  EXPECT_EQ(parsed("tpu-v5e:3x3").ranks_per_node, 3);
  EXPECT_EQ(parsed("tpu-v5e:2").num_nodes, 1);
  EXPECT_EQ(parsed("tpu-v5p:7").ranks_per_node, 1);
  EXPECT_EQ(parsed("tpu-v4:16x16x16").world_size(), 4096);
  EXPECT_EQ(parsed("tpu-v4:2x4,link=10GB/s,mem=1GiB").node_link.bytes_per_second, 10e9);
  EXPECT_THAT(parsed("2x4:tpu-v4").torus, ElementsAre(2, 4));
  EXPECT_EQ(parsed("2x4:tpu-v4").num_nodes, 2);
}

TEST(ClusterSpec, PointsAtTheCharacterOfABadDeviceOrKey) {
  struct Case {
    const char* text;
    const char* expected;
  };
  for (const Case& c : {
           Case{"2x4:", "a device (one of v100, a100-40,"},
           Case{"2x4:h10", "a device (did you mean \"h100\" or "},
           Case{"2x4:h10", "at character 5\n  2x4:h10\n      ^"},
           Case{"2x4:nic=200Gbps", "at character 5"},
           Case{"2x4:h100,", "a key (one of mem, hbm, flops"},
           Case{"2x4:h100,", "at character 10"},
           Case{"2x4:h100,memory=1GiB", "a key (did you mean \"mem\"?) at character 10"},
           Case{"2x4:h100,mem", "'=' after \"mem\" at character 13"},
           Case{"2x4:h100,mem=", "a size such as 80GiB at character 14"},
           Case{"2x4:h100,mem=80Gib", "a unit: TiB, GiB, MiB, KiB, B, TB, GB, MB, kB, KB at"},
           Case{"2x4:h100,mem=80Gib", "at character 16\n  2x4:h100,mem=80Gib\n                 ^"},
           Case{"2x4:h100,mem=0", "a size such as 80GiB, above zero at character 14"},
           Case{"2x4:h100,mem=-1", "a size such as 80GiB at character 14"},
           Case{"2x4:h100,nic=nan", "a bandwidth such as 25GB/s or 200Gbps at character 14"},
           Case{"2x4:h100,nic=200", "a unit: TB/s"},
           Case{"2x4:h100,mem=99999999999999999999", "at most 8192TiB at character 14"},
           Case{"2x4:h100,mem=1GiB,mem=2GiB",
                "each key once, but \"mem\" occurs twice at "
                "character 19"},
           Case{"2x4:h100,nics=0", "a number of NICs from 1 to 16384 at character 15"},
           Case{"2x4:h100,nics=2,fabric=ethernet",
                "1: ethernet has one NIC a node at character 15"},
           Case{"2x4:h100,node=meshed", "did you mean \"mesh\"? at character 15"},
           Case{"2x4:h100,fabric=rail", "did you mean \"rails\"? at character 17"},
           Case{"2x4:h100,flops=1PB/s", "a unit: PFLOPS, TFLOPS, GFLOPS, FLOPS at character 17"},
           Case{"h100:2x4", "NODESxRANKS:h100, as in \"2x4:h100\""},
           Case{"tpu-v9:2x4", "did you mean \"tpu-v4\""},
           Case{"tpu-v4:", "a number of chips along an axis from 1 to 16384 at character 8"},
           Case{"tpu-v4:2x0", "a number of chips along an axis from 1 to 16384 at character 10"},
           Case{"tpu-v4:2x2x2x2", "',' or the end, after 3 axes of a tpu-v4 at character 13"},
           Case{"tpu-v5e:2x2x2", "after 2 axes of a tpu-v5e at character 12"},
           Case{"tpu-v4:128x129", "at most 16384 chips in all at character 12"},
           Case{"tpu-v4:2x4;", "'x', ',' or the end at character 11"},
           Case{"2x4:h100,disk=on",
                "a bandwidth such as 25GB/s or 200Gbps, or \"off\" at character 15"},
           Case{"2x4:h100,disk_latency=1us,disk=off",
                "no \"disk_latency\" beside \"disk=off\" at character 23"},
           Case{"tpu-v4:2x4,nic=200Gbps",
                "(a torus has one device a rank, and neither switches nor NICs) at character 12"},
           Case{"2x4:h100,devices=0",
                "a number of devices per rank from 1 to 16384 at character 18"},
           Case{"2x4:h100,devices=two", "a number of devices per rank from 1 to 16384"},
           Case{"2x4:tpu-v4,devices=2", "(a torus has one device a rank, and neither switches"},
       }) {
    EXPECT_THAT(error_of(c.text), HasSubstr(c.expected)) << c.text;
  }
}

TEST(ClusterSpec, WritesWhatItReads) {
  for (const std::string text :
       {"1x1", "2x4", "2x4:h100", "2x8:a100-80,nic=20GB/s", "tpu-v4:2x2x4", "2x2:tpu-v4",
        "2x4:h100,mem=72GiB", "2x4:h100,mem=80MiB,efficiency=ideal", "tpu-v5e:4x4,link=10GB/s",
        "2x8:v100,node=mesh,fabric=rails,nics=2,nic_latency=3us",
        "1x8:mi300x,flops=1PFLOPS,launch=3us", "1x1:h100,devices=4", "2x2:h100,devices=2,nics=3",
        "1x8:b200,efficiency=ideal", "1x8:h100,expandable_segments=true,max_split_size=128MiB"}) {
    const std::string again = parsed(text).to_string();
    EXPECT_EQ(parsed(again), parsed(text)) << text << " -> " << again;
    EXPECT_EQ(again.size(), text.size()) << again;
  }
}

TEST(ClusterSpec, RoundTripsEveryPresetWithEveryKey) {
  const std::vector<std::string> keys = {"",
                                         ",mem=7GiB",
                                         ",hbm=123.456GB/s",
                                         ",flops=333.3TFLOPS",
                                         ",launch=1234ns",
                                         ",host=7GB/s",
                                         ",link=33.3GB/s",
                                         ",link_latency=1ms",
                                         ",disk=off",
                                         ",disk=123.456MB/s",
                                         ",disk_latency=7ns"};
  const std::vector<std::string> node_keys = {
      ",node=switch",
      ",node=mesh",
      ",node=pcie",
      ",fabric=rails",
      ",fabric=fat-tree",
      ",fabric=ethernet",
      ",nics=3,fabric=rails",
      ",nic=17.5Gbps",
      ",devices=3",
      ",devices=2,node=pcie,fabric=ethernet",
      ",nic_latency=17ns",
      ",nic=17.5Gbps,node=mesh,fabric=ethernet,flops=1TFLOPS,mem=12345678901"};
  for (const Preset& preset : presets()) {
    std::vector<std::string> texts;
    for (const std::string& key : keys) {
      texts.push_back(absl::StrCat("3x5:", preset.device.name, key));
      if (preset.torus_axes > 0) texts.push_back(absl::StrCat(preset.device.name, ":4x6", key));
    }
    if (preset.torus_axes == 0) {
      for (const std::string& key : node_keys) {
        texts.push_back(absl::StrCat("3x5:", preset.device.name, key));
      }
    }
    for (const std::string& text : texts) {
      const ClusterSpec spec = parsed(text);
      const std::string again = spec.to_string();
      EXPECT_EQ(parsed(again), spec) << text << " -> " << again;
      EXPECT_NE(again[0], '{') << text;
    }
  }
}

TEST(ClusterSpec, ReadsJson) {
  const std::string path = write_file("known.json", R"({
    "num_nodes": 2, "ranks_per_node": 8, "device": "h100",
    "nic": {"bytes_per_second": "200Gbps"}, "node_link": {"latency_ns": 300}
  })");
  const ClusterSpec spec = parsed(path);
  EXPECT_EQ(spec, parsed("2x8:h100,nic=200Gbps,link_latency=300ns"));
  EXPECT_EQ(spec.to_string(), "2x8:h100,link_latency=300ns,nic=25GB/s");
  EXPECT_EQ(parsed(R"({"torus": [2, 2, 4], "device": "tpu-v4"})"), parsed("tpu-v4:2x2x4"));
  EXPECT_EQ(parsed(R"({"num_nodes": 2, "ranks_per_node": 4})"), parsed("2x4"));
}

// A device whose kernels take what their arithmetic takes and nothing else.
TEST(ClusterSpec, ReadsTimesOfZero) {
  const ClusterSpec spec = parsed("2x4:v100,launch=0ns,link_latency=0ns");
  EXPECT_EQ(spec.device->launch_ns, 0);
  EXPECT_EQ(spec.node_link.latency_ns, 0);
  EXPECT_EQ(spec.to_string(), "2x4:v100,launch=0ns,link_latency=0ns");
  EXPECT_EQ(parsed(R"({"num_nodes": 2, "ranks_per_node": 4,
                       "device": {"name": "v100", "launch_ns": 0},
                       "node_link": {"latency_ns": 0}})"),
            spec);
  EXPECT_EQ(parsed(internal::cluster_to_json(spec)), spec);
}

TEST(ClusterSpec, MayGiveARankSeveralDevices) {
  EXPECT_EQ(parsed("2x4:h100").devices_per_rank, 1);
  const ClusterSpec spec = parsed("2x4:h100,devices=3");
  EXPECT_EQ(spec.devices_per_rank, 3);
  EXPECT_EQ(spec.devices_per_node(), 12);
  EXPECT_EQ(spec.world_size(), 8);
  // All else is as without them.
  ClusterSpec one = spec;
  one.devices_per_rank = 1;
  EXPECT_EQ(one, parsed("2x4:h100"));
  EXPECT_EQ(parsed(R"({"num_nodes": 2, "ranks_per_node": 4, "device": "h100",
                       "devices_per_rank": 3})"),
            spec);
  // No key of the short form, so it is written as JSON.
  ClusterSpec own = spec;
  own.device->kernel_ns_min = 77;
  EXPECT_THAT(own.to_string(), HasSubstr("\"devices_per_rank\":3"));
  EXPECT_EQ(parsed(own.to_string()), own);
}

TEST(ClusterSpec, MayTakeMeasuredKernels) {
  for (const Preset& preset : presets()) {
    const std::string& name = preset.device.name;
    const bool known = find_kernel_table(name) != nullptr;
    EXPECT_EQ(preset.device.efficiency, known ? Efficiency::kMeasured : Efficiency::kIdeal) << name;
  }
  const ClusterSpec spec = parsed("1x8:h100,efficiency=measured");
  EXPECT_EQ(spec.device->efficiency, Efficiency::kMeasured);
  EXPECT_EQ(spec, parsed("1x8:h100"));
  const ClusterSpec ideal = parsed("1x8:h100,efficiency=ideal");
  EXPECT_EQ(ideal.device->efficiency, Efficiency::kIdeal);
  EXPECT_EQ(parsed(R"({"num_nodes": 1, "ranks_per_node": 8,
                       "device": {"name": "h100", "efficiency": "ideal"}})"),
            ideal);
  EXPECT_EQ(parsed(R"({"num_nodes": 1, "ranks_per_node": 8,
                       "device": {"name": "h100", "efficiency": "measured"}})"),
            spec);
  // No key of the short form, so it is written as JSON.
  ClusterSpec own = spec;
  own.device->kernel_ns_min = 77;
  EXPECT_THAT(own.to_string(), HasSubstr("\"efficiency\":\"measured\""));
  EXPECT_EQ(parsed(own.to_string()), own);

  EXPECT_THAT(error_of("1x8:h100,efficiency=best"),
              HasSubstr("one of ideal, measured, or a file whose name ends in \".json\" at"));
  EXPECT_THAT(error_of("1x8:mi300x,efficiency=measured"),
              HasSubstr("\"ideal\", because no measurements are known of \"mi300x\" (they are of "
                        "a100-40, a100-80, a100-pcie, h100, h200, b200)"));
  EXPECT_THAT(error_of(R"({"num_nodes": 1, "ranks_per_node": 8,
                           "device": {"name": "v100", "efficiency": "measured"}})"),
              HasSubstr("no measurements are known of \"v100\""));
}

TEST(ClusterSpec, MayNameOtherKernelsForDevicesOfNvidia) {
  const ClusterSpec spec = parsed("1x8:h100,kernels=transformer_engine,graphs=on");
  EXPECT_EQ(spec.device->kernels, KernelSet::kTransformerEngine);
  EXPECT_TRUE(spec.device->graphs);
  EXPECT_EQ(parsed(spec.to_string()), spec);
  EXPECT_EQ(parsed(internal::cluster_to_json(spec)), spec);
  EXPECT_EQ(parsed("1x8:h100,graphs=off,kernels=eager"), parsed("1x8:h100"));
  EXPECT_EQ(parsed("1x8:mi300x,graphs=off,kernels=eager"), parsed("1x8:mi300x"));
  EXPECT_THAT(error_of("1x8:h100,kernels=transformer"),
              HasSubstr("did you mean \"transformer_engine\"? at character 18"));
  EXPECT_THAT(error_of("1x8:mi300x,kernels=transformer_engine"),
              HasSubstr("\"eager\", because \"mi300x\" is not NVIDIA's, at character 20"));
  EXPECT_THAT(error_of("1x8:tpu-v4,graphs=on"),
              HasSubstr("\"off\", because \"tpu-v4\" is not NVIDIA's,"));
  EXPECT_THAT(error_of("1x8:h100,graphs=1"), HasSubstr("\"on\" or \"off\" at character 17"));
  EXPECT_THAT(error_of(R"({"num_nodes": 1, "ranks_per_node": 1,
                           "device": {"name": "gaudi2", "kernels": "transformer_engine"}})"),
              HasSubstr("is not NVIDIA's, at \"/device/kernels\""));
}

TEST(ClusterSpec, MayTakeATableOfKernelsFromAFile) {
  std::string text = kKernelsH100;
  const std::string path = write_file("table.json", text);
  for (const std::string& cluster : {absl::StrCat("1x8:h100,efficiency=", path),
                                     absl::StrCat("1x8:h100,efficiency=", path, ",nics=8"),
                                     absl::StrCat("1x8:h100,hbm=3TB/s,efficiency=", path)}) {
    const ClusterSpec spec = parsed(cluster);
    EXPECT_EQ(spec.device->efficiency, Efficiency::kMeasured) << cluster;
    EXPECT_EQ(spec.device->kernel_file, path);
    EXPECT_THAT(spec.to_string(), HasSubstr(absl::StrCat("efficiency=", path)));
    EXPECT_EQ(parsed(spec.to_string()), spec);
    EXPECT_EQ(parsed(internal::cluster_to_json(spec)), spec);
    EXPECT_EQ(kernel_table_of(*spec.device)->products.size(),
              find_kernel_table("h100")->products.size());
    EXPECT_NE(kernel_table_of(*spec.device), find_kernel_table("h100"));
  }
  EXPECT_THAT(error_of("1x8:h100,efficiency=missing.json"),
              HasSubstr("a table of kernels, but \"missing.json\" cannot be read, at "
                        "character 21"));
  EXPECT_THAT(error_of(absl::StrCat("1x8:h200,efficiency=", path)),
              AllOf(HasSubstr("a table of \"h200\", but"), HasSubstr("is one of \"h100\",")));
  text.replace(text.find("\"peak\""), 6, "\"peek\"");
  const std::string wrong = write_file("wrong.json", text);
  EXPECT_THAT(error_of(absl::StrCat("1x8:h100,efficiency=", wrong)),
              AllOf(HasSubstr(absl::StrCat("\"", wrong, "\" is not one")),
                    HasSubstr("expected a value at \"/peak\"")));
  const std::string broken = write_file("broken.json", "{\n\"schema\" 3\n}");
  EXPECT_THAT(error_of(absl::StrCat("1x8:h100,efficiency=", broken)),
              HasSubstr("bad table of kernels: it is not JSON: parse error at line 2"));
}

TEST(ClusterSpec, SetsTheCachingAllocatorThatMeasuredDevicesModel) {
  const ClusterSpec spec = parsed("1x8:h100,expandable_segments=true,max_split_size=64MiB");
  EXPECT_EQ(spec.device->expandable_segments, true);
  EXPECT_EQ(spec.device->max_split_bytes, int64_t{64} << 20);
  EXPECT_EQ(parsed(R"({"num_nodes": 1, "ranks_per_node": 8, "device": {
                       "name": "h100", "expandable_segments": true,
                       "max_split_bytes": "64MiB"}})"),
            spec);
  ClusterSpec own = spec;
  own.device->kernel_ns_min = 77;
  EXPECT_EQ(parsed(own.to_string()), own) << own.to_string();

  EXPECT_THAT(error_of("1x8:h100,efficiency=ideal,expandable_segments=true"),
              HasSubstr("no \"expandable_segments\" with \"efficiency=ideal\""));
  EXPECT_THAT(error_of("1x8:mi300x,max_split_size=64MiB"), HasSubstr("models no allocator"));
  EXPECT_THAT(error_of("1x8:h100,expandable_segments=1"), HasSubstr("true or false at"));
  EXPECT_THAT(error_of("1x8:h100,max_split_size=20MiB"), HasSubstr("more than 20 MiB"));
  EXPECT_THAT(error_of(R"({"num_nodes": 1, "ranks_per_node": 8,
                           "device": {"name": "h100", "efficiency": "ideal",
                                      "expandable_segments": true}})"),
              HasSubstr("at \"/device/expandable_segments\""));
}

TEST(ClusterSpec, MayNameAVersionOfNccl) {
  EXPECT_EQ(parsed("2x8:h100").nccl_version, 22809);
  EXPECT_EQ(parsed("2x8:h100,nccl=2.28.9"), parsed("2x8:h100"));
  const ClusterSpec spec = parsed("2x8:h100,nccl=2.21.5");
  EXPECT_EQ(spec.nccl_version, 22105);
  EXPECT_EQ(spec.to_string(), "2x8:h100,nccl=2.21.5");
  EXPECT_EQ(parsed(R"({"num_nodes": 2, "ranks_per_node": 8, "device": "h100",
                       "nccl": "2.21.5"})"),
            spec);
  // No key of the short form, so it is written as JSON.
  ClusterSpec own = spec;
  own.device->kernel_ns_min = 77;
  EXPECT_THAT(own.to_string(), HasSubstr("\"nccl\":\"2.21.5\""));
  EXPECT_EQ(parsed(own.to_string()), own);

  for (const char* bad : {"2.18.5", "2.31.1", "2.28", "2.28.9.1", "2.28.x", "2..9", "", "2.28.-9",
                          "3.0.0", "0002.28.9", "2.28.999999999999"}) {
    EXPECT_THAT(error_of(absl::StrCat("2x8:h100,nccl=", bad)),
                HasSubstr("a version of NCCL from 2.19.3 to 2.30.7, as in 2.28.9"))
        << bad;
  }
  EXPECT_THAT(error_of("2x8:b200,nccl=2.24.3"), HasSubstr("from 2.25.1 to 2.30.7"));
  EXPECT_THAT(error_of("2x8:mi300x,nccl=2.28.9"),
              HasSubstr("no version of NCCL, because \"mi300x\" is not NVIDIA's,"));
  EXPECT_THAT(error_of("tpu-v4:2x2,nccl=2.28.9"), HasSubstr("a torus has"));
  EXPECT_THAT(error_of(R"({"num_nodes": 2, "ranks_per_node": 8, "device": "h100", "nccl": 2})"),
              HasSubstr("a version of NCCL from 2.19.3 to 2.30.7, as in 2.28.9 at \"/nccl\""));
}

TEST(ClusterSpec, ReadsADeviceThatOnlyJsonDescribes) {
  const std::string path = write_file("own.json", R"({
    "num_nodes": 2, "ranks_per_node": 4,
    "device": {"name": "ours", "family": "npu", "memory_bytes": "24GiB",
               "memory_bytes_per_second": 1e12,
               "flops_per_second": {"fp32": "10TFLOPS", "bf16": 8e13}},
    "node_fabric": "mesh", "node_link": {"bytes_per_second": "10GB/s", "latency_ns": 700},
    "network_fabric": "ethernet", "nic": {"bytes_per_second": "100Gbps", "latency_ns": "10us"}
  })");
  const ClusterSpec spec = parsed(path);
  EXPECT_EQ(spec.device->name, "ours");
  EXPECT_EQ(spec.device->memory_bytes, int64_t{24} << 30);
  EXPECT_EQ(spec.device->flops(MathType::kBf16), 8e13);
  EXPECT_EQ(spec.device->flops(MathType::kFp16), 1e13);
  EXPECT_EQ(spec.nics_per_node, 1);
  EXPECT_EQ(spec.nic, (LinkModel{12.5e9, 10000}));
  EXPECT_EQ(parsed(spec.to_string()), spec);

  ClusterSpec torus = parsed("tpu-v4:2x2x4");
  torus.device->kernel_ns_min = 77;  // No key of the short form.
  EXPECT_THAT(torus.to_string(), HasSubstr("\"kernel_ns_min\":77"));
  EXPECT_EQ(parsed(torus.to_string()), torus);
  torus.disk = {};
  EXPECT_THAT(torus.to_string(), HasSubstr("\"disk\":\"off\""));
  EXPECT_EQ(parsed(torus.to_string()), torus);
}

TEST(ClusterSpec, NamesTheFileAndTheJsonPointer) {
  struct Case {
    const char* text;
    const char* expected;
  };
  const std::string missing = ::testing::TempDir() + "missing.json";
  EXPECT_THAT(error_of(missing), AllOf(HasSubstr("missing.json\""), EndsWith("can be read")));
  EXPECT_THAT(error_of(write_file("list.json", "[]")),
              HasSubstr("an object with num_nodes, ranks_per_node"));
  for (const Case& c : {
           Case{"{", "it is not JSON: parse error at line 1, column 2"},
           Case{"{\"num_nodes\": 2,\n}", "parse error at line 2"},
           Case{"{}", "a number of ranks per node, or \"/torus\", at \"/ranks_per_node\""},
           Case{R"({"num_nodes": 0, "ranks_per_node": 1})", "at \"/num_nodes\", found 0"},
           Case{"{\"ranks_per_node\": 1,\n\"num_nodes\": 0}",
                "at \"/num_nodes\" (line 2), found 0"},
           Case{R"({"num_nodes": 1e99, "ranks_per_node": 1})", "at \"/num_nodes\""},
           Case{R"({"num_nodes": 1e999, "ranks_per_node": 1})", "number overflow parsing '1e999'"},
           Case{R"({"num_nodes": 128, "ranks_per_node": 129})", "at most 16384 ranks"},
           Case{R"({"num_nodes": 2, "num_nodes": 2})", "it has \"num_nodes\" twice"},
           Case{R"({"nodes": 2})", "a key (did you mean \"num_nodes\"?) at \"/nodes\""},
           Case{R"({"a/b": 2})", "at \"/a~1b\""},
           Case{R"({"num_nodes": 2, "ranks_per_node": 4, "nic": {}})", "because of \"/nic\""},
           Case{R"({"num_nodes": 2, "ranks_per_node": 4, "device": "h10"})",
                "a device (did you mean \"h100\""},
           Case{R"({"num_nodes": 2, "ranks_per_node": 4, "device": {"name": "ours"}})",
                "at \"/device/family\""},
           Case{R"({"num_nodes": 2, "ranks_per_node": 4, "device": "h100", "nic": {"latency": 5}})",
                "a key (did you mean \"latency_ns\"?) at \"/nic/latency\""},
           Case{R"({"num_nodes": 2, "ranks_per_node": 4, "device": "h100",
                    "nic": {"latency_ns": "5min"}})",
                "a unit: s, ms, us, ns (character 2 of \"5min\") at \"/nic/latency_ns\""},
           Case{R"({"num_nodes": 2, "ranks_per_node": 4, "device": "h100",
                    "nic": {"latency_ns": -5}})",
                "a whole number from 0 to 3.6e+12 at \"/nic/latency_ns\""},
           Case{R"({"num_nodes": 2, "ranks_per_node": 4,
                    "device": {"name": "h100", "launch_ns": -1}})",
                "a whole number from 0 to 3.6e+12 at \"/device/launch_ns\""},
           Case{R"({"num_nodes": 2, "ranks_per_node": 4,
                    "device": {"name": "h100", "launch_ns": 0.5}})",
                "a whole number from 0 to 3.6e+12 at \"/device/launch_ns\""},
           Case{R"({"num_nodes": 2, "ranks_per_node": 4,
                    "device": {"name": "h100", "memory_bytes_per_second": 0}})",
                "a number above zero and at most 1e+18 at \"/device/memory_bytes_per_second\""},
           Case{R"({"num_nodes": 2, "ranks_per_node": 4,
                    "device": {"name": "h100", "memory_bytes": 0}})",
                "a whole number above zero"},
           Case{R"({"num_nodes": 2, "ranks_per_node": 4, "device": "h100", "node_fabric": "mash"})",
                "a fabric (did you mean \"mesh\"?) at \"/node_fabric\", found \"mash\""},
           Case{R"({"num_nodes": 2, "ranks_per_node": 4, "device": "h100", "disk": "on"})",
                "\"off\", or an object with bytes_per_second, latency_ns at \"/disk\""},
           Case{R"({"num_nodes": 2, "ranks_per_node": 4, "disk": "off"})", "because of \"/disk\""},
           Case{R"({"torus": [2, 2], "device": "tpu-v4", "nic": {}})", "a torus has no NICs"},
           Case{R"({"torus": [2, 2], "device": "tpu-v4", "devices_per_rank": 2})",
                "nothing: the chips of a torus are the ranks, at \"/devices_per_rank\""},
           Case{R"({"num_nodes": 2, "ranks_per_node": 4, "device": "h100", "devices_per_rank": 0})",
                "a number of devices per rank from 1 to 16384 at \"/devices_per_rank\""},
           Case{R"({"num_nodes": 2, "ranks_per_node": 4, "devices_per_rank": 2})",
                "a device, because of \"/devices_per_rank\", at \"/device\""},
           Case{R"({"torus": [2, "2"], "device": "tpu-v4"})", "at \"/torus/1\""},
           Case{R"({"torus": [2, 2], "device": "tpu-v4", "num_nodes": 3})", "at \"/num_nodes\""},
       }) {
    EXPECT_THAT(error_of(c.text), HasSubstr(c.expected)) << c.text;
    const std::string path = write_file("bad.json", c.text);
    EXPECT_THAT(error_of(path), AllOf(HasSubstr(c.expected), HasSubstr(path))) << c.text;
  }
}

}  // namespace
}  // namespace accelerate::simulator
