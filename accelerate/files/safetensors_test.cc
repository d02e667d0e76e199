#include "accelerate/files/safetensors.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "accelerate/base/checksum.h"
#include "accelerate/files/formats/safetensors_header.h"
#include "accelerate/files/formats/sharded_metadata.h"
#include "accelerate/files/stored_tensors.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const char kPath[] = "folder/model.safetensors";

// A disk in memory, which can fail. Used by one thread, unless `threads` says otherwise.
class MemoryFiles final : public FileSystem {
 public:
  std::map<std::string, std::string> contents;
  int threads = 1;
  // The disk is full after as many bytes.
  int64_t capacity = INT64_MAX;
  bool sync_fails = false;
  bool close_fails = false;
  int open_files = 0;
  int syncs = 0;
  std::atomic<int64_t> begun_syncs = 0;  // bytes
  std::atomic<int> writes = 0;
  int64_t bytes_read = 0;
  // How many of the reads that come next get a flipped bit, if they have this byte of the file.
  int flips = 0;
  int64_t flipped_byte = 0;

  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override {
    if (!contents.contains(path)) return absl::NotFoundError(path);
    return std::make_unique<Readable>(*this, path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    contents[path].clear();
    return std::make_unique<Writable>(*this, path);
  }
  absl::StatusOr<std::unique_ptr<ScratchFile>> open_scratch(const std::string&) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<FileInfo> info(const std::string&) override {
    return absl::UnimplementedError("");
  }
  absl::StatusOr<std::vector<std::string>> list(const std::string&) override {
    return absl::UnimplementedError("");
  }
  absl::Status make_directories(const std::string&) override { return absl::OkStatus(); }
  absl::Status rename(const std::string&, const std::string&) override {
    return absl::UnimplementedError("");
  }
  absl::Status exchange(const std::string&, const std::string&) override {
    return absl::UnimplementedError("");
  }
  absl::Status remove(const std::string&) override { return absl::UnimplementedError(""); }
  absl::Status sync_directory(const std::string&) override { return absl::OkStatus(); }
  std::string temporary_name(const std::string& path) const override { return path + ".tmp"; }
  int parallelism() const override { return threads; }

 private:
  class Readable final : public ReadableFile {
   public:
    Readable(MemoryFiles& disk, const std::string& path)
        : disk_(disk), path_(path), size_(static_cast<int64_t>(disk.contents[path].size())) {}
    int64_t size() const override { return size_; }
    absl::Status read_at(int64_t offset, absl::Span<std::byte> out) const override {
      const std::string& bytes = disk_.contents[path_];
      const auto end = offset + static_cast<int64_t>(out.size());
      if (end > static_cast<int64_t>(bytes.size())) return absl::OutOfRangeError(path_);
      std::memcpy(out.data(), bytes.data() + offset, out.size());
      disk_.bytes_read += static_cast<int64_t>(out.size());
      if (disk_.flips > 0 && offset <= disk_.flipped_byte && disk_.flipped_byte < end) {
        --disk_.flips;
        out[disk_.flipped_byte - offset] ^= std::byte{4};
      }
      return absl::OkStatus();
    }
    absl::StatusOr<std::shared_ptr<const absl::Span<const std::byte>>> map() const override {
      struct Copy {
        explicit Copy(const std::string& from)
            : bytes(reinterpret_cast<const std::byte*>(from.data()),
                    reinterpret_cast<const std::byte*>(from.data()) + from.size()),
              span(bytes) {}
        std::vector<std::byte> bytes;
        absl::Span<const std::byte> span;
      };
      auto copy = std::make_shared<Copy>(disk_.contents[path_]);
      return std::shared_ptr<const absl::Span<const std::byte>>(copy, &copy->span);
    }

   private:
    MemoryFiles& disk_;
    const std::string path_;
    const int64_t size_;
  };

  class Writable final : public WritableFile {
   public:
    Writable(MemoryFiles& disk, const std::string& path) : disk_(disk), path_(path) {
      ++disk_.open_files;
    }
    ~Writable() override { --disk_.open_files; }
    absl::Status write_at(int64_t offset, absl::Span<const std::byte> data) override {
      ++disk_.writes;
      const auto end = offset + static_cast<int64_t>(data.size());
      if (end > disk_.capacity) return absl::ResourceExhaustedError(absl::StrCat(path_, ": full"));
      std::string& bytes = disk_.contents[path_];
      bytes.resize(std::max<size_t>(bytes.size(), end));
      std::memcpy(bytes.data() + offset, data.data(), data.size());
      return absl::OkStatus();
    }
    void begin_sync(int64_t offset, int64_t size) override {
      EXPECT_LE(offset + size, static_cast<int64_t>(disk_.contents[path_].size()));
      disk_.begun_syncs += size;
    }
    absl::Status sync() override {
      ++disk_.syncs;
      return disk_.sync_fails ? absl::DataLossError(path_) : absl::OkStatus();
    }
    absl::Status close() override {
      return disk_.close_fails ? absl::DataLossError(path_) : absl::OkStatus();
    }

   private:
    MemoryFiles& disk_;
    const std::string path_;
  };
};

at::Tensor numbers(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return at::arange(count, at::kLong).remainder(101).to(dtype).view(shape);
}

WrittenFile write(FileSystem& files, const NamedTensors& tensors,
                  const std::optional<SafetensorsMetadata>& metadata = std::nullopt) {
  absl::StatusOr<WrittenFile> written = write_safetensors(files, kPath, tensors, metadata);
  EXPECT_TRUE(written.ok()) << written.status();
  return written.ok() ? *written : WrittenFile{};
}

SafetensorsFile open(FileSystem& files, std::optional<SafetensorsChecksums> expected) {
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::open(files, kPath, std::move(expected));
  if (!file.ok()) throw std::runtime_error(file.status().ToString());
  return *file;
}

// Bytes of a tensor, whatever its dtype.
std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  return std::string(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
}

std::map<std::string, std::string> bytes_of(const NamedTensors& tensors) {
  std::map<std::string, std::string> bytes;
  for (const auto& [name, tensor] : tensors) {
    bytes[absl::StrCat(name, c10::toString(tensor.scalar_type()), tensor.sizes().size())] =
        bytes_of(tensor);
  }
  return bytes;
}

NamedTensors all_kinds() {
  NamedTensors tensors;
  for (const at::ScalarType dtype :
       {at::kBool, at::kByte, at::kChar, at::kFloat8_e5m2, at::kFloat8_e4m3fn, at::kShort,
        at::kUInt16, at::kHalf, at::kBFloat16, at::kInt, at::kUInt32, at::kFloat, at::kDouble,
        at::kLong, at::kUInt64}) {
    const std::string name = c10::toString(dtype);
    tensors.emplace_back(name, numbers({3, 5}, dtype));
    tensors.emplace_back(name + ".single", numbers({}, dtype));
    tensors.emplace_back(name + ".none", at::empty({2, 0, 3}, dtype));
    tensors.emplace_back(name + ".transposed", numbers({4, 3, 2}, dtype).permute({2, 0, 1}));
    tensors.emplace_back(name + ".part", numbers({8, 9}, dtype).slice(1, 1, 8, 2));
  }
  return tensors;
}

TEST(Safetensors, ComeBackAsTheyWere) {
  HostFiles host(3);
  MemoryFiles memory;
  const std::string path = absl::StrCat(::testing::TempDir(), "/all.safetensors");
  const NamedTensors tensors = all_kinds();
  const SafetensorsMetadata metadata = {{"format", "pt"}, {"values", "{\"a\":\"\\n\"}"}};
  for (const auto& [files, name] :
       {std::pair<FileSystem*, std::string>(&host, path), {&memory, std::string(kPath)}}) {
    const absl::StatusOr<WrittenFile> written = write_safetensors(*files, name, tensors, metadata);
    ASSERT_TRUE(written.ok()) << written.status();
    const absl::StatusOr<SafetensorsFile> file =
        SafetensorsFile::open(*files, name, written->checksums);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->header().metadata, metadata);
    const absl::StatusOr<NamedTensors> all = file->read_all();
    ASSERT_TRUE(all.ok()) << all.status();
    EXPECT_EQ(bytes_of(*all), bytes_of(tensors));
    NamedTensors mapped;
    for (const auto& [tensor_name, tensor] : tensors) {
      const absl::StatusOr<at::Tensor> map = file->map(tensor_name);
      ASSERT_TRUE(map.ok()) << map.status();
      EXPECT_EQ(map->sizes(), tensor.sizes());
      mapped.emplace_back(tensor_name, *map);
    }
    EXPECT_EQ(bytes_of(mapped), bytes_of(tensors));
    EXPECT_TRUE(file->verify().ok());
    const absl::StatusOr<std::string> bytes = read_file(*files, name);
    ASSERT_TRUE(bytes.ok());
    EXPECT_EQ(written->size, static_cast<int64_t>(bytes->size()));
    EXPECT_EQ(written->crc32c,
              internal::crc32c(absl::MakeConstSpan(
                  reinterpret_cast<const std::byte*>(bytes->data()), bytes->size())));
  }
  EXPECT_TRUE(host.remove(path).ok());
}

