#include "accelerate/parallel/replicated/communication_hook.h"

#include <algorithm>
#include <cmath>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "accelerate/comm/random.h"
#include "accelerate/config/zero_config.h"
#include "accelerate/tensors/tensor_memory.h"
#include "accelerate/values/fields.h"

namespace accelerate {
namespace {

using Type = DDPCommunicationHookType;
using Group = CommunicationHook::Group;

std::unique_ptr<CommunicationHook> inner_hook(const DistributedDataParallelKwargs& options) {
  switch (options.comm_hook) {
    case Type::kNo: return std::make_unique<MeanHook>();
    case Type::kFp16: return std::make_unique<CastHook>(at::kHalf, std::make_unique<MeanHook>());
    case Type::kBf16:
      return std::make_unique<CastHook>(at::kBFloat16, std::make_unique<MeanHook>());
    case Type::kPowerSgd:
      return std::make_unique<PowerSgdHook>(options.comm_state_option,
                                            PowerSgdHook::Matrices::kParameters);
    case Type::kBatchedPowerSgd:
      return std::make_unique<PowerSgdHook>(options.comm_state_option,
                                            PowerSgdHook::Matrices::kBucket);
  }
  TORCH_CHECK_VALUE(false, "comm_hook: unknown");
}

// ---- PowerSGD.

constexpr char kGenerator[] = "generator";
constexpr char kError[] = "error.";
constexpr char kQ[] = "q.";

c10::intrusive_ptr<c10d::Work> begin_sum(const Group& group, const at::Tensor& flat) {
  std::vector<at::Tensor> tensors{flat};
  return group->allreduce(tensors);
}

// An infinite gradient, as loss scaling produces, must not stay in the memory.
void forget_what_is_not_finite(const at::Tensor& memory) {
  at::nan_to_num_(const_cast<at::Tensor&>(memory), 0, 0, 0);
}

void divide(c10d::GradBucket& bucket, double divisor) {
  const at::NoGradGuard no_grad;
  if (divisor != 1) bucket.getBuffer().div_(divisor);
}

CommunicationHook::Future done_with(const at::Tensor& buffer) {
  std::vector<c10::Device> devices;
  if (!buffer.is_cpu()) devices.push_back(buffer.device());
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get(), devices);
  future->markCompleted(buffer);
  return future;
}

}  // namespace

void CommunicationHook::load_state_dict(const StateDict& state) {
  TORCH_CHECK_VALUE(state.tensors.empty() && state.values.empty(),
                    "this communication hook has no memory, but the state to load has one");
}

CommunicationHook::Future MeanHook::reduce(const Group& group, c10d::GradBucket& bucket) {
  divide(bucket, divisor(group));
  return reduce_divided(group, bucket);
}

double MeanHook::divisor(const Group& group) const {
  return before_ == 0 ? group->getSize() : before_;
}

CommunicationHook::Future MeanHook::reduce_divided(const Group& group, c10d::GradBucket& bucket) {
  at::NoGradGuard no_grad;
  const at::Tensor buffer = bucket.getBuffer();
  std::vector<at::Tensor> tensors{internal::as_real(buffer)};
  return group->allreduce(tensors)->getFuture()->then(
      [buffer,
       after = group->getSize() / divisor(group)](c10::ivalue::Future& done) -> c10::IValue {
        done.value();  // throws what went wrong
        at::NoGradGuard no_grad;
        if (after != 1) at::Tensor(buffer).div_(after);
        return buffer;
      },
      c10::TensorType::get());
}

CommunicationHook::Future CastHook::reduce(const Group& group, c10d::GradBucket& bucket) {
  const at::ScalarType own = c10::toRealValueType(bucket.getBuffer().scalar_type());
  // A dtype that has all gradients has quotients that theirs would round: of bf16 in float32.
  const bool is_smaller = dtype_ == at::kHalf || c10::elementSize(dtype_) < c10::elementSize(own);
  if (!is_smaller) return reduce_cast(&CommunicationHook::reduce, group, bucket);
  divide(bucket, divisor(group));
  return reduce_divided(group, bucket);
}

