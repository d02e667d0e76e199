#include "simulator/device/op_info.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>
#include <ATen/native/SparseTensorUtils.h>
#include <c10/util/SmallVector.h>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace accelerate::simulator {
namespace {

using c10::DispatchKey;
using Arguments = c10::ArrayRef<c10::IValue>;

// Whether an operator of ATen is in a list of names, which are separated by blanks.
bool is_one_of(absl::string_view name, absl::string_view names) {
  return absl::ConsumePrefix(&name, "aten::") &&
         absl::c_linear_search(absl::StrSplit(names, ' '), name);
}

// What a table has for the operator, by such lists; null if it is in none.
template <typename Formula, size_t n>
Formula formula_of(absl::string_view name, const std::pair<const char*, Formula> (&table)[n]) {
  for (const auto& [names, formula] : table) {
    if (is_one_of(name, names)) return formula;
  }
  return nullptr;
}

// ---- The arithmetic of an operator.

c10::IntArrayRef sizes(const c10::IValue& argument) { return argument.toTensor().sizes(); }

double product(c10::IntArrayRef extents) {
  double result = 1;
  for (const int64_t extent : extents) result *= static_cast<double>(extent);
  return result;
}

// A sparse matrix multiplies the elements that it has.
double elements(const c10::IValue& argument) {
  const at::Tensor& tensor = argument.toTensor();
  return static_cast<double>(
      tensor.is_sparse() ? at::sparse::get_sparse_impl(tensor)->values().numel() : tensor.numel());
}

// Complex products take four real ones.
double scale(const c10::IValue& argument) { return argument.toTensor().is_complex() ? 4 : 1; }

// Whether rows of so many elements of a tensor's type are multiples of 16 bytes.
bool is_aligned(const at::Tensor& tensor, int64_t elements) {
  return elements * static_cast<int64_t>(tensor.itemsize()) % 16 == 0;
}

// The same for the rows, or columns, that a matrix or each of a batch lies in.
bool is_aligned(const at::Tensor& matrix) {
  return matrix.dim() < 2 || is_aligned(matrix, std::max(matrix.stride(-1), matrix.stride(-2)));
}

// [.., m, k] x [.., k, n] at arguments `a` and `b`.
template <int a, int b>
KernelWork matrix_product(Arguments arguments) {
  const c10::IntArrayRef left = sizes(arguments[a]);
  const c10::IntArrayRef right = sizes(arguments[b]);
  const int64_t columns = right.size() < 2 ? 1 : right.back();
  KernelWork work = {.flops = 2 * scale(arguments[a]) * elements(arguments[a]) *
                              static_cast<double>(columns)};
  // A sparse matrix is in no tiles.
  const at::Tensor& first = arguments[a].toTensor();
  const at::Tensor& second = arguments[b].toTensor();
  if (first.layout() != c10::kStrided || second.layout() != c10::kStrided) return work;
  work.kind = KernelWork::Kind::kProduct;
  work.aligned = is_aligned(first) && is_aligned(second) && is_aligned(first, columns);
  work.batch = left.size() < 3 ? 1 : left[0];
  work.m = left.size() < 2 ? 1 : left[left.size() - 2];
  work.n = columns;
  work.k = left.empty() ? 1 : left.back();
  return work;
}

KernelWork outer_product(Arguments arguments) {
  return {.flops = 2 * scale(arguments[1]) * product(sizes(arguments[1])) *
                   product(sizes(arguments[2]))};
}

// Each output element takes one multiply-add per input channel of its group and kernel element.
// Weights are [out, in / groups, kernel...], for transposed convolutions [in, out / groups,
// kernel...].
KernelWork convolution(Arguments arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const at::Tensor& weight = arguments[1].toTensor();
  const int64_t spatial = weight.dim() - 2;
  const bool transposed = arguments[6].toBool();
  const double batch = input.dim() == weight.dim() ? static_cast<double>(input.size(0)) : 1;
  if (transposed) {
    double positions = batch;
    for (int64_t d = 0; d < spatial; ++d) {
      positions *= static_cast<double>(input.size(input.dim() - spatial + d));
    }
    return {.flops = 2 * scale(arguments[0]) * positions * product(weight.sizes())};
  }
  const auto stride = arguments[3].toIntVector();
  const auto padding = arguments[4].toIntVector();
  const auto dilation = arguments[5].toIntVector();
  auto of = [](const std::vector<int64_t>& values, int64_t d) {
    return values[values.size() == 1 ? 0 : d];
  };
  double positions = batch;
  for (int64_t d = 0; d < spatial; ++d) {
    const int64_t extent = input.size(input.dim() - spatial + d) + 2 * of(padding, d) -
                           of(dilation, d) * (weight.size(2 + d) - 1);
    positions *= static_cast<double>((extent - 1) / of(stride, d) + 1);
  }
  // A product for each group: positions by weights of one output by outputs.
  const int64_t groups = arguments[8].toInt();
  const int64_t outputs = weight.size(0);
  return {.flops = 2 * scale(arguments[0]) * positions * product(weight.sizes()),
          .kind = KernelWork::Kind::kProduct,
          .is_convolution = true,
          .batch = groups,
          .m = static_cast<int64_t>(positions),
          .n = outputs / std::max<int64_t>(groups, 1),
          .k = weight.numel() / std::max<int64_t>(outputs, 1)};
}

// One product for the inputs' gradient, one for the weights', each as large as the forward one.
KernelWork convolution_backward(Arguments arguments) {
  const at::Tensor& weight = arguments[2].toTensor();
  const bool transposed = arguments[7].toBool();
  const c10::IntArrayRef positions_of = sizes(arguments[transposed ? 1 : 0]);
  double positions = static_cast<double>(positions_of[0]);
  for (size_t d = 2; d < positions_of.size(); ++d)
    positions *= static_cast<double>(positions_of[d]);
  const auto mask = arguments[10].toBoolList();
  const int products = static_cast<int>(mask.get(0)) + static_cast<int>(mask.get(1));
  return {.flops = products * 2 * scale(arguments[1]) * positions * product(weight.sizes())};
}

// Scores and their weighted sum, for queries [.., L, E], keys [.., S, E], values [.., S, V].
KernelWork attention_at(Arguments arguments, size_t query, bool is_causal) {
  const c10::IntArrayRef queries = sizes(arguments[query]);
  const int64_t length = queries[queries.size() - 2];
  const int64_t keys = arguments[query + 1].toTensor().size(-2);
  const auto depth = static_cast<double>(queries.back() + sizes(arguments[query + 2]).back());
  const double heads = product(queries.slice(0, queries.size() - 2));
  return {.flops = 2 * heads * attention_pairs(length, keys, is_causal) * depth,
          .kind = KernelWork::Kind::kAttention,
          .causal = is_causal,
          .batch = static_cast<int64_t>(heads),
          .m = length,
          .n = keys,
          .k = queries.back()};
}

bool is_defined(const c10::IValue& argument) {
  return argument.isTensor() && argument.toTensor().defined();
}

KernelWork attention(Arguments arguments) {
  KernelWork work = attention_at(arguments, 0, /*is_causal=*/arguments[4].toBool());
  work.masked = is_defined(arguments[5]);
  return work;
}

// Flash attention computes the scores again: five products instead of two.
KernelWork attention_backward(Arguments arguments) {
  KernelWork work = attention_at(arguments, 1, /*is_causal=*/arguments[7].toBool());
  work.flops *= 2.5;
  work.backward = true;
  work.masked = is_defined(arguments[8]);
  return work;
}

// Every weight matrix meets every row once.
KernelWork recurrent(Arguments arguments) {
  const RecurrentSizes sizes = recurrent_sizes(arguments);
  return {.flops = 2 * sizes.rows * sizes.weights};
}

KernelWork row_norm(Arguments) { return {.kind = KernelWork::Kind::kNorm}; }

// Matrix products, convolutions, attention and recurrent layers have a formula. The time of all
// other operators is that of the bytes they move, of which norms move fewer a second.
constexpr std::pair<const char*, WorkFormula> kWork[] = {
    {"mm bmm mv dot vdot _int_mm _scaled_mm", matrix_product<0, 1>},
    {"addmm addmm_ _addmm_activation addmv addmv_ baddbmm baddbmm_ addbmm addbmm_",
     matrix_product<1, 2>},
    {"addr addr_", outer_product},
    {"convolution convolution_overrideable", convolution},
    {"convolution_backward", convolution_backward},
    {"_scaled_dot_product_flash_attention_for_cpu", attention},
    {"_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward},
    {"lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell", recurrent},
    {"native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward",
     row_norm},
};

// ---- The part of its first argument that an operator reads or writes. Arguments that do not fit
// together are the kernel's to refuse.

// As many elements as argument `a` has.
template <int a>
double elements_of(Arguments arguments) {
  return static_cast<double>(arguments[a].toTensor().numel());
}

// Rows of a table, for the indices in argument 1.
double table_rows(Arguments arguments) {
  const at::Tensor& table = arguments[0].toTensor();
  return table.dim() < 2 ? 0 : static_cast<double>(table.size(1)) * elements_of<1>(arguments);
}

// Slices of dimension `dim`, argument 1, for the indices in argument 2.
double slices(Arguments arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  if (self.dim() == 0 || self.numel() == 0) return 0;
  const auto extent = static_cast<double>(self.size(arguments[1].toInt()));
  return static_cast<double>(self.numel()) / extent * elements_of<2>(arguments);
}

// Tensors of indices, broadcast against each other, for some dimensions, and all of the others. How
// many elements a mask picks is not known from its shape: as many as it has, at most.
double indexed(Arguments arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  c10::SmallVector<int64_t, 5> extents;  // of the indices, the last dimension first
  double others = 1;
  int64_t dim = 0;
  for (const std::optional<at::Tensor> index : arguments[1].toOptionalTensorList()) {
    if (dim >= self.dim()) return 0;
    if (!index || !index->defined()) {
      others *= static_cast<double>(self.size(dim++));
      continue;
    }
    const bool is_mask = index->scalar_type() == c10::ScalarType::Bool ||
                         index->scalar_type() == c10::ScalarType::Byte;
    const int64_t picked[] = {index->numel()};
    const c10::IntArrayRef shape = is_mask ? c10::IntArrayRef(picked) : index->sizes();
    if (extents.size() < shape.size()) extents.resize(shape.size(), 1);
    for (size_t i = 0; i < shape.size(); ++i) {
      int64_t& extent = extents[shape.size() - 1 - i];
      if (extent == 1) extent = shape[i];
    }
    dim += is_mask ? index->dim() : 1;
  }
  return dim > self.dim() ? 0 : others * product(extents) * product(self.sizes().slice(dim));
}

// To add to an element is to read it as well.
template <ElementCount count>
double put(Arguments arguments) {
  return count(arguments) * (arguments[3].toBool() ? 2 : 1);
}

constexpr std::pair<const char*, ElementCount> kTouched[] = {
    {"index_select index_fill_ index_copy_ index_add_ index_reduce_", slices},
    {"gather scatter_ scatter_add_ scatter_reduce_", elements_of<2>},
    {"take nll_loss_forward nll_loss2d_forward", elements_of<1>},
    {"embedding_renorm_ _embedding_bag _embedding_bag_forward_only", table_rows},
    {"index _unsafe_index", indexed},
    {"_index_put_impl_", put<indexed>},
    {"put_", put<elements_of<1>>},
};

// ---- What kernels on a GPU do besides (LibTorch 2.6, aten/src/ATen/native/cuda).

double bytes_of(const c10::IValue& argument) { return memory_bytes(argument.toTensor()); }

// Gradients of weights come from a kernel of its own, which reads the gradient of the result and
// the input a second time (layer_norm_kernel.cu, group_norm_kernel.cu; Normalization.cuh reduces
// before it computes the input's gradient).
Overhead norm_backward(Arguments arguments) { return {.read_bytes = 2 * bytes_of(arguments[0])}; }

// Whether one block can keep a row of a softmax in its shared memory (SoftMax.cu); else the row is
// read again for each of the kernel's passes.
bool is_long_row(const at::Tensor& tensor, int64_t dim) {
  constexpr int64_t kSharedMemory = 48 << 10;
  if (tensor.dim() == 0) return false;
  return tensor.size(dim) * static_cast<int64_t>(tensor.itemsize()) >= kSharedMemory;
}

// Passes: the maximum, the sum, the result.
Overhead softmax(Arguments arguments) {
  const bool is_long = is_long_row(arguments[0].toTensor(), arguments[1].toInt());
  return {.read_bytes = is_long ? 2 * bytes_of(arguments[0]) : 0};
}

// Passes: a sum of the gradient, the result.
Overhead log_softmax_backward(Arguments arguments) {
  const bool is_long = is_long_row(arguments[0].toTensor(), arguments[2].toInt());
  return {.read_bytes = is_long ? bytes_of(arguments[0]) : 0};
}

// The same on the product of gradient and result, which is a tensor and a kernel of its own.
Overhead softmax_backward(Arguments arguments) {
  const double bytes = bytes_of(arguments[0]);
  Overhead overhead = log_softmax_backward(arguments);
  overhead.read_bytes += 2 * bytes;
  overhead.written_bytes += bytes;
  overhead.scratch_bytes = bytes;
  return overhead;
}

// In fp32 the gradient of the queries, and a sum for each of them.
Overhead attention_backward_overhead(Arguments arguments) {
  return {.scratch_bytes = attention_backward_scratch(arguments[1].toTensor())};
}

constexpr std::pair<const char*, OverheadFormula> kOverheads[] = {
    {"native_layer_norm_backward native_group_norm_backward native_batch_norm_backward",
     norm_backward},
    {"_softmax _log_softmax", softmax},
    {"_softmax_backward_data", softmax_backward},
    {"_log_softmax_backward_data", log_softmax_backward},
    {"_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward_overhead},
};

// ---- The description of an operator.

// These change sizes and storages, not elements.
constexpr char kMetadataOnly[] =
    "resize_ resize_as_ _resize_output_ set_ empty_like new_empty empty set_data is_set_to "
    "_indices _values _nnz _dimI _dimV is_coalesced dense_dim sparse_dim _coalesced_ "
    "record_stream is_same_size is_pinned sparse_resize_ indices values "
    "sparse_resize_and_clear_ empty_strided empty_permuted new_empty_strided";

// Indices and lengths of these may stay on the host.
constexpr char kMixesDevices[] =
    "index index_put index_put_ _index_put_impl_ _unsafe_index _unsafe_index_put ctc_loss "
    "_ctc_loss _ctc_loss_backward _pack_padded_sequence _pack_padded_sequence_backward "
    "_local_scalar_dense copy_ copy_sparse_to_sparse_";

// These write to their first argument without reading it, or read as much as `touched` says.
constexpr char kOverwrites[] =
    "copy_ zero_ fill_ normal_ uniform_ random_ bernoulli_ exponential_ geometric_ cauchy_ "
    "log_normal_ _foreach_zero_ scatter_ index_fill_ index_copy_ _index_put_impl_ put_";

// These take their second argument, the forward pass's input, for its shape.
constexpr char kIgnoresInput[] =
    "nll_loss_backward nll_loss2d_backward avg_pool2d_backward avg_pool3d_backward "
    "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_max_pool2d_backward "
    "adaptive_max_pool3d_backward max_pool2d_with_indices_backward "
    "max_pool3d_with_indices_backward fractional_max_pool2d_backward "
    "fractional_max_pool3d_backward reflection_pad1d_backward reflection_pad2d_backward "
    "reflection_pad3d_backward replication_pad1d_backward replication_pad2d_backward "
    "replication_pad3d_backward";

// What reduces rows in a fused kernel, and what is elementwise there without LibTorch's tag.
constexpr char kFusedRows[] =
    "native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward "
    "_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data mean sum";
constexpr char kFusedElements[] =
    "cat native_dropout native_dropout_backward nll_loss_forward nll_loss_backward";

Fusion fusion_of(const c10::OperatorHandle& op, const OpInfo& info) {
  if (is_one_of(info.name, kFusedRows)) return Fusion::kRows;
  const bool is_dropout = absl::StartsWith(info.name, "sim::dropout");
  return info.takes_lists || is_dropout || op.hasTag(at::Tag::pointwise) ||
                 is_one_of(info.name, kFusedElements)
             ? Fusion::kElementwise
             : Fusion::kNone;
}

bool is_written(const c10::AliasInfo* alias) {
  if (alias == nullptr) return false;
  // A list of written tensors has the mark on its elements.
  return alias->isWrite() || std::ranges::any_of(alias->containedTypes(), &c10::AliasInfo::isWrite);
}

OpInfo describe(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  OpInfo info;
  info.name = schema.name();
  info.overload = schema.overload_name().empty()
                      ? schema.name()
                      : absl::StrCat(schema.name(), ".", schema.overload_name());
  info.num_arguments = static_cast<uint32_t>(schema.arguments().size());
  info.num_returns = static_cast<uint32_t>(schema.returns().size());
  if (is_one_of(info.name, kOverwrites)) info.read &= ~uint64_t{1};
  if (is_one_of(info.name, kIgnoresInput)) info.read &= ~uint64_t{2};
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    // Fused optimizers are declared to write the gradients, but do so only to unscale them.
    const bool is_only_read =
        argument.name() == "grads" && absl::StartsWith(info.name, "aten::_fused_");
    if (is_written(argument.alias_info()) && !is_only_read && i < 64) {
      info.written |= uint64_t{1} << i;
      if (argument.is_out()) info.read &= ~(uint64_t{1} << i);
    }
    info.argument_names.push_back(argument.name());
    if (argument.name() == "generator") info.generator_argument = static_cast<int>(i);
    if (argument.name() == "found_inf" && info.writes(i)) {
      info.found_inf_argument = static_cast<int>(i);
    }
  }
  const bool is_view =
      info.written == 0 && std::ranges::any_of(schema.returns(), [](const c10::Argument& result) {
        return result.alias_info() != nullptr;
      });
  // Collectives are timed elsewhere.
  info.runs_kernel =
      !is_view && !is_one_of(info.name, kMetadataOnly) && !absl::StartsWith(info.name, "c10d::");
  info.synchronizes =
      op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape);
  info.tells_values = op.hasTag(at::Tag::data_dependent_output);
  info.draws_by_default =
      op.hasTag(at::Tag::nondeterministic_seeded) && info.generator_argument < 0;
  info.has_cpu_kernel = op.hasComputedKernelForDispatchKey(DispatchKey::CPU) ||
                        op.hasComputedKernelForDispatchKey(DispatchKey::SparseCPU);
  info.mixes_devices = is_one_of(info.name, kMixesDevices);
  info.indexes = info.mixes_devices && absl::StrContains(info.name, "index");
  info.work = formula_of(info.name, kWork);
  info.touched = formula_of(info.name, kTouched);
  info.overhead = formula_of(info.name, kOverheads);
  info.takes_lists = absl::StartsWith(info.name, "aten::_foreach_") ||
                     absl::StartsWith(info.name, "aten::_fused_");
  info.takes_lists &= info.num_arguments > 0 &&
                      schema.arguments()[0].type()->isSubtypeOf(*c10::ListType::ofTensors());
  info.fusion = fusion_of(op, info);
  return info;
}

// By OpSupport.
constexpr const char* kSupportNames[] = {"cpu kernel", "device", "composed", "unsupported"};

}  // namespace

