#include "trackers/common/png.h"

#include <cstdint>
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trackers/testing/png_reader.h"

namespace accelerate::trackers {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

// Every byte differs from its neighbours, and alpha is never all or nothing alone.
TrackerImage pattern(int64_t height, int64_t width, int64_t channels) {
  TrackerImage image{.height = height, .width = width, .channels = channels};
  for (int64_t i = 0; i < height * width * channels; ++i) {
    image.pixels.push_back(static_cast<uint8_t>(i * 37 + 11));
  }
  return image;
}

TEST(EncodePng, KeepsEveryByteOfEveryKind) {
  for (int64_t channels = 1; channels <= 4; ++channels) {
    for (const auto& [height, width] : {std::pair{1, 1}, {1, 7}, {5, 1}, {33, 64}}) {
      const TrackerImage image = pattern(height, width, channels);
      const std::string bytes = encode_png(image);
      EXPECT_THAT(bytes, StartsWith("\x89PNG\r\n\x1a\n"));
      EXPECT_EQ(decode_png(bytes), image) << height << " x " << width << " x " << channels;
    }
  }
}

TEST(EncodePng, RefusesWhatIsNoImage) {
  const auto encoding = [](TrackerImage image) { return [image] { encode_png(image); }; };
  EXPECT_THAT(encoding({}), ThrowsMessage<std::invalid_argument>(HasSubstr("1 to 4 channels")));
  EXPECT_THAT(encoding(pattern(2, 2, 5)),
              ThrowsMessage<std::invalid_argument>(HasSubstr("1 to 4 channels")));
  EXPECT_THAT(encoding(pattern(0, 2, 3)),
              ThrowsMessage<std::invalid_argument>(HasSubstr("has no pixels")));
  EXPECT_THAT(encoding({.height = -1, .width = 4, .channels = 1}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("has no pixels")));
  EXPECT_THAT(encoding({.height = INT64_MAX, .width = INT64_MAX, .channels = 4}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("is too large")));
  TrackerImage cut = pattern(3, 4, 3);
  cut.pixels.pop_back();
  EXPECT_THAT(encoding(cut), ThrowsMessage<std::invalid_argument>(
                                 "an image of 3 x 4 pixels with 3 channels cannot have 35 bytes"));
}

TEST(EncodePng, SaysWhatLibpngRefuses) {
  const TrackerImage image = pattern(1, 1'000'001, 1);
  EXPECT_THAT([&] { encode_png(image); },
              ThrowsMessage<std::runtime_error>(HasSubstr("1 x 1000001 pixels: ")));
}

}  // namespace
}  // namespace accelerate::trackers
