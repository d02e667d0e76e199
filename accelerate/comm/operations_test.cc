#include "accelerate/comm/operations.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The same on every backend, also for what backends do not know.
const std::vector<at::ScalarType> kDtypes{
    at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong,         at::kInt,
    at::kShort, at::kChar,   at::kByte, at::kBool,     at::kComplexFloat, at::kFloat8_e5m2};

// Rank r's rows: r and r + 1, as far as the dtype has them.
at::Tensor rows_of(int rank, at::ScalarType dtype) {
  return at::tensor({rank, rank + 1}, at::kLong).to(at::kFloat).to(dtype);
}

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(Groups, HaveOneRankWhereThereIsNone) {
  EXPECT_EQ(size_of(nullptr), 1);
  EXPECT_EQ(rank_of(nullptr), 0);
  run_ranks(3, [](const ProcessGroupPtr& group) {
    EXPECT_EQ(size_of(group), 3);
    EXPECT_EQ(rank_of(group), group->getRank());
  });
}

TEST(Gather, PutsRanksRowsOneAfterTheOtherInEveryDtype) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    for (const at::ScalarType dtype : kDtypes) {
      const at::Tensor all = gather(group, rows_of(group->getRank(), dtype));
      EXPECT_EQ(all.scalar_type(), dtype);
      const at::Tensor expected = at::cat({rows_of(0, at::kFloat), rows_of(1, at::kFloat)});
      EXPECT_TRUE(at::equal(all.to(at::kFloat), expected.to(dtype).to(at::kFloat))) << dtype;
    }
  });
}

TEST(Gather, TakesScalarsStridedConjugatedAndEmptyTensors) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const int rank = group->getRank();
    EXPECT_TRUE(at::equal(gather(group, at::scalar_tensor(rank)), at::arange(2, at::kFloat)));
    const at::Tensor strided = at::arange(6).reshape({2, 3}).t();
    EXPECT_TRUE(at::equal(gather(group, strided), at::cat({strided, strided})));
    const at::Tensor conjugated = at::complex(at::ones({1}), at::ones({1})).conj();
    EXPECT_TRUE(at::equal(gather(group, conjugated), at::cat({conjugated, conjugated})));
    EXPECT_EQ(gather(group, at::empty({0, 3})).sizes(), (std::vector<int64_t>{0, 3}));
    const at::Tensor parameter = at::ones({1}).requires_grad_();
    EXPECT_FALSE(gather(group, parameter).requires_grad());
  });
}

c10::impl::GenericDict dict_of(std::vector<std::pair<c10::IValue, c10::IValue>> entries,
                               bool reversed, c10::TypePtr keys = c10::StringType::get()) {
  if (reversed) std::ranges::reverse(entries);
  c10::impl::GenericDict dict(std::move(keys), c10::AnyType::get());
  for (const auto& [key, value] : entries) dict.insert(key, value);
  return dict;
}

double at_key(const c10::IValue& value, const c10::IValue& key, int64_t row = 0) {
  return value.toGenericDict().at(key).toTensor()[row].item<double>();
}

// Each rank inserts in an order of its own; the values say rank and key.
TEST(Dicts, BelongTogetherByKeyInEveryOperation) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const int rank = group->getRank();
    const bool reversed = rank == 1;
    auto number = [rank](double key) { return at::full({1}, 10 * rank + key); };
    const c10::IValue inner =
        dict_of({{int64_t{1}, number(3)}, {int64_t{20}, number(4)}}, reversed, c10::IntType::get());
    c10::impl::GenericList list(c10::AnyType::get());
    list.push_back(inner);
    const auto make = [&] {
      return c10::IValue(dict_of(
          {{"loss", number(1)}, {"accuracy", number(2)}, {"by_class", inner}, {"layers", list}},
          reversed));
    };
    const c10::IValue gathered = gather(group, make());
    EXPECT_EQ(at_key(gathered, "loss", 0), 1);
    EXPECT_EQ(at_key(gathered, "loss", 1), 11);
    EXPECT_EQ(at_key(gathered, "accuracy", 1), 12);
    EXPECT_EQ(at_key(gathered.toGenericDict().at("by_class"), int64_t{20}, 1), 14);
    EXPECT_EQ(at_key(gathered.toGenericDict().at("layers").toListRef()[0], int64_t{1}, 1), 13);
    EXPECT_EQ(gathered.toGenericDict().begin()->key().toStringRef(), reversed ? "layers" : "loss");
    EXPECT_EQ(at_key(reduce(group, make(), Reduction::kSum), "loss"), 12);
    EXPECT_EQ(at_key(gather_ragged(group, make()), "accuracy", 1), 12);
    EXPECT_EQ(at_key(pad_across_processes(group, make()), "loss"), 10 * rank + 1);
    const c10::IValue sent = broadcast(group, make(), 1);
    EXPECT_EQ(at_key(sent, "loss"), 11);
    EXPECT_EQ(at_key(sent, "accuracy"), 12);
  });
}

