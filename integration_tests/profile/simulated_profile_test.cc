// Ranks that share a process: each is profiled separately, in virtual time.
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "integration_tests/profile/training.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using ::accelerate::testing::fresh_folder;
using ::accelerate::testing::modules_of;
using ::accelerate::testing::names_of;
using ::accelerate::testing::read_text;
using ::accelerate::testing::trace_events;
using ::accelerate::testing::Training;
using simulator::Cluster;
using simulator::ClusterError;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

ProfileKwargs everything(const std::string& folder) {
  return {.record_shapes = true,
          .profile_memory = true,
          .with_stack = true,
          .with_flops = true,
          .with_modules = true,
          .output_trace_dir = folder};
}

void train_two_steps(const std::string& folder) {
  Training training;
  Profiler profiler(training.state(), everything(folder), training.modules());
  training.step();
  training.step();
}

// The ranks' traces.
std::vector<std::string> traces(const std::string& spec, uint64_t seed, const std::string& name) {
  const std::string folder = fresh_folder(name);
  Cluster cluster(spec, {.seed = seed});
  cluster.run_on_every_rank([&](Rank&) { train_two_steps(folder); });
  std::vector<std::string> texts;
  for (int rank = 0; rank < cluster.world_size(); ++rank) {
    texts.push_back(read_text(folder + "/profile_" + std::to_string(rank) + ".json"));
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), cluster.world_size());
  return texts;
}

// The first lines in which the traces of two runs differ; empty if none do.
std::string difference(const std::vector<std::string>& first,
                       const std::vector<std::string>& second) {
  for (size_t rank = 0; rank < first.size(); ++rank) {
    std::istringstream ours(first[rank]);
    std::istringstream theirs(second[rank]);
    std::string our_line, their_line;
    while (std::getline(ours, our_line) && std::getline(theirs, their_line)) {
      if (our_line != their_line) {
        return "rank " + std::to_string(rank) + ":\n" + our_line + "\n" + their_line;
      }
    }
    if (first[rank].size() != second[rank].size()) return "one trace is longer";
  }
  return "";
}

TOPOLOGY_SUITE(ProfileOfRanks, .max_ranks = 2, .hardware = simulator::Hardware::kNone);

TEST_P(ProfileOfRanks, IsATraceEach) {
  const std::vector<std::string> texts = traces(topology(), simulator::seed_of_run(1), "sim_ranks");
  for (int rank = 0; rank < world_size(); ++rank) {
    const auto trace = trace_events(texts[rank]);
    EXPECT_EQ(trace.at("process_name")[0]["args"]["name"],
              "rank " + std::to_string(rank) + " of " + std::to_string(world_size()));
    EXPECT_EQ(trace.at("aten::addmm").size(), 4);
    for (const char* name : {"AddmmBackward0", "aten::addcdiv_", "[memory]", "fwdbwd"}) {
      EXPECT_TRUE(trace.contains(name)) << name;
    }
    const nlohmann::json& addmm = trace.at("aten::addmm")[0];
    EXPECT_EQ(addmm["pid"], rank);
    EXPECT_EQ(addmm["args"]["Module Hierarchy"], "fc1");
    EXPECT_EQ(addmm["args"]["Input Dims"][1], nlohmann::json({4, 32}));
    EXPECT_EQ(addmm["args"]["flops"], 2 * 4 * 32 * 64);
    EXPECT_THAT(std::string(addmm["args"]["Call stack"]), HasSubstr("NetImpl::forward"));
  }
}

TOPOLOGY_SUITE(ProfileOnAnyHardware, .also = {"1x2:h100"});

TEST_P(ProfileOnAnyHardware, SameSeedSameBytes) {
  const uint64_t seed = simulator::seed_of_run(3);
  const std::vector<std::string> first = traces(topology(), seed, "sim_first");
  const std::vector<std::string> second = traces(topology(), seed, "sim_second");
  EXPECT_EQ(difference(first, second), "");
  for (size_t rank = 1; rank < first.size(); ++rank) EXPECT_NE(first[0], first[rank]);
}

TOPOLOGY_SUITE(ProfileOnDevices, .min_ranks = 2, .hardware = simulator::Hardware::kGpu);

