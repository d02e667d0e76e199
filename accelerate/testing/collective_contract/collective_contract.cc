// The results of collectives: values, forms, dtypes, groups, works.
#include "accelerate/testing/collective_contract/collective_contract.h"

#include <exception>
#include <numeric>

#include <ATen/ops/equal.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <c10/util/complex.h>

#include "accelerate/testing/collective_contract/collective_contract_tensors.h"

namespace accelerate::testing {
namespace {

using c10d::ReduceOp;

constexpr int kSizes[] = {1, 2, 3, 5};
constexpr absl::Duration kPatience = absl::Seconds(60);

constexpr ReduceOp::RedOpType kReduceOps[] = {ReduceOp::SUM, ReduceOp::AVG, ReduceOp::PRODUCT,
                                              ReduceOp::MIN, ReduceOp::MAX, ReduceOp::BAND,
                                              ReduceOp::BOR, ReduceOp::BXOR};
constexpr at::ScalarType kDtypes[] = {
    at::kByte,         at::kChar,          at::kShort,         at::kInt,        at::kLong,
    at::kHalf,         at::kBFloat16,      at::kFloat,         at::kDouble,     at::kBool,
    at::kComplexFloat, at::kComplexDouble, at::kFloat8_e4m3fn, at::kFloat8_e5m2};

// A tensor that tells ranks and places apart, in values that every dtype holds exactly.
at::Tensor marked(int rank, int64_t numel, at::ScalarType dtype = at::kFloat) {
  const at::Tensor value = arange(numel, at::kFloat).add(rank + 1).remainder(7).add(1).to(dtype);
  // A product by parts, as if they were real numbers, is another one.
  return at::isComplexType(dtype) ? value.mul(c10::complex<double>(1, 1)) : value;
}

void combine(at::Tensor& total, const at::Tensor& value, ReduceOp::RedOpType op) {
  switch (op) {
    case ReduceOp::SUM:
    case ReduceOp::AVG: total.add_(value); return;
    case ReduceOp::PRODUCT: total.mul_(value); return;
    case ReduceOp::MIN: total = at::minimum(total, value); return;
    case ReduceOp::MAX: total = at::maximum(total, value); return;
    case ReduceOp::BAND: total.bitwise_and_(value); return;
    case ReduceOp::BOR: total.bitwise_or_(value); return;
    default: total.bitwise_xor_(value); return;
  }
}

at::Tensor expected_reduction(int ranks, int64_t numel, at::ScalarType dtype,
                              ReduceOp::RedOpType op) {
  at::Tensor total = marked(0, numel, dtype);
  for (int rank = 1; rank < ranks; ++rank) combine(total, marked(rank, numel, dtype), op);
  if (op != ReduceOp::AVG) return total;
  return at::isIntegralType(dtype, false) ? total.div(ranks, "trunc") : total.div(ranks);
}

// Calls, and tells whether that gave a result, which is then to be an exact one.
bool gives_result(Support support, const std::function<void()>& call) {
  if (support == Support::kExact) {
    call();
    return true;
  }
  try {
    call();
  } catch (const std::exception&) {
    return false;
  }
  EXPECT_EQ(support, Support::kExactOrRefused) << "it is not refused";
  return true;
}

Work all_reduce(const Group& group, const at::Tensor& tensor,
                ReduceOp::RedOpType op = ReduceOp::SUM) {
  Tensors tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  return group->allreduce(tensors, options);
}

}  // namespace

void CollectiveContract::on_ranks(int ranks, const std::function<void(Member&)>& body) const {
  const std::vector<std::string> errors = errors_on_ranks(ranks, kPatience, body);
  for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(errors[rank], "") << "on rank " << rank;
}

std::vector<std::string> CollectiveContract::errors_on_ranks(
    int ranks, absl::Duration timeout, const std::function<void(Member&)>& body) const {
  SCOPED_TRACE(::testing::Message() << ranks << " ranks");
  return GetParam().run(ranks, timeout, [&body](Member& member) {
    test_device() = member.device;
    body(member);
  });
}

TEST_P(CollectiveContract, BroadcastsFromEachRoot) {
  for (int ranks : kSizes) {
    on_ranks(ranks, [](Member& self) {
      for (int root = 0; root < self.ranks; ++root) {
        Tensors tensors{marked(self.rank, 6).view({2, 3})};
        c10d::BroadcastOptions options;
        options.rootRank = root;
        self.group->broadcast(tensors, options)->wait();
        EXPECT_TRUE(at::equal(tensors[0], marked(root, 6).view({2, 3})));
      }
    });
  }
}

TEST_P(CollectiveContract, CarriesEveryDtypeUnchanged) {
  on_ranks(3, [](Member& self) {
    for (at::ScalarType dtype : GetParam().moves) {
      Tensors tensors{marked(self.rank, 5, dtype)};
      c10d::BroadcastOptions options;
      options.rootRank = 2;
      self.group->broadcast(tensors, options)->wait();
      EXPECT_TRUE(
          at::equal(tensors[0].to(at::kComplexDouble), marked(2, 5, dtype).to(at::kComplexDouble)))
          << dtype;
      at::Tensor mine = marked(self.rank, 2, dtype);
      at::Tensor all = zeros({6}, dtype);
      self.group->_allgather_base(all, mine)->wait();
      for (int rank = 0; rank < 3; ++rank) {
        EXPECT_TRUE(at::equal(all.narrow(0, 2 * rank, 2).to(at::kComplexDouble),
                              marked(rank, 2, dtype).to(at::kComplexDouble)))
            << dtype;
      }
    }
  });
}

TEST_P(CollectiveContract, ReducesEveryDtypeByEveryOpOrRefuses) {
  for (int ranks : {2, 3}) {
    on_ranks(ranks, [&](Member& self) {
      for (at::ScalarType dtype : kDtypes) {
        for (ReduceOp::RedOpType op : kReduceOps) {
          SCOPED_TRACE(::testing::Message() << dtype << " op " << static_cast<int>(op));
          at::Tensor value = marked(self.rank, 5, dtype);
          const Support support = GetParam().reduces(op, dtype);
          if (support == Support::kUnspecified) continue;
          if (gives_result(support, [&] { all_reduce(self.group, value, op)->wait(); })) {
            EXPECT_TRUE(at::equal(value, expected_reduction(ranks, 5, dtype, op)));
          }
        }
      }
    });
  }
}

TEST_P(CollectiveContract, ReducesScalarsAndNothing) {
  on_ranks(3, [](Member& self) {
    at::Tensor scalar = full({}, self.rank + 1.0);
    all_reduce(self.group, scalar)->wait();
    EXPECT_EQ(scalar.item<double>(), 6);
    at::Tensor nothing = zeros({0, 4});
    all_reduce(self.group, nothing)->wait();
    EXPECT_EQ(nothing.numel(), 0);
  });
}

TEST_P(CollectiveContract, ReducesSeveralTensorsAtOnce) {
  for (int ranks : kSizes) {
    on_ranks(ranks, [ranks](Member& self) {
      Tensors tensors{marked(self.rank, 3), marked(self.rank, 4)};
      self.group->allreduce_coalesced(tensors)->wait();
      EXPECT_TRUE(at::equal(tensors[0], expected_reduction(ranks, 3, at::kFloat, ReduceOp::SUM)));
      EXPECT_TRUE(at::equal(tensors[1], expected_reduction(ranks, 4, at::kFloat, ReduceOp::SUM)));
    });
  }
}

TEST_P(CollectiveContract, ReducesSparseTensors) {
  on_ranks(3, [](Member& self) {
    const at::Tensor rows = full({1, 1}, self.rank == 2 ? 0 : self.rank, at::kLong);
    Tensors tensors{at::sparse_coo_tensor(rows, full({1, 2}, self.rank + 1.0), {4, 2})};
    self.group->allreduce(tensors)->wait();
    at::Tensor expected = zeros({4, 2}, at::kDouble);
    expected[0].fill_(4);  // Ranks 0 and 2.
    expected[1].fill_(2);
    EXPECT_TRUE(at::equal(tensors[0].to_dense().to(at::kDouble), expected));
  });
}

TEST_P(CollectiveContract, ReducesToEachRoot) {
  for (int ranks : kSizes) {
    on_ranks(ranks, [ranks](Member& self) {
      for (int root = 0; root < ranks; ++root) {
        Tensors tensors{marked(self.rank, 4)};
        c10d::ReduceOptions options;
        options.rootRank = root;
        self.group->reduce(tensors, options)->wait();
        if (self.rank == root) {
          EXPECT_TRUE(
              at::equal(tensors[0], expected_reduction(ranks, 4, at::kFloat, ReduceOp::SUM)));
        } else if (GetParam().leaves_others_alone) {
          EXPECT_TRUE(at::equal(tensors[0], marked(self.rank, 4)));
        }
      }
    });
  }
}

TEST_P(CollectiveContract, GathersInEveryForm) {
  for (int ranks : kSizes) {
    on_ranks(ranks, [ranks](Member& self) {
      Tensors inputs{marked(self.rank, 3)};
      std::vector<Tensors> lists{Tensors()};
      for (int rank = 0; rank < ranks; ++rank) lists[0].push_back(zeros({3}));
      self.group->allgather(lists, inputs)->wait();
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_TRUE(at::equal(lists[0][rank], marked(rank, 3)));
      }

      Tensors several{marked(self.rank, 2), marked(self.rank, 5)};
      std::vector<Tensors> per_rank;
      for (int rank = 0; rank < ranks; ++rank) {
        per_rank.push_back({zeros({2}), zeros({5})});
      }
      self.group->allgather_coalesced(per_rank, several)->wait();
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_TRUE(at::equal(per_rank[rank][0], marked(rank, 2)));
        EXPECT_TRUE(at::equal(per_rank[rank][1], marked(rank, 5)));
      }

      Tensors wholes{zeros({2 * ranks}), zeros({5 * ranks})};
      self.group->allgather_into_tensor_coalesced(wholes, several)->wait();
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_TRUE(at::equal(wholes[0].narrow(0, 2 * rank, 2), marked(rank, 2)));
        EXPECT_TRUE(at::equal(wholes[1].narrow(0, 5 * rank, 5), marked(rank, 5)));
      }
    });
  }
}