TEST(Gather, GivesARankAloneItsInput) {
  const at::Tensor scalar = at::ones({});
  EXPECT_TRUE(gather({}, scalar).is_same(scalar));
  EXPECT_EQ(gather({}, std::string("text")), "text");
}

// On every rank, before any of them waits for the others.
TEST(Collectives, RefuseWhatCannotTravel) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    EXPECT_THAT(error_of([&] { gather(group, at::Tensor()); }), HasSubstr("undefined"));
    EXPECT_THAT(error_of([&] { gather(group, at::eye(2).to_sparse()); }), HasSubstr("Sparse"));
    using Named = std::pair<at::Tensor, std::vector<int>>;
    EXPECT_THAT(error_of([&] { gather(group, Named(at::ones({1}), {1})); }),
                HasSubstr("gather: a leaf of type std::vector<int"));
    c10::List<c10::IValue> list(c10::AnyType::get());
    list.push_back("text");
    EXPECT_THAT(error_of([&] { reduce(group, c10::IValue(list)); }),
                HasSubstr("reduce: a leaf of type str"));
    EXPECT_THAT(error_of([&] { broadcast(group, at::ones({1}), 2); }),
                HasSubstr("broadcast: from_process is 2, but ranks are 0 to 1"));
  });
}

TEST(Reduce, SumsAveragesAndFindsTheLargest) {
  run_ranks(3, [](const ProcessGroupPtr& group) {
    const at::Tensor own = at::full({2}, group->getRank(), at::kFloat);
    EXPECT_TRUE(at::equal(reduce(group, own), at::full({2}, 1.0F)));
    EXPECT_TRUE(at::equal(reduce(group, own, Reduction::kSum), at::full({2}, 3.0F)));
    EXPECT_TRUE(at::equal(reduce(group, own, Reduction::kNone), at::full({2}, 3.0F)));
    EXPECT_TRUE(at::equal(reduce(group, own, Reduction::kMax), at::full({2}, 2.0F)));
    // Not an XLA device.
    EXPECT_TRUE(at::equal(reduce(group, own, Reduction::kSum, 0.5), at::full({2}, 3.0F)));
    EXPECT_TRUE(at::equal(reduce_tensor(group, own, Reduction::kSum, 0.5), at::full({2}, 1.5F)));
    EXPECT_TRUE(at::equal(own, at::full({2}, group->getRank(), at::kFloat)));
  });
}

// Programs may write into the result, so the result never shares memory with the argument.
TEST(Reduce, GivesATensorOfItsOwn) {
  const auto expect_own = [](const ProcessGroupPtr& group) {
    for (const at::ScalarType dtype : {at::kFloat, at::kShort, at::kBool, at::kComplexFloat}) {
      const at::Tensor own = at::ones({2}, dtype);
      for (const Reduction reduction : {Reduction::kSum, Reduction::kMax}) {
        if (dtype == at::kComplexFloat && reduction == Reduction::kMax) continue;
        const at::Tensor result = reduce(group, own, reduction);
        EXPECT_FALSE(result.is_alias_of(own)) << dtype;
        result.zero_();
        EXPECT_TRUE(at::equal(own, at::ones({2}, dtype))) << dtype;
      }
    }
  };
  expect_own({});
  run_ranks(1, expect_own);
  run_ranks(2, expect_own);
}

TEST(Reduce, TakesDtypesThatBackendsDoNotAddUp) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const int rank = group->getRank();
    const at::Tensor truth = at::tensor({1, rank, 0}, at::kLong).to(at::kBool);
    const at::Tensor either = at::tensor({1, 1, 0}, at::kLong).to(at::kBool);
    EXPECT_TRUE(at::equal(reduce(group, truth, Reduction::kSum), either));
    const at::Tensor small = at::full({2}, -300 * (rank + 1), at::kShort);
    EXPECT_TRUE(at::equal(reduce(group, small, Reduction::kSum), at::full({2}, -900, at::kShort)));
    EXPECT_TRUE(at::equal(reduce(group, small, Reduction::kMax), at::full({2}, -300, at::kShort)));
    const at::Tensor complex = at::complex(at::ones({1}), at::full({1}, 1.0F + rank));
    EXPECT_TRUE(at::equal(reduce(group, complex, Reduction::kSum),
                          at::complex(at::full({1}, 2.0F), at::full({1}, 3.0F))));
  });
}

