#include "accelerate/files/safetensors.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarType.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "accelerate/base/checksum.h"
#include "accelerate/base/document.h"
#include "accelerate/base/status.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/files/file_chunks.h"
#include "accelerate/files/tensor_ranges.h"
#include "accelerate/tensors/tensor_memory.h"
#include "accelerate/values/dtypes.h"

namespace accelerate {
namespace {

// What operators note by themselves: what was made of the tensor before is out of date.
void note_change(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

using internal::as_tensor;
using internal::ChunkBuffer;
using internal::crc32c;
using internal::FileChunk;
using internal::FilePiece;
using internal::is_plain_memory;
using internal::read_range;
using internal::wait_for_devices;
using internal::write_range;

// "PATH: 'NAME': WHAT".
absl::Status about(absl::StatusCode code, const std::string& path, const std::string& name,
                   absl::string_view what) {
  return absl::Status(code, absl::StrCat(path, ": '", name, "': ", what));
}

std::string shape_text(at::IntArrayRef shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Why a tensor cannot be in a file; "" if it can.
std::string objection_to(const at::Tensor& tensor) {
  if (!tensor.defined()) return "the tensor is undefined";
  if (tensor.layout() != c10::kStrided) return "only dense tensors can be in safetensors files";
  if (tensor.is_meta()) return "a meta tensor has no contents";
  return "";
}

// ---- Writing.

// Writes one file: its header, and then the tensors in their order.
class Writer {
 public:
  Writer(std::string path, int threads) : path_(std::move(path)), threads_(threads) {}

  absl::Status plan(const NamedTensors& tensors,
                    const std::optional<SafetensorsMetadata>& metadata) {
    header_.metadata = metadata;
    std::map<std::string, at::Tensor> by_name;
    for (const auto& [name, tensor] : tensors) {
      const std::string objection = objection_to(tensor);
      if (!objection.empty()) return refused(name, objection);
      const absl::StatusOr<std::string> dtype = safetensors_dtype(tensor.scalar_type());
      if (!dtype.ok()) return refused(name, dtype.status().message());
      if (!by_name.emplace(name, tensor.detach()).second) return refused(name, "it comes twice");
      header_.tensors.push_back({.name = name, .dtype = *dtype, .shape = tensor.sizes().vec()});
    }
    ACCELERATE_ASSIGN_OR_RETURN(start_, in_file(path_, lay_out_safetensors(header_)));
    pieces_.push_back({.end = header_.data_offset});
    tensors_.emplace_back();
    for (const SafetensorsEntry& entry : header_.tensors) {
      at::Tensor& tensor = by_name.at(entry.name);
      pieces_.push_back({.begin = header_.data_offset + entry.begin,
                         .end = header_.data_offset + entry.end,
                         .element_size = static_cast<int64_t>(tensor.element_size())});
      tensors_.push_back(std::move(tensor));
    }
    for (const at::Tensor& tensor : tensors_) {
      plain_.push_back(!tensor.defined() || is_plain_memory(tensor));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<WrittenFile> write(WritableFile& file, const WriteOptions& options) {
    std::vector<FileChunk> chunks = internal::cut_into_chunks(pieces_);
    if (threads_ > 1) wait_for_devices(absl::MakeConstSpan(tensors_).subspan(1));
    absl::Mutex progress;
    const absl::Status written = internal::run_chunks(
        chunks, threads_, [&](FileChunk& chunk, ChunkBuffer& buffer) -> absl::Status {
          ACCELERATE_ASSIGN_OR_RETURN(const absl::Span<const std::byte> bytes,
                                      bytes_of(chunk, buffer));
          for (FileChunk::Part& part : chunk.parts) {
            part.crc32c = crc32c(bytes.subspan(part.begin - chunk.begin(), part.end - part.begin));
          }
          ACCELERATE_RETURN_IF_ERROR(file.write_at(chunk.begin(), bytes));
          // The disk works while checksums are computed.
          if (options.sync) file.begin_sync(chunk.begin(), chunk.end() - chunk.begin());
          if (options.progress) {
            absl::MutexLock lock(&progress);
            options.progress(chunk.end() - chunk.begin());
          }
          return absl::OkStatus();
        });
    if (!written.ok()) return written;
    if (options.sync) {
      ACCELERATE_RETURN_IF_ERROR(file.sync());
    }
    return result(chunks);
  }

 private:
  // In place if it can be.
  absl::StatusOr<absl::Span<const std::byte>> bytes_of(const FileChunk& chunk,
                                                       ChunkBuffer& buffer) const {
    const FileChunk::Part& first = chunk.parts.front();
    if (chunk.parts.size() == 1 && plain_[first.piece]) return memory_of(first);
    const absl::Span<std::byte> out = buffer.of_size(chunk.end() - chunk.begin());
    for (const FileChunk::Part& part : chunk.parts) {
      const auto part_out = out.subspan(part.begin - chunk.begin(), part.end - part.begin);
      if (plain_[part.piece]) {
        const auto from = memory_of(part);
        std::copy(from.begin(), from.end(), part_out.begin());
        continue;
      }
      const c10::InferenceMode no_gradients;
      const at::Tensor& tensor = tensors_[part.piece];
      const FilePiece& piece = pieces_[part.piece];
      try {
        read_range(tensor, (part.begin - piece.begin) / piece.element_size,
                   as_tensor(part_out, tensor.scalar_type()));
      } catch (const c10::Error& error) {
        return refused(header_.tensors[part.piece - 1].name, error.what_without_backtrace());
      }
    }
    return out;
  }

  absl::Span<const std::byte> memory_of(const FileChunk::Part& part) const {
    const void* start = part.piece == 0 ? start_.data() : tensors_[part.piece].const_data_ptr();
    return absl::MakeConstSpan(
        static_cast<const std::byte*>(start) + (part.begin - pieces_[part.piece].begin),
        static_cast<size_t>(part.end - part.begin));
  }

  WrittenFile result(const std::vector<FileChunk>& chunks) const {
    const std::vector<uint32_t> checksums = internal::piece_checksums(chunks, pieces_.size());
    WrittenFile written{.size = pieces_.back().end, .crc32c = checksums[0]};
    written.checksums.header = checksums[0];
    for (size_t i = 1; i < pieces_.size(); ++i) {
      written.checksums.tensors.emplace(header_.tensors[i - 1].name, checksums[i]);
      written.crc32c =
          internal::concat_crc32c(written.crc32c, checksums[i], pieces_[i].end - pieces_[i].begin);
    }
    return written;
  }

  absl::Status refused(const std::string& name, absl::string_view why) const {
    return about(absl::StatusCode::kInvalidArgument, path_, name, why);
  }

  const std::string path_;
  const int threads_;
  SafetensorsHeader header_;
  std::string start_;
  // The header's piece, then one per tensor.
  std::vector<FilePiece> pieces_;
  std::vector<at::Tensor> tensors_;
  std::vector<bool> plain_;
};

}  // namespace

absl::StatusOr<std::string> safetensors_dtype(at::ScalarType dtype) {
  const DtypeName* known = find_dtype(dtype);
  if (known != nullptr && !known->safetensors.empty() && known->safetensors != "C64" &&
      !known->safetensors.ends_with("FNUZ")) {
    return std::string(known->safetensors);
  }
  return invalid("the dtype ", c10::toString(dtype), " cannot be in safetensors files");
}

absl::StatusOr<at::ScalarType> scalar_type_of(const std::string& safetensors_dtype) {
  const DtypeName* known = find_dtype(&DtypeName::safetensors, safetensors_dtype);
  if (known != nullptr) return scalar_type(*known);
  return absl::UnimplementedError(
      absl::StrCat("its dtype is ", safetensors_dtype, ", which cannot be read"));
}

absl::StatusOr<WrittenFile> write_safetensors(FileSystem& files, const std::string& path,
                                              const NamedTensors& tensors,
                                              const std::optional<SafetensorsMetadata>& metadata,
                                              const WriteOptions& options) {
  Writer writer(path, files.parallelism());
  ACCELERATE_RETURN_IF_ERROR(writer.plan(tensors, metadata));
  ACCELERATE_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files.create(path));
  absl::StatusOr<WrittenFile> written = writer.write(*file, options);
  const absl::Status closed = file->close();
  if (written.ok() && !closed.ok()) return closed;
  return written;
}

// ---- Reading.

namespace {

std::string mismatch_text(uint32_t found, uint32_t expected) {
  return absl::StrFormat("its checksum is %08x, not %08x as when it was written", found, expected);
}

absl::StatusOr<SafetensorsHeader> read_header(const ReadableFile& file, const std::string& path,
                                              const std::optional<SafetensorsChecksums>& expected,
                                              uint32_t& found) {
  ACCELERATE_ASSIGN_OR_RETURN(const std::string start, read_safetensors_start(file, path));
  found = crc32c(start);
  if (expected && found != expected->header) {
    return absl::DataLossError(
        absl::StrCat(path, ": the header: ", mismatch_text(found, expected->header)));
  }
  return in_file(path, parse_safetensors_header(start, file.size()));
}

// Memory that is being written to, to tell what must wait: of two destinations that share memory,
// the later one counts.
class TakenMemory {
 public:
  // Returns false if somebody has some of it.
  bool take(const at::Tensor& tensor) {
    if (tensor.numel() == 0) return true;
    int64_t last = tensor.storage_offset();
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
      last += (tensor.size(dim) - 1) * tensor.stride(dim);
    }
    const void* storage = tensor.storage().unsafeGetStorageImpl();
    const auto bytes = static_cast<int64_t>(tensor.element_size());
    const Place begin(storage, tensor.storage_offset() * bytes);
    const int64_t end = (last + 1) * bytes;
    const auto next = ends_.lower_bound(begin);
    if (next != ends_.end() && next->first.first == storage && next->first.second < end) {
      return false;
    }
    if (next != ends_.begin()) {
      const auto& [place, place_end] = *std::prev(next);
      if (place.first == storage && place_end > begin.second) return false;
    }
    ends_.emplace(begin, end);
    return true;
  }

 private:
  using Place = std::pair<const void*, int64_t>;
  std::map<Place, int64_t> ends_;
};

}  // namespace

struct SafetensorsFile::Contents {
  // A tensor of the file and where it goes; nowhere if `tensor` is undefined.
  struct ReadTarget {
    const SafetensorsEntry* entry;
    at::Tensor tensor;
  };

  absl::StatusOr<std::vector<ReadTarget>> wanted_for(const NamedTensors& destinations) const;

  absl::Status refused(const std::string& name, absl::string_view why) const {
    return about(absl::StatusCode::kInvalidArgument, path, name, why);
  }

  absl::StatusOr<const SafetensorsEntry*> find(const std::string& name) const {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      return about(absl::StatusCode::kNotFound, path, name, "the file has no such tensor");
    }
    const absl::StatusOr<at::ScalarType> dtype = scalar_type_of(found->second->dtype);
    if (dtype.ok()) return found->second;
    return about(dtype.status().code(), path, name, dtype.status().message());
  }

  // The bytes of an entry, in memory.
  absl::StatusOr<std::shared_ptr<const absl::Span<const std::byte>>> mapping() const {
    absl::MutexLock lock(&mutex);
    if (mapped == nullptr) {
      ACCELERATE_ASSIGN_OR_RETURN(mapped, file->map());
    }
    return mapped;
  }

  // The entry's elements begin:end along `dim`.
  absl::StatusOr<at::Tensor> map(const SafetensorsEntry& entry, int64_t dim, int64_t begin,
                                 int64_t end) const {
    ACCELERATE_ASSIGN_OR_RETURN(const at::ScalarType dtype, scalar_type_of(entry.dtype));
    const auto part = [&](const at::Tensor& whole) {
      return entry.shape.empty() ? whole : whole.narrow(dim, begin, end - begin);
    };
    if (entry.begin == entry.end) return part(at::empty(entry.shape, dtype));
    ACCELERATE_ASSIGN_OR_RETURN(const auto mapping, this->mapping());
    const int64_t offset = header.data_offset + entry.begin;
    auto* data = const_cast<std::byte*>(mapping->data()) + offset;
    const auto view = [&](const std::vector<int64_t>& shape, at::ScalarType type) {
      return at::from_blob(data, shape, [kept = mapping](void*) {}, type);
    };
    const auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
    if (offset % bytes == 0) return part(view(entry.shape, dtype));
    std::vector<int64_t> shape = entry.shape;
    shape.push_back(bytes);
    return part(view(shape, at::kByte)).clone().view(dtype).squeeze(-1);
  }

  absl::Status read(std::vector<ReadTarget> wanted) const {
    if (threads > 1) {
      std::vector<at::Tensor> tensors;
      for (const ReadTarget& want : wanted) {
        if (want.tensor.defined()) tensors.push_back(want.tensor);
      }
      wait_for_devices(tensors);
    }
    while (!wanted.empty()) {
      TakenMemory taken;
      std::vector<ReadTarget> now;
      std::vector<ReadTarget> later;
      for (ReadTarget& want : wanted) {
        const bool is_free = !want.tensor.defined() || taken.take(want.tensor);
        (is_free ? now : later).push_back(std::move(want));
      }
      absl::StatusOr<Damage> damage = read_once(now);
      if (!damage.ok()) return damage.status();
      if (!damage->empty()) {
        now.clear();
        for (auto& [want, found] : *damage) now.push_back(want);
        damage = read_once(now);
        if (!damage.ok()) return damage.status();
      }
      if (!damage->empty()) {
        const auto& [want, found] = damage->front();
        const std::string& name = want.entry->name;
        return about(absl::StatusCode::kDataLoss, path, name,
                     mismatch_text(found, expected->tensors.at(name)));
      }
      wanted = std::move(later);
    }
    return absl::OkStatus();
  }

  // Reads once. Returns those whose checksum is wrong, and theirs.
  using Damage = std::vector<std::pair<ReadTarget, uint32_t>>;
  absl::StatusOr<Damage> read_once(const std::vector<ReadTarget>& unsorted) const {
    std::vector<ReadTarget> wanted = unsorted;
    std::stable_sort(wanted.begin(), wanted.end(),
                     [](const ReadTarget& left, const ReadTarget& right) {
                       return left.entry->begin < right.entry->begin;
                     });
    ACCELERATE_ASSIGN_OR_RETURN(const std::vector<uint32_t> checksums,
                                fill(wanted, expected.has_value()));
    Damage damage;
    for (size_t i = 0; expected && i < wanted.size(); ++i) {
      if (checksums[i] != expected->tensors.at(wanted[i].entry->name)) {
        damage.emplace_back(wanted[i], checksums[i]);
      }
    }
    return damage;
  }

  // Reads all tensors of the file and returns its checksum. `wanted`: by position in the file.
  absl::StatusOr<uint32_t> read_whole(const std::vector<ReadTarget>& wanted) const {
    ACCELERATE_ASSIGN_OR_RETURN(const std::vector<uint32_t> checksums,
                                fill(wanted, /*with_checksums=*/true));
    uint32_t crc = header_crc32c;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const SafetensorsEntry& entry = *wanted[i].entry;
      crc = internal::concat_crc32c(crc, checksums[i], entry.end - entry.begin);
    }
    return crc;
  }