// A rank's part is where its result belongs, as where whole parameters are kept.
TEST_P(CollectiveContract, GathersInPlace) {
  for (int ranks : kSizes) {
    on_ranks(ranks, [ranks](Member& self) {
      at::Tensor whole = zeros({3 * ranks});
      at::Tensor part = whole.narrow(0, 3 * self.rank, 3);
      part.copy_(marked(self.rank, 3));
      self.group->_allgather_base(whole, part)->wait();

      Tensors wholes{zeros({2 * ranks}), zeros({5 * ranks})};
      Tensors parts;
      for (const at::Tensor& each : wholes) {
        const int64_t numel = each.numel() / ranks;
        parts.push_back(each.narrow(0, numel * self.rank, numel));
        parts.back().copy_(marked(self.rank, numel));
      }
      self.group->allgather_into_tensor_coalesced(wholes, parts)->wait();
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_TRUE(at::equal(whole.narrow(0, 3 * rank, 3), marked(rank, 3)));
        EXPECT_TRUE(at::equal(wholes[0].narrow(0, 2 * rank, 2), marked(rank, 2)));
        EXPECT_TRUE(at::equal(wholes[1].narrow(0, 5 * rank, 5), marked(rank, 5)));
      }
    });
  }
}

TEST_P(CollectiveContract, GathersToAndScattersFromEachRoot) {
  for (int ranks : kSizes) {
    on_ranks(ranks, [ranks](Member& self) {
      for (int root = 0; root < ranks; ++root) {
        Tensors inputs{marked(self.rank, 3)};
        std::vector<Tensors> outputs;
        if (self.rank == root) {
          outputs.emplace_back();
          for (int rank = 0; rank < ranks; ++rank) outputs[0].push_back(zeros({3}));
        }
        c10d::GatherOptions gather;
        gather.rootRank = root;
        self.group->gather(outputs, inputs, gather)->wait();
        for (int rank = 0; self.rank == root && rank < ranks; ++rank) {
          EXPECT_TRUE(at::equal(outputs[0][rank], marked(rank, 3)));
        }

        Tensors received{zeros({3})};
        std::vector<Tensors> sent;
        if (self.rank == root) {
          sent.emplace_back();
          for (int rank = 0; rank < ranks; ++rank) sent[0].push_back(marked(rank + root, 3));
        }
        c10d::ScatterOptions scatter;
        scatter.rootRank = root;
        self.group->scatter(received, sent, scatter)->wait();
        EXPECT_TRUE(at::equal(received[0], marked(self.rank + root, 3)));
      }
    });
  }
}

