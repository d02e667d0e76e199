/// Finds ranks whose replicas of a model have drifted apart.
///
/// Each time a rank says that some tensors are replicas (Runtime::check_replicas), their bytes are
/// compared, by checksum, with what the first rank to say so the same number of times had. Ranks
/// need not be there at the same time, and nothing is sent.
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

  /// Errors: c10::Error naming the first tensor that differs, and both ranks.
  void check(int rank, const std::string& what, int num_replicas, const NamedTensors& tensors);

 private:
  struct Version {
    int rank = 0;  // whose they are
    int seen = 0;  // ranks that agreed
    std::vector<std::string> names;
    std::vector<uint32_t> checksums;
  };
  struct Replica {
    std::map<int, int64_t> count_by_rank;
    std::map<int64_t, Version> versions;  // those that not all of them have reached
  };

  std::map<std::string, Replica> replicas_;  // by what they are
};

}  // namespace accelerate::simulator
