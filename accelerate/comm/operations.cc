#include "accelerate/comm/operations.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/base/checksum.h"
#include "accelerate/comm/watch/collective_call.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

void check_leaf(const char* operation, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), operation, ": a tensor is undefined");
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, operation, ": a tensor has the layout ",
                    tensor.layout(), "; convert it with to_dense() first");
}

// The numbers themselves, one after the other; the tensor where it is like that already.
at::Tensor as_plain(const at::Tensor& tensor) {
  return internal::without_flags(tensor).contiguous();
}

// An alias, so that no thread of a backend has the tensor's graph.
at::Tensor as_rows(const at::Tensor& tensor) {
  const at::Tensor alias = tensor.tensor_data();
  return as_plain(alias.dim() == 0 ? alias.reshape({1}) : alias);
}

std::vector<int64_t> rows_shape(const at::Tensor& rows, int64_t count) {
  std::vector<int64_t> shape = rows.sizes().vec();
  shape[0] = count;
  return shape;
}

void all_gather_into(const ProcessGroupPtr& group, const at::Tensor& output,
                     const at::Tensor& rows) {
  at::Tensor carried_output = internal::as_carried(output);
  at::Tensor carried_rows = internal::as_carried(rows);
  const CarriedValues described(rows);
  group->_allgather_base(carried_output, carried_rows)->wait();
}

at::Tensor all_gather_rows(const ProcessGroupPtr& group, const at::Tensor& rows) {
  at::Tensor output = at::empty(rows_shape(rows, rows.size(0) * group->getSize()), rows.options());
  all_gather_into(group, output, rows);
  return output;
}

// Every rank's `numbers`, as a table of a row per rank. They travel on the CPU, so that no rank
// waits for its device.
at::Tensor all_gather_numbers(const ProcessGroupPtr& group, const std::vector<int64_t>& numbers) {
  const auto count = static_cast<int64_t>(numbers.size());
  at::Tensor own = at::empty({1, count}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), own.mutable_data_ptr<int64_t>());
  return all_gather_rows(group, own);
}

c10d::ReduceOp reduce_op(const at::Tensor& tensor, Reduction reduction) {
  // The maximum of bytes that are 0 or 1 is their "or".
  const bool largest = reduction == Reduction::kMax || tensor.scalar_type() == at::kBool;
  return largest ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
}

// As backends can add it up; a view of `tensor` where that is possible.
at::Tensor as_summed(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kBool: return tensor.view(at::kByte);
    case at::kShort: return tensor.to(at::kInt);
    case at::kComplexFloat:
    case at::kComplexDouble: return at::view_as_real(tensor);
    default: return tensor;
  }
}

// ---- Means of many tensors.

constexpr int64_t kBufferBytes = int64_t{25} << 20;
constexpr size_t kOnTheirWay = 2;

// Whether ranks may lack values of items.
enum class Values { kOnAllRanks, kPerhapsMissing };

// One flat buffer: the places of its tensors and, where values may be missing, after them one
// element for each that says whether the rank had the tensor.
struct Buffer {
  std::vector<size_t> members;  // indices
  int64_t numel = 0;
  at::Tensor flat = {};
  c10::intrusive_ptr<c10d::Work> work = {};
};

// One packed tensor: where to put it, and its present value (undefined: zero).
struct Item {
  at::Tensor place;  // has the shape, the dtype and the device
  at::Tensor value;
};

std::vector<Buffer> plan(const std::vector<Item>& items) {
  std::vector<Buffer> buffers;
  std::vector<size_t> open;  // the buffer of each kind that is being filled
  for (size_t i = 0; i < items.size(); ++i) {
    const at::Tensor& place = items[i].place;
    const int64_t bytes = place.numel() * place.element_size();
    auto fits = [&](size_t candidate) {
      const at::Tensor& other = items[buffers[candidate].members.front()].place;
      return other.scalar_type() == place.scalar_type() && other.device() == place.device();
    };
    auto found = std::find_if(open.begin(), open.end(), fits);
    if (found == open.end()) found = open.insert(open.end(), buffers.size());
    const bool full = *found < buffers.size() &&
                      buffers[*found].numel * place.element_size() + bytes > kBufferBytes;
    if (full) *found = buffers.size();
    if (*found == buffers.size()) buffers.emplace_back();
    buffers[*found].members.push_back(i);
    buffers[*found].numel += place.numel();
  }
  return buffers;
}

