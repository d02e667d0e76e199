/// What is wrong with a call of a collective by itself, whoever carries it out. A backend that asks
/// here before it sends anything refuses on this rank alone, and leaves the group as it is.
///
/// Errors: c10::ValueError naming the operation; c10::NotImplementedError from check_reducible.
/// Local.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace accelerate {

/// Dense, and without gaps in whatever memory format the tensor has.
void check_contiguous(const at::Tensor& tensor, c10d::OpType op);

/// `expected` tensors, all contiguous. `which` is "input" or "output", here and below.
void check_count(const std::vector<at::Tensor>& tensors, size_t expected, c10d::OpType op,
                 const char* which);

/// The number of lists of tensors.
void check_list_count(size_t got, size_t expected, c10d::OpType op, const char* which);

/// `tensors` mirror `like`: same dtype and number of elements.
void check_alike(const std::vector<at::Tensor>& tensors, const at::Tensor& like, c10d::OpType op,
                 const char* which);

/// `whole` is `count` times `part`, one after the other.
void check_whole(const at::Tensor& whole, const at::Tensor& part, int count, c10d::OpType op);

/// Rows of `tensor` for each of `size` ranks; no splits mean equal ones.
void check_splits(const std::vector<int64_t>& splits, const at::Tensor& tensor, int size,
                  const char* which);

/// Returns the root, or another rank that the call names.
int check_root(int64_t root, int size);

/// That `op` is defined on `dtype`. As NCCL and Gloo: eight-bit floats travel but are not summed,
/// complex numbers are only summed.
void check_reducible(c10d::ReduceOp::RedOpType op, at::ScalarType dtype);

}  // namespace accelerate
