#include "simulator/testing/topology_suite.h"

#include <algorithm>

#include <c10/util/Exception.h>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "accelerate/platform/environment.h"
#include "simulator/hardware/cluster_spec.h"

namespace accelerate::simulator {
namespace {

ClusterSpec parsed(const std::string& topology) {
  auto spec = ClusterSpec::parse(topology);
  TORCH_CHECK_VALUE(spec.ok(), "test topology \"", topology, "\": ", spec.status().message());
  return *spec;
}

uint64_t number(const std::string& variable, const std::string& text) {
  uint64_t value = 0;
  TORCH_CHECK_VALUE(absl::SimpleAtoi(text, &value), variable, "=\"", text, "\" is not a number");
  return value;
}

bool admits(const Shapes& shapes, const ClusterSpec& spec) {
  if (spec.world_size() < shapes.min_ranks || spec.world_size() > shapes.max_ranks) return false;
  switch (shapes.hardware) {
    case Hardware::kAny: return true;
    case Hardware::kNoTpu: return !spec.device || spec.device->family != "tpu";
    case Hardware::kNone: return !spec.device;
    case Hardware::kGpu: return !spec.device || spec.device->family == "gpu";
  }
  return false;
}

}  // namespace

std::vector<std::string> topologies(const Shapes& shapes) {
  const std::string asked = Environment().get_or("ACCELERATE_TEST_TOPOLOGIES", "short");
  const bool named = asked == "short" || asked == "all";
  const std::string list = !named ? asked : asked == "all" ? kAllTopologies : kShortTopologies;
  std::vector<std::string> chosen;
  const auto choose = [&](const std::string& topology) {
    if (std::ranges::find(chosen, topology) == chosen.end()) chosen.push_back(topology);
  };
  for (const std::string& topology :
       std::vector<std::string>(absl::StrSplit(list, ' ', absl::SkipEmpty()))) {
    const ClusterSpec spec = parsed(topology);
    if (!admits(shapes, spec)) continue;
    choose(shapes.hardware == Hardware::kGpu && !spec.device ? topology + ":h100" : topology);
  }
  if (named) std::ranges::for_each(shapes.also, choose);
  return chosen;
}

std::string topology_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return name;
}

uint64_t seed_of_run(uint64_t seed) {
  const Environment environment;
  if (const auto given = environment.get("ACCELERATE_TEST_SEED")) {
    return number("ACCELERATE_TEST_SEED", *given);
  }
  // Bazel numbers runs from 1.
  return seed + number("TEST_RANDOM_SEED", environment.get_or("TEST_RANDOM_SEED", "1")) - 1;
}

Cluster TopologyTest::make_cluster(ClusterOptions options) {
  options.seed = seed_of_run(options.seed);
  return Cluster(topology(), std::move(options));
}

int TopologyTest::world_size() { return parsed(topology()).world_size(); }

bool TopologyTest::has_devices() { return parsed(topology()).device.has_value(); }

}  // namespace accelerate::simulator