TEST_P(CollectiveContract, ReducesAndScattersInEveryForm) {
  for (int ranks : kSizes) {
    on_ranks(ranks, [ranks](Member& self) {
      const at::Tensor whole = marked(self.rank, 2 * ranks);
      const at::Tensor expected = expected_reduction(ranks, 2 * ranks, at::kFloat, ReduceOp::SUM)
                                      .narrow(0, 2 * self.rank, 2);
      Tensors outputs{zeros({2})};
      std::vector<Tensors> inputs{Tensors()};
      for (int rank = 0; rank < ranks; ++rank) {
        inputs[0].push_back(whole.narrow(0, 2 * rank, 2).clone());
      }
      if (gives_result(GetParam().reduce_scatter_lists,
                       [&] { self.group->reduce_scatter(outputs, inputs)->wait(); })) {
        EXPECT_TRUE(at::equal(outputs[0], expected));
      }

      at::Tensor output = zeros({2});
      at::Tensor input = whole.clone();
      self.group->_reduce_scatter_base(output, input)->wait();
      EXPECT_TRUE(at::equal(output, expected));

      Tensors parts{zeros({2}), zeros({2})};
      Tensors wholes{whole.clone(), whole.clone()};
      self.group->reduce_scatter_tensor_coalesced(parts, wholes)->wait();
      EXPECT_TRUE(at::equal(parts[0], expected));
      EXPECT_TRUE(at::equal(parts[1], expected));
    });
  }
}

