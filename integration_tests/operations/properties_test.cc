// The promises of operations, over random nested values and worlds, against plain models: tensor by
// tensor, without groups.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <gtest/gtest.h>

#include "accelerate/accelerator.h"
#include "accelerate/comm/objects.h"
#include "accelerate/comm/operations.h"
#include "accelerate/tensors/split.h"
#include "accelerate/tensors/tree_operations.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using Tensors = std::vector<at::Tensor>;

// Random numbers that are the same everywhere.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL + 1) {}
  int64_t below(int64_t bound) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<int64_t>(state_ % static_cast<uint64_t>(bound));
  }

 private:
  uint64_t state_;
};

const std::vector<at::ScalarType> kDtypes{at::kFloat, at::kDouble, at::kBFloat16,
                                          at::kLong,  at::kByte,   at::kBool};

at::Tensor draw_tensor(Dice& structure, Dice& numbers, const std::vector<int64_t>& shape) {
  const at::ScalarType dtype = kDtypes[static_cast<size_t>(structure.below(6))];
  const bool strided = structure.below(2) == 0;
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  at::Tensor drawn = at::empty({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) drawn.mutable_data_ptr<int64_t>()[i] = numbers.below(100);
  const at::Tensor tensor = drawn.reshape(shape).to(dtype);
  return strided && tensor.dim() > 1 ? tensor.transpose(0, 1).contiguous().transpose(0, 1) : tensor;
}

// A nested value whose structure and dtypes follow from `structure`, its numbers from `numbers`.
// `entries` is the size of dim 0, or -1 for one that is drawn.
c10::IValue draw_value(Dice& structure, Dice& numbers, int64_t entries, int depth = 0) {
  const int64_t kind = structure.below(depth >= 3 ? 1 : 4);
  if (kind == 0) {
    std::vector<int64_t> shape;
    if (entries >= 0) shape.push_back(entries);
    for (int64_t i = structure.below(3); i > 0; --i) shape.push_back(structure.below(4));
    return draw_tensor(structure, numbers, shape);
  }
  std::vector<c10::IValue> parts;
  for (int64_t i = structure.below(3) + (depth == 0 ? 1 : 0); i > 0; --i) {
    parts.push_back(draw_value(structure, numbers, entries, depth + 1));
  }
  if (kind == 1) return c10::ivalue::Tuple::create(std::move(parts));
  if (kind == 2) {
    c10::impl::GenericList list(c10::AnyType::get());
    for (c10::IValue& part : parts) list.push_back(std::move(part));
    return list;
  }
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  for (size_t i = 0; i < parts.size(); ++i) dict.insert("key" + std::to_string(i), parts[i]);
  return dict;
}

Tensors tensors_of(const c10::IValue& value) {
  Tensors found;
  tree_for_each(value, [&found](const at::Tensor& tensor) { found.push_back(tensor); });
  return found;
}

bool same(const c10::IValue& a, const c10::IValue& b) {
  const Tensors ours = tensors_of(a);
  const Tensors theirs = tensors_of(b);
  return std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(),
                    [](const at::Tensor& x, const at::Tensor& y) {
                      return x.scalar_type() == y.scalar_type() && at::equal(x, y);
                    });
}

constexpr uint64_t kDraws = 60;

// The value of rank `rank` in draw `number`.
c10::IValue value_of(uint64_t number, int rank, int64_t entries = -1) {
  Dice structure(number);
  Dice numbers(number * 1000 + static_cast<uint64_t>(rank) + 1);
  return draw_value(structure, numbers, entries);
}

int world_of(uint64_t number) { return static_cast<int>(Dice(number + 77).below(5)) + 2; }

// Runs `body(rank, group, number)` for a range of draws in a world of each size: a draw has a
// number of ranks, so that the shapes are its own.
template <typename Body>
void on_worlds(const Body& body) {
  for (int world = 2; world <= 6; ++world) {
    simulator::Cluster cluster("1x" + std::to_string(world), {.seed = simulator::seed_of_run(3)});
    cluster.run_on_every_rank([&](simulator::Rank& rank) {
      Accelerator accelerator;
      for (uint64_t number = 1; number <= kDraws; ++number) {
        if (world_of(number) != world) continue;
        body(rank.index(), accelerator.state().group(), number);
      }
    });
  }
}

TEST(SplitProperties, SharesJoinedAreTheInput) {
  for (uint64_t number = 1; number <= 600; ++number) {
    const int64_t entries = Dice(number + 5).below(9);
    const int world = world_of(number);
    std::vector<int64_t> list(static_cast<size_t>(entries));
    for (int64_t i = 0; i < entries; ++i) list[static_cast<size_t>(i)] = i;
    const at::Tensor rows = at::arange(entries * 2).reshape({entries, 2});
    std::vector<int64_t> joined;
    Tensors joined_rows;
    for (int rank = 0; rank < world; ++rank) {
      const auto share = split_between_processes(rank, world, list);
      ASSERT_LE(share.size(), (entries + world - 1) / world);
      ASSERT_GE(share.size(), entries / world);
      joined.insert(joined.end(), share.begin(), share.end());
      joined_rows.push_back(split_between_processes(rank, world, c10::IValue(rows)).toTensor());
      if (entries == 0) continue;
      const auto padded = split_between_processes(rank, world, list, true);
      ASSERT_EQ(padded.size(), (entries + world - 1) / world) << number;
      ASSERT_TRUE(std::equal(share.begin(), share.end(), padded.begin())) << number;
      ASSERT_TRUE(std::all_of(padded.begin() + static_cast<int64_t>(share.size()), padded.end(),
                              [entries](int64_t entry) { return entry == entries - 1; }));
    }
    ASSERT_EQ(joined, list) << number;
    ASSERT_TRUE(at::equal(concatenate(joined_rows), rows)) << number;
  }
}

