/// Says where a dataset failed: which samples, which batch, which worker and which rank.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include <c10/util/ArrayRef.h>

namespace accelerate {

/// A dataset or collate function threw something other than c10::Error, which is nested in this
/// (std::rethrow_if_nested). A c10::Error stays what it is and gets the same text added.
class DatasetError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace internal {

/// The place in words: "rank 2, batch 4, samples 8, 9, 10, ...".
std::string describe_place(int rank, int64_t batch, c10::ArrayRef<int64_t> indices);

/// Throws the exception being handled again, with the place. \pre In a catch block.
[[noreturn]] void rethrow_with_place(const std::string& place);

}  // namespace internal
}  // namespace accelerate