void send(const ProcessGroupPtr& group, const std::vector<Item>& items, Values values,
          Buffer& buffer) {
  const auto options = items[buffer.members.front()].place.options().requires_grad(false);
  const auto count =
      values == Values::kPerhapsMissing ? static_cast<int64_t>(buffer.members.size()) : 0;
  buffer.flat = at::empty({buffer.numel + count}, options);
  std::vector<float> present;
  int64_t offset = 0;
  for (size_t member : buffer.members) {
    const auto& [place, value] = items[member];
    at::Tensor part = buffer.flat.narrow(0, offset, place.numel());
    offset += place.numel();
    present.push_back(value.defined() ? 1 : 0);
    if (value.defined()) {
      part.view(place.sizes()).copy_(value);
    } else {
      part.zero_();
    }
  }
  if (count > 0) buffer.flat.narrow(0, buffer.numel, count).copy_(at::tensor(present));
  buffer.flat.div_(group->getSize());
  std::vector<at::Tensor> tensors{internal::as_real(buffer.flat)};
  buffer.work = group->allreduce(tensors);
}

// By item: whether some rank had it. A number that was not computed is not zero.
std::vector<bool> found_somewhere(const Buffer& buffer, Values values) {
  const size_t count = buffer.members.size();
  std::vector<bool> found(count, true);
  if (values == Values::kOnAllRanks) return found;
  at::Tensor ranks = buffer.flat.narrow(0, buffer.numel, static_cast<int64_t>(count));
  if (ranks.is_complex()) ranks = at::view_as_real(ranks).select(1, 0);
  ranks = ranks.to(at::kCPU, at::kFloat).contiguous();
  for (size_t i = 0; i < count; ++i) found[i] = ranks.const_data_ptr<float>()[i] != 0;
  return found;
}

// `put(item, mean)` for each item that some rank had.
template <typename Put>
void receive(const std::vector<Item>& items, Values values, Buffer& buffer, const Put& put) {
  buffer.work->wait();
  const std::vector<bool> found = found_somewhere(buffer, values);
  int64_t offset = 0;
  for (size_t i = 0; i < buffer.members.size(); ++i) {
    const Item& item = items[buffer.members[i]];
    const int64_t numel = item.place.numel();
    if (found[i]) put(item, buffer.flat.narrow(0, offset, numel).view(item.place.sizes()));
    offset += numel;
  }
  buffer = {};
}

template <typename Put>
void average(const ProcessGroupPtr& group, const std::vector<Item>& items, Values values,
             const Put& put) {
  std::vector<Buffer> buffers = plan(items);
  for (size_t i = 0; i < buffers.size() + kOnTheirWay; ++i) {
    if (i >= kOnTheirWay) receive(items, values, buffers[i - kOnTheirWay], put);
    if (i < buffers.size()) send(group, items, values, buffers[i]);
  }
}

// Every rank's rows, of which there are so many.
at::Tensor gather_counted_rows(const ProcessGroupPtr& group, const at::Tensor& rows,
                               const std::vector<int64_t>& counts) {
  const int64_t most = *std::ranges::max_element(counts);
  if (*std::ranges::min_element(counts) == most) return all_gather_rows(group, rows);
  at::Tensor padded = rows;
  if (rows.size(0) < most) {
    padded = at::empty(rows_shape(rows, most), rows.options());
    padded.narrow(0, 0, rows.size(0)).copy_(rows);
  }
  const at::Tensor gathered = all_gather_rows(group, padded);
  std::vector<at::Tensor> parts;
  parts.reserve(counts.size());
  for (const int64_t count : counts) {
    parts.push_back(gathered.narrow(0, static_cast<int64_t>(parts.size()) * most, count));
  }
  return at::cat(parts);
}

// A power of two that makes a sum over so many ranks no larger than the largest part.
double safe_scale(int ranks) { return std::ldexp(1, -std::ilogb(2 * ranks - 1)); }

}  // namespace

at::Tensor gather_tensor(const ProcessGroupPtr& group, const at::Tensor& tensor) {
  if (!group) return tensor;
  check_leaf("gather", tensor);
  at::NoGradGuard no_grad;
  return all_gather_rows(group, as_rows(tensor));
}