// Newer writers have them.
TEST(Safetensors, OfDtypesThatAreReadOnlyAreRead) {
  MemoryFiles files;
  const std::string header = R"({"z":{"dtype":"C64","shape":[2],"data_offsets":[0,16]},)"
                             R"("n":{"dtype":"F8_E5M2FNUZ","shape":[1],"data_offsets":[16,17]},)"
                             R"("m":{"dtype":"F8_E4M3FNUZ","shape":[1],"data_offsets":[17,18]}})";
  const at::Tensor numbers = at::tensor({1.f, 2.f, 3.f, -4.f});
  std::string contents(8, '\0');
  contents[0] = static_cast<char>(header.size() & 255);
  contents[1] = static_cast<char>(header.size() >> 8);
  absl::StrAppend(&contents, header, bytes_of(numbers), "\x40\x40");
  files.contents[kPath] = contents;
  const absl::StatusOr<NamedTensors> all = open(files, std::nullopt).read_all();
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), 3);
  for (const auto& [name, tensor] : *all) {
    if (name == "z") {
      EXPECT_TRUE(tensor.equal(at::complex(at::tensor({1.f, 3.f}), at::tensor({2.f, -4.f}))));
    } else {
      // The bias of exponents is one more than in the other two of eight bits.
      EXPECT_EQ(tensor.to(at::kFloat).item<float>(), 1) << name;
    }
  }
}

