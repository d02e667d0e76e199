#include "accelerate/examples/digits/dataset.h"

#include <zlib.h>

#include <charconv>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/randperm.h>
#include <c10/util/Exception.h>

namespace digits {
namespace {

constexpr int kPixels = 64;
constexpr int kColumns = kPixels + 1;
constexpr int kMaxPixel = 16;
constexpr int kMaxLabel = 9;

std::string inflated(const std::string& compressed, const std::string& path) {
  z_stream stream{};
  constexpr int kGzipOnly = 16 + MAX_WBITS;
  TORCH_CHECK(inflateInit2(&stream, kGzipOnly) == Z_OK, "zlib does not start");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
  stream.avail_in = static_cast<uInt>(compressed.size());
  std::string text;
  std::vector<char> chunk(1 << 16);
  int status = Z_OK;
  while (status == Z_OK) {
    stream.next_out = reinterpret_cast<Bytef*>(chunk.data());
    stream.avail_out = static_cast<uInt>(chunk.size());
    status = inflate(&stream, Z_NO_FLUSH);
    text.append(chunk.data(), chunk.size() - stream.avail_out);
  }
  inflateEnd(&stream);
  TORCH_CHECK(status == Z_STREAM_END, path, ": not a complete gzip file");
  return text;
}

std::vector<int64_t> parsed(const std::string& text, const std::string& path) {
  std::vector<int64_t> values;
  const char* cursor = text.data();
  const char* const end = cursor + text.size();
  for (int line = 1; cursor < end; ++line) {
    for (int column = 0; column < kColumns; ++column) {
      int64_t value = -1;
      const auto [stop, error] = std::from_chars(cursor, end, value);
      const bool last = column == kColumns - 1;
      const bool separated = last ? stop == end || *stop == '\n' : stop != end && *stop == ',';
      TORCH_CHECK(error == std::errc() && separated && value >= 0 &&
                      value <= (last ? kMaxLabel : kMaxPixel),
                  path, " line ", line, " column ", column + 1,
                  ": expected 64 pixels from 0 to 16 and a label from 0 to 9");
      values.push_back(value);
      cursor = stop == end ? end : stop + 1;
    }
  }
  TORCH_CHECK(!values.empty(), path, ": no rows");
  return values;
}

Split rows(const at::Tensor& table, const at::Tensor& which) {
  const at::Tensor chosen = table.index_select(0, which);
  return {chosen.narrow(1, 0, kPixels).to(at::kFloat).div(kMaxPixel).view({-1, 1, 8, 8}),
          chosen.select(1, kPixels).contiguous()};
}

}  // namespace

Dataset load(accelerate::Runtime& runtime, const std::string& path, uint64_t seed) {
  absl::StatusOr<std::string> file = read_file(runtime.files(), path);
  TORCH_CHECK(file.ok(), file.status().message());
  std::vector<int64_t> values = parsed(inflated(*file, path), path);
  const at::Tensor table = at::from_blob(
      values.data(), {static_cast<int64_t>(values.size()) / kColumns, kColumns}, at::kLong);
  // A generator of its own: the split must not depend on what else was drawn before.
  const at::Tensor order = at::randperm(table.size(0), at::detail::createCPUGenerator(seed));
  const int64_t test_rows = table.size(0) / 5;
  return {.train = rows(table, order.narrow(0, test_rows, table.size(0) - test_rows)),
          .test = rows(table, order.narrow(0, 0, test_rows))};
}

}  // namespace digits