std::vector<at::Tensor> gather_ragged_tensors(const ProcessGroupPtr& group,
                                              const std::vector<at::Tensor>& tensors) {
  if (!group || tensors.empty()) return tensors;
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> rows;
  std::vector<int64_t> own;
  for (const at::Tensor& tensor : tensors) {
    check_leaf("gather", tensor);
    rows.push_back(as_rows(tensor));
    own.push_back(rows.back().size(0));
  }
  const at::Tensor table = all_gather_numbers(group, own);
  const int64_t* numbers = table.const_data_ptr<int64_t>();
  std::vector<int64_t> counts(static_cast<size_t>(group->getSize()));
  std::vector<at::Tensor> gathered;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      counts[rank] = numbers[rank * rows.size() + i];
    }
    gathered.push_back(gather_counted_rows(group, rows[i], counts));
  }
  return gathered;
}

at::Tensor reduce_tensor(const ProcessGroupPtr& group, const at::Tensor& tensor,
                         Reduction reduction, double scale) {
  check_leaf("reduce", tensor);
  const at::ScalarType dtype = tensor.scalar_type();
  if (group) {
    TORCH_CHECK_VALUE(reduction != Reduction::kMean || !at::isIntegralType(dtype, true),
                      "reduce: the mean of ", dtype, " is not a ", dtype,
                      "; convert it to a floating dtype first");
    TORCH_CHECK_VALUE(reduction != Reduction::kMax || !at::isComplexType(dtype),
                      "reduce: complex numbers have no largest one");
  }
  at::NoGradGuard no_grad;
  at::Tensor total = tensor.clone(at::MemoryFormat::Contiguous);
  if (!group) return total;
  // A mean can be represented where the sum cannot. A power of two, which changes no digit, keeps
  // the sum in range; half precision, of whose smallest numbers it would take digits, is summed in
  // float32. So are sums of float16, which may leave its range on the way and come back.
  const bool is_mean = reduction == Reduction::kMean;
  const bool is_float16 = dtype == at::kHalf || dtype == at::kComplexHalf;
  const bool is_wide =
      is_mean ? is_float16 || dtype == at::kBFloat16 : is_float16 && reduction == Reduction::kSum;
  const double before = is_mean ? safe_scale(group->getSize()) : 1;
  if (is_wide) total = total.to(dtype == at::kComplexHalf ? at::kComplexFloat : at::kFloat);
  if (before != 1) total.mul_(before);
  std::vector<at::Tensor> summed{as_summed(total)};
  c10d::AllreduceOptions options;
  options.reduceOp = reduce_op(tensor, reduction);
  group->allreduce(summed, options)->wait();
  if (dtype == at::kShort) total = summed[0].to(at::kShort);
  if (scale != 1.0) total.mul_(scale);
  const double after = is_mean ? group->getSize() * before : 1;
  if (after != 1) total.div_(after);
  return total.to(dtype);
}

void broadcast_tensor(const ProcessGroupPtr& group, const at::Tensor& tensor, int from_process) {
  if (!group) return;
  check_leaf("broadcast", tensor);
  if (tensor.numel() == 0) return;
  at::NoGradGuard no_grad;
  const at::Tensor whole = as_plain(tensor);
  std::vector<at::Tensor> tensors{internal::as_carried(whole.detach())};
  c10d::BroadcastOptions options;
  options.rootRank = from_process;
  const CarriedValues described(whole);
  group->broadcast(tensors, options)->wait();
  if (!whole.is_same(tensor) && group->getRank() != from_process) tensor.detach().copy_(whole);
}

void broadcast_tensors(const ProcessGroupPtr& group, const std::vector<at::Tensor>& tensors,
                       int from_process) {
  if (!group || tensors.empty()) return;
  constexpr size_t kBytes = size_t{250} << 20;  // as in PyTorch
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> plain, carried;
  plain.reserve(tensors.size());
  carried.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    plain.push_back(internal::without_flags(tensor));
    carried.push_back(internal::as_carried(plain.back()));
  }
  c10d::broadcast_coalesced(group, carried, kBytes, from_process);
  if (group->getRank() == from_process) return;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!plain[i].is_same(tensors[i])) tensors[i].copy_(plain[i]);
  }
}

uint64_t broadcast_integer(const ProcessGroupPtr& group, uint64_t value) {
  if (!group) return value;
  const at::Tensor number = at::full({1}, static_cast<int64_t>(value), at::kLong);
  broadcast_tensor(group, number);
  return static_cast<uint64_t>(number.item<int64_t>());
}