  // Reads tensors, by position in the file, and returns the checksum of each one's bytes.
  absl::StatusOr<std::vector<uint32_t>> fill(const std::vector<ReadTarget>& wanted,
                                             bool with_checksums) const {
    std::vector<FilePiece> pieces;
    for (const ReadTarget& want : wanted) {
      pieces.push_back(
          {.begin = header.data_offset + want.entry->begin,
           .end = header.data_offset + want.entry->end,
           .element_size = std::max<int64_t>(safetensors_dtype_size(want.entry->dtype), 1)});
    }
    std::vector<FileChunk> chunks = internal::cut_into_chunks(pieces);
    ACCELERATE_RETURN_IF_ERROR(fill_chunks(wanted, pieces, chunks, with_checksums));
    return internal::piece_checksums(chunks, pieces.size());
  }

  absl::Status fill_chunks(const std::vector<ReadTarget>& wanted,
                           const std::vector<FilePiece>& pieces, std::vector<FileChunk>& chunks,
                           bool with_checksums) const {
    // Where a tensor's bytes can go as they are; null otherwise.
    std::vector<std::byte*> memory;
    std::vector<at::ScalarType> dtypes;
    for (const ReadTarget& want : wanted) {
      // What is only verified may be of any dtype.
      ACCELERATE_ASSIGN_OR_RETURN(
          const at::ScalarType dtype,
          want.tensor.defined() ? scalar_type_of(want.entry->dtype) : at::kByte);
      const bool is_direct = want.tensor.defined() && want.tensor.scalar_type() == dtype &&
                             is_plain_memory(want.tensor);
      memory.push_back(is_direct ? static_cast<std::byte*>(want.tensor.data_ptr()) : nullptr);
      if (is_direct) note_change(want.tensor);
      dtypes.push_back(dtype);
    }
    return internal::run_chunks(
        chunks, threads, [&](FileChunk& chunk, ChunkBuffer& buffer) -> absl::Status {
          const FileChunk::Part& first = chunk.parts.front();
          const auto size = static_cast<size_t>(chunk.end() - chunk.begin());
          std::byte* direct = memory[first.piece];
          const bool is_direct = chunk.parts.size() == 1 && direct != nullptr;
          const absl::Span<std::byte> bytes =
              is_direct ? absl::MakeSpan(direct + (first.begin - pieces[first.piece].begin), size)
                        : buffer.of_size(size);
          ACCELERATE_RETURN_IF_ERROR(file->read_at(chunk.begin(), bytes));
          for (FileChunk::Part& part : chunk.parts) {
            const auto part_bytes =
                bytes.subspan(part.begin - chunk.begin(), part.end - part.begin);
            if (with_checksums) part.crc32c = crc32c(part_bytes);
            const ReadTarget& want = wanted[part.piece];
            if (is_direct || !want.tensor.defined()) continue;
            const FilePiece& piece = pieces[part.piece];
            if (memory[part.piece] != nullptr) {
              std::copy(part_bytes.begin(), part_bytes.end(),
                        memory[part.piece] + (part.begin - piece.begin));
              continue;
            }
            const c10::InferenceMode no_gradients;
            try {
              write_range(want.tensor, (part.begin - piece.begin) / piece.element_size,
                          as_tensor(part_bytes, dtypes[part.piece]));
            } catch (const c10::Error& error) {
              return refused(want.entry->name, error.what_without_backtrace());
            }
          }
          return absl::OkStatus();
        });
  }

