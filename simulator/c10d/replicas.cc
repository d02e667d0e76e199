#include "simulator/c10d/replicas.h"

#include <algorithm>

#include <ATen/core/Formatting.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include "absl/crc/crc32c.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "simulator/device/host_call.h"
#include "simulator/device/shapes.h"

namespace accelerate::simulator {
namespace {

// Elements with a checksum of their own.
constexpr int64_t kChunk = 4096;

at::Tensor on_host(const at::Tensor& tensor) {
  // The program's profiler is not told of what the program does not call.
  const at::DisableRecordFunctionGuard unobserved;
  return host_alias(tensor).detach().contiguous();
}

// Undefined for a tensor without elements, nullopt where the values were not computed.
std::optional<at::Tensor> host_values(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return at::Tensor();
  if (!has_values(tensor)) return std::nullopt;
  return on_host(tensor);
}

size_t num_chunks(const at::Tensor& host) {
  return host.defined() ? static_cast<size_t>((host.numel() + kChunk - 1) / kChunk) : 0;
}

// A chunk of the bytes of elements of a size.
absl::string_view chunk_of(absl::string_view bytes, size_t chunk, size_t element_size) {
  const size_t size = kChunk * element_size;
  return bytes.substr(chunk * size, size);
}

// \pre The tensor is contiguous and has the chunk.
absl::string_view chunk_of(const at::Tensor& host, size_t chunk) {
  return chunk_of({static_cast<const char*>(host.const_data_ptr()), host.nbytes()}, chunk,
                  host.itemsize());
}

uint32_t checksum(absl::string_view bytes) {
  return static_cast<uint32_t>(absl::ComputeCrc32c(bytes));
}

std::string element_text(std::string bytes, int64_t element, at::ScalarType dtype) {
  const auto size = static_cast<int64_t>(c10::elementSize(dtype));
  return c10::str(
      at::from_blob(bytes.data() + element * size, {}, at::TensorOptions(dtype)).item());
}

}  // namespace

Replicas::Kept::Kept(std::string name, const at::Tensor& tensor) : name_(std::move(name)) {
  const std::optional<at::Tensor> host = host_values(tensor);
  has_values_ = host.has_value();
  if (!host || !host->defined()) return;
  dtype_ = tensor.scalar_type();
  numel_ = tensor.numel();
  checksums_.reserve(num_chunks(*host));
  for (size_t chunk = 0; chunk < num_chunks(*host); ++chunk) {
    checksums_.push_back(checksum(chunk_of(*host, chunk)));
  }
  if (numel_ <= kChunk || !tensor.requires_grad()) {
    copy_.assign(static_cast<const char*>(host->const_data_ptr()), host->nbytes());
  } else {
    tensor_ = Weak(tensor.getIntrusivePtr());
    data_ = tensor.const_data_ptr();
  }
}

std::optional<size_t> Replicas::Kept::differing_chunk(const at::Tensor& tensor) const {
  const std::optional<at::Tensor> host = host_values(tensor);
  if (!host || !has_values_) return std::nullopt;
  const size_t count = num_chunks(*host);
  const size_t both = std::min(count, checksums_.size());
  for (size_t chunk = 0; chunk < both; ++chunk) {
    if (checksum(chunk_of(*host, chunk)) != checksums_[chunk]) return chunk;
  }
  if (count == checksums_.size()) return std::nullopt;
  return both;
}

std::string Replicas::Kept::bytes_of_chunk(size_t chunk) const {
  if (!copy_.empty()) return std::string(chunk_of(copy_, chunk, c10::elementSize(dtype_)));
  auto alive = tensor_->lock();
  if (!alive) return "";
  const at::Tensor tensor(std::move(alive));
  const bool is_in_place = tensor.scalar_type() == dtype_ && tensor.numel() == numel_ &&
                           tensor.storage().nbytes() >= tensor.nbytes() &&
                           tensor.const_data_ptr() == data_;
  if (!is_in_place) return "";
  std::string bytes(chunk_of(on_host(tensor), chunk));
  return checksum(bytes) == checksums_[chunk] ? bytes : "";
}

std::string Replicas::Kept::first_difference(const at::Tensor& tensor, size_t chunk) const {
  const std::optional<at::Tensor> host = host_values(tensor);
  if (!host || !host->defined()) return "";
  if (tensor.scalar_type() != dtype_ || tensor.numel() != numel_) return "";
  const std::string own(chunk_of(*host, chunk));
  const std::string other = bytes_of_chunk(chunk);
  const int64_t begin = static_cast<int64_t>(chunk) * kChunk;
  if (other.empty()) {
    const int64_t last = std::min(begin + kChunk, numel_) - 1;
    return absl::StrCat(", first in one of the elements ", begin, " to ", last);
  }
  const auto offset = std::mismatch(own.begin(), own.end(), other.begin()).first - own.begin();
  const int64_t element = static_cast<int64_t>(offset) / static_cast<int64_t>(host->itemsize());
  return absl::StrCat(", first in element ", begin + element, ": ",
                      element_text(own, element, dtype_), " and ",
                      element_text(other, element, dtype_));
}

void Replicas::check(int rank, const std::string& what, int num_ranks,
                     const NamedTensors& tensors) {
  Replica& replica = replicas_[what];
  const int64_t number = replica.count_by_rank[rank]++;
  auto [found, first] = replica.versions.try_emplace(number);
  Version& version = found->second;
  if (first) {
    version.rank = rank;
    version.tensors.reserve(tensors.size());
    for (const auto& [name, tensor] : tensors) version.tensors.emplace_back(name, tensor);
  } else {
    TORCH_CHECK(tensors.size() == version.tensors.size(), what, ": rank ", rank, " has ",
                tensors.size(), " tensors, rank ", version.rank, " has ", version.tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto& [name, tensor] = tensors[i];
      const Kept& kept = version.tensors[i];
      const std::optional<size_t> chunk = kept.differing_chunk(tensor);
      TORCH_CHECK(name == kept.name() && !chunk, what, " diverged: \"", name, "\" of rank ", rank,
                  " differs from that of rank ", version.rank, " at the ", number + 1,
                  ". synchronisation", chunk ? kept.first_difference(tensor, *chunk) : "");
    }
  }
  if (++version.seen >= num_ranks) replica.versions.erase(found);
}

}  // namespace accelerate::simulator