void average_tensors(const ProcessGroupPtr& group, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.defined(), "average_tensors: a tensor is undefined");
    TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "average_tensors: a tensor is sparse");
    TORCH_CHECK_VALUE(tensor.is_floating_point() || tensor.is_complex(),
                      "average_tensors: the mean of ", tensor.scalar_type(), " is not defined");
  }
  if (!group) return;
  at::NoGradGuard no_grad;
  std::vector<Item> items;
  for (const at::Tensor& tensor : tensors) items.push_back({.place = tensor, .value = tensor});
  average(group, items, Values::kOnAllRanks,
          [](const Item& item, const at::Tensor& mean) { item.place.copy_(mean); });
}

void average_gradients(const ProcessGroupPtr& group, const std::vector<at::Tensor>& parameters) {
  if (!group) return;
  at::NoGradGuard no_grad;
  std::unordered_set<const at::TensorImpl*> seen;
  std::vector<Item> items;
  for (const at::Tensor& parameter : parameters) {
    TORCH_CHECK_VALUE(parameter.defined(), "average_gradients: a parameter is undefined");
    if (!parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second)
      continue;
    at::Tensor grad = parameter.grad();
    if (grad.defined() && grad.layout() != at::kStrided) grad = grad.to_dense();
    items.push_back({.place = parameter, .value = std::move(grad)});
  }
  average(group, items, Values::kPerhapsMissing, [](const Item& item, const at::Tensor& mean) {
    at::Tensor& grad = item.place.mutable_grad();
    // A gradient that is there may be somebody's view.
    if (!grad.defined() || grad.layout() != at::kStrided) grad = at::empty_like(item.place);
    grad.copy_(mean);
  });
}