CommunicationHook::Future CastHook::reduce_cast(Reduce reduce, const Group& group,
                                                c10d::GradBucket& bucket) {
  at::NoGradGuard no_grad;
  const at::Tensor buffer = bucket.getBuffer();
  const at::Tensor wide = internal::as_real(buffer);
  at::Tensor narrow = wide.to(dtype_);
  bucket.setBuffer(narrow);
  Future inner = ((*inner_).*reduce)(group, bucket);
  return inner->then(
      [buffer, wide, narrow](c10::ivalue::Future& done) -> c10::IValue {
        done.value();
        at::NoGradGuard no_grad;
        wide.copy_(narrow);
        return buffer;
      },
      c10::TensorType::get());
}

void internal::orthogonalize(const at::Tensor& matrices, double epsilon) {
  const bool half = matrices.element_size() < 4;
  at::Tensor wide = half ? matrices.to(at::kFloat) : matrices;
  if (epsilon == 0) {
    // This also handles dependent columns and zero columns.
    matrices.copy_(std::get<0>(at::linalg_qr(wide)));
    return;
  }
  // Two passes: for a column that depends on earlier ones, the first pass leaves rounding errors.
  const int64_t rank = wide.size(2);
  for (int64_t i = 0; i < 2 * rank; ++i) {
    const int64_t now = i % rank;
    at::Tensor column = wide.narrow(2, now, 1);
    // In units of the largest element, whose square may be out of range.
    const at::Tensor most = column.abs().amax(1, /*keepdim=*/true);
    const at::Tensor unit = at::where(most.gt(0), most, 1);
    column.div_(unit);
    column.div_(at::linalg_vector_norm(column, 2, 1, /*keepdim=*/true).add_(epsilon / unit));
    at::Tensor later = wide.narrow(2, now + 1, rank - now - 1);
    later.sub_(at::bmm(column, at::bmm(column.transpose(1, 2), later)));
  }
  if (half) matrices.copy_(wide);
}

at::Tensor PowerSgdHook::Batch::stacked() const {
  return members.size() == 1 ? members[0].unsqueeze(0) : at::stack(members);
}

PowerSgdHook::PowerSgdHook(const PowerSgdOptions& options, Matrices matrices)
    : options_(options),
      matrices_(matrices),
      logger_(get_logger("accelerate.parallel.power_sgd")),
      generator_(at::detail::createCPUGenerator(static_cast<uint64_t>(options.random_seed))) {
  const auto check = [](bool is_fine, const char* option, const char* rule, const auto& value) {
    TORCH_CHECK_VALUE(is_fine, "PowerSGD: ", option, " must ", rule, ", got ", value);
  };
  check(options.matrix_approximation_rank >= 1, "matrix_approximation_rank", "be at least 1",
        options.matrix_approximation_rank);
  check(options.start_powerSGD_iter >= 0, "start_powerSGD_iter", "not be negative",
        options.start_powerSGD_iter);
  TORCH_CHECK_VALUE(
      options.start_powerSGD_iter > 1 || !(options.use_error_feedback || options.warm_start),
      "PowerSGD: with use_error_feedback or warm_start, start_powerSGD_iter must be at least 2, "
      "because buckets are rebuilt after the first pass; got ",
      options.start_powerSGD_iter);
  const double epsilon = options.orthogonalization_epsilon;
  check(options.min_compression_rate > 0, "min_compression_rate", "be positive",
        options.min_compression_rate);
  check(epsilon >= 0 && std::isfinite(epsilon), "orthogonalization_epsilon", "not be negative",
        epsilon);
  check(options.compression_stats_logging_frequency >= 1, "compression_stats_logging_frequency",
        "be at least 1", options.compression_stats_logging_frequency);
}

CommunicationHook::Future PowerSgdHook::reduce(const Group& group, c10d::GradBucket& bucket) {
  at::NoGradGuard no_grad;
  const at::Tensor buffer = bucket.getBuffer();
  const bool plain = iteration_ < options_.start_powerSGD_iter || buffer.is_complex();
  Future done;
  if (plain) {
    done = plain_.reduce(group, bucket);
    count(bucket, buffer.numel(), buffer.numel());
  } else {
    compress(group, bucket, buffer);
    done = done_with(buffer);
  }
  if (bucket.isLast()) ++iteration_;
  return done;
}