// Sizes around the chunks', in an order that is not the file's; many threads.
TEST(Safetensors, OfManyMebibytesComeBack) {
  MemoryFiles memory;
  HostFiles host(4);
  const std::string path = absl::StrCat(::testing::TempDir(), "/large.safetensors");
  const int64_t mib = int64_t{1} << 20;
  const NamedTensors tensors = {{"z", numbers({mib + 3}, at::kByte)},
                                {"h", numbers({3, mib / 2 + 1}, at::kHalf)},
                                {"small", numbers({2}, at::kHalf)},
                                {"t", numbers({700, 1000}).t()},
                                {"d", numbers({mib / 4}, at::kDouble)},
                                {"e", numbers({3 * mib}).view({3, -1}).slice(1, 5, mib - 7)},
                                {"b", numbers({5}, at::kBool)}};
  const WrittenFile in_memory = write(memory, tensors);
  const absl::StatusOr<WrittenFile> on_disk = write_safetensors(host, path, tensors, std::nullopt);
  ASSERT_TRUE(on_disk.ok()) << on_disk.status();
  EXPECT_EQ(on_disk->crc32c, in_memory.crc32c);
  EXPECT_EQ(read_file(host, path).value(), memory.contents[kPath]);
  const SafetensorsFile file = SafetensorsFile::open(host, path, on_disk->checksums).value();
  EXPECT_EQ(bytes_of(file.read_all().value()), bytes_of(tensors));

  // Into other dtypes and strides, through buffers.
  NamedTensors destinations;
  for (const auto& [name, tensor] : tensors) {
    at::Tensor like = at::empty(tensor.sizes(), at::kDouble);
    if (like.dim() == 2) like = at::empty({like.size(1), 2 * like.size(0)}, at::kFloat).t();
    if (like.dim() == 2) like = like.slice(0, 0, like.size(0), 2);
    destinations.emplace_back(name, like);
  }
  const absl::Status read = file.read_into(destinations);
  ASSERT_TRUE(read.ok()) << read;
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(
        at::equal(destinations[i].second.to(at::kDouble), tensors[i].second.to(at::kDouble)))
        << tensors[i].first;
  }
  EXPECT_TRUE(host.remove(path).ok());
}