MathType math_type(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexDouble: return MathType::kFp64;
    case c10::ScalarType::Half:
    case c10::ScalarType::ComplexHalf: return MathType::kFp16;
    case c10::ScalarType::BFloat16: return MathType::kBf16;
    case c10::ScalarType::Byte:
    case c10::ScalarType::Char:
    case c10::ScalarType::QInt8:
    case c10::ScalarType::QUInt8: return MathType::kInt8;
    default: break;
  }
  return c10::isFloat8Type(dtype) ? MathType::kFp8 : MathType::kFp32;
}

RecurrentSizes recurrent_sizes(Arguments arguments) {
  const c10::IntArrayRef input = sizes(arguments[0]);
  RecurrentSizes result{.rows = product(input) / static_cast<double>(input.back())};
  const auto add = [&result](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.dim() != 2) return;
    result.weights += static_cast<double>(tensor.numel());
    result.gates += static_cast<double>(tensor.size(0)) / 2;
  };
  // Behind input and states, or lengths: a layer's states have three dimensions.
  for (const c10::IValue& argument : arguments.slice(2)) {
    if (argument.isTensor()) add(argument.toTensor());
    if (!argument.isTensorList()) continue;
    for (const at::Tensor& tensor : argument.toTensorVector()) add(tensor);
  }
  return result;
}

