// The collective contract on the simulator, under several schedules.
// One shape each: the contract itself names its numbers of ranks.
#include <atomic>
#include <exception>
#include <mutex>

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include "accelerate/testing/collective_contract/collective_contract.h"
#include "simulator/cluster/cluster.h"

namespace accelerate::testing {
namespace {

using c10d::ReduceOp;

std::vector<std::string> run(uint64_t seed, const std::string& hardware, int ranks,
                             absl::Duration timeout, const std::function<void(Member&)>& body) {
  simulator::Cluster cluster("1x" + std::to_string(ranks) + hardware, {.seed = seed});
  std::vector<std::string> errors(ranks);
  std::atomic<int64_t> counted = 0;
  try {
    cluster.run_on_every_rank([&](simulator::Rank& rank) {
      Member member{.rank = rank.index(),
                    .ranks = ranks,
                    .group = rank.runtime().new_group({.name = "world", .timeout = timeout}),
                    .subgroup =
                        [&](const std::vector<int>& members) {
                          return rank.runtime().new_group({.ranks = members, .timeout = timeout});
                        },
                    .count = [&](int64_t more) { return counted += more; },
                    .device = rank.runtime().device()};
      body(member);
    });
  } catch (const simulator::ClusterError& error) {
    for (const simulator::RankFailure& failure : error.failures()) {
      errors[failure.rank] = failure.message;
    }
    if (error.failures().empty()) errors[0] = error.what();
  }
  return errors;
}

Support reduces(ReduceOp::RedOpType op, at::ScalarType dtype) {
  auto exact_if = [](bool exact) { return exact ? Support::kExact : Support::kRefused; };
  if (at::isFloat8Type(dtype)) return Support::kRefused;
  if (at::isComplexType(dtype)) return exact_if(op == ReduceOp::SUM || op == ReduceOp::AVG);
  if (op == ReduceOp::AVG) return exact_if(dtype != at::kBool);
  if (op == ReduceOp::BAND || op == ReduceOp::BOR || op == ReduceOp::BXOR) {
    return exact_if(at::isIntegralType(dtype, /*includeBool=*/true));
  }
  return Support::kExact;
}

CollectiveBackend sim(uint64_t seed, const std::string& hardware = "") {
  return {.name = (hardware.empty() ? "seed" : "devices_seed") + std::to_string(seed),
          .run = [seed, hardware](
                     int ranks, absl::Duration timeout,
                     const auto& body) { return run(seed, hardware, ranks, timeout, body); },
          .reduces = reduces,
          .moves = {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16,
                    at::kFloat, at::kDouble, at::kBool, at::kComplexFloat, at::kComplexDouble,
                    at::kFloat8_e4m3fn, at::kFloat8_e5m2}};
}

// Only NCCL has it among real backends.
TEST(SimCollectives, ScalesBeforeSumming) {
  simulator::Cluster cluster("1x3");
  cluster.run_on_every_rank([](simulator::Rank& rank) {
    auto group = rank.runtime().new_group({.name = "world"});
    Tensors tensors{at::full({2}, rank.index() + 1.0)};
    c10d::AllreduceOptions options;
    options.reduceOp.op_ = ReduceOp::PREMUL_SUM;
    options.reduceOp.supplement_ = c10::make_intrusive<c10d::NCCLPreMulSumSupplement>(0.5);
    group->allreduce(tensors, options)->wait();
    EXPECT_EQ(tensors[0][1].item<double>(), 3);
  });
}

INSTANTIATE_TEST_SUITE_P(Sim, CollectiveContract, ::testing::Values(sim(0), sim(1), sim(2)),
                         backend_name);
INSTANTIATE_TEST_SUITE_P(SimDevices, CollectiveContract,
                         ::testing::Values(sim(0, ":h100"), sim(1, ":h100"), sim(2, ":h100")),
                         backend_name);

}  // namespace
}  // namespace accelerate::testing