  std::string path;
  std::unique_ptr<ReadableFile> file;
  int threads = 1;
  std::optional<SafetensorsChecksums> expected;
  SafetensorsHeader header;
  uint32_t header_crc32c = 0;
  std::map<std::string, const SafetensorsEntry*> by_name;
  mutable absl::Mutex mutex;
  mutable std::shared_ptr<const absl::Span<const std::byte>> mapped ABSL_GUARDED_BY(mutex);
};

SafetensorsFile::SafetensorsFile(std::shared_ptr<const Contents> contents)
    : contents_(std::move(contents)) {}

absl::StatusOr<SafetensorsFile> SafetensorsFile::open(
    FileSystem& files, const std::string& path, std::optional<SafetensorsChecksums> expected) {
  ACCELERATE_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, files.open(path));
  auto contents = std::make_shared<Contents>();
  uint32_t& crc = contents->header_crc32c;
  absl::StatusOr<SafetensorsHeader> header = read_header(*file, path, expected, crc);
  if (absl::IsDataLoss(header.status())) header = read_header(*file, path, expected, crc);
  if (!header.ok()) return header.status();
  contents->path = path;
  contents->file = std::move(file);
  contents->threads = files.parallelism();
  contents->expected = std::move(expected);
  contents->header = *std::move(header);
  for (const SafetensorsEntry& entry : contents->header.tensors) {
    contents->by_name.emplace(entry.name, &entry);
    if (contents->expected && !contents->expected->tensors.contains(entry.name)) {
      return about(absl::StatusCode::kDataLoss, path, entry.name, "there is no checksum of it");
    }
  }
  return SafetensorsFile(std::move(contents));
}

