#include "accelerate/files/formats/boxes.h"

#include <algorithm>
#include <cstddef>
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