// Sums of floating-point numbers depend on the order.
TEST_P(CollectiveContract, ScattersSumsAddedInTheOrderOfRanks) {
  constexpr int64_t kPart = 40;
  for (int ranks : {3, 5}) {
    on_ranks(ranks, [ranks](Member& self) {
      auto whole_of = [ranks](int rank) {
        return arange(kPart * ranks, at::kFloat).add(1).mul(rank + 1).sin();
      };
      at::Tensor sum = whole_of(0);
      for (int rank = 1; rank < ranks; ++rank) sum.add_(whole_of(rank));
      const at::Tensor expected = sum.narrow(0, kPart * self.rank, kPart);

      at::Tensor output = zeros({kPart});
      at::Tensor input = whole_of(self.rank);
      self.group->_reduce_scatter_base(output, input)->wait();
      EXPECT_TRUE(at::equal(output, expected));

      Tensors parts{zeros({kPart})};
      Tensors wholes{whole_of(self.rank)};
      self.group->reduce_scatter_tensor_coalesced(parts, wholes)->wait();
      EXPECT_TRUE(at::equal(parts[0], expected));
    });
  }
}

// A rank's sum takes the place of its own term, as where gradients are sharded in their buffers.
TEST_P(CollectiveContract, ReducesAndScattersInPlace) {
  for (int ranks : kSizes) {
    on_ranks(ranks, [ranks](Member& self) {
      const auto expected = [&](int64_t numel) {
        return expected_reduction(ranks, numel * ranks, at::kFloat, ReduceOp::SUM)
            .narrow(0, numel * self.rank, numel);
      };
      at::Tensor whole = marked(self.rank, 3 * ranks);
      at::Tensor part = whole.narrow(0, 3 * self.rank, 3);
      self.group->_reduce_scatter_base(part, whole)->wait();
      EXPECT_TRUE(at::equal(part, expected(3)));

      Tensors wholes{marked(self.rank, 2 * ranks), marked(self.rank, 5 * ranks)};
      Tensors parts{wholes[0].narrow(0, 2 * self.rank, 2), wholes[1].narrow(0, 5 * self.rank, 5)};
      self.group->reduce_scatter_tensor_coalesced(parts, wholes)->wait();
      EXPECT_TRUE(at::equal(parts[0], expected(2)));
      EXPECT_TRUE(at::equal(parts[1], expected(5)));
    });
  }
}

