// A run with shapes alone takes the time and the memory of a run with values: to the nanosecond of
// virtual time, and to the byte of every device and category. Fixed shapes of the cluster: both
// runs of each program are compared, alone, between nodes and on more ranks.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "integration_tests/shapes/programs.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::MemoryCategory;
using simulator::Numerics;
using simulator::Rank;

// What a rank's device holds at one moment, and when that is.
struct Reading {
  std::string moment;
  int64_t host_ns = 0;
  int64_t in_use = 0;
  int64_t peak = 0;
  simulator::DeviceMemory::Bytes by_category = {};
};

struct Outcome {
  int64_t elapsed_ns = 0;
  std::vector<std::vector<Reading>> ranks;
};

Reading reading(Rank& rank, std::string moment) {
  const simulator::DeviceMemory& memory = rank.device()->memory();
  return {.moment = std::move(moment),
          .host_ns = rank.device()->host_ns(),
          .in_use = memory.in_use(),
          .peak = memory.peak(),
          .by_category = memory.by_category()};
}

Outcome run(const std::string& topology, const Program& program, Numerics numerics) {
  ClusterOptions options;
  options.seed = 3;
  options.numerics = numerics;
  if (numerics == Numerics::kShapes) {
    options.unknown_value = [](const std::string&) { return std::nan(""); };
    // The programs are small; most of their tensors are to be without data.
    options.largest_real_tensor = 4096;
  }
  Cluster cluster(topology, options);
  Outcome outcome;
  outcome.ranks.resize(cluster.world_size());
  cluster.run_on_every_rank([&](Rank& rank) {
    std::vector<Reading>& readings = outcome.ranks[rank.index()];
    program.run(rank, [&](const std::string& moment) {
      readings.push_back(reading(rank, absl::StrCat(moment, " (", readings.size(), ")")));
    });
    readings.push_back(reading(rank, "end"));
  });
  outcome.elapsed_ns = absl::ToInt64Nanoseconds(cluster.elapsed());
  return outcome;
}

// The first difference of one rank's readings; empty if there is none.
std::string difference(const std::vector<Reading>& real, const std::vector<Reading>& shapes) {
  if (real.size() != shapes.size()) {
    return absl::StrCat(real.size(), " moments with values, ", shapes.size(), " without");
  }
  for (size_t i = 0; i < real.size(); ++i) {
    std::string text;
    const auto compare = [&](const char* what, int64_t left, int64_t right) {
      if (left == right) return;
      absl::StrAppend(&text, text.empty() ? "" : "; ", what, " ", left, " with values, ", right,
                      " without");
    };
    if (real[i].moment != shapes[i].moment) {
      return absl::StrCat("\"", real[i].moment, "\" with values is \"", shapes[i].moment,
                          "\" without");
    }
    compare("the host's ns", real[i].host_ns, shapes[i].host_ns);
    compare("bytes in use", real[i].in_use, shapes[i].in_use);
    compare("peak", real[i].peak, shapes[i].peak);
    for (size_t category = 0; category < real[i].by_category.size(); ++category) {
      compare(to_string(static_cast<MemoryCategory>(category)), real[i].by_category[category],
              shapes[i].by_category[category]);
    }
    if (!text.empty()) return absl::StrCat(real[i].moment, ": ", text);
  }
  return "";
}

using Case = std::tuple<std::string, size_t>;  // a topology, and a program by its position

class ShapesEqualValues : public ::testing::TestWithParam<Case> {};

TEST_P(ShapesEqualValues, InTimeAndMemory) {
  const auto& [topology, position] = GetParam();
  const Program& program = programs()[position];
  const Outcome real = run(topology, program, Numerics::kReal);
  const Outcome shapes = run(topology, program, Numerics::kShapes);
  EXPECT_EQ(real.elapsed_ns, shapes.elapsed_ns);
  EXPECT_GT(real.elapsed_ns, 0);
  for (size_t rank = 0; rank < real.ranks.size(); ++rank) {
    EXPECT_EQ(difference(real.ranks[rank], shapes.ranks[rank]), "") << "rank " << rank;
    EXPECT_GT(real.ranks[rank].back().peak, 0);
  }
}

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  const auto& [topology, position] = info.param;
  return absl::StrCat(programs()[position].name, "_on_",
                      absl::StrReplaceAll(topology, {{":", "_"}}));
}

INSTANTIATE_TEST_SUITE_P(Programs, ShapesEqualValues,
                         ::testing::Combine(::testing::Values("1x1:h100", "2x2:h100", "2x4:h100"),
                                            ::testing::Range<size_t>(0, programs().size())),
                         name_of_case);

// The operator at which a device with so much memory runs out of it; empty if that suffices.
std::string operator_without_room(const Program& program, int64_t bytes, Numerics numerics) {
  try {
    run(absl::StrCat("1x1:h100,efficiency=ideal,mem=", bytes), program, numerics);
    return "";
  } catch (const simulator::ClusterError& error) {
    const std::string& message = error.failures()[0].message;
    return message.substr(0, message.find(" asked for "));
  }
}

TEST(Memory, RunsOutAtTheSameByteAndOperator) {
  for (const char* name : {"convolutions", "lstm", "gpt_bf16_reads_its_loss"}) {
    const auto program = std::find_if(programs().begin(), programs().end(),
                                      [name](const Program& each) { return each.name == name; });
    ASSERT_NE(program, programs().end()) << name;
    const int64_t needed = run("1x1:h100", *program, Numerics::kReal).ranks[0].back().peak;
    for (const int64_t bytes : {needed, needed - 512, needed / 2}) {
      const std::string real = operator_without_room(*program, bytes, Numerics::kReal);
      EXPECT_EQ(real.empty(), bytes == needed) << name << ", " << bytes << " bytes: " << real;
      EXPECT_EQ(operator_without_room(*program, bytes, Numerics::kShapes), real) << name;
    }
  }
}

}  // namespace
}  // namespace accelerate
