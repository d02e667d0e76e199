#include "simulator/device/op_info.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <ATen/core/enum_tag.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace accelerate::simulator {
namespace {

// These change sizes and storages, not elements.
constexpr std::array kMetadataOnly = {
    "aten::resize_",
    "aten::resize_as_",
    "aten::_resize_output_",
    "aten::set_",
    "aten::empty_like",
    "aten::new_empty",
    "aten::empty",
    "aten::set_data",
    "aten::is_set_to",
    "aten::_indices",
    "aten::_values",
    "aten::_nnz",
    "aten::_dimI",
    "aten::_dimV",
    "aten::is_coalesced",
    "aten::dense_dim",
    "aten::sparse_dim",
    "aten::_coalesced_",
    "aten::record_stream",
    "aten::is_same_size",
    "aten::is_pinned",
    "aten::sparse_resize_",
    "aten::indices",
    "aten::values",
    "aten::sparse_resize_and_clear_",
    "aten::empty_strided",
    "aten::empty_permuted",
    "aten::new_empty_strided",
};

// Indices and lengths of these may stay on the host.
constexpr std::array kMixesDevices = {
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_index_put_impl_",
    "aten::_unsafe_index",
    "aten::_unsafe_index_put",
    "aten::ctc_loss",
    "aten::_ctc_loss",
    "aten::_ctc_loss_backward",
    "aten::_pack_padded_sequence",
    "aten::_pack_padded_sequence_backward",
    "aten::_local_scalar_dense",
    "aten::copy_",
    "aten::copy_sparse_to_sparse_",
};

template <size_t n>
bool is_one_of(const std::string& name, const std::array<const char*, n>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_written(const c10::AliasInfo* alias) {
  if (alias == nullptr) return false;
  // A list of written tensors has the mark on its elements.
  return alias->isWrite() ||
         std::any_of(alias->containedTypes().begin(), alias->containedTypes().end(),
                     [](const c10::AliasInfo& part) { return part.isWrite(); });
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
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (is_written(argument.alias_info()) && i < 64) info.written |= uint64_t{1} << i;
    info.argument_names.push_back(argument.name());
    if (argument.name() == "generator") info.generator_argument = static_cast<int>(i);
  }
  const bool is_view =
      info.written == 0 &&
      std::any_of(schema.returns().begin(), schema.returns().end(),
                  [](const c10::Argument& result) { return result.alias_info() != nullptr; });
  // Collectives are timed elsewhere.
  info.runs_kernel =
      !is_view && !is_one_of(info.name, kMetadataOnly) && !absl::StartsWith(info.name, "c10d::");
  info.synchronizes =
      op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape);
  info.draws_by_default =
      op.hasTag(at::Tag::nondeterministic_seeded) && info.generator_argument < 0;
  info.has_cpu_kernel = op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU) ||
                        op.hasComputedKernelForDispatchKey(c10::DispatchKey::SparseCPU);
  info.has_own_cpu_kernel = op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
                            op.hasKernelForDispatchKey(c10::DispatchKey::SparseCPU);
  info.mixes_devices = is_one_of(info.name, kMixesDevices);
  info.indexes = info.mixes_devices && absl::StrContains(info.name, "index");
  info.flops = flop_formula(info.name);
  return info;
}

}  // namespace

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

}  // namespace accelerate::simulator