// Parts of 64 KiB and more may go another way than small ones, which share messages.
TEST_P(CollectiveContract, MovesSmallAndLargeTensorsInOneCall) {
  const std::vector<int64_t> numels = {5, 16384, 16383, 40000, 1};
  for (int ranks : {2, 3}) {
    on_ranks(ranks, [&, ranks](Member& self) {
      Tensors parts, wholes;
      for (const int64_t numel : numels) {
        parts.push_back(marked(self.rank, numel));
        wholes.push_back(zeros({numel * ranks}));
      }
      self.group->allgather_into_tensor_coalesced(wholes, parts)->wait();
      for (size_t i = 0; i < numels.size(); ++i) {
        for (int rank = 0; rank < ranks; ++rank) {
          EXPECT_TRUE(
              at::equal(wholes[i].narrow(0, numels[i] * rank, numels[i]), marked(rank, numels[i])))
              << numels[i] << " of rank " << rank;
        }
        wholes[i] = marked(self.rank, numels[i] * ranks);
      }
      self.group->reduce_scatter_tensor_coalesced(parts, wholes)->wait();
      for (size_t i = 0; i < numels.size(); ++i) {
        const at::Tensor sum =
            expected_reduction(ranks, numels[i] * ranks, at::kFloat, ReduceOp::SUM);
        EXPECT_TRUE(at::equal(parts[i], sum.narrow(0, numels[i] * self.rank, numels[i])))
            << numels[i];
      }
    });
  }
}

TEST_P(CollectiveContract, ExchangesEqualAndUnequalShares) {
  for (int ranks : {2, 3}) {
    on_ranks(ranks, [ranks](Member& self) {
      std::vector<int64_t> none;
      at::Tensor input = marked(self.rank, 2 * ranks);
      at::Tensor output = zeros({2 * ranks});
      self.group->alltoall_base(output, input, none, none)->wait();
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_TRUE(at::equal(output.narrow(0, 2 * rank, 2),
                              marked(rank, 2 * ranks).narrow(0, 2 * self.rank, 2)));
      }
      // Rank r sends q rows to rank q, none to rank 0.
      std::vector<int64_t> sends(ranks);
      std::iota(sends.begin(), sends.end(), 0);
      std::vector<int64_t> receives(ranks, self.rank);
      const int64_t total = std::accumulate(sends.begin(), sends.end(), int64_t{0});
      at::Tensor uneven = full({total, 2}, self.rank, at::kFloat);
      at::Tensor received = zeros({self.rank * ranks, 2});
      self.group->alltoall_base(received, uneven, receives, sends)->wait();
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_TRUE(at::equal(received.narrow(0, rank * self.rank, self.rank),
                              full({self.rank, 2}, rank, at::kFloat)));
      }
    });
  }
}

TEST_P(CollectiveContract, ExchangesListsOfTensorsOrRefuses) {
  auto exchange = [](Member& self) {
    Tensors inputs;
    Tensors outputs;
    for (int rank = 0; rank < self.ranks; ++rank) {
      inputs.push_back(full({rank + 1}, self.rank));
      outputs.push_back(zeros({self.rank + 1}, at::kLong));
    }
    for (at::Tensor& tensor : inputs) tensor = tensor.to(at::kLong);
    self.group->alltoall(outputs, inputs)->wait();
    for (int rank = 0; rank < self.ranks; ++rank) {
      EXPECT_TRUE(at::equal(outputs[rank], full({self.rank + 1}, rank, at::kLong)));
    }
  };
  if (GetParam().all_to_all_lists) return on_ranks(3, exchange);
  for (const std::string& error : errors_on_ranks(3, kPatience, exchange)) EXPECT_NE(error, "");
}

TEST_P(CollectiveContract, DeliversMessagesByTagAndInOrder) {
  on_ranks(2, [](Member& self) {
    Tensors first{self.rank == 0 ? full({2}, 1.0) : zeros({2})};
    Tensors second{self.rank == 0 ? full({2}, 2.0) : zeros({2})};
    Tensors third{self.rank == 0 ? full({2}, 3.0) : zeros({2})};
    std::vector<Work> works;
    if (self.rank == 0) {
      works = {self.group->send(first, 1, 7), self.group->send(second, 1, 8),
               self.group->send(third, 1, 7)};
    } else {
      // The other tag first; the same tag in the order of sending.
      works = {self.group->recv(second, 0, 8), self.group->recv(first, 0, 7),
               self.group->recv(third, 0, 7)};
    }
    for (const Work& work : works) work->wait();
    EXPECT_EQ(first[0][0].item<float>(), 1);
    EXPECT_EQ(second[0][0].item<float>(), 2);
    EXPECT_EQ(third[0][0].item<float>(), 3);
  });
}