// Bytes that the reference writer wrote.
TEST(Safetensors, AreTheReferenceWritersToTheByte) {
  MemoryFiles files;
  const auto base64 = [&](const NamedTensors& tensors,
                          const std::optional<SafetensorsMetadata>& metadata) {
    write(files, tensors, metadata);
    return absl::Base64Escape(files.contents[kPath]);
  };
  const SafetensorsMetadata pt = {{"format", "pt"}};
  EXPECT_EQ(base64({}, pt), "IAAAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJmb3JtYXQiOiJwdCJ9fQ==");
  EXPECT_EQ(
      base64({{"a", at::ones({2})}}, std::nullopt),
      "OAAAAAAAAAB7ImEiOnsiZHR5cGUiOiJGMzIiLCJzaGFwZSI6WzJdLCJkYXRhX29mZnNldHMiOlswLDhdfX0gIAAA"
      "gD8AAIA/");
  EXPECT_EQ(
      base64({{"a", at::ones({1})}}, SafetensorsMetadata{}),
      "SAAAAAAAAAB7Il9fbWV0YWRhdGFfXyI6e30sImEiOnsiZHR5cGUiOiJGMzIiLCJzaGFwZSI6WzFdLCJkYXRhX29m"
      "ZnNldHMiOlswLDRdfX0AAIA/");
  EXPECT_EQ(
      base64({{"e", at::empty({0})}, {"e2", at::empty({2, 0, 3})}}, pt),
      "kAAAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJmb3JtYXQiOiJwdCJ9LCJlIjp7ImR0eXBlIjoiRjMyIiwic2hhcGUi"
      "OlswXSwiZGF0YV9vZmZzZXRzIjpbMCwwXX0sImUyIjp7ImR0eXBlIjoiRjMyIiwic2hhcGUiOlsyLDAsM10sImRh"
      "dGFfb2Zmc2V0cyI6WzAsMF19fSA=");
  EXPECT_EQ(
      base64({{"é\"q\\\n", at::ones({1})}, {"日本", at::ones({1})}}, pt),
      "mAAAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJmb3JtYXQiOiJwdCJ9LCLDqVwicVxcXG4iOnsiZHR5cGUiOiJGMzIi"
      "LCJzaGFwZSI6WzFdLCJkYXRhX29mZnNldHMiOlswLDRdfSwi5pel5pysIjp7ImR0eXBlIjoiRjMyIiwic2hhcGUi"
      "OlsxXSwiZGF0YV9vZmZzZXRzIjpbNCw4XX19IAAAgD8AAIA/");
  EXPECT_EQ(
      base64({{"b", at::ones({2}, at::kHalf)},
              {"a", at::ones({3}, at::kChar)},
              {"z", at::ones({1}, at::kDouble)},
              {"c", at::ones({2})},
              {"i", at::ones({2}, at::kInt)},
              {"m", at::ones({1}, at::kBool)},
              {"A", at::ones({1})},
              {"k", at::ones({1}, at::kBFloat16)},
              {"u", at::ones({1}, at::kByte)}},
             pt),
      "EAIAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJmb3JtYXQiOiJwdCJ9LCJ6Ijp7ImR0eXBlIjoiRjY0Iiwic2hhcGUi"
      "OlsxXSwiZGF0YV9vZmZzZXRzIjpbMCw4XX0sIkEiOnsiZHR5cGUiOiJGMzIiLCJzaGFwZSI6WzFdLCJkYXRhX29m"
      "ZnNldHMiOls4LDEyXX0sImMiOnsiZHR5cGUiOiJGMzIiLCJzaGFwZSI6WzJdLCJkYXRhX29mZnNldHMiOlsxMiwy"
      "MF19LCJpIjp7ImR0eXBlIjoiSTMyIiwic2hhcGUiOlsyXSwiZGF0YV9vZmZzZXRzIjpbMjAsMjhdfSwiayI6eyJk"
      "dHlwZSI6IkJGMTYiLCJzaGFwZSI6WzFdLCJkYXRhX29mZnNldHMiOlsyOCwzMF19LCJiIjp7ImR0eXBlIjoiRjE2"
      "Iiwic2hhcGUiOlsyXSwiZGF0YV9vZmZzZXRzIjpbMzAsMzRdfSwiYSI6eyJkdHlwZSI6Ikk4Iiwic2hhcGUiOlsz"
      "XSwiZGF0YV9vZmZzZXRzIjpbMzQsMzddfSwidSI6eyJkdHlwZSI6IlU4Iiwic2hhcGUiOlsxXSwiZGF0YV9vZmZz"
      "ZXRzIjpbMzcsMzhdfSwibSI6eyJkdHlwZSI6IkJPT0wiLCJzaGFwZSI6WzFdLCJkYXRhX29mZnNldHMiOlszOCwz"
      "OV19fSAgICAAAAAAAADwPwAAgD8AAIA/AACAPwEAAAABAAAAgD8APAA8AQEBAQE=");
}

