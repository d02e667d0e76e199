#include "accelerate/checkpoint/tensor_files/torch_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <c10/core/Storage.h>
#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>
#include <caffe2/serialize/read_adapter_interface.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "accelerate/checkpoint/tensor_files/pickle_reader.h"
#include "accelerate/comm/checkpoint_error.h"

namespace accelerate {
namespace {

// Enough to know a format by.
constexpr int64_t kStartBytes = 32;

// Our files for LibTorch's reader of zips. An error passes through C code, so it is kept here.
class FileAdapter final : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit FileAdapter(std::unique_ptr<ReadableFile> file) : file_(std::move(file)) {}

  size_t size() const override { return static_cast<size_t>(file_->size()); }
  size_t read(uint64_t offset, void* buffer, size_t count, const char* /*what*/) const override {
    if (offset > size() || count > size() - offset) return 0;
    const absl::Status read = file_->read_at(
        static_cast<int64_t>(offset), absl::MakeSpan(static_cast<std::byte*>(buffer), count));
    if (read.ok()) return count;
    status_.Update(read);
    return 0;
  }
  const absl::Status& status() const { return status_; }

 private:
  const std::unique_ptr<ReadableFile> file_;
  mutable absl::Status status_;
};

class TorchZip {
 public:
  explicit TorchZip(std::shared_ptr<FileAdapter> bytes)
      : bytes_(std::move(bytes)), unread_(bytes_->size()), zip_(bytes_) {}

  absl::StatusOr<c10::Storage> read(const std::string& record) {
    if (!zip_.hasRecord(record)) return absl::DataLossError(absl::StrCat("it has no ", record));
    // Nothing is compressed in these files, no two records have bytes in common, and none is read
    // twice.
    const size_t size_in_file = zip_.getRecordSize(record);
    if (size_in_file > unread_) {
      return absl::DataLossError(absl::StrCat(
          record, size_in_file > bytes_->size() ? " is" : " and the records before it are",
          " larger than the file"));
    }
    unread_ -= size_in_file;
    auto [data, size] = zip_.getRecord(record);
    return c10::Storage(c10::Storage::use_byte_size_t(), size, std::move(data),
                        /*allocator=*/nullptr, /*resizable=*/false);
  }

  absl::StatusOr<std::string> read_text(const std::string& record) {
    const absl::StatusOr<c10::Storage> storage = read(record);
    if (!storage.ok()) return storage.status();
    return std::string(static_cast<const char*>(storage->data()), storage->nbytes());
  }

  bool is_big_endian() {
    if (!zip_.hasRecord("byteorder")) return false;
    const absl::StatusOr<std::string> order = read_text("byteorder");
    return order.ok() && *order == "big";
  }

 private:
  const std::shared_ptr<FileAdapter> bytes_;
  size_t unread_;
  caffe2::serialize::PyTorchStreamReader zip_;
};

// As many bytes of the beginning as there are.
std::string first_bytes(const ReadableFile& file, int64_t count) {
  std::string start(static_cast<size_t>(std::min(count, file.size())), '\0');
  const auto bytes = absl::MakeSpan(reinterpret_cast<std::byte*>(start.data()), start.size());
  return file.read_at(0, bytes).ok() ? start : "";
}

bool is_zip(absl::string_view start) { return absl::StartsWith(start, "PK\x03\x04"); }

// A pickle of the number 0x1950a86a20f9469cfc6c, of any protocol.
bool is_old_format(absl::string_view start) {
  return absl::StartsWith(start, "\x80") &&
         absl::StrContains(start, "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19");
}

absl::StatusOr<c10::IValue> read_value(const std::shared_ptr<FileAdapter>& bytes) {
  TorchZip zip(bytes);
  if (zip.is_big_endian()) return absl::UnimplementedError("it was written in big endian");
  const absl::StatusOr<std::string> pickle = zip.read_text("data.pkl");
  if (!pickle.ok()) return pickle.status();
  return internal::read_pickle(
      *pickle, [&zip](const std::string& key) { return zip.read(absl::StrCat("data/", key)); });
}

absl::StatusOr<c10::IValue> read_file_value(FileSystem& files, const std::string& path) {
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = files.open(path);
  if (!file.ok()) return file.status();
  const std::string start = first_bytes(**file, kStartBytes);
  const auto bytes = std::make_shared<FileAdapter>(*std::move(file));
  absl::StatusOr<c10::IValue> value = absl::UnknownError("");
  if (is_old_format(start)) {
    return absl::UnimplementedError(absl::StrCat(
        path,
        ": it is in the old format of torch.save, that of versions before 1.6 or of "
        "_use_new_zipfile_serialization=False, which cannot be read: load it with a newer torch, "
        "and save it again, or save it as safetensors"));
  }
  try {
    value = read_value(bytes);
  } catch (const c10::Error& error) {
    value = absl::DataLossError(absl::StrCat("it is not a zip file that torch.save wrote: ",
                                             error.what_without_backtrace()));
  } catch (const std::exception& error) {
    value = absl::DataLossError(error.what());
  }
  // The cause before its effects.
  if (!bytes->status().ok()) return bytes->status();
  if (value.ok()) return value;
  return absl::Status(value.status().code(), absl::StrCat(path, ": ", value.status().message()));
}

}  // namespace

c10::IValue read_torch_file(FileSystem& files, const std::string& path) {
  return internal::value_or_throw(read_file_value(files, path));
}

NamedTensors read_torch_state_dict(FileSystem& files, const std::string& path) {
  c10::IValue value = read_torch_file(files, path);
  if (!value.isGenericDict())
    throw CheckpointError(absl::StrCat(path, ": its value is not a dict"));
  for (const char* key : {"state_dict", "model"}) {
    const auto dict = value.toGenericDict();
    const auto inner = dict.find(c10::IValue(key));
    if (inner == dict.end() || !inner->value().isGenericDict()) continue;
    value = inner->value();
    break;
  }
  NamedTensors tensors;
  std::vector<std::string> others;
  for (const auto& entry : value.toGenericDict()) {
    if (entry.key().isString() && entry.value().isTensor()) {
      tensors.emplace_back(entry.key().toStringRef(), entry.value().toTensor());
    } else {
      others.push_back(entry.key().isString() ? entry.key().toStringRef() : "(no text)");
    }
  }
  if (!others.empty()) {
    throw CheckpointError(
        absl::StrCat(path, ": it holds more than tensors: ", absl::StrJoin(others, ", ")));
  }
  return tensors;
}

bool is_torch_file(FileSystem& files, const std::string& path) {
  const absl::StatusOr<std::unique_ptr<ReadableFile>> file = files.open(path);
  if (!file.ok()) return false;
  const std::string start = first_bytes(**file, kStartBytes);
  return is_zip(start) || is_old_format(start);
}

}  // namespace accelerate