// The sum of two ranks' largest numbers is none of the type; their mean is.
TEST(Reduce, HasTheMeanWhereTheSumIsTooLarge) {
  run_ranks(3, [](const ProcessGroupPtr& group) {
    const auto mean_of = [&](at::ScalarType dtype, double value) {
      return reduce(group, at::full({2}, value, dtype))[0].item<double>();
    };
    EXPECT_EQ(mean_of(at::kHalf, 65504), 65504);
    EXPECT_EQ(mean_of(at::kBFloat16, 0x1.8p127), 0x1.8p127);
    EXPECT_EQ(mean_of(at::kFloat, 0x1.8p127), 0x1.8p127);
    EXPECT_EQ(mean_of(at::kDouble, 0x1.8p1023), 0x1.8p1023);
    // The smallest ones that there are do not get lost on the way either.
    EXPECT_EQ(mean_of(at::kHalf, 0x1p-24), 0x1p-24);
    const at::Tensor complex = at::complex(at::full({1}, 0x1.8p127F), at::full({1}, -0x1.8p127F));
    EXPECT_TRUE(at::equal(reduce(group, complex), complex));
    // Digits are those of a sum that is divided.
    const at::Tensor own = at::full({1}, 0.1F * (group->getRank() + 1));
    const at::Tensor sum = reduce(group, own, Reduction::kSum);
    EXPECT_TRUE(at::equal(reduce(group, own), sum / 3));
  });
}

// In the order of ranks the first two numbers leave the range of the type.
TEST(Reduce, HasASumWhosePartsAreTooLarge) {
  run_ranks(3, [](const ProcessGroupPtr& group) {
    const double own = group->getRank() < 2 ? 6e4 : -6e4;
    const at::Tensor sum = reduce(group, at::full({2}, own, at::kHalf), Reduction::kSum);
    EXPECT_TRUE(at::equal(sum, at::full({2}, 6e4, at::kHalf)));
    // One that is too large itself is infinite, as of a type that holds no more.
    const at::Tensor large = reduce(group, at::full({2}, 6e4, at::kHalf), Reduction::kSum);
    EXPECT_TRUE(large.isinf().all().item<bool>());
    EXPECT_TRUE(at::equal(reduce(group, at::full({2}, own, at::kHalf), Reduction::kMax),
                          at::full({2}, 6e4, at::kHalf)));
  });
}

TEST(Reduce, HasNoMeanOfIntegers) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    EXPECT_THAT(error_of([&] { reduce(group, at::ones({1}, at::kLong)); }), HasSubstr("Long"));
    EXPECT_THAT(error_of([&] { reduce(group, at::ones({1}, at::kBool)); }), HasSubstr("Bool"));
  });
  EXPECT_TRUE(at::equal(reduce({}, at::ones({1}, at::kLong)), at::ones({1}, at::kLong)));
}

TEST(Broadcast, WritesTheSourcesTensorsIntoTheOthers) {
  run_ranks(3, [](const ProcessGroupPtr& group) {
    const int rank = group->getRank();
    using Tree = std::map<std::string, std::vector<at::Tensor>>;
    const at::Tensor storage = at::full({2, 3}, rank, at::kBFloat16);
    const Tree tree{{"a", {storage.t(), at::full({}, rank)}}, {"b", {at::full({2}, rank)}}};
    const Tree got = broadcast(group, tree, 1);
    for (const auto& [name, tensors] : got) {
      for (size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_TRUE(at::equal(tensors[i], at::full_like(tensors[i], 1))) << name;
        EXPECT_TRUE(tensors[i].is_same(tree.at(name)[i]));
      }
    }
    EXPECT_TRUE(at::equal(storage, at::full_like(storage, 1)));
  });
}

// Rank 0's memory holds the numbers with the other sign, and rank 1's own numbers as they are.
TEST(BroadcastTensors, SendTheNumbersOfNegatedViews) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor tensor = group->getRank() == 0 ? at::ones({2})._neg_view() : at::zeros({2});
    broadcast_tensors(group, {tensor});
    EXPECT_TRUE(at::equal(tensor, at::full({2}, -1.0)));
    const at::Tensor view = group->getRank() == 1 ? at::ones({2})._neg_view() : at::full({2}, 3.0);
    broadcast_tensors(group, {view});
    EXPECT_TRUE(at::equal(view, at::full({2}, 3.0)));
  });
}