const SafetensorsHeader& SafetensorsFile::header() const { return contents_->header; }

absl::StatusOr<at::Tensor> SafetensorsFile::map(const std::string& name) const {
  ACCELERATE_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, contents_->find(name));
  const std::vector<int64_t>& shape = entry->shape;
  return contents_->map(*entry, 0, 0, shape.empty() ? 0 : shape[0]);
}

absl::StatusOr<at::Tensor> SafetensorsFile::slice(const std::string& name, int64_t dim,
                                                  int64_t begin, int64_t end) const {
  ACCELERATE_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, contents_->find(name));
  const std::vector<int64_t>& shape = entry->shape;
  if (dim < 0 || dim >= static_cast<int64_t>(shape.size()) || begin < 0 || begin > end ||
      end > shape[dim]) {
    return contents_->refused(name, absl::StrCat("no elements ", begin, ":", end, " along dim ",
                                                 dim, " of ", shape_text(shape)));
  }
  return contents_->map(*entry, dim, begin, end);
}

namespace {

// Why a tensor of this shape cannot be read into another; "" if it can.
std::string objection_to(const at::Tensor& into, const std::vector<int64_t>& shape) {
  std::string objection = objection_to(into);
  if (!objection.empty()) return objection;
  if (into.sizes() != at::IntArrayRef(shape)) {
    return absl::StrCat("its shape in the file is ", shape_text(shape), ", the destination's ",
                        shape_text(into.sizes()));
  }
  if (at::has_internal_overlap(into) == at::MemOverlap::Yes) {
    return "elements of the destination share memory";
  }
  return "";
}

}  // namespace

