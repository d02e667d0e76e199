// The virtual time and the bytes of every verb of c10d, from the call on a rank to the trace. The
// expected times are the forms of simulator/network/README.md with this cluster's constants
// written out.
// One shape: 2 nodes of 4 ranks.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "simulator/cluster/cluster.h"

namespace accelerate::simulator {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Work = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

constexpr char kSpec[] =
    "2x4:h100,efficiency=ideal,link=450GB/s,link_latency=500ns,nic=400Gbps,nic_latency=1us";

// n members, k of them on each of two nodes.
constexpr int kRanks = 8;
constexpr double kMembers = kRanks;
constexpr double kInNode = 4;
constexpr int64_t kPart = int64_t{4} << 20;
constexpr int64_t kWhole = kRanks * kPart;

// Latencies in ns: to another device of the node over its switch, to a device on the same rail of
// the other node over two NICs and a leaf switch, and to one on another rail.
constexpr double kNear = 2 * 500;
constexpr double kFar = 2 * 1000 + 300;
constexpr double kFarther = kFar + kNear;
// Bytes per ns of a device's link, of its NIC, and of the four rings between the nodes.
constexpr double kLink = 450;
constexpr double kNic = 50;
constexpr double kRings = 4 * kNic;

double all_gather_ns(double bytes) {
  const double ring = kFar + 6 * kNear + (kMembers - 1) / kMembers * bytes / kRings;
  const double hierarchical =
      kFar + 3 * kNear + (kInNode - 1) / kInNode * bytes / kLink + 0.5 * bytes / kRings;
  return std::min(ring, hierarchical);
}

double all_reduce_ns(double bytes) {
  const double tree = 2 * (kFar + 3 * kNear) + 2 * bytes / (0.92 * kRings);
  return std::min(2 * all_gather_ns(bytes), tree);
}

double broadcast_ns(double bytes) {
  const double ring = kFar + 6 * kNear + bytes / kRings;
  const double tree = kFar + 3 * kNear + bytes / (0.92 * kRings);
  return std::min(ring, tree);
}

// What does not come from the root's own node comes over the root's NIC.
double gather_ns(double bytes) {
  const double near = (kInNode - 1) / kMembers * bytes / kLink;
  const double far = (kMembers - kInNode) / kMembers * bytes / kNic;
  return kFarther + std::max(near, far);
}

// Half of the bytes go to the other node, three quarters of these over another rail.
double all_to_all_ns(double bytes) {
  const double in_node = ((kInNode - 1) / kMembers + 0.5 * 0.75) * bytes / kLink;
  return kFarther + std::max(in_node, 0.5 * bytes / kNic);
}

at::Tensor on_device(Rank& rank, int64_t bytes) {
  return at::ones({bytes / 4}, at::TensorOptions(rank.runtime().device()));
}

Tensors parts_on_device(Rank& rank, int64_t bytes) {
  Tensors parts;
  for (int i = 0; i < kRanks; ++i) parts.push_back(on_device(rank, bytes / kRanks));
  return parts;
}

struct Measured {
  std::vector<int64_t> ns;  // by rank
  int64_t bytes = 0;
  std::string name;
  std::vector<Traffic> sent;
  CollectiveSummary counted;  // all calls of the verb
  std::vector<LinkSummary> links;
};

// Makes a rank's tensors and returns its call. A rank without a call has no time.
using Prepare = std::function<std::function<Work()>(Rank& rank, const Group& group)>;

// What a verb takes on ranks that call it at the same time.
Measured measure(const Prepare& prepare) {
  Cluster cluster(kSpec, {.record = true});
  Measured measured{.ns = std::vector<int64_t>(kRanks)};
  cluster.run_on_every_rank([&](Rank& rank) {
    SimDevice& device = *rank.device();
    Group group = rank.runtime().new_group({.name = "world"});
    const std::function<Work()> call = prepare(rank, group);
    device.synchronize();
    group->barrier()->wait();
    const int64_t start_ns = device.host_ns();
    if (call) call()->wait();
    device.synchronize();
    measured.ns[rank.index()] = device.host_ns() - start_ns;
  });
  const TraceOperation& operation = cluster.trace().operations.back();
  measured.bytes = operation.bytes;
  measured.name = cluster.trace().names.at(operation.name);
  measured.sent = cluster.trace().communication;
  measured.links = cluster.trace().links;
  for (const CollectiveSummary& each : cluster.trace().collectives) {
    if (each.name == operation.name) measured.counted = each;
  }
  return measured;
}

// The bytes that `source` sends to `target`.
using BytesBetween = std::function<double(int source, int target)>;

bool is_next(int source, int target) { return target == (source + 1) % kRanks; }

// What a ring of members sends, each to the next.
BytesBetween around_the_ring(double bytes) {
  return [bytes](int source, int target) { return is_next(source, target) ? bytes : 0; };
}

// A chain instead of a ring: what begins or ends at the root does not go all the way round.
BytesBetween from_the_root(double bytes, int root = 0) {
  return
      [=](int source, int target) { return is_next(source, target) && target != root ? bytes : 0; };
}
BytesBetween to_the_root(double bytes, int root = 0) {
  return
      [=](int source, int target) { return is_next(source, target) && source != root ? bytes : 0; };
}

std::vector<Traffic> traffic_of(const BytesBetween& sent) {
  std::vector<Traffic> traffic;
  for (int source = 0; source < kRanks; ++source) {
    for (int target = 0; target < kRanks; ++target) {
      if (sent(source, target) > 0) traffic.push_back({source, target, sent(source, target)});
    }
  }
  return traffic;
}

// The share that a member of a ring passes on of what all members have together.
constexpr double kAllButOne = (kMembers - 1) / kMembers;

struct Case {
  std::string name;
  Prepare prepare;
  int64_t bytes = 0;
  double ns = 0;
  BytesBetween sent;
  double bus_factor = kAllButOne;  // the bus's bytes for each byte of the result
};

std::vector<Case> one_tensor_cases() {
  return {
      {"all_reduce",
       [](Rank& rank, const Group& group) {
         return [group, tensors = Tensors{on_device(rank, kPart)}]() mutable {
           return group->allreduce(tensors);
         };
       },
       kPart, all_reduce_ns(kPart), around_the_ring(2 * kAllButOne * kPart), 2 * kAllButOne},
      {"broadcast",
       [](Rank& rank, const Group& group) {
         return [group, tensors = Tensors{on_device(rank, kPart)}]() mutable {
           return group->broadcast(tensors);
         };
       },
       kPart, broadcast_ns(kPart), from_the_root(kPart), 1},
      {"reduce",
       [](Rank& rank, const Group& group) {
         return [group, tensors = Tensors{on_device(rank, kPart)}]() mutable {
           return group->reduce(tensors);
         };
       },
       kPart, broadcast_ns(kPart), to_the_root(kPart), 1},
  };
}

std::vector<Case> gathering_cases() {
  return {
      {"all_gather",
       [](Rank& rank, const Group& group) {
         return [group, outputs = std::vector<Tensors>{parts_on_device(rank, kWhole)},
                 inputs = Tensors{on_device(rank, kPart)}]() mutable {
           return group->allgather(outputs, inputs);
         };
       },
       kWhole, all_gather_ns(kWhole), around_the_ring(kAllButOne * kWhole)},
      {"all_gather_into_tensor",
       [](Rank& rank, const Group& group) {
         return
             [group, output = on_device(rank, kWhole), input = on_device(rank, kPart)]() mutable {
               return group->_allgather_base(output, input);
             };
       },
       kWhole, all_gather_ns(kWhole), around_the_ring(kAllButOne * kWhole)},
      {"gather",
       [](Rank& rank, const Group& group) {
         std::vector<Tensors> outputs;
         if (rank.index() == 0) outputs.push_back(parts_on_device(rank, kWhole));
         return [group, outputs, inputs = Tensors{on_device(rank, kPart)}]() mutable {
           c10d::GatherOptions options;
           options.rootRank = 0;
           return group->gather(outputs, inputs, options);
         };
       },
       kWhole, gather_ns(kWhole),
       [](int source, int target) { return target == 0 && source != 0 ? kPart : 0; }},
  };
}

std::vector<Case> scattering_cases() {
  return {
      {"scatter",
       [](Rank& rank, const Group& group) {
         std::vector<Tensors> inputs;
         if (rank.index() == 0) inputs.push_back(parts_on_device(rank, kWhole));
         return [group, inputs, outputs = Tensors{on_device(rank, kPart)}]() mutable {
           c10d::ScatterOptions options;
           options.rootRank = 0;
           return group->scatter(outputs, inputs, options);
         };
       },
       kWhole, gather_ns(kWhole),
       [](int source, int target) { return source == 0 && target != 0 ? kPart : 0; }},
      {"reduce_scatter",
       [](Rank& rank, const Group& group) {
         return [group, outputs = Tensors{on_device(rank, kPart)},
                 inputs = std::vector<Tensors>{parts_on_device(rank, kWhole)}]() mutable {
           return group->reduce_scatter(outputs, inputs);
         };
       },
       kWhole, all_gather_ns(kWhole), around_the_ring(kAllButOne * kWhole)},
      {"reduce_scatter_tensor",
       [](Rank& rank, const Group& group) {
         return
             [group, output = on_device(rank, kPart), input = on_device(rank, kWhole)]() mutable {
               return group->_reduce_scatter_base(output, input);
             };
       },
       kWhole, all_gather_ns(kWhole), around_the_ring(kAllButOne * kWhole)},
      {"all_to_all",
       [](Rank& rank, const Group& group) {
         return [group, outputs = parts_on_device(rank, kWhole),
                 inputs = parts_on_device(rank, kWhole)]() mutable {
           return group->alltoall(outputs, inputs);
         };
       },
       kWhole, all_to_all_ns(kWhole), around_the_ring(kAllButOne * kWhole)},
      {"all_to_all_single",
       [](Rank& rank, const Group& group) {
         return
             [group, output = on_device(rank, kWhole), input = on_device(rank, kWhole)]() mutable {
               std::vector<int64_t> equal;
               return group->alltoall_base(output, input, equal, equal);
             };
       },
       kWhole, all_to_all_ns(kWhole), around_the_ring(kAllButOne * kWhole)},
  };
}

// Units of 1 MiB: two for rank 0 from every rank, one for each other rank. Rank 0 gets 14 from
// others, which is the most that a member moves; an even exchange of 16 units is as much.
Case uneven_all_to_all() {
  constexpr int64_t kUnit = int64_t{1} << 20;
  return {"uneven all_to_all_single",
          [](Rank& rank, const Group& group) {
            const int64_t rows = rank.index() == 0 ? 2 : 1;
            std::vector<int64_t> sends(kRanks, 1), gets(kRanks, rows);
            sends[0] = 2;
            at::Tensor input = on_device(rank, 9 * kUnit).view({9, -1});
            at::Tensor output = on_device(rank, kRanks * rows * kUnit).view({kRanks * rows, -1});
            return [=]() mutable { return group->alltoall_base(output, input, gets, sends); };
          },
          16 * kUnit, all_to_all_ns(16 * kUnit),
          [](int source, int target) {
            if (!is_next(source, target)) return 0.0;
            return static_cast<double>((source == 0 ? 7 : 8) * kUnit);
          }};
}

TEST(CollectiveTime, OfEveryVerbIsTheModelsAndItsTrafficTheAlgorithms) {
  std::vector<Case> cases = one_tensor_cases();
  for (const auto& more :
       {gathering_cases(), scattering_cases(), std::vector<Case>{uneven_all_to_all()}}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  for (const Case& each : cases) {
    const Measured measured = measure(each.prepare);
    EXPECT_EQ(measured.bytes, each.bytes) << each.name;
    EXPECT_EQ(measured.counted.calls, 1) << each.name;
    EXPECT_EQ(measured.counted.ranks, kRanks) << each.name;
    EXPECT_EQ(measured.counted.bytes, each.bytes) << each.name;
    EXPECT_NEAR(static_cast<double>(measured.counted.total_ns), each.ns, 1) << each.name;
    EXPECT_DOUBLE_EQ(measured.counted.bus_bytes, each.bus_factor * static_cast<double>(each.bytes))
        << each.name;
    EXPECT_EQ(measured.sent, traffic_of(each.sent)) << each.name;
    for (const int64_t ns : measured.ns) {
      // The host takes 5 us to issue it.
      EXPECT_NEAR(static_cast<double>(ns), 5000 + each.ns, 1) << each.name;
    }
  }
}

constexpr int kRoot = 5;

std::vector<Case> cases_of_another_root() {
  return {
      {"broadcast",
       [](Rank& rank, const Group& group) {
         return [group, tensors = Tensors{on_device(rank, kPart)}]() mutable {
           return group->broadcast(tensors, {.rootRank = kRoot});
         };
       },
       kPart, broadcast_ns(kPart), from_the_root(kPart, kRoot)},
      {"reduce",
       [](Rank& rank, const Group& group) {
         return [group, tensors = Tensors{on_device(rank, kPart)}]() mutable {
           return group->reduce(tensors, {.rootRank = kRoot});
         };
       },
       kPart, broadcast_ns(kPart), to_the_root(kPart, kRoot)},
      {"gather",
       [](Rank& rank, const Group& group) {
         std::vector<Tensors> outputs;
         if (rank.index() == kRoot) outputs.push_back(parts_on_device(rank, kWhole));
         return [group, outputs, inputs = Tensors{on_device(rank, kPart)}]() mutable {
           return group->gather(outputs, inputs, {.rootRank = kRoot});
         };
       },
       kWhole, gather_ns(kWhole),
       [](int source, int target) { return target == kRoot && source != kRoot ? kPart : 0; }},
      {"scatter",
       [](Rank& rank, const Group& group) {
         std::vector<Tensors> inputs;
         if (rank.index() == kRoot) inputs.push_back(parts_on_device(rank, kWhole));
         return [group, inputs, outputs = Tensors{on_device(rank, kPart)}]() mutable {
           return group->scatter(outputs, inputs, {.rootRank = kRoot});
         };
       },
       kWhole, gather_ns(kWhole),
       [](int source, int target) { return source == kRoot && target != kRoot ? kPart : 0; }},
  };
}

TEST(CollectiveTime, BeginsOrEndsAtTheRootThatIsGiven) {
  for (const Case& each : cases_of_another_root()) {
    const Measured measured = measure(each.prepare);
    EXPECT_EQ(measured.bytes, each.bytes) << each.name;
    EXPECT_EQ(measured.sent, traffic_of(each.sent)) << each.name;
    EXPECT_NEAR(static_cast<double>(measured.counted.total_ns), each.ns, 1) << each.name;
    // What is gathered or scattered crosses the root's NIC.
    if (each.bytes == kPart) continue;
    const LinkKind kind = each.name == "gather" ? LinkKind::kNicIn : LinkKind::kNicOut;
    const auto of_nics =
        std::ranges::find_if(measured.links, [&](const LinkSummary& s) { return s.kind == kind; });
    ASSERT_NE(of_nics, measured.links.end()) << each.name;
    EXPECT_EQ(of_nics->worst, "NIC 1 of node 1") << each.name;
    EXPECT_DOUBLE_EQ(of_nics->most_bytes, 4 * kPart) << each.name;
  }
}

// A barrier moves no data: an all-reduce's latency. No kernel is issued for it.
TEST(CollectiveTime, OfABarrierIsItsLatency) {
  const Measured measured =
      measure([](Rank&, const Group& group) { return [group] { return group->barrier(); }; });
  EXPECT_EQ(measured.bytes, 0);
  EXPECT_TRUE(measured.sent.empty());
  for (const int64_t ns : measured.ns) {
    EXPECT_NEAR(static_cast<double>(ns), 2 * (kFar + 3 * kNear), 1);
  }
}

// A message takes the latency of its route and its bytes at the narrowest link.
TEST(MessageTime, IsThatOfTheRoute) {
  struct Message {
    int target;
    double latency;
    double bytes_per_ns;
  };
  for (const Message& message :
       {Message{1, kNear, kLink}, Message{4, kFar, kNic}, Message{5, kFarther, kNic}}) {
    const Measured measured = measure([&](Rank& rank, const Group& group) {
      Tensors tensors{on_device(rank, kPart)};
      std::function<Work()> call;
      if (rank.index() == 0) {
        call = [=]() mutable { return group->send(tensors, message.target, 0); };
      }
      if (rank.index() == message.target) {
        call = [=]() mutable { return group->recv(tensors, 0, 0); };
      }
      return call;
    });
    EXPECT_EQ(measured.name, "message");
    EXPECT_EQ(measured.bytes, kPart);
    EXPECT_EQ(measured.sent, (std::vector<Traffic>{{0, message.target, kPart}}));
    for (int rank = 0; rank < kRanks; ++rank) {
      const bool takes_part = rank == 0 || rank == message.target;
      const double expected =
          takes_part ? 5000 + message.latency + kPart / message.bytes_per_ns : 0;
      EXPECT_NEAR(static_cast<double>(measured.ns[rank]), expected, 1)
          << "rank " << rank << " of a message to " << message.target;
    }
  }
}

}  // namespace
}  // namespace accelerate::simulator
