/// c10d's Gloo backend with two things that it does not offer: its pending operations can be ended
/// from outside, and words can be exchanged without a detour through its worker threads.
///
/// Linking it registers the backend "gloo".
/// Errors: those of Gloo.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "accelerate/comm/backend_registry.h"

namespace accelerate {

class GlooBackend final : public c10d::ProcessGroupGloo, public Interruptible {
 public:
  /// Collective over the group.
  explicit GlooBackend(const BackendOptions& options);

  /// Whatever waits in an operation of the group fails at once, and all later
  /// operations do; other members see a closed connection. Threads: any.
  void interrupt() override;

  /// Every member's `mine`, all of the same size, one after the other. Runs on the calling thread.
  /// Collective; one at a time.
  std::string all_gather_bytes(const std::string& mine, std::chrono::milliseconds timeout);
  std::vector<uint64_t> all_gather_word(uint64_t mine, std::chrono::milliseconds timeout);

 private:
  uint32_t exchanges_ = 0;
};

}  // namespace accelerate