absl::StatusOr<std::vector<SafetensorsFile::Contents::ReadTarget>>
SafetensorsFile::Contents::wanted_for(const NamedTensors& destinations) const {
  std::vector<ReadTarget> wanted;
  for (const auto& [name, tensor] : destinations) {
    ACCELERATE_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, find(name));
    const std::string objection = objection_to(tensor, entry->shape);
    if (!objection.empty()) return refused(name, objection);
    wanted.push_back({.entry = entry, .tensor = tensor.detach()});
  }
  return wanted;
}

absl::Status SafetensorsFile::read_into(const NamedTensors& destinations) const {
  auto wanted = contents_->wanted_for(destinations);
  return wanted.ok() ? contents_->read(*std::move(wanted)) : wanted.status();
}

absl::Status SafetensorsFile::read_whole_file(const NamedTensors& destinations,
                                              uint32_t file_crc32c) const {
  ACCELERATE_ASSIGN_OR_RETURN(const auto with_destinations, contents_->wanted_for(destinations));
  std::map<const SafetensorsEntry*, at::Tensor> by_entry;
  std::vector<at::Tensor> devices;
  for (const Contents::ReadTarget& want : with_destinations) {
    by_entry[want.entry] = want.tensor;
    devices.push_back(want.tensor);
  }
  if (contents_->threads > 1) wait_for_devices(devices);
  std::vector<Contents::ReadTarget> wanted;
  for (const SafetensorsEntry& entry : header().tensors) {
    const auto found = by_entry.find(&entry);
    wanted.push_back(
        {.entry = &entry, .tensor = found == by_entry.end() ? at::Tensor() : found->second});
  }
  const absl::StatusOr<uint32_t> crc = contents_->read_whole(wanted);
  if (!crc.ok() || *crc == file_crc32c) return crc.status();
  return absl::DataLossError(absl::StrCat(contents_->path, ": ", mismatch_text(*crc, file_crc32c)));
}

