/// Finds ranks whose replicas of a model have drifted apart.
///
/// Each rank checks its replicas at certain points (Runtime::check_replicas). The n-th check of a
/// rank compares the checksums of the tensors with those of the first rank that made its n-th
/// check. Ranks need not check at the same time, and the checks send no data.
///
/// Threads: only the rank that holds the baton may call in.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accelerate::simulator {

class Replicas {
 public:
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

  /// Errors: c10::Error that names the first tensor that differs, and both ranks.
  void check(int rank, const std::string& what, int num_replicas, const NamedTensors& tensors);

 private:
  struct Version {
    int rank = 0;  // the owner of the checksums
    int seen = 0;  // the number of ranks that agreed
    std::vector<std::string> names;
    std::vector<uint32_t> checksums;
  };
  struct Replica {
    std::map<int, int64_t> count_by_rank;
    std::map<int64_t, Version> versions;  // those that some ranks have not reached
  };

  std::map<std::string, Replica> replicas_;  // by description
};

}  // namespace accelerate::simulator
