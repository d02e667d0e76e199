#include "accelerate/tensors/split.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/ops/cat.h>

#include "accelerate/tensors/tree_operations.h"

namespace accelerate {

ProcessShare ProcessShare::of(int64_t entries, int rank, int size, bool apply_padding) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < size, "split_between_processes: there is no rank ", rank,
                    " among ", size);
  TORCH_CHECK_VALUE(!apply_padding || entries > 0,
                    "split_between_processes: nothing cannot be padded, for it has no last entry");
  const int64_t each = entries / size;
  const int64_t extras = entries % size;
  // The first ranks get the entries that do not divide, one each, as in HF Accelerate.
  const int64_t begin = rank * each + std::min<int64_t>(rank, extras);
  const int64_t own = each + (rank < extras ? 1 : 0);
  const int64_t most = each + (extras > 0 ? 1 : 0);
  return {.begin = begin, .end = begin + own, .length = apply_padding ? most : own};
}

namespace internal {
namespace {

// UTF-8 bytes that begin a character.
int64_t count_characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

void throw_no_length(const std::string& type) {
  TORCH_CHECK_VALUE(false, "split_between_processes: a value of type ", type, " has no length");
}

int64_t common_length(std::optional<int64_t> so_far, int64_t length) {
  TORCH_CHECK_VALUE(!so_far || *so_far == length,
                    "split_between_processes: all members must have the same length; one has ",
                    so_far.value_or(0), " entries, another ", length);
  return length;
}

int64_t split_length(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined() && tensor.dim() > 0,
                    "split_between_processes: ", tensor.defined() ? "a 0-dim" : "an undefined",
                    " tensor has no rows");
  return tensor.size(0);
}

at::Tensor split_part(const at::Tensor& tensor, const ProcessShare& share) {
  const at::Tensor own = tensor.narrow(0, share.begin, share.end - share.begin);
  if (share.padding() == 0) return own;
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape[0] = share.padding();
  // The last row of all and not of the share, which may be empty.
  return at::cat({own, tensor.narrow(0, tensor.size(0) - 1, 1).expand(shape)});
}

int64_t split_length(const c10::IValue& value) {
  if (value.isTensor()) return split_length(value.toTensor());
  if (value.isTuple()) return static_cast<int64_t>(value.toTupleRef().elements().size());
  if (value.isList()) return static_cast<int64_t>(value.toList().size());
  if (value.isString()) return count_characters(value.toStringRef());
  if (!value.isGenericDict()) throw_no_length(leaf_type(value));
  std::optional<int64_t> length;
  for (const auto& entry : value.toGenericDict()) {
    length = common_length(length, split_length(entry.value()));
  }
  if (!length) throw_no_length("empty dict");
  return *length;
}

c10::IValue split_part(const c10::IValue& value, const ProcessShare& share) {
  if (value.isTensor()) return split_part(value.toTensor(), share);
  if (value.isString()) return value;
  if (value.isGenericDict()) {
    return map_ivalue_children(
        value, [&share](const c10::IValue& child) { return split_part(child, share); });
  }
  const c10::ArrayRef<c10::IValue> all =
      value.isTuple() ? value.toTupleRef().elements().asArrayRef() : value.toListRef();
  std::vector<c10::IValue> entries(all.begin() + share.begin, all.begin() + share.end);
  if (share.padding() > 0) {
    entries.insert(entries.end(), static_cast<size_t>(share.padding()), all.back());
  }
  if (value.isTuple()) return c10::ivalue::Tuple::create(std::move(entries));
  c10::impl::GenericList part(value.toList().elementType());
  for (c10::IValue& entry : entries) part.push_back(std::move(entry));
  return part;
}

}  // namespace internal
}  // namespace accelerate