// LibTorch 2.6, MultiTensorApply.cuh: a launch takes as many tensors and as many parts of them as
// fit into a kernel's parameters.
int64_t list_launches(const OpInfo& info, Arguments arguments) {
  constexpr int64_t kPart = 1 << 16;
  constexpr int64_t kMaxParts = 320;
  constexpr int64_t kMaxTensors[] = {110, 64, 48, 36, 30};  // by lists
  size_t lists = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool is_used = arguments[i].isTensorList() && !arguments[i].toListRef().empty() &&
                         info.argument_names[i] != "state_steps";
    lists += is_used ? 1 : 0;
  }
  if (info.written == 0) ++lists;  // the results
  const auto tensors = arguments[0].toListRef();
  int64_t parts = 0;
  for (const c10::IValue& tensor : tensors) {
    parts += (tensor.toTensor().numel() + kPart - 1) / kPart;
  }
  const int64_t fit = kMaxTensors[std::clamp<size_t>(lists, 1, std::size(kMaxTensors)) - 1];
  const auto count = static_cast<int64_t>(tensors.size());
  return std::max({int64_t{1}, (count + fit - 1) / fit, (parts + kMaxParts - 1) / kMaxParts});
}

double attention_backward_scratch(const at::Tensor& query) {
  const int64_t size = query.size(-1);
  const double elements = static_cast<double>(query.numel());
  const double rows = size == 0 ? 0 : static_cast<double>(query.numel() / size);
  return sizeof(float) * (elements + rows);
}