absl::Status SafetensorsFile::read_box(const std::string& name, const Box& box,
                                       const at::Tensor& into) const {
  ACCELERATE_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, contents_->find(name));
  ACCELERATE_ASSIGN_OR_RETURN(const at::ScalarType dtype, scalar_type_of(entry->dtype));
  const std::string objection = objection_to(into, box.lengths);
  if (!objection.empty()) return contents_->refused(name, objection);
  const c10::InferenceMode no_gradients;
  const at::Tensor destination = into.detach();
  const bool is_direct = destination.scalar_type() == dtype && is_plain_memory(destination);
  if (is_direct) note_change(destination);
  const BoxRuns runs(entry->shape, box, safetensors_dtype_size(entry->dtype));
  const int64_t begin = contents_->header.data_offset + entry->begin;
  ChunkBuffer buffer;
  int64_t done = 0;  // bytes of the box
  for (int64_t run = 0; run < runs.count(); ++run) {
    for (int64_t in_run = 0; in_run < runs.bytes();) {
      const int64_t size = std::min(internal::kFileChunkBytes, runs.bytes() - in_run);
      const absl::Span<std::byte> bytes =
          is_direct
              ? absl::MakeSpan(static_cast<std::byte*>(destination.mutable_data_ptr()) + done, size)
              : buffer.of_size(size);
      ACCELERATE_RETURN_IF_ERROR(
          contents_->file->read_at(begin + runs.offset(run) + in_run, bytes));
      if (!is_direct) {
        write_range(destination, done / safetensors_dtype_size(entry->dtype),
                    as_tensor(bytes, dtype));
      }
      in_run += size;
      done += size;
    }
  }
  return absl::OkStatus();
}

