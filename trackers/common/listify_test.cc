#include "trackers/common/listify.h"

#include <optional>

#include <gtest/gtest.h>

namespace accelerate::trackers {
namespace {

TEST(Listify, TurnsTensorsIntoListsAndNumbers) {
  const TensorValue floats{.sizes = {2, 1}, .dtype = "bfloat16", .values = {0.5, 1}};
  const TensorValue scalar{.dtype = "int64", .values = {3}};
  const TensorValue truths{.sizes = {2}, .dtype = "bool", .values = {1, 0}};
  const TensorValue nothing{.sizes = {2, 0}, .dtype = "float32"};
  EXPECT_EQ(listify(TrackerDict{{"a", floats},
                                {"b", {{"c", TrackerList{scalar, "text"}}}},
                                {"d", truths},
                                {"e", nothing},
                                {"f", std::nullopt}}),
            (TrackerDict{{"a", TrackerList{TrackerList{0.5}, TrackerList{1.0}}},
                         {"b", {{"c", TrackerList{3, "text"}}}},
                         {"d", TrackerList{true, false}},
                         {"e", TrackerList{TrackerList{}, TrackerList{}}},
                         {"f", std::nullopt}}));
  EXPECT_EQ(listify(TensorValue{.dtype = "uint64", .values = {18446744073709551615.0}}),
            TrackerValue(18446744073709551615.0));
}

}  // namespace
}  // namespace accelerate::trackers