// The gradients plus the error of the last step, in memory that the hook may write.
at::Tensor PowerSgdHook::add_error(Memory& memory, const at::Tensor& buffer) const {
  const int64_t used = buffer.numel();
  int64_t size = used;
  if (matrices_ == Matrices::kBucket) {
    auto side = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(used))));
    size = side * side;
  }
  if (!options_.use_error_feedback) {
    if (size == used) return buffer;
    const at::Tensor padded = at::zeros({size}, buffer.options());
    padded.narrow(0, 0, used).copy_(buffer);
    return padded;
  }
  if (!memory.error.defined() || memory.error.numel() != size) {
    memory.error = at::zeros({size}, buffer.options());
  }
  memory.error = memory.error.to(buffer.options());  // a loaded one may have other options
  forget_what_is_not_finite(memory.error);
  memory.error.narrow(0, 0, used).add_(buffer);
  return memory.error;
}

PowerSgdHook::Parts PowerSgdHook::split_bucket(const c10d::GradBucket& bucket,
                                               const at::Tensor& source) const {
  Parts parts;
  const auto rank_of = [&](const at::Tensor& matrix) {
    return std::min({matrix.size(0), matrix.size(1), options_.matrix_approximation_rank});
  };
  const auto shrinks = [&](const at::Tensor& matrix) {
    const auto factors = static_cast<double>((matrix.size(0) + matrix.size(1)) * rank_of(matrix));
    return factors * options_.min_compression_rate < static_cast<double>(matrix.numel());
  };
  auto add = [&](const at::Tensor& matrix) {
    auto same = [&](const Batch& batch) { return batch.members[0].sizes() == matrix.sizes(); };
    auto found = options_.batch_tensors_with_same_shape
                     ? std::find_if(parts.batches.begin(), parts.batches.end(), same)
                     : parts.batches.end();
    if (found == parts.batches.end()) found = parts.batches.insert(found, Batch());
    found->members.push_back(matrix);
    found->rank = rank_of(matrix);
  };
  if (matrices_ == Matrices::kBucket) {
    const auto side = static_cast<int64_t>(std::lround(std::sqrt(source.numel())));
    add(source.view({side, side}));
    return parts;
  }
  int64_t offset = 0;
  for (const at::Tensor& parameter : bucket.getParameters()) {
    const at::Tensor part = source.narrow(0, offset, parameter.numel());
    offset += parameter.numel();
    const bool is_matrix = parameter.dim() >= 2 && parameter.numel() > 0;
    const at::Tensor matrix = is_matrix ? part.view({parameter.size(0), -1}) : at::Tensor();
    if (is_matrix && shrinks(matrix)) {
      add(matrix);
    } else {
      parts.rest.push_back(part);
    }
  }
  return parts;
}

// The start of the power iteration: the result of the last step, or random numbers that are equal
// on all ranks.
void PowerSgdHook::start_power_iteration(Memory& memory, std::vector<Batch>& batches,
                                         const at::Tensor& q) {
  const bool warm = memory.q.defined() && memory.q.numel() == q.numel();
  q.copy_(warm ? memory.q : at::randn({q.numel()}, generator_));
  forget_what_is_not_finite(q);
  if (options_.warm_start) memory.q = q;
  for (Batch& batch : batches) {
    if (options_.orthogonalization_epsilon > 0) {
      // A column that became zero in one step would stay zero.
      const at::Tensor fresh = at::empty_like(batch.q);
      fresh.copy_(at::randn(batch.q.sizes(), generator_));
      const at::Tensor vanished = at::linalg_vector_norm(batch.q, 2, 1, /*keepdim=*/true).eq(0);
      batch.q.copy_(at::where(vanished, fresh, batch.q));
    }
    internal::orthogonalize(batch.q, options_.orthogonalization_epsilon);
  }
}

