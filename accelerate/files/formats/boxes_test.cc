#include "accelerate/files/formats/boxes.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace accelerate {
namespace {

using Indices = std::vector<int64_t>;

// The elements of a box by their indices in the tensor, in the order of the box.
std::vector<Indices> elements_of(const Box& box) {
  std::vector<Indices> elements;
  for (int64_t i = 0; i < box.numel(); ++i) {
    Indices element(box.lengths.size());
    int64_t rest = i;
    for (size_t dim = element.size(); dim-- > 0;) {
      element[dim] = box.offsets[dim] + rest % box.lengths[dim];
      rest /= box.lengths[dim];
    }
    elements.push_back(element);
  }
  return elements;
}

bool contains(const Box& box, const Indices& element) {
  for (size_t dim = 0; dim < element.size(); ++dim) {
    if (element[dim] < box.offsets[dim]) return false;
    if (element[dim] >= box.offsets[dim] + box.lengths[dim]) return false;
  }
  return true;
}

int64_t number_of(const Indices& element, const Indices& shape) {
  int64_t number = 0;
  for (size_t dim = 0; dim < shape.size(); ++dim) number = number * shape[dim] + element[dim];
  return number;
}

class Drawn {
 public:
  int64_t up_to(int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random_); }
  Indices shape() {
    Indices shape(static_cast<size_t>(up_to(4)));
    for (int64_t& size : shape) size = up_to(20) == 0 ? 0 : 1 + up_to(4);
    return shape;
  }
  Box box(const Indices& shape) {
    Box box;
    for (const int64_t size : shape) {
      const auto [begin, end] = std::minmax({up_to(size), up_to(size)});
      box.offsets.push_back(begin);
      box.lengths.push_back(end - begin);
    }
    return box;
  }

 private:
  std::mt19937 random_{7};
};

TEST(Boxes, OneThousandPairsHaveTheElementsInCommonThatAreInBoth) {
  Drawn drawn;
  int with_common_elements = 0;
  for (int pair = 0; pair < 1000; ++pair) {
    const Indices shape = drawn.shape();
    const Box a = drawn.box(shape), b = drawn.box(shape);
    std::vector<Indices> in_both;
    for (const Indices& element : elements_of(a)) {
      if (contains(b, element)) in_both.push_back(element);
    }
    const Box common = intersection(a, b);
    EXPECT_EQ(elements_of(common), in_both) << pair;
    EXPECT_EQ(common, intersection(b, a)) << pair;
    if (in_both.empty()) continue;
    ++with_common_elements;
    // The same elements of what is kept of `a` alone.
    const Box part = inside(a, common);
    const std::vector<Indices> of_a = elements_of(a);
    std::vector<Indices> found;
    for (const Indices& element : elements_of(part)) {
      found.push_back(of_a.at(static_cast<size_t>(number_of(element, a.lengths))));
    }
    EXPECT_EQ(found, in_both) << pair;
  }
  EXPECT_GT(with_common_elements, 100);
}

// Boxes that cover a box: it, or two parts of it as boxes that cover them.
void cut(Drawn& drawn, const Box& box, int64_t times, std::vector<Box>& parts) {
  const size_t dim = static_cast<size_t>(drawn.up_to(static_cast<int64_t>(box.lengths.size()) - 1));
  if (times == 0 || box.lengths[dim] < 2) {
    parts.push_back(box);
    return;
  }
  Box first = box, second = box;
  first.lengths[dim] = 1 + drawn.up_to(box.lengths[dim] - 2);
  second.offsets[dim] += first.lengths[dim];
  second.lengths[dim] -= first.lengths[dim];
  cut(drawn, first, times - 1, parts);
  cut(drawn, second, times - 1, parts);
}

TEST(Boxes, AHoleIsInWhatOneThousandSetsOfBoxesLack) {
  Drawn drawn;
  int with_several_boxes = 0;
  for (int i = 0; i < 1000; ++i) {
    Indices shape = drawn.shape();
    shape.push_back(1 + drawn.up_to(4));
    const Box whole = whole_box(shape);
    if (whole.numel() == 0) continue;
    std::vector<Box> boxes;
    cut(drawn, whole, drawn.up_to(5), boxes);
    with_several_boxes += boxes.size() > 4 ? 1 : 0;
    EXPECT_EQ(find_hole(whole, boxes), std::nullopt) << i;
    const auto lost = boxes.begin() + drawn.up_to(static_cast<int64_t>(boxes.size()) - 1);
    const Box lacking = *lost;
    boxes.erase(lost);
    const std::optional<Box> hole = find_hole(whole, boxes);
    ASSERT_TRUE(hole.has_value()) << i;
    EXPECT_GT(hole->numel(), 0) << i;
    EXPECT_EQ(intersection(*hole, lacking), *hole) << i;
  }
  EXPECT_GT(with_several_boxes, 100);
}

TEST(Boxes, ATensorWithoutDimsHasAHoleOrNone) {
  EXPECT_EQ(find_hole(Box(), {}), Box());
  EXPECT_EQ(find_hole(Box(), {Box()}), std::nullopt);
  EXPECT_EQ(find_hole(whole_box({0, 3}), {}), std::nullopt);
}

TEST(Boxes, HaveATextOfEachDimsEnds) {
  EXPECT_EQ(box_text({.offsets = {4, 0}, .lengths = {4, 128}}), "[4:8, 0:128]");
  EXPECT_EQ(box_text(Box()), "[]");
}

TEST(Boxes, OneThousandBoxesConsistOfTheirRunsOfBytes) {
  constexpr int64_t kItem = 4;
  Drawn drawn;
  int with_several_runs = 0;
  for (int i = 0; i < 1000; ++i) {
    const Indices shape = drawn.shape();
    const Box box = drawn.box(shape);
    std::vector<int64_t> expected;
    for (const Indices& element : elements_of(box)) {
      for (int64_t byte = 0; byte < kItem; ++byte) {
        expected.push_back(number_of(element, shape) * kItem + byte);
      }
    }
    const BoxRuns runs(shape, box, kItem);
    std::vector<int64_t> found;
    for (int64_t run = 0; run < runs.count(); ++run) {
      for (int64_t byte = 0; byte < runs.bytes(); ++byte) found.push_back(runs.offset(run) + byte);
    }
    EXPECT_EQ(found, expected) << i;
    with_several_runs += runs.count() > 1 ? 1 : 0;
  }
  EXPECT_GT(with_several_runs, 50);
}

TEST(Boxes, RowsAreOneRun) {
  const BoxRuns runs({5, 3, 2}, row_box({5, 3, 2}, 1, 3), 8);
  EXPECT_EQ(runs.count(), 1);
  EXPECT_EQ(runs.bytes(), 3 * 3 * 2 * 8);
  EXPECT_EQ(runs.offset(0), 3 * 2 * 8);
}

}  // namespace
}  // namespace accelerate