double memory_bytes(const at::Tensor& tensor) {
  const auto bytes = static_cast<double>(tensor.numel()) * static_cast<double>(tensor.itemsize());
  if (tensor._is_zerotensor()) return 0;
  if (!tensor.has_storage() || tensor.is_non_overlapping_and_dense()) return bytes;
  // The elements of a part of a tensor lie farther apart than they are large.
  return std::min(bytes, static_cast<double>(at::detail::computeStorageNbytes(
                             tensor.sizes(), tensor.strides(), tensor.itemsize())));
}

const OpInfo& op_info(const c10::OperatorHandle& op) {
  // The address of a schema is constant and identifies its operator.
  const c10::FunctionSchema* key = &op.schema();
  struct Recent {
    const c10::FunctionSchema* key = nullptr;
    const OpInfo* info = nullptr;
  };
  thread_local std::array<Recent, 256> recent;
  Recent& slot = recent[(reinterpret_cast<uintptr_t>(key) >> 6) % recent.size()];
  if (slot.key == key) return *slot.info;
  static std::mutex mutex;
  static auto& all =
      *new std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<const OpInfo>>();
  std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<const OpInfo>& info = all[key];
  if (!info) info = std::make_unique<const OpInfo>(describe(op));
  slot = {key, info.get()};
  return *info;
}