void PowerSgdHook::compress(const Group& group, c10d::GradBucket& bucket,
                            const at::Tensor& buffer) {
  Memory& memory = memories_[bucket.getIndex()];
  const at::Tensor source = add_error(memory, buffer);
  Parts parts = split_bucket(bucket, source);

  // Uncompressed gradients are reduced at the same time.
  at::Tensor rest;
  c10::intrusive_ptr<c10d::Work> rest_travels;
  if (!parts.rest.empty()) {
    rest = at::cat(parts.rest).div_(group->getSize());
    rest_travels = begin_sum(group, rest);
  }

  int64_t ps = 0, qs = 0;
  for (const Batch& batch : parts.batches) {
    const auto members = static_cast<int64_t>(batch.members.size());
    ps += members * batch.members[0].size(0) * batch.rank;
    qs += members * batch.members[0].size(1) * batch.rank;
  }
  const at::Tensor p = at::empty({ps}, buffer.options()), q = at::empty({qs}, buffer.options());
  auto slice = [](const at::Tensor& flat, int64_t& offset, const Batch& batch, int64_t dim) {
    const auto members = static_cast<int64_t>(batch.members.size());
    const int64_t size = batch.members[0].size(dim);
    offset += members * size * batch.rank;
    return flat.narrow(0, offset - members * size * batch.rank, members * size * batch.rank)
        .view({members, size, batch.rank});
  };
  int64_t p_used = 0, q_used = 0;
  for (Batch& batch : parts.batches) {
    batch.p = slice(p, p_used, batch, 0);
    batch.q = slice(q, q_used, batch, 1);
  }

  if (!parts.batches.empty()) {
    start_power_iteration(memory, parts.batches, q);
    for (Batch& batch : parts.batches) at::bmm_out(batch.p, batch.stacked(), batch.q);
    begin_sum(group, p.div_(group->getSize()))->wait();
    for (Batch& batch : parts.batches) {
      internal::orthogonalize(batch.p, options_.orthogonalization_epsilon);
      at::bmm_out(batch.q, batch.stacked().transpose(1, 2), batch.p);
    }
    if (options_.use_error_feedback) {
      for (Batch& batch : parts.batches) {
        const at::Tensor mine = at::bmm(batch.p, batch.q.transpose(1, 2));
        for (size_t i = 0; i < batch.members.size(); ++i) batch.members[i].sub_(mine[i]);
      }
    }
    begin_sum(group, q.div_(group->getSize()))->wait();
  }

  // The same parts of the buffer for the result.
  const bool padded = source.numel() != buffer.numel();
  const at::Tensor result = padded ? at::empty_like(source) : buffer;
  Parts results = split_bucket(bucket, result);
  for (size_t i = 0; i < parts.batches.size(); ++i) {
    const Batch& batch = parts.batches[i];
    const at::Tensor mean = at::bmm(batch.p, batch.q.transpose(1, 2));
    std::vector<at::Tensor>& places = results.batches[i].members;
    for (size_t j = 0; j < places.size(); ++j) places[j].copy_(mean[j]);
  }
  if (rest_travels) {
    rest_travels->wait();
    int64_t offset = 0;
    for (size_t i = 0; i < parts.rest.size(); ++i) {
      const int64_t size = parts.rest[i].numel();
      if (options_.use_error_feedback) parts.rest[i].zero_();
      results.rest[i].copy_(rest.narrow(0, offset, size));
      offset += size;
    }
  }
  if (padded) {
    buffer.copy_(result.narrow(0, 0, buffer.numel()));
    if (options_.use_error_feedback) {
      source.narrow(0, buffer.numel(), source.numel() - buffer.numel()).zero_();
    }
  }
  count(bucket, buffer.numel(), ps + qs + (rest.defined() ? rest.numel() : 0));
}

void PowerSgdHook::count(const c10d::GradBucket& bucket, int64_t before, int64_t after) {
  before_ += before;
  after_ += after;
  if (!bucket.isLast() || (iteration_ + 1) % options_.compression_stats_logging_frequency != 0) {
    return;
  }
  logger_.info([&] {
    return absl::StrCat(
        "PowerSGD after ", iteration_ + 1, " passes: ", before_,
        " gradients of this rank were sent as ", after_, " numbers, ",
        static_cast<double>(before_) / static_cast<double>(std::max<int64_t>(after_, 1)), " to 1");
  });
  before_ = after_ = 0;
}

