// The collective contract on the MPI backend. Every process that mpirun started runs all tests, as
// one rank of them; those that a test has no rank for wait for its outcome.
#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <thread>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/accelerate.h"
#include "accelerate/comm/backends/backend_registry.h"
#include "accelerate/comm/backends/mpi/schedules.h"
#include "accelerate/testing/collective_contract/collective_contract.h"

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
  // The text is never empty: TCPStore's answer with an empty value lies in the kernel for 200 ms.
  if (topology.rank < ranks) {
    store->set(absl::StrCat("error/", topology.rank),
               absl::StrCat(" ", run_member(topology.rank, ranks, store, timeout, body)));
  }
  std::vector<std::string> errors;
  for (int rank = 0; rank < ranks; ++rank) {
    errors.push_back(store->get_to_str(absl::StrCat("error/", rank)).substr(1));
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

// MPI counts in int.
TEST(MpiTransfers, CutLongMessages) {
  const Topology& topology = Runtime::current().topology();
  Runtime::current().store();  // MPI is up.
  if (topology.rank > 1) return;
  internal::Transfers transfers(MPI_COMM_WORLD, /*tag=*/11, /*max_message=*/1000);
  std::string text(2500, '\0');
  if (topology.rank == 0) {
    for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i % 251);
    transfers.send({text.data(), text.size()}, 1);
  } else {
    transfers.receive({text.data(), text.size()}, 0);
  }
  while (!transfers.done()) std::this_thread::yield();
  for (size_t i = 0; i < text.size(); ++i) ASSERT_EQ(text[i], static_cast<char>(i % 251));
}

TEST(MpiBackend, RefusesSharesThatDoNotFit) {
  const std::vector<std::string> errors = run(2, absl::Seconds(60), [](Member& self) {
    at::Tensor rows = at::zeros({4});
    std::vector<int64_t> equal{2, 2};
    std::vector<int64_t> negative{5, -1};
    std::vector<int64_t> mine =
        self.rank == 0 ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{3, 1};
    EXPECT_ANY_THROW(self.group->alltoall_base(rows, rows, equal, negative));
    EXPECT_ANY_THROW(self.group->alltoall_base(rows, rows, equal, mine));
    c10d::AllreduceOptions scaled;
    scaled.reduceOp.op_ = ReduceOp::PREMUL_SUM;
    scaled.reduceOp.supplement_ = c10::make_intrusive<c10d::NCCLPreMulSumSupplement>(0.5);
    Tensors one{rows};
    EXPECT_ANY_THROW(self.group->send(one, 1 - self.rank, -2));
    EXPECT_ANY_THROW(self.group->allreduce(one, scaled));
    self.group->barrier()->wait();
  });
  EXPECT_THAT(errors, ::testing::Each(""));
}

// Large enough to be cut into shares and segments, unequal ones; in the order of ranks.
TEST(MpiBackend, ReducesLargeTensorsInRankOrder) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::vector<std::string> errors = run(3, absl::Seconds(60), [dtype](Member& self) {
      auto term = [dtype](int rank) {
        return at::arange(10'000'019, at::kFloat).add(rank).sin().div(rank + 1).to(dtype);
      };
      const std::array<at::Tensor, 3> terms{term(0), term(1), term(2)};
      const at::Tensor expected = terms[0].add(terms[1]).add_(terms[2]);
      const at::Tensor& mine = terms[self.rank];
      Tensors value{mine.clone()};
      self.group->allreduce(value)->wait();
      EXPECT_TRUE(at::equal(value[0], expected));
      Tensors to_root{mine.clone()};
      c10d::ReduceOptions reduce;
      reduce.rootRank = 2;
      self.group->reduce(to_root, reduce)->wait();
      EXPECT_TRUE(at::equal(to_root[0], self.rank == 2 ? expected : mine));
      Tensors from_root{mine.clone()};
      c10d::BroadcastOptions broadcast;
      broadcast.rootRank = 1;
      self.group->broadcast(from_root, broadcast)->wait();
      EXPECT_TRUE(at::equal(from_root[0], terms[1]));
    });
    EXPECT_THAT(errors, ::testing::Each(""));
  }
}

INSTANTIATE_TEST_SUITE_P(Real, CollectiveContract, ::testing::Values(mpi()), backend_name);

}  // namespace
}  // namespace accelerate::testing