absl::Status SafetensorsFile::read_elements(const std::string& name, int64_t first,
                                            const at::Tensor& out) const {
  ACCELERATE_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, contents_->find(name));
  ACCELERATE_ASSIGN_OR_RETURN(const at::ScalarType dtype, scalar_type_of(entry->dtype));
  const int64_t bytes = safetensors_dtype_size(entry->dtype);
  const int64_t count = (entry->end - entry->begin) / bytes;
  if (out.scalar_type() != dtype || !is_plain_memory(out) || first < 0 || first > count ||
      out.numel() > count - first) {
    return contents_->refused(name, absl::StrCat("cannot read elements ", first, " to ",
                                                 first + out.numel(), " into this tensor"));
  }
  if (out.numel() == 0) return absl::OkStatus();
  return contents_->file->read_at(
      contents_->header.data_offset + entry->begin + first * bytes,
      absl::MakeSpan(static_cast<std::byte*>(out.mutable_data_ptr()), out.nbytes()));
}

absl::StatusOr<NamedTensors> SafetensorsFile::read_all(c10::Device device) const {
  NamedTensors tensors;
  std::vector<Contents::ReadTarget> wanted;
  for (const SafetensorsEntry& entry : contents_->header.tensors) {
    const absl::StatusOr<at::ScalarType> dtype = scalar_type_of(entry.dtype);
    if (!dtype.ok()) {
      return about(dtype.status().code(), contents_->path, entry.name, dtype.status().message());
    }
    const at::TensorOptions options = at::TensorOptions(*dtype).device(device);
    tensors.emplace_back(entry.name, internal::fresh_tensor(entry.shape, options));
    wanted.push_back({.entry = &entry, .tensor = tensors.back().second});
  }
  ACCELERATE_RETURN_IF_ERROR(contents_->read(std::move(wanted)));
  return tensors;
}

absl::Status SafetensorsFile::verify() const {
  std::vector<std::string> names;
  for (const SafetensorsEntry& entry : contents_->header.tensors) names.push_back(entry.name);
  return verify(names);
}

absl::Status SafetensorsFile::verify(const std::vector<std::string>& names) const {
  if (!contents_->expected) {
    return absl::FailedPreconditionError(
        absl::StrCat(contents_->path, ": cannot be verified without checksums"));
  }
  std::vector<Contents::ReadTarget> wanted;
  for (const std::string& name : names) {
    ACCELERATE_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, contents_->find(name));
    wanted.push_back({.entry = entry});
  }
  return contents_->read(std::move(wanted));
}

std::optional<nlohmann::ordered_json> internal::state_values(const SafetensorsFile& file,
                                                             const std::string& path) {
  const std::string* const values = find_state_values(file.header());
  if (values == nullptr) return std::nullopt;
  return parse_state_values(*values, path);
}

nlohmann::ordered_json internal::parse_state_values(const std::string& text,
                                                    const std::string& path) {
  return value_or_throw(json_value(text, {.name = path}));
}

}  // namespace accelerate
