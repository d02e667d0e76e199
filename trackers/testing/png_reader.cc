#include "trackers/testing/png_reader.h"

#include <png.h>

#include <stdexcept>
#include <string>

namespace accelerate::trackers {

TrackerImage decode_png(std::string_view bytes) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  TrackerImage image;
  if (png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()) != 0) {
    png.format &= PNG_FORMAT_FLAG_ALPHA | PNG_FORMAT_FLAG_COLOR;  // 8 bits, not a palette
    image.height = png.height;
    image.width = png.width;
    image.channels = PNG_IMAGE_PIXEL_CHANNELS(png.format);
    image.pixels.resize(PNG_IMAGE_SIZE(png));
    if (png_image_finish_read(&png, /*background=*/nullptr, image.pixels.data(), /*row_stride=*/0,
                              /*colormap=*/nullptr) != 0) {
      return image;
    }
  }
  const std::string reason = png.message;
  png_image_free(&png);
  throw std::runtime_error("no PNG: " + reason);
}

}  // namespace accelerate::trackers