TEST(Safetensors, OfKindsThatTheFormatLacksAreRefusedByName) {
  MemoryFiles files;
  const auto error = [&](const at::Tensor& tensor) {
    const absl::Status status =
        write_safetensors(files, kPath, {{"odd", tensor}}, std::nullopt).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat(kPath, ": 'odd': ")));
    return std::string(status.message());
  };
  EXPECT_THAT(error(at::zeros({2}, at::kComplexFloat)), HasSubstr("ComplexFloat"));
  EXPECT_THAT(error(at::zeros({2}, at::kComplexDouble)), HasSubstr("ComplexDouble"));
  EXPECT_THAT(error(at::empty({2}, at::kFloat8_e4m3fnuz)), HasSubstr("Float8_e4m3fnuz"));
  EXPECT_THAT(error(at::empty({2}, at::kFloat8_e5m2fnuz)), HasSubstr("Float8_e5m2fnuz"));
  EXPECT_THAT(error(at::zeros({2, 2}).to_sparse()), HasSubstr("dense"));
  EXPECT_THAT(error(at::empty({2}, at::TensorOptions(at::kMeta))), HasSubstr("meta"));
  EXPECT_THAT(error(at::Tensor()), HasSubstr("undefined"));
  const at::Tensor one = at::ones({1});
  EXPECT_THAT(write_safetensors(files, kPath, {{"x", one}, {"x", one}}, {}).status().message(),
              HasSubstr("'x': it comes twice"));
  EXPECT_THAT(write_safetensors(files, kPath, {{"\xFF", one}}, {}).status().message(),
              HasSubstr("not UTF-8"));
  // Nothing was begun.
  EXPECT_TRUE(files.contents.empty());
}

TEST(Safetensors, ThatRequireGradientsAndInferenceTensorsAreTensorsToo) {
  MemoryFiles files;
  const at::Tensor parameter = numbers({3, 3}).requires_grad_();
  at::Tensor inference;
  {
    const c10::InferenceMode mode;
    inference = numbers({2, 2}).t();
  }
  const WrittenFile written = write(files, {{"p", parameter.t()}, {"i", inference}});
  const at::Tensor leaf = at::zeros({3, 3}, at::kDouble).requires_grad_();
  at::Tensor other;
  {
    const c10::InferenceMode mode;
    other = at::zeros({2, 2}).t();
  }
  const absl::Status read = open(files, written.checksums).read_into({{"p", leaf}, {"i", other}});
  ASSERT_TRUE(read.ok()) << read;
  EXPECT_TRUE(leaf.requires_grad() && leaf.is_leaf());
  EXPECT_TRUE(at::equal(leaf.detach().to(at::kFloat), parameter.detach().t()));
  EXPECT_TRUE(at::equal(other, inference));
}