TEST_P(ProfileOnDevices, DoesNotDependOnTheOrderOfRanks) {
  std::vector<std::string> first;
  for (const uint64_t seed : simulator::kSeeds) {
    const auto now = traces(topology(), simulator::seed_of_run(seed), "sim_order");
    if (first.empty()) first = now;
    EXPECT_EQ(difference(first, now), "") << seed;
  }
}

// One shape each, from here on: a profile is of one rank. There are two, so that one that took the
// other's for its own would show.
TEST(SimulatedProfile, SeesDevicesInVirtualTime) {
  Cluster cluster("1x2:h100", {.seed = 1});
  cluster.run_on_every_rank([&](Rank& rank) {
    Training training;
    Profiler profiler(training.state(), everything(fresh_folder("sim_device")), training.modules());
    training.step();
    profiler.end();
    int64_t addmm_kernels = 0;
    bool all_reduce = false;
    for (const ProfileEvent& event : profiler.events()) {
      if (event.kind != ProfileEvent::Kind::kDevice) continue;
      EXPECT_EQ(event.device_index, rank.index());
      EXPECT_GT(event.duration_ns(), 0) << event.name;
      if (event.name == "all_reduce") {
        all_reduce = true;
        EXPECT_FALSE(event.parent);
      } else if (event.parent && profiler.events()[*event.parent].name == "aten::addmm") {
        ++addmm_kernels;
      }
    }
    EXPECT_TRUE(all_reduce);
    EXPECT_EQ(addmm_kernels, 2);
    int64_t device_ns = 0;
    for (const EventAverage& row : profiler.key_averages()) {
      if (row.key == "aten::addmm" && !row.is_device) {
        device_ns = row.self_device_time_total;
        EXPECT_GT(row.device_memory_usage, 0);
        EXPECT_GT(row.cpu_time_total, 0);  // launching takes time
      }
    }
    EXPECT_GT(device_ns, 0);
    EXPECT_THAT(profiler.key_averages().table({.sort_by = "self_device_time_total"}),
                AllOf(HasSubstr("Device Mem"), HasSubstr("Self device time total")));
  });
}

TEST(SimulatedProfile, RecordsWhatItIsAskedFor) {
  Cluster cluster("1x2:h100", {.seed = 1});
  cluster.run_on_every_rank([&](Rank&) {
    Training training;
    {
      Profiler profiler(training.state(), {.activities = {"cpu"}});
      training.step();
      profiler.end();
      EXPECT_THAT(
          names_of(profiler.events()),
          AllOf(Contains("aten::addmm"), Contains("AddmmBackward0"), Not(Contains("[memory]"))));
      for (const ProfileEvent& event : profiler.events()) {
        EXPECT_NE(event.kind, ProfileEvent::Kind::kDevice);
        EXPECT_TRUE(event.shapes.empty() && event.stack.empty() && event.module.empty());
        EXPECT_EQ(event.flops, 0);
      }
    }
    Profiler profiler(training.state(), {.activities = {"cuda"}});
    training.step();
    profiler.end();
    EXPECT_FALSE(profiler.events().empty());
    for (const ProfileEvent& event : profiler.events()) {
      EXPECT_EQ(event.kind, ProfileEvent::Kind::kDevice) << event.name;
    }
  });
}

TEST(SimulatedProfile, FollowsItsSchedule) {
  Cluster cluster("1x2", {.seed = 1});
  cluster.run_on_every_rank([&](Rank&) {
    Training training;
    std::vector<int64_t> steps;
    Profiler profiler(
        training.state(),
        {.schedule_option = ProfileSchedule{.wait = 1, .warmup = 1, .active = 1},
         .on_trace_ready = [&](Profiler& ready) {
           steps.push_back(ready.step_num());
           EXPECT_THAT(names_of(ready.events()),
                       AllOf(Contains("aten::addmm"),
                             Contains("ProfilerStep#" + std::to_string(ready.step_num() - 1))));
         }});
    for (int i = 0; i < 10; ++i) {
      training.step();
      profiler.step();
    }
    profiler.end();
    EXPECT_THAT(steps, ElementsAre(3, 6, 9));
  });
}

TEST(SimulatedProfile, AscribesTheBackwardPass) {
  Cluster cluster("1x1", {.seed = 1});
  cluster.run_on_every_rank([&](Rank&) {
    Training training;
    Profiler profiler(training.state(), {.with_modules = true}, training.modules());
    training.step();
    profiler.end();
    EXPECT_THAT(modules_of(profiler.events(), "AddmmBackward0"), ElementsAre("fc1", "fc2"));
    EXPECT_THAT(modules_of(profiler.events(), "ReluBackward0"), ElementsAre(""));
  });
}

