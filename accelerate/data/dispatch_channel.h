/// How rank 0's rounds of batches reach the other ranks.
///
/// A pass begins with a description of it. Per round a header of eight numbers is broadcast, the
/// batch's structure if it is not the last round's, and then the tensors. If rank 0 fails, the
/// header says so, and every rank fails. Collective: all of it, round by round. Threads: the
/// rank's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/comm/operations.h"

namespace accelerate::internal {

class DispatchChannel {
 public:
  struct Header {
    enum Kind : int64_t { kPass, kBatch, kEnd, kError };
    int64_t kind = kBatch;
    /// Rows that are real, and rows for each rank.
    int64_t real_rows = 0;
    int64_t rows_per_rank = 0;
    /// See BatchPosition.
    bool last = false;
    int64_t taken = 0;
  };

  explicit DispatchChannel(ProcessGroupPtr group) : group_(std::move(group)) {}

  // ---- On rank 0.

  /// Before the first round.
  void send_pass(const std::string& description);
  void send(const Header& header, const std::string& structure,
            const std::vector<at::Tensor>& tensors);
  void send_end();
  void send_error(const std::string& message);

  // ---- On the others.

  /// Errors: as receive_header.
  std::string receive_pass();
  /// Errors: DatasetError with rank 0's message if it failed.
  Header receive_header();
  /// Of the header's batch; the tensors are made from it.
  const std::string& structure() const { return structure_; }
  void receive_tensors(const std::vector<at::Tensor>& tensors);

 private:
  void broadcast_header(Header& header, int64_t& structure_bytes);
  void broadcast_tensors(const std::vector<at::Tensor>& tensors);

  ProcessGroupPtr group_;
  std::string structure_;
};

}  // namespace accelerate::internal
