#include "accelerate/big_model/offloaded_file.h"

#include <cstddef>
#include <filesystem>
#include <iterator>
#include <map>
#include <unordered_map>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include "absl/strings/str_cat.h"
#include "accelerate/base/checksum.h"
#include "accelerate/base/status.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/values/dtypes.h"

namespace accelerate::internal {
namespace {

// The files that living models of one Runtime read, by their paths.
struct FilesInUse {
  std::multimap<std::string, std::weak_ptr<OffloadedFile>> by_path;
};

// Tensors without memory, by their storages, and the files that have their values.
struct FilesOfTensors {
  struct Entry {
    // The weak pointer keeps the address from being used for a new storage.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::shared_ptr<OffloadedFile> file;
  };
  std::unordered_map<const c10::StorageImpl*, Entry> by_storage;
};

// One text for a file, however its path is written.
std::string plain_path(const std::string& path) {
  return std::filesystem::path(path).lexically_normal().string();
}

}  // namespace

OffloadedFile::OffloadedFile(FileSystem& files, std::string path, OffloadedTensor entry)
    : files_(files), path_(std::move(path)), entry_(std::move(entry)) {}

std::shared_ptr<OffloadedFile> OffloadedFile::make(FileSystem& files, const std::string& folder,
                                                   const std::string& name, OffloadedTensor entry) {
  auto file = std::make_shared<OffloadedFile>(
      files, join_path(folder, internal::value_or_throw(offload_file_name(name))),
      std::move(entry));
  if (Runtime* const runtime = Runtime::find_current()) {
    auto& by_path =
        runtime->shared<FilesInUse>([] { return std::make_shared<FilesInUse>(); }).by_path;
    const std::string path = plain_path(file->path());
    const auto [begin, end] = by_path.equal_range(path);
    for (auto each = begin; each != end;) {
      each = each->second.expired() ? by_path.erase(each) : std::next(each);
    }
    by_path.emplace(path, file);
  }
  return file;
}

bool OffloadedFile::is_in(const std::string& folder) const {
  return parent_path(plain_path(path_)) == parent_path(plain_path(join_path(folder, "file")));
}

absl::StatusOr<std::shared_ptr<const ReadableFile>> OffloadedFile::open() const {
  const absl::StatusOr<int64_t> bytes = offloaded_bytes(entry_);
  if (!bytes.ok()) {
    return absl::DataLossError(
        absl::StrCat(path_, ": its entry in the index ", bytes.status().message()));
  }
  {
    const absl::MutexLock lock(&mutex_);
    if (pinned_ != nullptr) return pinned_;
  }
  ACCELERATE_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, files_.open(path_));
  if (!is_offloaded_file_size(file->size(), *bytes)) {
    return absl::DataLossError(absl::StrCat(path_, ": it has ", file->size(), " bytes, and ",
                                            *bytes, " according to the index"));
  }
  return std::shared_ptr<const ReadableFile>(std::move(file));
}

absl::Status OffloadedFile::check() const { return open().status(); }

absl::Status OffloadedFile::check_bytes(absl::Span<const std::byte> bytes) const {
  if (!entry_.crc32c || crc32c(bytes) == *entry_.crc32c) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      path_, ": the file's bytes differ from those written here. If another process offloads into ",
      parent_path(path_), " as well, give each a folder of its own"));
}

absl::Status OffloadedFile::read(absl::Span<std::byte> out) const {
  if (out.empty()) return absl::OkStatus();
  ACCELERATE_ASSIGN_OR_RETURN(const auto file, open());
  ACCELERATE_RETURN_IF_ERROR(file->read_at(0, out));
  return check_bytes(out);
}

at::Tensor OffloadedFile::map() const {
  const std::shared_ptr<const ReadableFile> file = internal::value_or_throw(open());
  const at::ScalarType dtype = scalar_type_of_offloaded(entry_.dtype);
  const auto bytes = static_cast<size_t>(*offloaded_bytes(entry_));
  if (bytes == 0) return at::empty(entry_.shape, dtype);
  const auto mapping = internal::value_or_throw(file->map());
  // It may have been cut meanwhile.
  if (mapping->size() < bytes) {
    throw CheckpointError(absl::StrCat(path_, ": it became shorter while it was opened"));
  }
  check_ok(check_bytes(mapping->subspan(0, bytes)));
  return at::from_blob(
      const_cast<std::byte*>(mapping->data()), entry_.shape, [kept = mapping](void*) {}, dtype);
}

absl::Status OffloadedFile::pin() {
  const auto file = open();
  if (absl::IsNotFound(file.status()) || absl::IsDataLoss(file.status())) return absl::OkStatus();
  if (!file.ok()) return file.status();
  const absl::MutexLock lock(&mutex_);
  pinned_ = *file;
  return absl::OkStatus();
}

void register_offloaded(const at::Tensor& tensor, std::shared_ptr<OffloadedFile> file) {
  Runtime* const runtime = Runtime::find_current();
  if (runtime == nullptr) return;
  auto& files = runtime->shared<FilesOfTensors>([] { return std::make_shared<FilesOfTensors>(); });
  const c10::Storage& storage = tensor.storage();
  files.by_storage.insert_or_assign(
      storage.unsafeGetStorageImpl(),
      FilesOfTensors::Entry{storage.getWeakStorageImpl(), std::move(file)});
}

std::shared_ptr<OffloadedFile> find_offloaded_file(const at::Tensor& tensor) {
  const Runtime* const runtime = Runtime::find_current();
  const auto* const files = runtime == nullptr ? nullptr : runtime->find_shared<FilesOfTensors>();
  if (files == nullptr || !tensor.is_meta()) return nullptr;
  const auto found = files->by_storage.find(tensor.storage().unsafeGetStorageImpl());
  return found == files->by_storage.end() ? nullptr : found->second.file;
}

absl::Status pin_offloaded_files(const std::vector<std::string>& paths) {
  const Runtime* const runtime = Runtime::find_current();
  auto* const in_use = runtime == nullptr ? nullptr : runtime->find_shared<FilesInUse>();
  if (in_use == nullptr) return absl::OkStatus();
  if (auto* const files = runtime->find_shared<FilesOfTensors>()) {
    std::erase_if(files->by_storage,
                  [](const auto& each) { return each.second.storage.expired(); });
  }
  for (const std::string& path : paths) {
    const auto [begin, end] = in_use->by_path.equal_range(plain_path(path));
    for (auto each = begin; each != end; ++each) {
      const std::shared_ptr<OffloadedFile> file = each->second.lock();
      if (file == nullptr) continue;
      if (const absl::Status held = file->pin(); !held.ok()) {
        return absl::Status(
            held.code(),
            absl::StrCat("a model that is in use has its weights in ", parent_path(path),
                         ", where others are about to be written: offload into another folder (",
                         held.message(), ")"));
      }
    }
  }
  return absl::OkStatus();
}

std::string offload_dtype(at::ScalarType dtype, const std::string& tensor) {
  const DtypeName* known = find_dtype(dtype);
  TORCH_CHECK_VALUE(known != nullptr, "cannot offload \"", tensor,
                    "\": files of offloaded weights have no ", dtype);
  return std::string(known->torch);
}

at::ScalarType scalar_type_of_offloaded(const std::string& dtype) {
  if (const DtypeName* known = find_dtype(&DtypeName::torch, dtype)) return scalar_type(*known);
  throw CheckpointError(absl::StrCat("an offloaded weight has the unknown dtype \"", dtype, "\""));
}

}  // namespace accelerate::internal
