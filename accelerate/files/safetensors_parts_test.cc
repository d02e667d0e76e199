// Parts of tensors: elements by their numbers, and boxes, in memory and in files.
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "accelerate/files/safetensors.h"
#include "accelerate/files/tensor_ranges.h"
#include "accelerate/platform/host_files.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;

// 24 elements that lie in memory in one way each.
std::vector<at::Tensor> layouts() {
  return {at::arange(24).view({3, 4, 2}),
          at::arange(24).view({2, 4, 3}).permute({2, 1, 0}),
          at::arange(24).view({4, 3, 2}).transpose(0, 1),
          at::arange(48).view({3, 8, 2}).slice(/*dim=*/1, 0, 8, 2),
          at::arange(48).view({3, 4, 4}).slice(/*dim=*/2, 1, 3),
          at::arange(24).view({3, 2, 4}).transpose(1, 2)};
}

TEST(TensorRanges, AreElementsInTheOrderOfTheirNumbers) {
  for (size_t layout = 0; layout < layouts().size(); ++layout) {
    const at::Tensor tensor = layouts()[layout], row = tensor.flatten();
    for (int64_t first = 0; first <= 24; ++first) {
      for (int64_t count = 0; count <= 24 - first; ++count) {
        const at::Tensor out = at::full({count}, -1, at::kLong);
        internal::read_range(tensor, first, out);
        ASSERT_TRUE(at::equal(out, row.narrow(0, first, count)))
            << layout << ": " << count << " from " << first;
        const at::Tensor into = layouts()[layout], expected = row.clone();
        expected.narrow(0, first, count).copy_(at::arange(100, 100 + count));
        internal::write_range(into, first, at::arange(100, 100 + count));
        ASSERT_TRUE(at::equal(into.flatten(), expected))
            << layout << ": " << count << " from " << first;
      }
    }
  }
}

TEST(TensorRanges, ArePlainMemoryWhereAFileHasTheSameBytes) {
  const at::Tensor plain = at::arange(6).to(at::kFloat).view({2, 3});
  EXPECT_TRUE(internal::is_plain_memory(plain));
  EXPECT_TRUE(internal::is_plain_memory(plain.narrow(0, 1, 1)));
  EXPECT_FALSE(internal::is_plain_memory(plain.t()));
  EXPECT_FALSE(internal::is_plain_memory(plain._neg_view()));
  EXPECT_FALSE(internal::is_plain_memory(plain.to(at::kMeta)));
}

class SafetensorsParts : public ::testing::Test {
 protected:
  // A file in which the tensor "x" is behind another one.
  SafetensorsFile file_with(const at::Tensor& x) {
    const std::string path = join_path(folder_.path(), "model.safetensors");
    const NamedTensors tensors = {{"before", at::ones({7}, at::kLong)}, {"x", x}};
    const auto written = write_safetensors(files_, path, tensors, std::nullopt);
    EXPECT_TRUE(written.ok()) << written.status();
    absl::StatusOr<SafetensorsFile> file = SafetensorsFile::open(files_, path);
    if (!file.ok()) throw std::runtime_error(file.status().ToString());
    return *file;
  }

  const TemporaryFolder folder_;
  HostFiles files_;
};

TEST_F(SafetensorsParts, AreElementsByTheirNumbers) {
  const at::Tensor whole = at::arange(24).view({4, 6});
  const SafetensorsFile file = file_with(whole);
  for (int64_t first = 0; first <= 24; ++first) {
    for (int64_t count = 0; count <= 24 - first; ++count) {
      const at::Tensor out = at::full({count}, -1, at::kLong);
      const absl::Status status = file.read_elements("x", first, out);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_TRUE(at::equal(out, whole.flatten().narrow(0, first, count)))
          << count << " from " << first;
    }
  }
}

TEST_F(SafetensorsParts, RefuseElementsThatAreNotThere) {
  const SafetensorsFile file = file_with(at::arange(24).view({4, 6}));
  const auto problem = [&file](int64_t first, const at::Tensor& out) {
    return file.read_elements("x", first, out);
  };
  EXPECT_THAT(problem(-1, at::zeros({1}, at::kLong)).message(),
              HasSubstr("cannot read elements -1 to 0"));
  EXPECT_FALSE(problem(24, at::zeros({1}, at::kLong)).ok());
  EXPECT_FALSE(problem(23, at::zeros({2}, at::kLong)).ok());
  EXPECT_FALSE(problem(25, at::zeros({0}, at::kLong)).ok());
  EXPECT_FALSE(problem(0, at::zeros({2}, at::kInt)).ok()) << "of another dtype";
  EXPECT_FALSE(problem(0, at::zeros({4, 2}, at::kLong).select(1, 0)).ok()) << "with gaps";
  EXPECT_TRUE(absl::IsNotFound(file.read_elements("y", 0, at::zeros({1}, at::kLong))));
}

// Each row of the box is longer than what is read at a time.
TEST_F(SafetensorsParts, AreBoxesOfLongRows) {
  constexpr int64_t kRow = 700'000, kPart = 600'000;
  const at::Tensor whole = at::arange(3 * kRow, at::kInt).view({3, kRow});
  const SafetensorsFile file = file_with(whole);
  const Box box{.offsets = {1, 5}, .lengths = {2, kPart}};
  const at::Tensor expected = whole.narrow(0, 1, 2).narrow(1, 5, kPart);
  for (const at::Tensor& into :
       std::vector<at::Tensor>{at::zeros({2, kPart}, at::kInt), at::zeros({2, kPart}, at::kDouble),
                               at::zeros({kPart, 2}, at::kInt).t(),
                               at::zeros({2, kPart + 1}, at::kInt).narrow(1, 1, kPart)}) {
    const absl::Status status = file.read_box("x", box, into);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(at::equal(into.to(at::kInt), expected)) << into.scalar_type() << into.strides();
  }
  EXPECT_TRUE(absl::IsInvalidArgument(file.read_box("x", box, at::zeros({2, 3}))));
  EXPECT_TRUE(absl::IsNotFound(file.read_box("y", box, at::zeros({2, kPart}))));
}

}  // namespace
}  // namespace accelerate
