#include "accelerate/tracking/run/tensor_value.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(TensorValueTest, TensorsConvert) {
  const TrackerDict values{{"loss", at::scalar_tensor(0.5F)},
                           {"counts", at::tensor({1, 2, 3}, at::kLong)},
                           {"half", at::full({1}, 1.5, at::kBFloat16)}};
  EXPECT_EQ(values[0].second, TrackerValue(TensorValue{{}, "float32", {0.5}}));
  EXPECT_EQ(values[1].second, TrackerValue(TensorValue{{3}, "int64", {1, 2, 3}}));
  EXPECT_EQ(values[2].second, TrackerValue(TensorValue{{1}, "bfloat16", {1.5}}));
}

TEST(TensorValueTest, ItemsAreNumbers) {
  EXPECT_EQ(TrackerValue(at::scalar_tensor(0.5F).item()), TrackerValue(0.5));
  EXPECT_EQ(TrackerValue(at::scalar_tensor(3, at::kLong).item()), TrackerValue(3));
  EXPECT_EQ(TrackerValue(at::scalar_tensor(true, at::kBool).item()), TrackerValue(true));
}

TEST(TensorValueTest, OrderIsThatOfRows) {
  const at::Tensor matrix = at::arange(6).reshape({2, 3}).t();
  const TrackerValue value(matrix);
  EXPECT_THAT(value.get_if<TensorValue>()->sizes, ElementsAre(3, 2));
  EXPECT_THAT(value.get_if<TensorValue>()->values, ElementsAre(0, 3, 1, 4, 2, 5));
}

TEST(TensorValueTest, RefusesWhatHasNoElementsToShow) {
  EXPECT_THROW(TrackerValue{at::Tensor()}, c10::ValueError);
  EXPECT_THROW(TrackerValue{at::zeros({2}, at::kComplexFloat)}, c10::ValueError);
  EXPECT_THROW(TrackerValue{at::zeros({2}).to_sparse()}, c10::ValueError);
}

TEST(TrackerImagesTest, LayoutsAreOneImage) {
  // One row of two pixels: red, and white.
  const at::Tensor pixels = at::tensor({255, 0, 0, 255, 255, 255}, at::kByte).reshape({1, 2, 3});
  const std::vector<uint8_t> expected{255, 0, 0, 255, 255, 255};
  for (const auto& [format, tensor] : {std::pair<const char*, at::Tensor>{"HWC", pixels},
                                       {"CHW", pixels.permute({2, 0, 1})},
                                       {"NCHW", pixels.permute({2, 0, 1}).unsqueeze(0)},
                                       {"NHWC", pixels.unsqueeze(0)}}) {
    const std::vector<TrackerImage> images = tracker_images(tensor, format);
    ASSERT_THAT(images, SizeIs(1)) << format;
    EXPECT_EQ(images[0], (TrackerImage{1, 2, 3, expected})) << format;
  }
}

TEST(TrackerImagesTest, FloatsAreStretchedAndKeptInBounds) {
  const at::Tensor grey = at::tensor({0.0, 0.5, 1.0, 7.0, -1.0, NAN}).reshape({2, 3});
  const std::vector<TrackerImage> images = tracker_images(grey, "HW");
  EXPECT_EQ(images[0].channels, 1);
  EXPECT_THAT(images[0].pixels, ElementsAre(0, 128, 255, 255, 0, 0));
}

TEST(TrackerImagesTest, ABatchIsSeveral) {
  EXPECT_THAT(tracker_images(at::zeros({5, 3, 2, 2}), "NCHW"), SizeIs(5));
  EXPECT_THAT(tracker_images(at::zeros({0, 3, 2, 2}), "NCHW"), SizeIs(0));
}

TEST(TrackerImagesTest, RefusesWhatIsNoImage) {
  const auto error_of = [](const at::Tensor& tensor, const char* format) {
    try {
      tracker_images(tensor, format);
    } catch (const c10::ValueError& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string("no error");
  };
  EXPECT_THAT(
      error_of(at::zeros({3, 2, 2}), "NCHW"),
      HasSubstr("a tensor of sizes [3, 2, 2] is not of the format \"NCHW\": dimensions differ"));
  EXPECT_THAT(error_of(at::zeros({5, 2, 2}), "CHW"), HasSubstr("1 to 4 channels"));
  EXPECT_THAT(error_of(at::zeros({3, 2, 2}), "CWX"), HasSubstr("must have an H and a W"));
  EXPECT_THAT(error_of(at::zeros({3, 0, 2}), "CHW"), HasSubstr("no pixels"));
  EXPECT_THAT(error_of(at::zeros({3, 2, 2}, at::kLong), "CHW"), HasSubstr("bytes, or floats"));
}

}  // namespace
}  // namespace accelerate