TEST_P(CollectiveContract, ReceivesFromAnyoneAndSaysFromWhom) {
  on_ranks(3, [](Member& self) {
    if (self.rank != 0) {
      Tensors mine{full({1}, self.rank)};
      self.group->send(mine, 0, 5)->wait();
      return;
    }
    int sum = 0;
    for (int message = 0; message < 2; ++message) {
      Tensors any{zeros({1}, at::kLong)};
      Work work = self.group->recvAnysource(any, 5);
      work->wait();
      EXPECT_EQ(any[0].item<int64_t>(), work->sourceRank());
      sum += work->sourceRank();
    }
    EXPECT_EQ(sum, 3);
  });
}

TEST_P(CollectiveContract, SeparatesPhasesByBarriers) {
  on_ranks(5, [](Member& self) {
    for (int phase = 1; phase <= 3; ++phase) {
      self.count(1);
      self.group->barrier()->wait();
      EXPECT_GE(self.count(0), 5 * phase);
      self.group->barrier()->wait();
    }
  });
}

TEST_P(CollectiveContract, KeepsManyWorksInFlight) {
  on_ranks(3, [](Member& self) {
    Tensors values;
    std::vector<Work> works;
    for (int i = 0; i < 20; ++i) {
      values.push_back(full({4}, self.rank + i, at::kFloat));
      works.push_back(all_reduce(self.group, values.back()));
    }
    for (int i = 19; i >= 0; --i) {
      works[i]->wait();
      works[i]->wait();  // Twice is once.
      EXPECT_TRUE(works[i]->isCompleted());
      EXPECT_TRUE(works[i]->isSuccess());
      EXPECT_EQ(values[i][0].item<float>(), 3 + 3 * i);
    }
  });
}

TEST_P(CollectiveContract, CompletesFutures) {
  on_ranks(2, [](Member& self) {
    at::Tensor value = ones({2});
    auto future = all_reduce(self.group, value)->getFuture();
    future->wait();
    EXPECT_EQ(future->value().toTensorVector()[0][0].item<float>(), 2);
  });
}

TEST_P(CollectiveContract, KeepsGroupsApart) {
  on_ranks(4, [](Member& self) {
    Group pair = self.subgroup(self.rank < 2 ? std::vector{0, 1} : std::vector{2, 3});
    Group stripe = self.subgroup(self.rank % 2 == 0 ? std::vector{0, 2} : std::vector{1, 3});
    at::Tensor in_pair = full({1}, self.rank, at::kFloat);
    at::Tensor in_stripe = full({1}, self.rank, at::kFloat);
    at::Tensor in_all = full({1}, self.rank, at::kFloat);
    // Half of the ranks issue them in another order: groups do not wait for each other.
    std::vector<Work> works;
    if (self.rank < 2) {
      works = {all_reduce(pair, in_pair), all_reduce(stripe, in_stripe),
               all_reduce(self.group, in_all)};
    } else {
      works = {all_reduce(self.group, in_all), all_reduce(stripe, in_stripe),
               all_reduce(pair, in_pair)};
    }
    for (const Work& work : works) work->wait();
    EXPECT_EQ(in_pair.item<float>(), self.rank < 2 ? 1 : 5);
    EXPECT_EQ(in_stripe.item<float>(), self.rank % 2 == 0 ? 2 : 4);
    EXPECT_EQ(in_all.item<float>(), 6);
  });
}

TEST_P(CollectiveContract, CoalescesCallsOrRefuses) {
  auto coalesce = [](Member& self) {
    at::Tensor first = full({1}, self.rank, at::kFloat);
    at::Tensor second = full({1}, self.rank + 1, at::kFloat);
    self.group->startCoalescing(at::kCPU);
    all_reduce(self.group, first);
    all_reduce(self.group, second);
    self.group->endCoalescing(at::kCPU)->wait();
    EXPECT_EQ(first.item<float>(), 1);
    EXPECT_EQ(second.item<float>(), 3);
  };
  if (GetParam().coalescing) return on_ranks(2, coalesce);
  for (const std::string& error : errors_on_ranks(2, kPatience, coalesce)) EXPECT_NE(error, "");
}

}  // namespace accelerate::testing
