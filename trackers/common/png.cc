#include "trackers/common/png.h"

#include <png.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>

#include "absl/strings/str_cat.h"

namespace accelerate::trackers {
namespace {

constexpr png_uint_32 kFormats[] = {PNG_FORMAT_GRAY, PNG_FORMAT_GA, PNG_FORMAT_RGB,
                                    PNG_FORMAT_RGBA};

// libpng's own limit is far beyond what fits into memory.
constexpr int64_t kMaxSide = std::numeric_limits<int32_t>::max() / 8;

void check(const TrackerImage& image) {
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument(absl::StrCat("an image of ", image.height, " x ", image.width,
                                             " pixels with ", image.channels, " channels ", why));
  };
  if (image.channels < 1 || image.channels > 4)
    refuse("cannot be a PNG, which has 1 to 4 channels");
  if (image.height < 1 || image.width < 1) refuse("has no pixels");
  if (image.height > kMaxSide || image.width > kMaxSide) refuse("is too large");
  const int64_t row = image.width * image.channels;
  const auto size = static_cast<int64_t>(image.pixels.size());
  if (size % row != 0 || size / row != image.height) {
    refuse(absl::StrCat("cannot have ", size, " bytes"));
  }
}

}  // namespace

std::string encode_png(const TrackerImage& image) {
  check(image);
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = kFormats[image.channels - 1];
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png);
  std::string bytes(size, '\0');
  if (png_image_write_to_memory(&png, bytes.data(), &size, /*convert_to_8_bit=*/0,
                                image.pixels.data(), /*row_stride=*/0, /*colormap=*/nullptr) == 0) {
    const std::string reason = png.message;
    png_image_free(&png);
    throw std::runtime_error(absl::StrCat("cannot make a PNG of ", image.height, " x ", image.width,
                                          " pixels: ", reason));
  }
  bytes.resize(size);
  bytes.shrink_to_fit();
  return bytes;
}

}  // namespace accelerate::trackers
