#include "accelerate/comm/objects.h"

#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Strings = std::vector<std::string>;

// The result of `body(group)` on each rank.
template <typename Body>
auto on_ranks(int size, const Body& body) {
  std::vector<decltype(body(ProcessGroupPtr()))> results(static_cast<size_t>(size));
  run_ranks(size, [&](const ProcessGroupPtr& group) {
    results[static_cast<size_t>(group->getRank())] = body(group);
  });
  return results;
}

TEST(AllGatherBytes, GivesEveryRanksBytesByRank) {
  const Strings sent{"a", "", std::string("\0bc", 3)};
  EXPECT_THAT(on_ranks(3,
                       [&](const ProcessGroupPtr& group) {
                         return all_gather_bytes(group, sent[group->getRank()]);
                       }),
              Each(sent));
}

TEST(AllGatherBytes, GivesEmptyBytes) {
  EXPECT_THAT(on_ranks(2, [](const ProcessGroupPtr& group) { return all_gather_bytes(group, ""); }),
              Each(ElementsAre("", "")));
}

TEST(AllGatherBytes, GivesARankAloneItsOwn) {
  EXPECT_THAT(all_gather_bytes({}, "own"), ElementsAre("own"));
}

TEST(BroadcastBytes, GivesTheSourcesBytes) {
  for (int source : {0, 2}) {
    const Strings sent{"short", "the longest of them all", ""};
    EXPECT_THAT(on_ranks(3,
                         [&](const ProcessGroupPtr& group) {
                           return broadcast_bytes(group, sent[group->getRank()], source);
                         }),
                Each(sent[source]));
  }
  EXPECT_EQ(broadcast_bytes({}, "own"), "own");
}

TEST(GatherObject, PutsRanksEntriesOneAfterTheOther) {
  using Entry = std::pair<int, std::string>;
  EXPECT_THAT(on_ranks(3,
                       [](const ProcessGroupPtr& group) {
                         // As many entries as the rank's number.
                         std::vector<Entry> entries;
                         for (int i = 0; i < group->getRank(); ++i) {
                           entries.emplace_back(group->getRank(), std::string(i, 'x'));
                         }
                         return gather_object(group, entries);
                       }),
              Each(ElementsAre(Entry{1, ""}, Entry{2, ""}, Entry{2, "x"})));
}

TEST(GatherObject, GivesARankAloneItsOwn) {
  EXPECT_THAT(gather_object({}, std::vector<double>{0.5}), ElementsAre(0.5));
  EXPECT_THAT(gather_object({}, Strings()), IsEmpty());
}

TEST(GatherObject, CarriesTensorsInObjects) {
  using Entry = std::pair<std::string, at::Tensor>;
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const int rank = group->getRank();
    // Each rank's tensor has another shape and dtype, and rank 0's is strided.
    const at::Tensor own = rank == 0 ? at::arange(6).reshape({2, 3}).t() : at::ones({}, at::kBool);
    const std::vector<Entry> all = gather_object(group, std::vector<Entry>{{"it", own}});
    ASSERT_EQ(all.size(), 2);
    EXPECT_TRUE(at::equal(all[0].second, at::arange(6).reshape({2, 3}).t()));
    EXPECT_TRUE(at::equal(all[1].second, at::ones({}, at::kBool)));
  });
}

c10::IValue list_of(std::vector<c10::IValue> entries) {
  c10::impl::GenericList list(c10::AnyType::get());
  for (c10::IValue& entry : entries) list.push_back(std::move(entry));
  return list;
}

TEST(GatherObject, TakesTheEntriesOfADynamicValue) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const std::string rank = std::to_string(group->getRank());
    EXPECT_EQ(gather_object(group, list_of({rank, c10::IValue(), list_of({1, 2.5, true})})),
              list_of({"0", c10::IValue(), list_of({1, 2.5, true}), "1", c10::IValue(),
                       list_of({1, 2.5, true})}));
    EXPECT_EQ(gather_object(group, c10::IValue("\u00e9" + rank)),
              list_of({"\u00e9", "0", "\u00e9", "1"}));
    EXPECT_EQ(gather_object(group, c10::IValue(at::arange(2))).toListRef().size(), 4);
    EXPECT_THROW(gather_object(group, c10::IValue(3)), c10::ValueError);
    EXPECT_THROW(gather_object(group, c10::IValue(c10::Dict<std::string, int64_t>())),
                 c10::ValueError);
  });
}

TEST(BroadcastObjectList, ReplacesTheOtherRanksLists) {
  run_ranks(3, [](const ProcessGroupPtr& group) {
    const int rank = group->getRank();
    std::vector<std::string> list(static_cast<size_t>(rank + 1), std::to_string(rank));
    EXPECT_EQ(&broadcast_object_list(group, list, 2), &list);
    EXPECT_THAT(list, ElementsAre("2", "2", "2"));
    std::vector<at::Tensor> tensors{at::full({2}, rank)};
    broadcast_object_list(group, tensors, 1);
    EXPECT_TRUE(at::equal(tensors.at(0), at::full({2}, 1)));
    EXPECT_THROW(broadcast_object_list(group, list, 3), c10::ValueError);
    EXPECT_THROW(broadcast_object_list(group, list, -1), c10::ValueError);
  });
}

// Objects that fit into the first message, that just do not, and that take several pieces.
TEST(Bytes, OfAnySizeArriveAsSent) {
  for (const size_t size : {size_t{247}, size_t{248}, size_t{249}, size_t{70} << 20}) {
    run_ranks(2, [size](const ProcessGroupPtr& group) {
      const int rank = group->getRank();
      auto text_of = [size](int of) {
        std::string text(of == 0 ? size : 3, static_cast<char>('a' + of));
        text.front() = '<';
        text.back() = '>';
        return text;
      };
      const auto all = all_gather_bytes(group, text_of(rank));
      EXPECT_TRUE(all[0] == text_of(0)) << size;
      EXPECT_TRUE(all[1] == text_of(1)) << size;
      EXPECT_TRUE(broadcast_bytes(group, text_of(rank)) == text_of(0)) << size;
    });
  }
}

TEST(CopyTensorToDevices, GivesAllRanksTheTensorOfOne) {
  run_ranks(3, [](const ProcessGroupPtr& group) {
    const at::Tensor theirs = at::arange(6).reshape({2, 3}).to(at::kBFloat16);
    const at::Tensor own = group->getRank() == 2 ? theirs : at::Tensor();
    const TensorSource source = gather_tensor_shape(group, own);
    EXPECT_EQ(source.rank, 2);
    EXPECT_EQ(source.information, tensor_information(theirs));
    EXPECT_TRUE(at::equal(copy_tensor_to_devices(group, own), theirs));
  });
}

TEST(CopyTensorToDevices, NeedsExactlyOneRankWithATensor) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    EXPECT_THROW(copy_tensor_to_devices(group), c10::ValueError);
    EXPECT_THROW(copy_tensor_to_devices(group, at::ones({1})), c10::ValueError);
  });
}

}  // namespace
}  // namespace accelerate
