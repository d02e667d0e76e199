#include "simulator/c10d/replicas.h"

#include <c10/util/Exception.h>

#include "absl/crc/crc32c.h"
#include "simulator/device/host_call.h"

namespace accelerate::simulator {
namespace {

uint32_t checksum(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return 0;
  const at::Tensor host = host_alias(tensor.detach()).contiguous();
  return static_cast<uint32_t>(absl::ComputeCrc32c(
      absl::string_view(static_cast<const char*>(host.const_data_ptr()), host.nbytes())));
}

}  // namespace

void Replicas::check(int rank, const std::string& what, int num_replicas,
                     const NamedTensors& tensors) {
  Replica& replica = replicas_[what];
  const int64_t number = replica.count_by_rank[rank]++;
  auto [found, first] = replica.versions.try_emplace(number);
  Version& version = found->second;
  if (first) {
    version.rank = rank;
    for (const auto& [name, tensor] : tensors) {
      version.names.push_back(name);
      version.checksums.push_back(checksum(tensor));
    }
  } else {
    TORCH_CHECK(tensors.size() == version.names.size(), what, ": rank ", rank, " has ",
                tensors.size(), " tensors, rank ", version.rank, " has ", version.names.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto& [name, tensor] = tensors[i];
      TORCH_CHECK(name == version.names[i] && checksum(tensor) == version.checksums[i], what,
                  " diverged: \"", name, "\" of rank ", rank, " differs from that of rank ",
                  version.rank, " at the ", number + 1, ". synchronisation");
    }
  }
  if (++version.seen == num_replicas) replica.versions.erase(found);
}

}  // namespace accelerate::simulator
