// The collective contract on c10d's Gloo, ranks being threads that connect over loopback.
#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <thread>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "accelerate/comm/backends/backend_registry.h"
#include "accelerate/testing/collective_contract/collective_contract.h"

namespace accelerate::testing {
namespace {

using c10d::ReduceOp;

Group make_group(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int rank,
                 int size, absl::Duration timeout) {
  auto prefixed = c10::make_intrusive<c10d::PrefixStore>(name, store);
  auto backend = make_backend("gloo", {.store = prefixed,
                                       .rank = rank,
                                       .size = size,
                                       .timeout = absl::ToChronoMilliseconds(timeout)});
  auto group = c10::make_intrusive<c10d::ProcessGroup>(prefixed, rank, size);
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

std::vector<std::string> run(int ranks, absl::Duration timeout,
                             const std::function<void(Member&)>& body) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> errors(ranks);
  // Groups end together: a rank that is done must not look like one that died.
  std::vector<std::vector<Group>> kept(ranks);
  std::atomic<int64_t> counted = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        std::map<std::string, int> made;
        Member member{.rank = rank,
                      .ranks = ranks,
                      .group = make_group(store, "world", rank, ranks, timeout)};
        kept[rank].push_back(member.group);
        member.subgroup = [&](const std::vector<int>& members) {
          std::string name = "sub";
          for (int other : members) name += "-" + std::to_string(other);
          const auto self = std::find(members.begin(), members.end(), rank) - members.begin();
          kept[rank].push_back(make_group(store, name, static_cast<int>(self),
                                          static_cast<int>(members.size()), timeout));
          return kept[rank].back();
        };
        member.count = [&](int64_t more) { return counted += more; };
        body(member);
      } catch (const c10::Error& error) {
        errors[rank] = error.what_without_backtrace();
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

Support reduces(ReduceOp::RedOpType op, at::ScalarType dtype) {
  auto exact_if = [](bool exact) { return exact ? Support::kExact : Support::kRefused; };
  switch (dtype) {
    // Gloo adds truth values as bytes, so that two trues make a byte of 2.
    case at::kBool: return op == ReduceOp::AVG ? Support::kRefused : Support::kUnspecified;
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong: return exact_if(op != ReduceOp::AVG);
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
      // LibTorch 2.6 refuses averages, 2.15 divides the sum.
      if (op == ReduceOp::AVG) return Support::kExactOrRefused;
      return exact_if(op == ReduceOp::SUM || op == ReduceOp::PRODUCT || op == ReduceOp::MIN ||
                      op == ReduceOp::MAX);
    case at::kComplexFloat:
    case at::kComplexDouble:
      // LibTorch 2.6 refuses complex numbers, 2.15 adds them.
      return op == ReduceOp::SUM || op == ReduceOp::AVG ? Support::kExactOrRefused
                                                        : Support::kRefused;
    default: return Support::kRefused;
  }
}

CollectiveBackend gloo() {
  return {.name = "Gloo",
          .run = run,
          .reduces = reduces,
          // LibTorch 2.6 refuses them.
          .reduce_scatter_lists = Support::kExactOrRefused,
          .moves = {at::kByte, at::kChar, at::kInt, at::kLong, at::kHalf, at::kFloat, at::kDouble},
          .all_to_all_lists = false,
          .coalescing = false,
          .detects_mismatch = false,
          .names_missing_ranks = false,
          .rejects_strided = false,
          .leaves_others_alone = false};
}

INSTANTIATE_TEST_SUITE_P(Real, CollectiveContract, ::testing::Values(gloo()), backend_name);

}  // namespace
}  // namespace accelerate::testing
