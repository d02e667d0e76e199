#include "accelerate/files/deferred_copy.h"

#include <vector>

#include <gtest/gtest.h>

namespace accelerate::internal {
namespace {

TEST(StreamCopyTest, CopiesAllAndNothingElseFromAndToAnywhere) {
  std::vector<std::byte> source(1000);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 7 + 1);
  constexpr auto kUntouched = std::byte{0};
  for (size_t to = 0; to < 65; to += 3) {
    for (size_t from = 0; from < 20; from += 3) {
      for (size_t size : {0, 1, 63, 64, 65, 127, 128, 129, 500}) {
        std::vector<std::byte> copy(1000, kUntouched);
        stream_copy(copy.data() + to, source.data() + from, size);
        for (size_t i = 0; i < copy.size(); ++i) {
          const bool inside = i >= to && i < to + size;
          ASSERT_EQ(copy[i], inside ? source[i - to + from] : kUntouched)
              << "byte " << i << " of " << size << " from " << from << " to " << to;
        }
      }
    }
  }
}

}  // namespace
}  // namespace accelerate::internal