bool is_composed(const c10::OperatorHandle& op) {
  constexpr DispatchKey kComposites[] = {DispatchKey::CompositeImplicitAutograd,
                                         DispatchKey::CompositeExplicitAutograd,
                                         DispatchKey::CompositeExplicitAutogradNonFunctional};
  return std::ranges::any_of(kComposites,
                             [&op](DispatchKey key) { return op.hasKernelForDispatchKey(key); });
}

OpSupport op_support(const c10::OperatorHandle& op) {
  const auto has = [&op](DispatchKey dense, DispatchKey sparse) {
    return op.hasKernelForDispatchKey(dense) || op.hasKernelForDispatchKey(sparse);
  };
  if (has(DispatchKey::CPU, DispatchKey::SparseCPU)) return OpSupport::kCpuKernel;
  if (has(DispatchKey::PrivateUse1, DispatchKey::SparsePrivateUse1)) return OpSupport::kDevice;
  if (is_composed(op)) return OpSupport::kComposed;
  return op_info(op).has_cpu_kernel ? OpSupport::kCpuKernel : OpSupport::kUnsupported;
}

std::vector<std::string> list_op_support() {
  std::vector<std::string> lines;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!absl::StartsWith(name.name, "aten::")) continue;
    auto op = dispatcher.findSchema(name);
    // Mobile and scripting parts register some names that are not operators of the dispatcher and
    // have no kernel at all.
    if (!op || !op->hasKernelForAnyDispatchKey(c10::DispatchKeySet(c10::DispatchKeySet::FULL))) {
      continue;
    }
    lines.push_back(absl::StrCat(c10::toString(name), " ",
                                 kSupportNames[static_cast<size_t>(op_support(*op))]));
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace accelerate::simulator
