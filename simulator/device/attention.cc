#include "simulator/device/attention.h"

#include <algorithm>
#include <utility>

#include "simulator/device/op_info.h"

namespace accelerate::simulator {
namespace {

bool is_16_bit(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

bool can_be_flash(int capability, const AttentionCall& params) {
  constexpr int64_t kLargestHead = 256;
  constexpr int kAmpere = 80;
  if (capability < kAmpere || !is_16_bit(params.query) ||
      !sdp::check_runtime_disabled_flash(params, false) ||
      !sdp::check_tensor_shapes(params, false) || !sdp::check_for_attn_mask(params, false)) {
    return false;
  }
  const int64_t head = params.query.size(-1);
  return head == params.key.size(-1) && head == params.value.size(-1) && head <= kLargestHead &&
         !(params.is_causal && params.query.size(-2) != params.key.size(-2)) &&
         sdp::check_batch_size_and_num_heads_dense</*supports_gqa=*/true>(params, false) &&
         sdp::check_nonzero_sequence_lengths_dense(params, false) &&
         sdp::check_last_dim_stride_equals_1_dense</*ignore_singleton_dim=*/true>(params, false);
}

// The elements that rows of the matrices are multiples of, for CUTLASS.
int64_t efficient_alignment(int capability, bool is_half) {
  if (capability >= 80) return is_half ? 8 : 4;
  return capability >= 70 && is_half ? 8 : 1;
}

bool can_be_efficient(int capability, const AttentionCall& params) {
  const at::ScalarType dtype = params.query.scalar_type();
  const bool is_supported =
      dtype == at::kFloat || dtype == at::kHalf || (dtype == at::kBFloat16 && capability >= 80);
  if (!is_supported || !sdp::check_runtime_disabled_mem_efficient(params, false) ||
      !sdp::check_tensor_shapes(params, false)) {
    return false;
  }
  const int64_t alignment = efficient_alignment(capability, is_16_bit(params.query));
  const int64_t head = params.query.size(-1);
  const int64_t value = params.value.size(-1);
  return head == params.key.size(-1) && head > 0 && head % alignment == 0 && value > 0 &&
         value % alignment == 0 &&
         sdp::check_batch_size_and_num_heads_dense</*supports_gqa=*/false>(params, false) &&
         sdp::check_nonzero_sequence_lengths_dense(params, false) &&
         sdp::check_last_dim_stride_equals_1_dense</*ignore_singleton_dim=*/false>(params, false);
}

bool has_mask(const AttentionCall& call) { return call.attn_mask && call.attn_mask->defined(); }

// Queries of all heads.
double rows_of(const at::Tensor& query) {
  return query.size(-1) == 0 ? 0 : static_cast<double>(query.numel() / query.size(-1));
}

double elements_of(const at::Tensor& tensor) { return static_cast<double>(tensor.numel()); }

double input_bytes(const AttentionCall& call) {
  return memory_bytes(call.query) + memory_bytes(call.key) + memory_bytes(call.value);
}

double result_elements(const AttentionCall& call) {
  return rows_of(call.query) * static_cast<double>(call.value.size(-1));
}

KernelWork fused_work(const AttentionCall& call, AttentionBackend backend, bool backward) {
  const int64_t queries = call.query.size(-2);
  const int64_t keys = call.key.size(-2);
  const double heads = rows_of(call.query) / static_cast<double>(queries);
  const double pairs = heads * attention_pairs(queries, keys, call.is_causal);
  const auto depth = static_cast<double>(call.query.size(-1) + call.value.size(-1));
  // The result, and the logarithms of the sums.
  const double item = static_cast<double>(call.query.itemsize());
  const double result = result_elements(call) * item;
  const double sums = rows_of(call.query) * sizeof(float);
  const double inputs = input_bytes(call);
  const double mask = has_mask(call) ? memory_bytes(*call.attn_mask) : 0;
  KernelWork work = {.flops = (backward ? 5 : 2) * pairs * depth,
                     .bytes = inputs + mask + result + sums,
                     .written_bytes = result + sums,
                     .type = math_type(call.query.scalar_type()),
                     .kind = KernelWork::Kind::kAttention,
                     .causal = call.is_causal,
                     .backward = backward,
                     .efficient = backend == AttentionBackend::kMemoryEfficient,
                     .masked = has_mask(call),
                     .dropout = call.dropout > 0,
                     .batch = static_cast<int64_t>(heads),
                     .m = queries,
                     .n = keys,
                     .k = call.query.size(-1)};
  if (backward) {
    // The result's gradient, those of the inputs and perhaps of the mask.
    work.written_bytes = inputs + (has_mask(call) && call.attn_mask->requires_grad() ? mask : 0);
    work.bytes += result + work.written_bytes;
  }
  return work;
}

// The operators of one composed attention.
struct Composition {
  const MathType type;
  std::vector<SectionKernel> kernels = {};

  void pass(const char* name, double read, double written) {
    kernels.push_back({name, {.bytes = read + written, .written_bytes = written, .type = type}});
  }
  void product(int64_t heads, int64_t m, int64_t n, int64_t k) {
    kernels.push_back({"aten::bmm", product_work(type, heads, m, n, k)});
  }
};

}  // namespace

AttentionBackend attention_backend(const SimDevice& device, const AttentionCall& call) {
  if (!sdp::has_only_dense_inputs(call)) return AttentionBackend::kMath;
  if (can_be_flash(device.gpu_capability(), call)) return AttentionBackend::kFlash;
  if (can_be_efficient(device.gpu_capability(), call)) return AttentionBackend::kMemoryEfficient;
  return AttentionBackend::kMath;
}

const char* attention_name(AttentionBackend backend, bool backward) {
  constexpr const char* kNames[2][2] = {{"aten::_scaled_dot_product_efficient_attention",
                                         "aten::_scaled_dot_product_efficient_attention_backward"},
                                        {"aten::_scaled_dot_product_flash_attention",
                                         "aten::_scaled_dot_product_flash_attention_backward"}};
  return kNames[backend == AttentionBackend::kFlash ? 1 : 0][backward ? 1 : 0];
}

HostSection fused_attention(const AttentionCall& call, AttentionBackend backend) {
  HostSection section;
  for (const bool backward : {false, true}) {
    (backward ? section.backward : section.forward)
        .push_back({attention_name(backend, backward), fused_work(call, backend, backward)});
  }
  section.kept_bytes = static_cast<int64_t>(rows_of(call.query) * sizeof(float));
  section.keeps_result = true;
  section.backward_scratch_bytes =
      static_cast<int64_t>(attention_backward_scratch(call.query) + input_bytes(call));
  return section;
}

// _scaled_dot_product_attention_math of LibTorch 2.6. In 16 bits it computes in fp32.
HostSection composed_attention(const AttentionCall& call) {
  const bool widens = is_16_bit(call.query);
  const double item = widens ? sizeof(float) : static_cast<double>(call.query.itemsize());
  const MathType type = widens ? MathType::kFp32 : math_type(call.query.scalar_type());
  const int64_t queries = call.query.size(-2);
  const int64_t keys = call.key.size(-2);
  const int64_t depth = call.query.size(-1);
  const int64_t width = call.value.size(-1);
  const auto heads = static_cast<int64_t>(rows_of(call.query)) / std::max<int64_t>(queries, 1);
  const double pairs = rows_of(call.query) * static_cast<double>(keys);
  const double scores = item * pairs;
  const double inputs = elements_of(call.query) + elements_of(call.key) + elements_of(call.value);
  const double scaled = item * (elements_of(call.query) + elements_of(call.key));
  const double result = result_elements(call);
  const bool has_bias = has_mask(call) || call.is_causal;
  const bool drops = call.dropout > 0;

  Composition forward{type};
  if (widens) forward.pass("aten::copy_", 2 * inputs, item * inputs);
  forward.pass("aten::mul", scaled, scaled);
  forward.product(heads, queries, keys, depth);
  if (has_bias) forward.pass("aten::add_", scores, scores);
  // Rows that are masked as a whole become zero.
  forward.pass("aten::_softmax", scores, scores);
  forward.pass("aten::eq", scores, pairs);
  forward.pass("aten::all", pairs, 0);
  forward.pass("aten::where", scores, scores);
  if (drops) forward.pass("sim::dropout", scores, scores + pairs);
  forward.product(heads, queries, width, keys);
  if (widens) forward.pass("aten::copy_", item * result, 2 * result);

  Composition backward{type};
  if (widens) backward.pass("aten::copy_", 2 * result, item * result);
  backward.product(heads, queries, keys, width);
  backward.product(heads, keys, width, queries);
  if (drops) backward.pass("sim::dropout_backward", scores + pairs, scores);
  backward.pass("aten::where", scores, scores);
  backward.pass("aten::mul", 2 * scores, scores);
  backward.pass("aten::_softmax_backward_data", 2 * scores, scores);
  backward.product(heads, queries, depth, keys);
  backward.product(heads, keys, depth, queries);
  backward.pass("aten::mul", scaled, scaled);
  if (widens) backward.pass("aten::copy_", item * inputs, 2 * inputs);

  const double kept = scores + scaled + (drops ? scores + pairs : 0) +
                      (widens ? item * elements_of(call.value) : 0);
  return {.forward = std::move(forward.kernels),
          .backward = std::move(backward.kernels),
          .kept_bytes = static_cast<int64_t>(kept),
          .keeps_result = false,
          .backward_scratch_bytes = static_cast<int64_t>(3 * scores + input_bytes(call))};
}

}  // namespace accelerate::simulator
