/// Common parts of backends that carry operations out by themselves: the element-wise reductions,
/// and the Work of several operations.
///
/// Two such backends give bitwise equal results if they add in the same order.
/// Errors:  LibTorch's, for a dtype that an operator does not have; backends check that before
///          (accelerate/comm/watch/collective_call.h). A Work's are its operations'.
/// Threads: the functions are pure; a Work as its operations.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace accelerate::internal {

/// total = total (op) value, element by element; an average begins as a sum. Shapes and dtypes are
/// equal. `op` is not PREMUL_SUM.
void accumulate(at::Tensor& total, const at::Tensor& value, c10d::ReduceOp::RedOpType op);

/// Makes the sum of `count` ranks their average; integers are rounded towards zero.
void average(at::Tensor& sum, int64_t count);

/// The Work that endCoalescing returns: several operations waited for as one.
class JointWork : public c10d::Work {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  JointWork(int rank, std::vector<WorkPtr> works)
      : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override {
    return std::ranges::all_of(works_, [](const WorkPtr& work) { return work->isCompleted(); });
  }
  bool isSuccess() const override {
    return std::ranges::all_of(works_, [](const WorkPtr& work) { return work->isSuccess(); });
  }
  std::exception_ptr exception() const override {
    for (const WorkPtr& work : works_) {
      if (std::exception_ptr failure = work->exception()) return failure;
    }
    return nullptr;
  }
  std::vector<at::Tensor> result() override {
    std::vector<at::Tensor> results;
    for (const WorkPtr& work : works_) {
      for (at::Tensor& tensor : work->result()) results.push_back(std::move(tensor));
    }
    return results;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    for (const WorkPtr& work : works_) work->wait(timeout);
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  void abort() override {
    for (const WorkPtr& work : works_) work->abort();
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const c10::ListTypePtr type = c10::ListType::create(c10::TensorType::get());
    c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(c10::FutureType::create(type));
    for (const WorkPtr& work : works_) futures.push_back(work->getFuture());
    return c10::collectAll(futures)->then(
        [results = result(), futures](c10::ivalue::Future&) -> c10::IValue {
          for (const c10::intrusive_ptr<c10::ivalue::Future>& future : futures) {
            if (future->hasError()) std::rethrow_exception(future->exception_ptr());
          }
          return results;
        },
        type);
  }

 private:
  const std::vector<WorkPtr> works_;
};

}  // namespace accelerate::internal