TEST(SimulatedProfile, LeavesLibTorchsProfilerAlone) {
  Cluster cluster("1x2", {.seed = 1});
  cluster.run_on_every_rank([&](Rank&) {
    Training training;
    Profiler profiler(training.state());
    training.step();
    EXPECT_FALSE(torch::profiler::impl::profilerEnabled());
    EXPECT_FALSE(torch::autograd::profiler::isProfilerEnabledInMainThread());
  });
}

std::string failure_of(Cluster& cluster, const std::function<void(Rank&)>& body) {
  try {
    cluster.run_on_every_rank(body);
  } catch (const ClusterError& error) {
    return error.what();
  }
  return "";
}

TEST(SimulatedProfile, TellsOfTheRankThatCannotWrite) {
  const std::string folder = fresh_folder("sim_unwritable");
  // A folder stands where rank 1's trace should.
  std::filesystem::create_directories(folder + "/profile_1.json/in_the_way");
  Cluster cluster("1x2", {.seed = 1});
  std::set<int> done;
  const std::string failure = failure_of(cluster, [&](Rank& rank) {
    Training training;
    {
      Profiler profiler(training.state(), {.output_trace_dir = folder});
      training.step();
    }
    done.insert(rank.index());
  });
  EXPECT_THAT(failure,
              AllOf(HasSubstr("rank 1 cannot write its trace"), HasSubstr("profile_1.json")));
  EXPECT_THAT(done, ElementsAre(0));
  EXPECT_TRUE(trace_events(read_text(folder + "/profile_0.json")).contains("aten::addmm"));
}

TEST(SimulatedProfile, EndsWithAnException) {
  Cluster cluster("1x2", {.seed = 1});
  const std::string folder = fresh_folder("sim_exception");
  const std::string failure = failure_of(cluster, [&](Rank& rank) {
    Training training;
    Profiler profiler(training.state(), everything(folder));
    training.step();
    if (rank.index() == 1) throw std::runtime_error("the loop's own");
  });
  EXPECT_THAT(failure, HasSubstr("the loop's own"));
  // The same threads' ranks can be profiled again.
  cluster.run_on_every_rank([&](Rank&) { train_two_steps(folder); });
  EXPECT_TRUE(std::filesystem::exists(folder + "/profile_1.json"));
}

TEST(SimulatedProfile, OfTheAcceleratorGoesByItsHandler) {
  const std::string folder = fresh_folder("sim_handler");
  Cluster cluster("1x2", {.seed = 1});
  cluster.run_on_every_rank([&](Rank&) {
    Training training({.kwargs_handlers = {everything(folder)}});
    {
      Profiler profiler = training.accelerator().profile();
      training.step();
      profiler.end();
      EXPECT_THAT(modules_of(profiler.events(), "aten::addmm"), ElementsAre("fc1", "fc2"));
    }
    // The call's own handler replaces it as a whole.
    std::vector<int64_t> steps;
    Profiler profiler = training.accelerator().profile({
        .schedule_option = ProfileSchedule{.wait = 1, .warmup = 1, .active = 3, .repeat = 2},
        .on_trace_ready = [&](Profiler& ready) { steps.push_back(ready.step_num()); },
    });
    for (int i = 0; i < 10; ++i) {
      training.step();
      profiler.step();
    }
    profiler.end();
    EXPECT_THAT(steps, ElementsAre(5, 10));
    EXPECT_THAT(modules_of(profiler.events(), "aten::addmm"), ElementsAre(""));
  });
  for (const char* rank : {"0", "1"}) {
    const auto trace = trace_events(read_text(folder + "/profile_" + rank + ".json"));
    EXPECT_EQ(trace.at("aten::addmm").size(), 2);
    EXPECT_TRUE(trace.contains("[memory]"));
  }
}

TEST(SimulatedProfile, RefusesASecondProfiler) {
  Cluster cluster("1x2", {.seed = 1});
  EXPECT_THAT(failure_of(cluster,
                         [&](Rank&) {
                           Training training;
                           Profiler profiler(training.state());
                           Profiler second(training.state());
                         }),
              HasSubstr("is being profiled already"));
}

}  // namespace
}  // namespace accelerate