TEST(Safetensors, AreSlicedWithoutReadingTheRest) {
  MemoryFiles files;
  const at::Tensor tensor = numbers({6, 8});
  write(files, {{"x", tensor}, {"none", at::empty({0, 4})}, {"single", numbers({})}});
  const int64_t read_before = files.bytes_read;
  at::Tensor kept;
  {
    const SafetensorsFile file = open(files, std::nullopt);
    for (const int64_t dim : {0, 1}) {
      const at::Tensor part = file.slice("x", dim, 2, 5).value();
      EXPECT_TRUE(at::equal(part, tensor.slice(dim, 2, 5)));
    }
    EXPECT_EQ(file.slice("x", 0, 3, 3).value().numel(), 0);
    EXPECT_EQ(file.slice("none", 1, 1, 2).value().sizes(), at::IntArrayRef({0, 1}));
    for (const auto& [dim, begin, end] : std::vector<std::array<int64_t, 3>>{
             {2, 0, 1}, {-1, 0, 1}, {0, -1, 1}, {0, 2, 1}, {0, 0, 7}}) {
      const absl::Status status = file.slice("x", dim, begin, end).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(status.message(), HasSubstr("of [6, 8]"));
    }
    EXPECT_FALSE(file.slice("single", 0, 0, 0).ok());
    EXPECT_EQ(file.map("y").status().code(), absl::StatusCode::kNotFound);
    // Two views of the same bytes, which outlive the file.
    kept = file.map("x").value();
    EXPECT_EQ(kept.const_data_ptr(), file.map("x").value().const_data_ptr());
  }
  EXPECT_TRUE(at::equal(kept, tensor));
  EXPECT_LT(files.bytes_read - read_before, 400);
}

// Other writers do not align tensors.
TEST(Safetensors, AtOddPositionsAreRead) {
  MemoryFiles files;
  const std::string json =
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
      R"("x":{"dtype":"F64","shape":[200001],"data_offsets":[1,1600009]},)"
      R"("y":{"dtype":"BF16","shape":[2,2],"data_offsets":[1600009,1600017]}})";
  const at::Tensor x = numbers({200001}, at::kDouble);
  const at::Tensor y = numbers({2, 2}, at::kBFloat16);
  std::string length;
  for (int i = 0; i < 8; ++i) length += static_cast<char>(json.size() >> (8 * i) & 0xFF);
  files.contents[kPath] = absl::StrCat(length, json, "\x07", bytes_of(x), bytes_of(y));
  const SafetensorsFile file = open(files, std::nullopt);
  EXPECT_TRUE(at::equal(file.map("x").value(), x));
  EXPECT_TRUE(at::equal(file.slice("x", 0, 1000, 2000).value(), x.slice(0, 1000, 2000)));
  EXPECT_TRUE(at::equal(file.slice("y", 1, 1, 2).value(), y.slice(1, 1, 2)));
  const NamedTensors all = file.read_all().value();
  EXPECT_TRUE(at::equal(all[1].second, x));
  EXPECT_TRUE(at::equal(all[2].second, y));
  const at::Tensor strided = at::zeros({200001, 2}).select(1, 1);
  const at::Tensor other = at::zeros({2, 2});
  ASSERT_TRUE(file.read_into({{"y", other}, {"x", strided}}).ok());
  EXPECT_TRUE(at::equal(strided, x.to(at::kFloat)));
  EXPECT_TRUE(at::equal(other, y.to(at::kFloat)));
}

TEST(Safetensors, AreReadIntoWhatSuits) {
  MemoryFiles files;
  const WrittenFile written = write(files, {{"x", numbers({2, 3})}, {"y", at::full({2, 3}, 7.0)}});
  const SafetensorsFile file = open(files, written.checksums);
  const auto error = [&](const std::string& name, const at::Tensor& tensor) {
    const absl::Status status = file.read_into({{name, tensor}});
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat(kPath, ": '", name, "'")));
    return status;
  };
  EXPECT_TRUE(absl::IsNotFound(error("z", at::zeros({2, 3}))));
  EXPECT_THAT(error("x", at::zeros({3, 2})).message(),
              HasSubstr("its shape in the file is [2, 3], the destination's [3, 2]"));
  EXPECT_TRUE(absl::IsInvalidArgument(error("x", at::Tensor())));
  EXPECT_TRUE(absl::IsInvalidArgument(error("x", at::zeros({3}).expand({2, 3}))));
  EXPECT_TRUE(absl::IsInvalidArgument(error("x", at::empty({2, 3}, at::TensorOptions(at::kMeta)))));
  EXPECT_TRUE(file.read_into({}).ok());

  // The last of those that share memory counts, also where they do so in part.
  const at::Tensor shared = at::zeros({3, 3});
  ASSERT_TRUE(file.read_into({{"x", shared.slice(0, 0, 2)}, {"y", shared.slice(0, 1, 3)}}).ok());
  EXPECT_TRUE(at::equal(shared[0], numbers({3})));
  EXPECT_TRUE(at::equal(shared.slice(0, 1, 3), at::full({2, 3}, 7.0)));
  ASSERT_TRUE(file.read_into({{"y", shared.slice(0, 0, 2)}, {"x", shared.slice(0, 0, 2)}}).ok());
  EXPECT_TRUE(at::equal(shared.slice(0, 0, 2), numbers({2, 3})));
}

