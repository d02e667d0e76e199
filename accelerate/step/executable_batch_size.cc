#include "accelerate/step/executable_batch_size.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/operations.h"

namespace accelerate::internal {
namespace {

constexpr double kReduction = 0.9;

// Whether the batch size was too large for any rank.
bool any_rank_needs_less(const ProcessGroupPtr& group, int64_t batch_size, bool too_large) {
  const at::Tensor own = at::empty({1, 2}, at::kLong);
  own.mutable_data_ptr<int64_t>()[0] = batch_size;
  own.mutable_data_ptr<int64_t>()[1] = too_large ? 1 : 0;
  const at::Tensor all = gather_tensor(group, own);
  const int64_t* reported = all.const_data_ptr<int64_t>();
  bool any = false;
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    TORCH_CHECK(reported[2 * rank] == batch_size, "find_executable_batch_size: rank ", rank,
                " tried ", reported[2 * rank], " samples where rank ", group->getRank(), " tried ",
                batch_size, "; ranks must start with the same batch size and reduce it alike");
    any = any || reported[2 * rank + 1] != 0;
  }
  return any;
}

// The error's text; absent where smaller batches do not help.
std::optional<std::string> memory_error(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const c10::Error& error) {
    if (should_reduce_batch_size(error)) return error.what_without_backtrace();
  } catch (const std::exception& error) {
    if (should_reduce_batch_size(error)) return error.what();
  } catch (...) {
  }
  return std::nullopt;
}

}  // namespace

BatchSizeSearch::BatchSizeSearch(FindExecutableBatchSizeOptions options)
    : options_(std::move(options)), batch_size_(options_.starting_batch_size) {}

int64_t BatchSizeSearch::begin_try() {
  clear_device_cache();
  TORCH_CHECK(batch_size_ > 0, "No executable batch size found, reached zero.",
              last_error_.empty() ? "" : absl::StrCat(" The last try failed: ", last_error_));
  return batch_size_;
}

bool BatchSizeSearch::end_try(std::exception_ptr failure) {
  if (failure) {
    std::optional<std::string> error = memory_error(failure);
    if (!error) std::rethrow_exception(failure);
    last_error_ = *std::move(error);
  }
  bool needs_less = failure != nullptr;
  failure = nullptr;
  if (options_.group) {
    needs_less = any_rank_needs_less(options_.group, batch_size_, needs_less);
  }
  if (needs_less) reduce();
  return !needs_less;
}

void BatchSizeSearch::reduce() {
  int64_t reduced = static_cast<int64_t>(static_cast<double>(batch_size_) * kReduction);
  if (options_.reduce_batch_size_fn) {
    reduced = options_.reduce_batch_size_fn(batch_size_);
    TORCH_CHECK_VALUE(reduced < batch_size_, "reduce_batch_size_fn must return less than ",
                      batch_size_, ", which is too much; it returned ", reduced);
  }
  batch_size_ = reduced;
}

}  // namespace accelerate::internal
