#include "accelerate/files/stored_tensors.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "accelerate/base/status.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/files/box_view.h"

namespace accelerate {
namespace {

bool has_tensor_checksums(const StoredFile& file) {
  return file.checksums && !file.checksums->tensors.empty();
}

absl::StatusOr<SafetensorsFile> open_file(FileSystem& files, const StoredFile& file) {
  return SafetensorsFile::open(files, file.path,
                               has_tensor_checksums(file) ? file.checksums : std::nullopt);
}

std::string tensor_in(const std::string& file, const std::string& key) {
  return absl::StrCat(file, "/", key);
}

}  // namespace

StoredTensors::StoredTensors(FileSystem& files, const StoredFile& file)
    : files_(files),
      find_([file](const std::string&) { return file; }),
      one_file_(internal::value_or_throw(open_file(files, file))) {
  const SafetensorsHeader& header = one_file_->header();
  // Each tensor as one shard of the file.
  for (const SafetensorsEntry& entry : header.tensors) {
    metadata_.tensors[entry.name] = {
        .dtype = entry.dtype,
        .shape = entry.shape,
        .shards = {shard_with(file.path, entry.name, whole_box(entry.shape))}};
  }
  if (const auto* const values = internal::find_state_values(header)) metadata_.values = *values;
}

StoredTensors::StoredTensors(FileSystem& files, ShardedMetadata metadata,
                             std::function<StoredFile(const std::string& name)> find)
    : files_(files), metadata_(std::move(metadata)), find_(std::move(find)) {}

int64_t StoredTensors::num_parts() const {
  return std::max<int64_t>(static_cast<int64_t>(metadata_.writers.size()), 1);
}

bool StoredTensors::is_in_row_parts(int64_t parts) const {
  return num_parts() == parts && std::ranges::all_of(metadata_.tensors, [](const auto& each) {
           return each.second.by_rows || each.second.shards.size() <= 1;
         });
}

absl::StatusOr<SafetensorsFile> StoredTensors::open(const std::string& name,
                                                    const StoredFile& stored) const {
  if (one_file_) return *one_file_;
  ACCELERATE_ASSIGN_OR_RETURN(SafetensorsFile file, open_file(files_, stored));
  ACCELERATE_RETURN_IF_ERROR(
      in_file(stored.path, check_shard_file(metadata_, name, file.header())));
  return file;
}

void StoredTensors::read(const std::vector<Part>& parts) {
  // By file, so that each is opened once.
  std::map<std::string, std::vector<FileBox>> by_file;
  for (const Part& part : parts) {
    for (const TensorShard& shard : shards_within(metadata_, part.name, part.box)) {
      const Box common = intersection(shard.box(), part.box);
      by_file[shard.file].push_back({.key = shard.key,
                                     .box = inside(shard.box(), common),
                                     .into = box_view(part.into, inside(part.box, common)),
                                     .is_whole = common == shard.box()});
    }
  }
  for (const auto& [file, wanted] : by_file) read_file(file, wanted);
}

void StoredTensors::read_file(const std::string& name, const std::vector<FileBox>& wanted) {
  const StoredFile stored = find_(name);
  // Damage may have happened only in transit.
  absl::Status status = read_once(name, stored, wanted);
  if (absl::IsDataLoss(status)) status = read_once(name, stored, wanted);
  internal::check_ok(status);
}

absl::Status StoredTensors::read_once(const std::string& name, const StoredFile& stored,
                                      const std::vector<FileBox>& wanted) {
  ACCELERATE_ASSIGN_OR_RETURN(const SafetensorsFile file, open(name, stored));
  NamedTensors whole;
  for (const FileBox& want : wanted) {
    if (want.is_whole) whole.emplace_back(want.key, want.into);
  }
  if (stored.crc32c && whole.size() == file.header().tensors.size()) {
    const absl::Status read = file.read_whole_file(whole, *stored.crc32c);
    if (read.ok()) verified_.insert(name);
    return read;
  }
  ACCELERATE_RETURN_IF_ERROR(file.read_into(whole));
  if (has_tensor_checksums(stored)) {
    for (const auto& [key, into] : whole) verified_.insert(tensor_in(name, key));
  }
  for (const FileBox& want : wanted) {
    if (want.is_whole) continue;
    ACCELERATE_RETURN_IF_ERROR(file.read_box(want.key, want.box, want.into));
  }
  return absl::OkStatus();
}

std::set<std::string> StoredTensors::file_names() const {
  size_t writers = 0;
  for (const std::vector<std::string>& files : metadata_.writers) writers += files.size();
  // Writers for which no tensor has a row have no file. One tensor with many rows has all others.
  std::set<std::string> names, by_rows;
  for (const auto& [name, tensor] : metadata_.tensors) {
    if (tensor.by_rows && by_rows.size() == writers) continue;
    std::set<std::string>& files = tensor.by_rows ? by_rows : names;
    for (const TensorShard& shard : shards_of(metadata_, name)) files.insert(shard.file);
  }
  names.merge(by_rows);
  return names;
}

absl::Status StoredTensors::verify_whole(const std::string& name, const StoredFile& stored) const {
  const absl::StatusOr<SafetensorsFile> file = open(name, stored);
  // Nothing of it is kept.
  return file.ok() ? file->read_whole_file({}, *stored.crc32c) : file.status();
}

void StoredTensors::verify_share(int rank, int ranks) {
  int next = 0;
  const auto is_mine = [&] { return next++ % ranks == rank; };
  for (const std::string& name : file_names()) {
    const StoredFile stored = find_(name);
    if (has_tensor_checksums(stored)) {
      const SafetensorsFile file = internal::value_or_throw(open(name, stored));
      std::vector<std::string> keys;
      for (const SafetensorsEntry& entry : file.header().tensors) {
        const bool is_verified = verified_.contains(tensor_in(name, entry.name));
        if (is_mine() && !is_verified) keys.push_back(entry.name);
      }
      internal::check_ok(file.verify(keys));
    } else if (stored.crc32c && is_mine() && !verified_.contains(name)) {
      absl::Status verified = verify_whole(name, stored);
      if (absl::IsDataLoss(verified)) verified = verify_whole(name, stored);
      internal::check_ok(verified);
    }
  }
}

}  // namespace accelerate
