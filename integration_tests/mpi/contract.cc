// The collective contract on the MPI backend. Every process that mpirun started runs all tests, as
// one rank of them; those that a test has no rank for wait for its outcome.
#include <algorithm>
#include <exception>
#include <memory>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/accelerate.h"
#include "accelerate/comm/backend_registry.h"
#include "accelerate/testing/collective_contract.h"

namespace accelerate::testing {
namespace {

using c10d::ReduceOp;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

StorePtr prefixed(const std::string& prefix, const StorePtr& store) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
}

Group make_group(const StorePtr& store, int rank, int size, absl::Duration timeout) {
  auto backend = make_backend(
      "mpi",
      {.store = store, .rank = rank, .size = size, .timeout = absl::ToChronoMilliseconds(timeout)});
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::MPI, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::MPI);
  return group;
}

std::string run_member(int rank, int ranks, const StorePtr& store, absl::Duration timeout,
                       const std::function<void(Member&)>& body) {
  try {
    Member member{.rank = rank,
                  .ranks = ranks,
                  .group = make_group(prefixed("world", store), rank, ranks, timeout)};
    member.subgroup = [&](const std::vector<int>& members) {
      const auto self = std::find(members.begin(), members.end(), rank) - members.begin();
      return make_group(prefixed(absl::StrCat("sub-", absl::StrJoin(members, "-")), store),
                        static_cast<int>(self), static_cast<int>(members.size()), timeout);
    };
    member.count = [&](int64_t more) { return store->add("count", more); };
    body(member);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

std::vector<std::string> run(int ranks, absl::Duration timeout,
                             const std::function<void(Member&)>& body) {
  Runtime& runtime = Runtime::current();
  const Topology& topology = runtime.topology();
  TORCH_CHECK(ranks <= topology.world_size, "the test needs ", ranks, " ranks");
  // Every process counts the runs alike.
  static int runs = 0;
  const StorePtr store = prefixed(absl::StrCat("run/", runs++), runtime.store());
  if (topology.rank < ranks) {
    store->set(absl::StrCat("error/", topology.rank),
               run_member(topology.rank, ranks, store, timeout, body));
  }
  std::vector<std::string> errors;
  for (int rank = 0; rank < ranks; ++rank) {
    errors.push_back(store->get_to_str(absl::StrCat("error/", rank)));
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

CollectiveBackend mpi() {
  return {.name = "Mpi",
          .run = run,
          .reduces = reduces,
          .moves = {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16,
                    at::kFloat, at::kDouble, at::kBool, at::kComplexFloat, at::kComplexDouble,
                    at::kFloat8_e4m3fn, at::kFloat8_e5m2},
          .detects_mismatch = false,
          .names_missing_ranks = false};
}

INSTANTIATE_TEST_SUITE_P(Real, CollectiveContract, ::testing::Values(mpi()), backend_name);

}  // namespace
}  // namespace accelerate::testing