namespace internal {
namespace {

// Where a tensor has no such dim.
constexpr int64_t kAbsent = -1;

// The size of the dim, or kAbsent, and how many dims there are.
std::pair<int64_t, int64_t> extent(const at::Tensor& tensor, int64_t dim) {
  if (tensor.defined() && tensor.is_nested()) {
    TORCH_WARN("CannotPadNestedTensorWarning: pad_across_processes leaves nested tensors as they ",
               "are; convert them to padded tensors first");
    return {kAbsent, tensor.dim()};
  }
  check_leaf("pad_across_processes", tensor);
  const bool is_there = dim >= -tensor.dim() && dim < tensor.dim();
  return {is_there ? tensor.size(dim) : kAbsent, tensor.dim()};
}

// Negative numbers count as values of unsigned types, as everywhere in LibTorch.
bool is_value_of(const c10::Scalar& number, at::ScalarType dtype) {
  if (number.isComplex()) return at::isComplexType(dtype);
  if (dtype == at::kBool) return number.toDouble() == 0 || number.toDouble() == 1;
  if (!at::isIntegralType(dtype, /*includeBool=*/false)) return true;
  const auto bits = static_cast<int>(8 * c10::elementSize(dtype));
  const double value = number.toDouble();
  const double low = -std::ldexp(1, bits - 1);
  const double end = std::ldexp(1, c10::isSignedType(dtype) ? bits - 1 : bits);
  // An integer near the end of int64 may round up to it.
  if (!number.isFloatingPoint() && bits == 64) return true;
  return std::trunc(value) == value && low <= value && value < end;
}

// LibTorch fills tensors of unsigned types with negative numbers, if these are integers.
c10::Scalar filling(const c10::Scalar& number, at::ScalarType dtype) {
  const bool is_negative = number.isFloatingPoint() && number.toDouble() < 0;
  if (!is_negative || !at::isIntegralType(dtype, /*includeBool=*/false)) return number;
  return static_cast<int64_t>(number.toDouble());
}

at::Tensor padded_to_size(const at::Tensor& tensor, int64_t size,
                          const PadAcrossProcessesOptions& options) {
  const int64_t dim = options.dim < 0 ? options.dim + tensor.dim() : options.dim;
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape[static_cast<size_t>(dim)] = size;
  at::Tensor padded =
      at::full(shape, filling(options.pad_index, tensor.scalar_type()), tensor.options());
  const int64_t begin = options.pad_first ? size - tensor.size(dim) : 0;
  padded.narrow(dim, begin, tensor.size(dim)).copy_(tensor);
  return padded;
}

// The sizes of one tensor on every rank.
struct Extents {
  std::vector<int64_t> sizes;  // kAbsent where there is no such dim
  std::vector<int64_t> dims;
};

// The ranks whose number is that, or is another one, for an error.
std::string ranks_with(const std::vector<int64_t>& numbers, int64_t number, bool equal) {
  std::string ranks;
  for (size_t rank = 0; rank < numbers.size(); ++rank) {
    if ((numbers[rank] == number) != equal) continue;
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  return ranks;
}

void check_extents(const Extents& extents, size_t index, int64_t dim) {
  const auto& [sizes, dims] = extents;
  const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
  if (*most == kAbsent) return;
  TORCH_CHECK_VALUE(*least != kAbsent, "pad_across_processes: tensor ", index, " has a dim ", dim,
                    " on ranks ", ranks_with(sizes, kAbsent, false), " but not on ranks ",
                    ranks_with(sizes, kAbsent, true));
  TORCH_CHECK_VALUE(ranks_with(dims, dims[0], false).empty(), "pad_across_processes: tensor ",
                    index, " has ", dims[0], " dims on ranks ", ranks_with(dims, dims[0], true),
                    " but another number of them on ranks ", ranks_with(dims, dims[0], false));
}

}  // namespace

at::Tensor as_carried(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kFloat:
    case at::kDouble: return tensor;
    case at::kComplexHalf:
    case at::kComplexFloat:
    case at::kComplexDouble: return at::view_as_real(tensor);
    default: break;
  }
  switch (tensor.element_size()) {
    case 1: return tensor.view(at::kByte);
    case 2: return tensor.view(at::kHalf);
    case 4: return tensor.view(at::kInt);
    case 8: return tensor.view(at::kLong);
    default: return tensor;
  }
}

void check_rank(const ProcessGroupPtr& group, const char* operation, int from_process) {
  TORCH_CHECK_VALUE(from_process >= 0 && from_process < group->getSize(), operation,
                    ": from_process is ", from_process, ", but ranks are 0 to ",
                    group->getSize() - 1);
}

void run_on_tree(const ProcessGroupPtr& group, const char* operation, TreeShape shape,
                 absl::FunctionRef<void()> collectives) {
  constexpr size_t kShown = 2000;
  const ComparedCalls compared;
  if (!shape.has_keys) return collectives();
  if (shape.text.size() > kShown) {
    const std::string rest = shape.text.substr(kShown);
    shape.text.replace(kShown, std::string::npos,
                       absl::StrCat("... and ", rest.size(), " characters with the checksum ",
                                    sha256(rest).substr(0, 16)));
  }
  const std::string text = absl::StrCat(operation, " of ", shape.text);
  const CollectivePurpose purpose(text);
  // Another rank may have tensors.
  if (!shape.has_tensors) all_gather_numbers(group, {0});
  collectives();
}

double scale_on_this_device(double scale) {
  const Runtime* runtime = Runtime::find_current();
  return scale != 1.0 && runtime != nullptr && runtime->device_family() == "tpu" ? scale : 1.0;
}

std::vector<at::Tensor> pad_tensors_across_processes(const ProcessGroupPtr& group,
                                                     const std::vector<at::Tensor>& tensors,
                                                     const PadAcrossProcessesOptions& options) {
  if (tensors.empty()) return {};
  at::NoGradGuard no_grad;
  // Two numbers a tensor.
  std::vector<int64_t> own;
  own.reserve(2 * tensors.size());
  for (const at::Tensor& tensor : tensors) {
    const auto [size, dims] = extent(tensor, options.dim);
    own.insert(own.end(), {size, dims});
  }
  const at::Tensor table = all_gather_numbers(group, own);
  const auto ranks = static_cast<size_t>(table.size(0));
  const int64_t* numbers = table.const_data_ptr<int64_t>();
  Extents extents{std::vector<int64_t>(ranks), std::vector<int64_t>(ranks)};
  std::vector<at::Tensor> padded;
  padded.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (size_t rank = 0; rank < ranks; ++rank) {
      extents.sizes[rank] = numbers[rank * own.size() + 2 * i];
      extents.dims[rank] = numbers[rank * own.size() + 2 * i + 1];
    }
    check_extents(extents, i, options.dim);
    const auto [least, most] = std::minmax_element(extents.sizes.begin(), extents.sizes.end());
    const at::ScalarType dtype = tensors[i].scalar_type();
    TORCH_CHECK_VALUE(*least == *most || is_value_of(options.pad_index, dtype),
                      "pad_across_processes: ", dtype, " tensors cannot be padded with ",
                      options.pad_index);
    padded.push_back(own[2 * i] < *most ? padded_to_size(tensors[i], *most, options) : tensors[i]);
  }
  return padded;
}

}  // namespace internal
}  // namespace accelerate