StateDict PowerSgdHook::state_dict() const {
  StateDict state;
  state.values = {{"iteration", iteration_}, {"before", before_}, {"after", after_}};
  state.tensors.emplace_back(kGenerator, generator_state(generator_));
  for (const auto& [bucket, memory] : memories_) {
    if (memory.error.defined()) {
      state.tensors.emplace_back(absl::StrCat(kError, bucket), memory.error);
    }
    if (memory.q.defined()) state.tensors.emplace_back(absl::StrCat(kQ, bucket), memory.q);
  }
  return state;
}

void PowerSgdHook::load_state_dict(const StateDict& state) {
  const std::string where = "PowerSGD's state";
  const auto iteration = internal::field_of<int64_t>(state.values, "iteration", where);
  const auto before = internal::field_of<int64_t>(state.values, "before", where);
  const auto after = internal::field_of<int64_t>(state.values, "after", where);
  TORCH_CHECK_VALUE(iteration >= 0 && before >= 0 && after >= 0, where, " counts ", iteration, ", ",
                    before, " and ", after);
  std::map<size_t, Memory> memories;
  at::Tensor generator;
  for (const auto& [name, tensor] : state.tensors) {
    if (name == kGenerator) {
      generator = tensor;
      continue;
    }
    const bool is_error = name.starts_with(kError);
    const size_t prefix = is_error ? sizeof(kError) - 1 : sizeof(kQ) - 1;
    uint64_t bucket = 0;
    const bool is_known = (is_error || name.starts_with(kQ)) &&
                          absl::SimpleAtoi(absl::string_view(name).substr(prefix), &bucket);
    TORCH_CHECK_VALUE(is_known && tensor.defined() && tensor.dim() == 1 &&
                          (tensor.is_floating_point() || tensor.is_complex()),
                      where, " has \"", name, "\", which is not a tensor of this hook");
    Memory& memory = memories[bucket];
    (is_error ? memory.error : memory.q) = tensor.clone();
  }
  TORCH_CHECK_VALUE(generator.defined(), where, " has no \"", kGenerator, "\"");
  set_generator_state(generator_, generator);
  memories_ = std::move(memories);
  iteration_ = iteration;
  before_ = before;
  after_ = after;
}

std::unique_ptr<CommunicationHook> make_communication_hook(
    const DistributedDataParallelKwargs& options) {
  switch (options.comm_wrapper) {
    case Type::kNo: return options.comm_hook == Type::kNo ? nullptr : inner_hook(options);
    case Type::kFp16: return std::make_unique<CastHook>(at::kHalf, inner_hook(options));
    case Type::kBf16: return std::make_unique<CastHook>(at::kBFloat16, inner_hook(options));
    case Type::kPowerSgd:
    case Type::kBatchedPowerSgd: break;
  }
  TORCH_CHECK_VALUE(false, "comm_wrapper is \"no\", \"fp16\" or \"bf16\", got \"",
                    to_string(options.comm_wrapper), "\"; PowerSGD can be a comm_hook only");
}

std::unique_ptr<CommunicationHook> zero_communication_hook(
    const ZeroConfig& config, std::unique_ptr<CommunicationHook> hook) {
  if (!config.prescale_gradients && config.gradient_predivide_factor != 1) {
    TORCH_CHECK_VALUE(hook == nullptr,
                      "gradient_predivide_factor=", config.gradient_predivide_factor,
                      ": comm_hook and comm_wrapper divide gradients in their own way; leave them "
                      "or the factor out");
    hook = std::make_unique<MeanHook>(config.gradient_predivide_factor);
  }
  if (!config.communication_data_type) return hook;
  if (hook == nullptr) hook = std::make_unique<MeanHook>();
  return std::make_unique<CastHook>(*config.communication_data_type, std::move(hook));
}

}  // namespace accelerate