TEST(BroadcastTensors, SendThoseOfTheRankThatIsNamed) {
  run_ranks(3, [](const ProcessGroupPtr& group) {
    const int rank = group->getRank();
    const std::vector<at::Tensor> tensors = {at::full({2}, rank, at::kFloat),
                                             at::full({3}, 10 * rank, at::kLong)};
    broadcast_tensors(group, tensors, /*from_process=*/2);
    EXPECT_TRUE(at::equal(tensors[0], at::full({2}, 2, at::kFloat)));
    EXPECT_TRUE(at::equal(tensors[1], at::full({3}, 20, at::kLong)));
  });
}

TEST(BroadcastInteger, HasEveryBitOfRankZeros) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    EXPECT_EQ(broadcast_integer(group, group->getRank() == 0 ? UINT64_MAX - 4 : 1), UINT64_MAX - 4);
  });
  EXPECT_EQ(broadcast_integer({}, 7), 7u);
}

class TpuRuntime final : public FakeRuntime {
 public:
  std::string device_family() const override { return "tpu"; }
};

// As in HF Accelerate, other devices leave the factor out.
TEST(Reduce, ScalesOnTpus) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    TpuRuntime runtime;
    const RuntimeScope scope(runtime);
    const at::Tensor own = at::full({2}, 1.0F + static_cast<float>(group->getRank()));
    EXPECT_TRUE(at::equal(reduce(group, own, Reduction::kSum, 0.5), at::full({2}, 1.5F)));
    EXPECT_TRUE(at::equal(reduce(group, own, Reduction::kSum), at::full({2}, 3.0F)));
  });
}

// The numbers at both ends of each type, and the first ones outside.
TEST(PadAcrossProcesses, KnowsTheNumbersOfEachType) {
  struct Case {
    at::ScalarType dtype;
    int64_t least, most;
  };
  run_ranks(2, [](const ProcessGroupPtr& group) {
    for (const auto& [dtype, least, most] :
         {Case{at::kChar, -128, 127}, Case{at::kByte, -128, 255}, Case{at::kShort, -32768, 32767},
          Case{at::kBool, 0, 1}}) {
      const at::Tensor own = at::ones({group->getRank() + 1}, dtype);
      for (const int64_t inside : {least, most}) {
        const at::Tensor padded = pad_across_processes(group, own, {.pad_index = inside});
        EXPECT_EQ(padded.size(0), 2) << dtype << " " << inside;
        const auto number = static_cast<double>(inside);
        EXPECT_TRUE(at::equal(padded, pad_across_processes(group, own, {.pad_index = number})))
            << dtype << " " << inside;
      }
      for (const int64_t outside : {least - 1, most + 1}) {
        EXPECT_THROW(pad_across_processes(group, own, {.pad_index = outside}), c10::ValueError)
            << dtype << " " << outside;
      }
    }
  });
}

TEST(BroadcastTensors, SendEveryDtype) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    std::vector<at::ScalarType> dtypes = kDtypes;
    dtypes.push_back(at::ScalarType::UInt16);
    std::vector<at::Tensor> tensors;
    for (const at::ScalarType dtype : dtypes) {
      tensors.push_back(rows_of(group->getRank(), dtype));
    }
    const at::Tensor table = at::full({2, 3}, group->getRank(), at::kShort);
    tensors.push_back(table.t());
    broadcast_tensors(group, tensors);
    for (size_t i = 0; i < dtypes.size(); ++i) {
      EXPECT_EQ(tensors[i].scalar_type(), dtypes[i]);
      EXPECT_TRUE(at::equal(tensors[i].to(at::kFloat), rows_of(0, dtypes[i]).to(at::kFloat)))
          << dtypes[i];
    }
    EXPECT_TRUE(at::equal(table, at::zeros({2, 3}, at::kShort)));
  });
}

TEST(PadAcrossProcesses, FillsUpToTheLargest) {
  run_ranks(3, [](const ProcessGroupPtr& group) {
    const int64_t rank = group->getRank();
    const at::Tensor own = at::full({2, rank}, 5);
    const at::Tensor behind = pad_across_processes(group, own, {.dim = 1, .pad_index = -1});
    EXPECT_TRUE(at::equal(behind, at::cat({own, at::full({2, 2 - rank}, -1)}, 1)));
    const at::Tensor before =
        pad_across_processes(group, own, {.dim = -1, .pad_index = -1, .pad_first = true});
    EXPECT_TRUE(at::equal(before, at::cat({at::full({2, 2 - rank}, -1), own}, 1)));
    if (rank == 2) {
      EXPECT_TRUE(behind.is_same(own));
    }
  });
}