TEST(GatherProperties, EveryRankHasAllRanksValuesInTheirOrder) {
  on_worlds([](int rank, const ProcessGroupPtr& group, uint64_t number) {
    const c10::IValue all = gather(group, value_of(number, rank));
    std::vector<c10::IValue> expected;
    for (int other = 0; other < group->getSize(); ++other) {
      expected.push_back(tree_map(value_of(number, other), [](const at::Tensor& tensor) {
        return tensor.dim() == 0 ? tensor.reshape({1}) : tensor;
      }));
    }
    ASSERT_TRUE(same(all, concatenate(expected))) << "draw " << number << " rank " << rank;
  });
}

TEST(BroadcastProperties, EveryRankHasTheSourcesValues) {
  on_worlds([](int rank, const ProcessGroupPtr& group, uint64_t number) {
    const int source = static_cast<int>(number % static_cast<uint64_t>(group->getSize()));
    const c10::IValue own = value_of(number, rank);
    const c10::IValue got = broadcast(group, own, source);
    ASSERT_TRUE(same(got, value_of(number, source))) << "draw " << number << " rank " << rank;
    ASSERT_TRUE(same(own, got));
    std::vector<c10::IValue> list{value_of(number, rank), rank};
    broadcast_object_list(group, list, source);
    ASSERT_TRUE(same(list.at(0), value_of(number, source))) << "draw " << number;
    ASSERT_EQ(list.at(1).toInt(), source);
  });
}

TEST(ObjectProperties, GatheredEntriesAreAllRanksEntries) {
  on_worlds([](int rank, const ProcessGroupPtr& group, uint64_t number) {
    // Ranks differ in structure and in how many entries they have.
    auto entries_of = [number](int of) {
      std::vector<c10::IValue> entries;
      for (int i = 0; i < (of + static_cast<int>(number)) % 3; ++i) {
        entries.push_back(value_of(number * 10 + static_cast<uint64_t>(of), i));
      }
      return entries;
    };
    std::vector<c10::IValue> expected;
    for (int other = 0; other < group->getSize(); ++other) {
      for (c10::IValue& entry : entries_of(other)) expected.push_back(std::move(entry));
    }
    const std::vector<c10::IValue> all = gather_object(group, entries_of(rank));
    ASSERT_EQ(all.size(), expected.size()) << "draw " << number;
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_TRUE(same(all[i], expected[i])) << "draw " << number << " entry " << i;
    }
  });
}

TEST(ReduceProperties, EveryRankHasTheReducedValues) {
  on_worlds([](int rank, const ProcessGroupPtr& group, uint64_t number) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kMax, Reduction::kMean}) {
      // Small whole numbers, which are exact in double.
      auto doubles_of = [number](int of) {
        return tree_map(value_of(number, of),
                        [](const at::Tensor& t) { return t.to(at::kDouble); });
      };
      Tensors expected = tensors_of(doubles_of(0));
      for (int other = 1; other < group->getSize(); ++other) {
        const Tensors theirs = tensors_of(doubles_of(other));
        for (size_t i = 0; i < theirs.size(); ++i) {
          expected[i] = reduction == Reduction::kMax ? at::maximum(expected[i], theirs[i])
                                                     : expected[i] + theirs[i];
        }
      }
      const Tensors got = tensors_of(reduce(group, doubles_of(rank), reduction));
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {
        if (reduction == Reduction::kMean) expected[i] = expected[i] / group->getSize();
        ASSERT_TRUE(at::equal(got[i], expected[i])) << "draw " << number << " tensor " << i;
      }
    }
  });
}

// Padding makes tensors gatherable, and cutting what was added gives back what each rank had.
TEST(PadProperties, PaddedGatheredAndCutIsWhatRanksHad) {
  on_worlds([](int rank, const ProcessGroupPtr& group, uint64_t number) {
    const bool first = number % 2 == 0;
    auto entries_of = [number](int of) { return (of * 7 + static_cast<int64_t>(number)) % 5; };
    const c10::IValue padded = pad_across_processes(group, value_of(number, rank, entries_of(rank)),
                                                    {.pad_index = 1, .pad_first = first});
    const c10::IValue all = gather(group, padded);
    int64_t most = 0;
    for (int other = 0; other < group->getSize(); ++other) most = std::max(most, entries_of(other));
    for (int other = 0; other < group->getSize(); ++other) {
      const int64_t own = entries_of(other);
      const int64_t begin = other * most + (first ? most - own : 0);
      ASSERT_TRUE(same(slice_tensors(all, {.start = begin, .stop = begin + own}),
                       value_of(number, other, own)))
          << "draw " << number << " rank " << other;
    }
  });
}

}  // namespace
}  // namespace accelerate
