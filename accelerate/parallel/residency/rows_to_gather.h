/// This rank's rows of a group's parameters as they are gathered: cast, packed, copied from the
/// host, or read from a disk. For gathered_group.h.
///
/// Collective: no. Threads: as ParameterSource.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "accelerate/parallel/residency/packed_parameters.h"
#include "accelerate/parallel/residency/shard.h"
#include "accelerate/parallel/residency/shard_disks.h"
#include "accelerate/parallel/residency/side_stream.h"

namespace accelerate::internal {

class RowsToGather {
 public:
  struct Memory {
    // By parameter: this rank's rows, padded, and the dtype in which they are gathered.
    std::vector<at::Tensor> padded;
    std::vector<at::ScalarType> dtypes;
    // By parameter: where the same rows are kept as they are gathered, on any device or on a disk,
    // with their values if either is on a disk. Empty: they are made for each gather.
    std::vector<at::Tensor> kept = {};
    // Those that are gathered as bytes, in place of `dtypes`; null: none.
    std::shared_ptr<PackedParameters> packed = nullptr;
    // Where `padded` is, and `kept` as well if `kept_on_disk`; null: in memory.
    std::shared_ptr<ShardDisks> disks = nullptr;
    bool kept_on_disk = false;
  };

  // `copies`: null where the rows are on the device.
  RowsToGather(std::vector<ParameterShard> shards, Memory memory, c10::Device device,
               std::shared_ptr<SideStream> copies);

  size_t size() const { return shards_.size(); }
  // Elements of this rank's part.
  int64_t numel(size_t i) const { return memory_.padded[i].numel(); }
  at::ScalarType dtype(size_t i, bool as_kept) const {
    return as_kept ? memory_.padded[i].scalar_type() : memory_.dtypes[i];
  }

  // The rows on the device, in the dtypes in which they are gathered or, if `as_kept`, in those of
  // the shards. They may be what is kept. Errors of disks are noted.
  std::vector<at::Tensor> begin(bool as_kept);
  // The rows of begin() are gathered: they go. Returns when an optimizer may change the shards.
  void end();

  // Throws on all ranks if one has no values to give; collective where something is on a disk.
  void check() const {
    if (memory_.disks != nullptr) memory_.disks->check();
  }

  // They are gathered soon: reading begins.
  void expect();
  // Whether the shards are what begin() found.
  bool are_current() const;
  bool is_current(size_t i) const;

  // The shard has these values, from `values`, elements on any device. Errors of disks are noted.
  void store(size_t i, const at::Tensor& values);
  // An optimizer has changed this shard, which was on a disk and is in memory now.
  void note_step(size_t i);

 private:
  at::TensorOptions place_of(size_t i) const {
    return at::TensorOptions(device_).dtype(memory_.dtypes[i]);
  }
  // Null: in memory.
  SwappedTensors* padded_disk() const {
    return memory_.disks ? memory_.disks->shards().get() : nullptr;
  }
  SwappedTensors* kept_disk() const {
    return memory_.kept_on_disk ? memory_.disks->rows().get() : nullptr;
  }
  bool is_packed(size_t i) const;
  bool is_kept(size_t i) const { return kept_versions_[i] == versions_[i]; }
  at::Tensor values_of(size_t i) const;
  void keep(size_t i, const at::Tensor& values);
  void overwrite(size_t i, const at::Tensor& values);
  std::vector<at::Tensor> from_disk();
  at::Tensor without_values(size_t i, bool as_kept);
  at::Tensor as_gathered(size_t i);
  at::Tensor on_device(const at::Tensor& rows) const;

  const std::vector<ParameterShard> shards_;
  Memory memory_;
  const c10::Device device_;
  const std::shared_ptr<SideStream> copies_;
  std::optional<SideStream::Mark> copied_;  // the rows are on the device
  std::vector<int64_t> versions_;           // of the shards that begin() found
  int generation_ = 0;                      // of the disks then
  static constexpr int64_t kStale = -1;
  std::vector<int64_t> kept_versions_;  // of the shards whose rows are kept
};

}  // namespace accelerate::internal