TEST(PadAcrossProcesses, LeavesTensorsWithoutTheDimAlone) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const int64_t rank = group->getRank();
    const auto [row, table] = pad_across_processes(
        group, std::pair(at::ones({rank + 1}), at::ones({1, rank + 1})), {.dim = 1});
    EXPECT_EQ(row.size(0), rank + 1);
    EXPECT_EQ(table.size(1), 2);
    const std::vector<at::Tensor> nothing;
    EXPECT_TRUE(pad_across_processes(group, nothing).empty());
  });
}

TEST(PadAcrossProcesses, LeavesNestedTensorsAloneWithAWarning) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const int64_t rank = group->getRank();
    const at::Tensor nested =
        at::_nested_tensor_from_tensor_list({at::ones({rank + 1}), at::ones({3})});
    const RecordedWarnings warnings;
    const auto [same, padded] =
        pad_across_processes(group, std::pair(nested, at::ones({rank + 1})));
    EXPECT_TRUE(same.is_same(nested));
    EXPECT_EQ(padded.size(0), 2);
    EXPECT_THAT(warnings.texts(), ElementsAre(HasSubstr("CannotPadNestedTensorWarning")));
  });
}

TEST(PadAcrossProcesses, KeepsTheDtypeOrRefuses) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const int64_t rank = group->getRank();
    const at::Tensor bits = at::ones({rank + 1}, at::kBool);
    EXPECT_EQ(pad_across_processes(group, bits).scalar_type(), at::kBool);
    EXPECT_EQ(pad_across_processes(group, at::ones({rank + 1}, at::kByte), {.pad_index = -1})
                  .min()
                  .item<int64_t>(),
              1);
    EXPECT_THAT(error_of([&] { pad_across_processes(group, bits, {.pad_index = 7}); }),
                HasSubstr("Bool tensors cannot be padded with 7"));
    const at::Tensor small = at::ones({rank + 1}, at::kChar);
    EXPECT_THROW(pad_across_processes(group, small, {.pad_index = 0.5}), c10::ValueError);
    EXPECT_THROW(pad_across_processes(group, small, {.pad_index = 1000}), c10::ValueError);
    // Nothing to pad.
    EXPECT_TRUE(
        pad_across_processes(group, bits.narrow(0, 0, 1), {.pad_index = 7}).all().item<bool>());
  });
}

TEST(PadAcrossProcesses, NamesTheRanksThatLackTheDim) {
  run_ranks(3, [](const ProcessGroupPtr& group) {
    const at::Tensor own = group->getRank() == 1 ? at::ones({2, 2}) : at::ones({2});
    EXPECT_THAT(error_of([&] { pad_across_processes(group, own, {.dim = 1}); }),
                HasSubstr("tensor 0 has a dim 1 on ranks 1 but not on ranks 0, 2"));
  });
}

TEST(GatherRagged, GivesRowsOfRanksThatHaveDifferentNumbers) {
  run_ranks(3, [](const ProcessGroupPtr& group) {
    const int64_t rank = group->getRank();
    const at::Tensor all = gather_ragged(group, at::full({2 - rank, 2}, rank));
    EXPECT_TRUE(
        at::equal(all, at::cat({at::zeros({2, 2}, at::kLong), at::ones({1, 2}, at::kLong)})));
  });
}

TEST(GatherRagged, ExchangesAllSizesTogether) {
  run_ranks(3, [](const ProcessGroupPtr& group) {
    const int64_t rank = group->getRank();
    const auto [few, many, scalar] = gather_ragged(
        group,
        std::tuple(at::full({rank}, rank), at::full({2 - rank, 1}, rank), at::full({}, rank)));
    EXPECT_TRUE(at::equal(few, at::tensor({1, 2, 2}, at::kLong)));
    EXPECT_TRUE(at::equal(many, at::tensor({0, 0, 1}, at::kLong).reshape({3, 1})));
    EXPECT_TRUE(at::equal(scalar, at::arange(3)));
    EXPECT_EQ(gather_ragged(group, at::empty({0, 4})).sizes(), (std::vector<int64_t>{0, 4}));
  });
}

}  // namespace
}  // namespace accelerate