TEST(Safetensors, SayWhatTheyWroteAndSync) {
  MemoryFiles files;
  int64_t reported = 0;
  const absl::StatusOr<WrittenFile> written =
      write_safetensors(files, kPath, {{"x", numbers({2'000'000})}}, std::nullopt,
                        {.sync = false, .progress = [&](int64_t bytes) { reported += bytes; }});
  ASSERT_TRUE(written.ok());
  EXPECT_EQ(reported, written->size);
  EXPECT_EQ(files.syncs, 0);
  EXPECT_EQ(files.begun_syncs, 0);
  EXPECT_LT(files.writes, 12);
  write(files, {});
  EXPECT_EQ(files.syncs, 1);
  EXPECT_EQ(files.begun_syncs, static_cast<int64_t>(files.contents[kPath].size()));
}

TEST(Safetensors, OnADiskThatFailsReturnItsErrorAndCloseTheFile) {
  const NamedTensors tensors = {{"x", numbers({2'000'000})}};
  for (const int threads : {1, 3}) {
    for (const int64_t capacity : {0, 1, 3'000'000}) {
      MemoryFiles files;
      files.threads = capacity == 0 ? threads : 1;
      files.capacity = capacity;
      const absl::Status status = write_safetensors(files, kPath, tensors, std::nullopt).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
      EXPECT_EQ(files.open_files, 0);
      EXPECT_EQ(files.syncs, 0);
    }
  }
  for (bool MemoryFiles::* fails : {&MemoryFiles::sync_fails, &MemoryFiles::close_fails}) {
    MemoryFiles files;
    files.*fails = true;
    EXPECT_TRUE(absl::IsDataLoss(write_safetensors(files, kPath, tensors, std::nullopt).status()));
    EXPECT_EQ(files.open_files, 0);
  }
  MemoryFiles files;
  EXPECT_TRUE(absl::IsNotFound(SafetensorsFile::open(files, kPath).status()));
}

// Every bit of a small file, flipped once on the way and for good.
TEST(Safetensors, ThatAreDamagedAreNeverTakenForGood) {
  MemoryFiles files;
  const NamedTensors tensors = {{"a", numbers({3})}, {"b", numbers({2}, at::kByte)}};
  const WrittenFile written = write(files, tensors, SafetensorsMetadata{{"values", "{}"}});
  const std::string good = files.contents[kPath];
  for (int64_t byte = 0; byte < written.size; ++byte) {
    files.flips = 1;
    files.flipped_byte = byte;
    const absl::StatusOr<SafetensorsFile> healed =
        SafetensorsFile::open(files, kPath, written.checksums);
    ASSERT_TRUE(healed.ok()) << healed.status();
    const absl::StatusOr<NamedTensors> all = healed->read_all();
    ASSERT_TRUE(all.ok()) << all.status();
    EXPECT_EQ(bytes_of(*all), bytes_of(tensors));
    EXPECT_EQ(files.flips, 0);

    files.contents[kPath][byte] ^= 1;
    const absl::StatusOr<SafetensorsFile> file =
        SafetensorsFile::open(files, kPath, written.checksums);
    const absl::Status status = file.ok() ? file->read_all().status() : file.status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << byte << status;
    EXPECT_THAT(status.message(), HasSubstr(kPath));
    if (file.ok()) {
      EXPECT_TRUE(absl::IsDataLoss(file->verify()));
      EXPECT_TRUE(absl::IsDataLoss(
          file->read_into({{"a", at::zeros({3})}, {"b", at::zeros({2}, at::kLong)}})));
    }
    files.contents[kPath] = good;
  }
}

TEST(Safetensors, ThatAreDamagedAreReportedByNameAndChecksums) {
  MemoryFiles files;
  const WrittenFile written = write(files, {{"a", numbers({3})}, {"b", numbers({3})}});
  const SafetensorsFile file = open(files, written.checksums);
  const uint32_t expected = written.checksums.tensors.at("b");
  files.contents[kPath].back() ^= 1;
  const absl::Status status = file.read_all().status();
  EXPECT_THAT(status.message(), HasSubstr(absl::StrCat(kPath, ": 'b': its checksum is ")));
  EXPECT_THAT(status.message(), HasSubstr(absl::StrFormat("not %08x", expected)));
  // What is whole can be read.
  EXPECT_TRUE(file.read_into({{"a", at::zeros({3})}}).ok());
  // Without checksums, nothing is compared.
  EXPECT_TRUE(open(files, std::nullopt).read_all().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(open(files, std::nullopt).verify()));
  // Cut short behind the reader's back.
  files.contents[kPath].pop_back();
  EXPECT_TRUE(absl::IsOutOfRange(file.read_all().status()));
  SafetensorsChecksums without_b = written.checksums;
  without_b.tensors.erase("b");
  EXPECT_FALSE(SafetensorsFile::open(files, kPath, without_b).ok());
}

TEST(Safetensors, ErrorsNameTheFile) {
  MemoryFiles files;
  files.contents[kPath] = "oops";
  const absl::Status status = SafetensorsFile::open(files, kPath).status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(status.message(), HasSubstr(absl::StrCat(kPath, ": it has 4 bytes only")));
}

// ---- StoredTensors: ranks that have read different parts.

std::string error_of_reading(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Whatever ranks have read before, each tensor is verified by one of them. Sums of tensors, and of
// whole files.
TEST(StoredTensors, AreVerifiedBySomeRankWhateverRanksHaveRead) {
  for (const bool by_tensor : {true, false}) {
    MemoryFiles files;
    const std::vector<std::string> names = {"a", "b", "c", "d", "e"};
    ShardedMetadata metadata;
    std::map<std::string, StoredFile> stored;
    for (const std::string& name : names) {
      const std::string file = by_tensor ? "all" : name;
      metadata.tensors[name] = {
          .dtype = "F32",
          .shape = {6},
          .shards = {{.file = file, .key = name, .box = {.offsets = {0}, .lengths = {6}}}}};
    }
    const auto write_one = [&](const std::string& file, const NamedTensors& tensors) {
      const auto written = write_safetensors(files, file, tensors, std::nullopt);
      ASSERT_TRUE(written.ok()) << written.status();
      stored[file] = {.path = file};
      if (by_tensor) {
        stored[file].checksums = written->checksums;
      } else {
        stored[file].crc32c = written->crc32c;
      }
    };
    NamedTensors all;
    for (const std::string& name : names) all.emplace_back(name, numbers({6}));
    if (by_tensor) {
      write_one("all", all);
    } else {
      for (const auto& tensor : all) write_one(tensor.first, {tensor});
    }
    const std::map<std::string, std::string> sound = files.contents;
    // What the ranks have read, by rank.
    const std::vector<std::vector<std::vector<std::string>>> cases = {
        {{}, {}}, {{"a"}, {}}, {{}, {"b"}}, {{"a", "b", "c"}, {"e"}}, {{"a"}, {"b", "c"}, {}}};
    for (const auto& read : cases) {
      const auto ranks = static_cast<int>(read.size());
      for (size_t damaged = 0; damaged < names.size(); ++damaged) {
        files.contents = sound;
        std::string& bytes = files.contents[by_tensor ? "all" : names[damaged]];
        // The tensors' bytes are at the end, in the order of their names.
        const size_t from_end = by_tensor ? names.size() - damaged : 1;
        bytes[bytes.size() - 24 * from_end + 5] ^= 1;
        int found = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          found += !error_of_reading([&] {
                      StoredTensors tensors(files, metadata, [&](const std::string& file) {
                        return stored.at(file);
                      });
                      for (const std::string& name : read[rank]) {
                        tensors.read({{name, whole_box({6}), at::empty({6})}});
                      }
                      tensors.verify_share(rank, ranks);
                    }).empty();
        }
        EXPECT_GE(found, 1) << names[damaged] << " of " << ranks << " ranks, of which rank 0 read "
                            << read[0].size() << (by_tensor ? ", by tensor" : ", by file");
      }
    }
  }
}

}  // namespace
}  // namespace accelerate
