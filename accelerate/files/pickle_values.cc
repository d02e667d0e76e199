#include "accelerate/files/pickle_values.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <c10/util/complex.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/values/dtypes.h"

namespace accelerate {

ACCELERATE_ENUM_TEXTS(internal::PickleKind, "PickleKind", "None", "a truth value", "a number",
                      "a number", "a number", "a text", "bytes", "a list", "a tuple", "a dict",
                      "a tensor", "a device", "a name", "a storage without a tensor",
                      "a NumPy dtype without an array", "a part of a value", "a module",
                      "a part of a value")

}  // namespace accelerate

namespace accelerate::internal {
namespace {

// Deeper than any checkpoint, and far from the end of a thread's stack.
constexpr int kMaxDepth = 100;

struct NamedType {
  const char* name;
  at::ScalarType dtype;
};

constexpr NamedType kStorages[] = {{"torch.FloatStorage", at::kFloat},
                                   {"torch.DoubleStorage", at::kDouble},
                                   {"torch.HalfStorage", at::kHalf},
                                   {"torch.BFloat16Storage", at::kBFloat16},
                                   {"torch.LongStorage", at::kLong},
                                   {"torch.IntStorage", at::kInt},
                                   {"torch.ShortStorage", at::kShort},
                                   {"torch.CharStorage", at::kChar},
                                   {"torch.ByteStorage", at::kByte},
                                   {"torch.BoolStorage", at::kBool},
                                   {"torch.ComplexFloatStorage", at::kComplexFloat},
                                   {"torch.ComplexDoubleStorage", at::kComplexDouble},
                                   {"torch.ComplexHalfStorage", at::kComplexHalf},
                                   // As LibTorch's torch::save calls the dtypes that Python keeps
                                   // in untyped storages.
                                   {"torch.UInt16Storage", at::kUInt16},
                                   {"torch.UInt32Storage", at::kUInt32},
                                   {"torch.UInt64Storage", at::kUInt64},
                                   {"torch.Float8_e4m3fnStorage", at::kFloat8_e4m3fn},
                                   {"torch.Float8_e5m2Storage", at::kFloat8_e5m2},
                                   {"torch.Float8_e4m3fnuzStorage", at::kFloat8_e4m3fnuz},
                                   {"torch.Float8_e5m2fnuzStorage", at::kFloat8_e5m2fnuz},
                                   {"torch.UntypedStorage", at::kByte},
                                   {"torch.storage.UntypedStorage", at::kByte}};

constexpr NamedType kArrayTypes[] = {
    {"f2", at::kHalf},         {"f4", at::kFloat},          {"f8", at::kDouble},
    {"i1", at::kChar},         {"i2", at::kShort},          {"i4", at::kInt},
    {"i8", at::kLong},         {"u1", at::kByte},           {"b1", at::kBool},
    {"u2", at::kUInt16},       {"u4", at::kUInt32},         {"u8", at::kUInt64},
    {"c8", at::kComplexFloat}, {"c16", at::kComplexDouble},
};

template <size_t N>
std::optional<at::ScalarType> find_type(const NamedType (&types)[N], const std::string& name) {
  for (const NamedType& type : types) {
    if (name == type.name) return type.dtype;
  }
  return std::nullopt;
}

// A dtype by its global, "torch.float32".
std::optional<at::ScalarType> find_torch_dtype(absl::string_view global) {
  if (global == "torch.complex32") return at::kComplexHalf;
  if (!absl::ConsumePrefix(&global, "torch.")) return std::nullopt;
  const DtypeName* known = find_dtype(&DtypeName::torch, global);
  return known == nullptr ? std::nullopt : std::optional(scalar_type(*known));
}

// Modules of torch::save and TorchScript.
constexpr char kScriptClasses[] = "__torch__.";

std::string needs_text(const std::string& global) {
  return absl::StrCat("it needs \"", global, "\", which is not among what may be loaded");
}

// Functions that make tensors.
bool makes_tensor(const std::string& global) {
  return absl::StartsWith(global, "torch._utils._rebuild") ||
         absl::StartsWith(global, "torch._tensor._rebuild");
}

// Bytes up to the end of the last element; nothing for sizes that make no sense.
std::optional<int64_t> bytes_needed(int64_t offset, const std::vector<int64_t>& sizes,
                                    const std::vector<int64_t>& strides, int64_t item_bytes) {
  if (offset < 0 || sizes.size() != strides.size()) return std::nullopt;
  int64_t last = offset;
  int64_t elements = 1;
  bool is_empty = false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    int64_t reach = 0;
    if (sizes[i] < 0 || strides[i] < 0) return std::nullopt;
    if (sizes[i] == 0) {
      is_empty = true;
      continue;
    }
    if (__builtin_mul_overflow(sizes[i] - 1, strides[i], &reach) ||
        __builtin_add_overflow(last, reach, &last) ||
        __builtin_mul_overflow(elements, sizes[i], &elements)) {
      return std::nullopt;
    }
  }
  int64_t bytes = 0;
  if (is_empty) last = offset - 1;
  if (__builtin_add_overflow(last, 1, &last) || __builtin_mul_overflow(last, item_bytes, &bytes) ||
      __builtin_mul_overflow(elements, item_bytes, &elements)) {
    return std::nullopt;
  }
  return bytes;
}

}  // namespace

PickleId PickleValues::add(PickleNode node) {
  spend(node.text.size() + sizeof(PickleId) * node.items.size());
  nodes_.push_back(std::move(node));
  return nodes_.size() - 1;
}

void PickleValues::spend(size_t bytes) {
  if (bytes > budget_) throw PickleError("it makes much more of itself than it is long");
  budget_ -= bytes;
}

PickleId PickleValues::expect(PickleId id, PickleKind kind, const char* what) {
  if (at(id).kind != kind) throw PickleError(absl::StrCat(what, " is of another kind"));
  return id;
}

const std::vector<PickleId>& PickleValues::arguments_of(PickleId tuple, size_t at_least,
                                                        const char* what) {
  const std::vector<PickleId>& items = at(expect(tuple, PickleKind::kTuple, what)).items;
  if (items.size() < at_least) throw PickleError(absl::StrCat(what, " is too short"));
  return items;
}

std::vector<int64_t> PickleValues::integers(PickleId id, const char* what) {
  std::vector<int64_t> values;
  const std::vector<PickleId>& items = arguments_of(id, 0, what);
  spend(items.size() * sizeof(int64_t));
  for (PickleId item : items) {
    values.push_back(at(expect(item, PickleKind::kInt, what)).integer);
  }
  return values;
}

c10::Storage PickleValues::storage(const std::string& key) {
  const auto found = storages_.find(key);
  if (found != storages_.end()) return found->second;
  absl::StatusOr<c10::Storage> made = storage_(key);
  if (!made.ok()) throw PickleError(std::string(made.status().message()), made.status().code());
  return storages_.emplace(key, *std::move(made)).first->second;
}

PickleId PickleValues::unreadable(std::string why, bool is_tensor) {
  return add(
      {.kind = PickleKind::kUnreadable, .integer = is_tensor ? 1 : 0, .text = std::move(why)});
}

PickleId PickleValues::unreadable_global(const std::string& name) {
  return unreadable(needs_text(name), makes_tensor(name));
}

PickleId PickleValues::persistent(PickleId id) {
  // ('storage', type, key, device, number of elements)
  const std::vector<PickleId>& parts = arguments_of(id, 5, "a storage");
  if (at(expect(parts[0], PickleKind::kString, "a storage's tag")).text != "storage") {
    throw PickleError("it refers to a value that is not a storage");
  }
  const std::string& type = at(expect(parts[1], PickleKind::kGlobal, "a storage's type")).text;
  const std::optional<at::ScalarType> dtype = find_type(kStorages, type);
  if (!dtype) return unreadable_global(type);
  return add({.kind = PickleKind::kStorage,
              .integer = static_cast<int64_t>(*dtype),
              .text = at(expect(parts[2], PickleKind::kString, "a storage's key")).text});
}

void PickleValues::set_flags(const at::Tensor& tensor, PickleId metadata) {
  if (at(metadata).kind != PickleKind::kDict) return;
  for (const auto& [key, value] : entries_of(metadata)) {
    if (at(key).kind != PickleKind::kString || at(value).integer == 0) continue;
    if (at(key).text == "conj") {
      if (!tensor.is_complex()) throw PickleError("a tensor that is not complex is conjugated");
      tensor._set_conj(true);
    } else if (at(key).text == "neg") {
      if (tensor.scalar_type() == at::kBool) throw PickleError("truth values are negated");
      tensor._set_neg(true);
    }
  }
}

PickleId PickleValues::rebuild_tensor(const std::vector<PickleId>& arguments, bool has_dtype) {
  if (arguments.size() < (has_dtype ? 7 : 4)) throw PickleError("a tensor is too short");
  const PickleNode& stored = at(expect(arguments[0], PickleKind::kStorage, "a tensor's storage"));
  auto dtype = static_cast<at::ScalarType>(stored.integer);
  if (has_dtype) {
    const std::string& name = at(expect(arguments[6], PickleKind::kGlobal, "a dtype")).text;
    const std::optional<at::ScalarType> named = find_torch_dtype(name);
    if (!named) {
      return unreadable(absl::StrCat("its dtype is ", name, ", which cannot be read"), true);
    }
    dtype = *named;
  }
  const int64_t offset = at(expect(arguments[1], PickleKind::kInt, "a tensor's offset")).integer;
  const std::vector<int64_t> sizes = integers(arguments[2], "a tensor's size");
  const std::vector<int64_t> strides = integers(arguments[3], "a tensor's stride");
  const c10::Storage bytes = storage(stored.text);
  const auto item_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  const std::optional<int64_t> needed = bytes_needed(offset, sizes, strides, item_bytes);
  if (!needed || *needed > static_cast<int64_t>(bytes.nbytes())) {
    throw PickleError(absl::StrCat("a tensor reaches beyond its storage \"", stored.text, "\""));
  }
  at::Tensor tensor = at::empty({0}, dtype).set_(bytes, offset, sizes, strides);
  const size_t metadata = has_dtype ? 7 : 6;
  if (arguments.size() > metadata) set_flags(tensor, arguments[metadata]);
  return add({.kind = PickleKind::kTensor, .tensor = std::move(tensor)});
}

PickleId PickleValues::call_container(const std::string& name,
                                      const std::vector<PickleId>& arguments) {
  const bool has_argument = !arguments.empty();
  if (name == "builtins.set" || name == "builtins.frozenset" || name == "torch.Size") {
    PickleNode node{.kind = name == "torch.Size" ? PickleKind::kTuple : PickleKind::kList};
    if (has_argument) {
      const PickleKind kind = at(arguments[0]).kind;
      if (kind != PickleKind::kList && kind != PickleKind::kTuple) {
        throw PickleError(absl::StrCat(name, " is made from a value that is not a list"));
      }
      node.items = at(arguments[0]).items;
    }
    return add(std::move(node));
  }
  PickleNode node{.kind = PickleKind::kDict};
  if (!has_argument || name == "collections.defaultdict") return add(std::move(node));
  const PickleNode& from = at(arguments[0]);
  if (from.kind == PickleKind::kDict) {
    node.items = from.items;
  } else if (from.kind == PickleKind::kList) {
    for (PickleId item : from.items) {
      const PickleNode& pair = at(item);
      const bool is_pair = (pair.kind == PickleKind::kTuple || pair.kind == PickleKind::kList) &&
                           pair.items.size() == 2;
      if (!is_pair) throw PickleError("a dict is made from items other than pairs");
      node.items.insert(node.items.end(), pair.items.begin(), pair.items.end());
    }
  } else {
    throw PickleError("a dict is made from a value that is not a dict");
  }
  return add(std::move(node));
}

PickleId PickleValues::call_numpy(const std::string& name, const std::vector<PickleId>& arguments) {
  const size_t last_dot = name.rfind('.');
  const std::string function = name.substr(last_dot + 1);
  if (name == "numpy.dtype" && !arguments.empty() && at(arguments[0]).kind == PickleKind::kString) {
    return add({.kind = PickleKind::kArrayType, .text = at(arguments[0]).text});
  }
  const std::string module = name.substr(0, last_dot);
  const bool is_core = module == "numpy.core.multiarray" || module == "numpy._core.multiarray";
  if (is_core && function == "_reconstruct") return add({.kind = PickleKind::kEmptyArray});
  if (is_core && function == "scalar" && arguments.size() == 2) {
    return add(array_of(arguments[0], add({.kind = PickleKind::kTuple}), false, arguments[1]));
  }
  // How protocol 5 has arrays: (bytes, dtype, shape, order, and perhaps the order of the dims).
  const bool is_numeric = module == "numpy.core.numeric" || module == "numpy._core.numeric";
  if (is_numeric && function == "_frombuffer" && arguments.size() >= 4) {
    const std::string& order = at(expect(arguments[3], PickleKind::kString, "an order")).text;
    PickleNode array = array_of(arguments[1], arguments[2], order == "F", arguments[0]);
    const bool is_permuted = order == "K" && arguments.size() > 4 &&
                             at(arguments[4]).kind == PickleKind::kTuple &&
                             array.kind == PickleKind::kTensor;
    if (is_permuted) array.tensor = array.tensor.permute(integers(arguments[4], "an order"));
    return add(std::move(array));
  }
  return unreadable_global(name);
}

// How Python writes bytes where a protocol has none: each as the letter of its number.
PickleId PickleValues::call_codecs(const std::vector<PickleId>& arguments) {
  std::string bytes;
  const std::string& text = at(expect(arguments[0], PickleKind::kString, "bytes")).text;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto letter = static_cast<unsigned char>(text[i]);
    if (letter < 0x80) {
      bytes.push_back(text[i]);
    } else if ((letter == 0xC2 || letter == 0xC3) && i + 1 < text.size()) {
      bytes.push_back(static_cast<char>((letter & 3) << 6 | (text[++i] & 0x3F)));
    } else {
      throw PickleError("bytes are not in latin1");
    }
  }
  return add({.kind = PickleKind::kBytes, .text = std::move(bytes)});
}

PickleId PickleValues::call(PickleId function, PickleId tuple) {
  // What it would make is as little known.
  if (at(function).kind == PickleKind::kUnreadable) return function;
  const std::string name = at(expect(function, PickleKind::kGlobal, "what is called")).text;
  const std::vector<PickleId> arguments = arguments_of(tuple, 0, "a call's arguments");
  spend(name.size() + arguments.size() * sizeof(PickleId));
  if (absl::StartsWith(name, kScriptClasses)) {
    return add({.kind = PickleKind::kObject, .text = name});
  }
  if (name == "torch._utils._rebuild_sparse_tensor") {
    return unreadable("it is a sparse tensor, and dense ones are read", true);
  }
  for (const PickleId each : arguments) {
    if (at(each).kind == PickleKind::kUnreadable) {
      return unreadable(at(each).text, at(each).integer != 0 || makes_tensor(name));
    }
  }
  return call_known(name, arguments);
}

PickleId PickleValues::call_known(const std::string& name, const std::vector<PickleId>& arguments) {
  if (name == "torch._utils._rebuild_tensor" || name == "torch._utils._rebuild_tensor_v2") {
    return rebuild_tensor(arguments, false);
  }
  if (name == "torch._utils._rebuild_tensor_v3") return rebuild_tensor(arguments, true);
  if (absl::StartsWith(name, "torch.jit._pickle.")) {
    // LibTorch's own files: a value and its type, or a list and what is in it.
    const std::string function_name = name.substr(sizeof("torch.jit._pickle.") - 1);
    static const std::set<std::string> kKept = {"restore_type_tag", "build_intlist",
                                                "build_doublelist", "build_boollist",
                                                "build_tensorlist"};
    const bool is_kept = kKept.contains(function_name) && !arguments.empty();
    return is_kept ? arguments[0] : unreadable_global(name);
  }
  if (name == "torch._utils._rebuild_parameter" ||
      name == "torch._utils._rebuild_parameter_with_state") {
    if (arguments.empty()) throw PickleError("a parameter is too short");
    return expect(arguments[0], PickleKind::kTensor, "a parameter");
  }
  if (name == "torch._tensor._rebuild_from_type_v2" && arguments.size() >= 3) {
    // The function to call, the type to have, its arguments. A function that is this one again
    // would not end.
    const std::string& inner = at(expect(arguments[0], PickleKind::kGlobal, "a function")).text;
    return inner == name ? unreadable_global(name) : call(arguments[0], arguments[2]);
  }
  // How protocol 1 has objects: the class, the class of what it is based on, and its value.
  if (name == "copyreg._reconstructor" && !arguments.empty() &&
      at(arguments[0]).kind == PickleKind::kGlobal) {
    return unreadable_global(at(arguments[0]).text);
  }
  static const std::set<std::string> kContainers = {"collections.OrderedDict",
                                                    "collections.defaultdict",
                                                    "collections.Counter",
                                                    "builtins.dict",
                                                    "builtins.set",
                                                    "builtins.frozenset",
                                                    "torch.Size"};
  if (kContainers.contains(name)) return call_container(name, arguments);
  if (name == "_codecs.encode" && !arguments.empty()) return call_codecs(arguments);
  if ((name == "builtins.bytes" || name == "builtins.bytearray") && arguments.empty()) {
    return add({.kind = PickleKind::kBytes});
  }
  if (name == "builtins.bytearray" && at(arguments[0]).kind == PickleKind::kBytes) {
    return arguments[0];
  }
  // As Python before 3.8 writes it.
  if (name == "builtins.bytearray" && at(arguments[0]).kind == PickleKind::kString) {
    return call_codecs(arguments);
  }
  if (name == "builtins.complex" && arguments.size() == 2) {
    return add({.kind = PickleKind::kComplex,
                .number = at(expect(arguments[0], PickleKind::kFloat, "a number")).number,
                .imaginary = at(expect(arguments[1], PickleKind::kFloat, "a number")).number});
  }
  if (name == "torch.device" && !arguments.empty()) {
    PickleNode node{.kind = PickleKind::kDevice,
                    .text = at(expect(arguments[0], PickleKind::kString, "a device")).text};
    if (arguments.size() > 1) {
      absl::StrAppend(&node.text, ":",
                      at(expect(arguments[1], PickleKind::kInt, "a device's index")).integer);
    }
    return add(std::move(node));
  }
  if (absl::StartsWith(name, "numpy.")) return call_numpy(name, arguments);
  return unreadable_global(name);
}

PickleNode PickleValues::array_of(PickleId type_id, PickleId shape_id, bool in_columns,
                                  PickleId bytes_id) {
  const PickleNode& type = at(expect(type_id, PickleKind::kArrayType, "an array's dtype"));
  const std::optional<at::ScalarType> dtype = find_type(kArrayTypes, type.text);
  if (!dtype || at(bytes_id).kind != PickleKind::kBytes) {
    return {.kind = PickleKind::kUnreadable,
            .integer = 1,
            .text = needs_text(absl::StrCat("numpy.dtype ", type.text))};
  }
  std::vector<int64_t> shape = integers(shape_id, "an array's shape");
  if (in_columns) std::ranges::reverse(shape);
  const std::string& bytes = at(bytes_id).text;
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) {
    if (__builtin_mul_overflow(strides[i], std::max<int64_t>(shape[i], 1), &strides[i - 1])) {
      throw PickleError("an array is too large");
    }
  }
  const auto item_bytes = static_cast<int64_t>(c10::elementSize(*dtype));
  const std::optional<int64_t> needed = bytes_needed(0, shape, strides, item_bytes);
  if (!needed || *needed != static_cast<int64_t>(bytes.size())) {
    throw PickleError("an array is not as long as its bytes");
  }
  spend(bytes.size());
  at::Tensor array = at::empty(shape, *dtype);
  if (!bytes.empty()) {
    auto* const memory = static_cast<char*>(array.mutable_data_ptr());
    std::memcpy(memory, bytes.data(), bytes.size());
    // The parts of a complex number are numbers of their own.
    const size_t number = item_bytes / (array.is_complex() ? 2 : 1);
    for (size_t begin = 0; type.integer != 0 && begin < bytes.size(); begin += number) {
      std::reverse(memory + begin, memory + begin + number);
    }
  }
  if (in_columns) {
    std::vector<int64_t> dims;
    for (int64_t i = array.dim(); i-- > 0;) dims.push_back(i);
    array = array.permute(dims);
  }
  return {.kind = PickleKind::kTensor, .tensor = std::move(array)};
}

void PickleValues::build(PickleId object, PickleId state) {
  PickleNode& node = at(object);
  switch (node.kind) {
    case PickleKind::kEmptyArray: {
      // (version, shape, dtype, whether by columns, bytes)
      const std::vector<PickleId>& parts = arguments_of(state, 5, "an array");
      node = array_of(parts[2], parts[1], at(parts[3]).integer != 0, parts[4]);
      return;
    }
    case PickleKind::kArrayType: {
      // (version, byte order, ...)
      const std::vector<PickleId>& parts = arguments_of(state, 2, "a dtype's state");
      const bool is_big = at(expect(parts[1], PickleKind::kString, "a byte order")).text == ">";
      node.integer = is_big ? 1 : 0;
      return;
    }
    case PickleKind::kObject:
      if (at(state).kind == PickleKind::kDict) {
        spend(sizeof(PickleId) * at(state).items.size());
        node.items = at(state).items;
      } else {
        // A class that makes its attributes of its state, by code.
        node = {.kind = PickleKind::kUnreadable, .text = needs_text(node.text)};
      }
      return;
    case PickleKind::kDict:
    case PickleKind::kTensor:
    case PickleKind::kUnreadable: return;
    default: throw PickleError("a state is given to what has none");
  }
}

std::vector<std::pair<PickleId, PickleId>> PickleValues::entries_of(PickleId id) {
  std::vector<std::pair<PickleId, PickleId>> entries;
  std::map<std::string, size_t> positions;
  const std::vector<PickleId>& items = at(id).items;
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    spend(sizeof(PickleId) + at(items[i]).text.size());
    if (at(items[i]).kind != PickleKind::kString) {
      entries.emplace_back(items[i], items[i + 1]);
      continue;
    }
    const auto [found, is_new] = positions.emplace(at(items[i]).text, entries.size());
    if (is_new) {
      entries.emplace_back(items[i], items[i + 1]);
    } else {
      entries[found->second].second = items[i + 1];
    }
  }
  return entries;
}

void PickleValues::name_entries(PickleId id, const std::string& prefix, int depth,
                                TorchStateDict& named) {
  reach(depth);
  const bool is_object = at(id).kind == PickleKind::kObject;
  for (const auto& [key, value] : entries_of(id)) {
    const PickleNode& node = at(value);
    std::string name = absl::StrCat(
        prefix, at(key).kind == PickleKind::kString ? at(key).text : std::string("(no text)"));
    spend(name.size() + sizeof(at::Tensor));
    if (node.kind == PickleKind::kTensor && at(key).kind == PickleKind::kString) {
      named.tensors.emplace_back(std::move(name), node.tensor);
    } else if (node.kind == PickleKind::kObject && is_object) {
      name_entries(value, absl::StrCat(name, "."), depth + 1, named);
    } else if (node.kind == PickleKind::kUnreadable) {
      named.others.push_back({std::move(name), node.text, node.integer != 0});
    } else if (!is_object) {
      // Modules have attributes that no state dict has, such as whether they train.
      named.others.push_back(
          {std::move(name), absl::StrCat("it is ", accelerate::to_string(node.kind))});
    }
  }
}

TorchStateDict PickleValues::named(PickleId id) {
  if (at(id).kind == PickleKind::kDict) {
    const auto entries = entries_of(id);
    for (const char* key : {"state_dict", "model", "model_state_dict"}) {
      const auto inner = std::ranges::find_if(entries, [&](const auto& entry) {
        return at(entry.first).kind == PickleKind::kString && at(entry.first).text == key &&
               at(entry.second).kind == PickleKind::kDict;
      });
      if (inner == entries.end()) continue;
      id = inner->second;
      break;
    }
  }
  const PickleNode& node = at(id);
  if (node.kind == PickleKind::kUnreadable) {
    throw PickleError(absl::StrCat("its value is not a dict of tensors: ", node.text,
                                   ". Of a module of Python save the state_dict()"),
                      absl::StatusCode::kUnimplemented);
  }
  if (node.kind != PickleKind::kDict && node.kind != PickleKind::kObject) {
    throw PickleError(
        absl::StrCat("its value is ", accelerate::to_string(node.kind), ", not a dict of tensors"));
  }
  TorchStateDict named;
  name_entries(id, "", 0, named);
  const bool has_tensors = !named.tensors.empty() ||
                           std::ranges::any_of(named.others, &TorchStateDict::Other::is_tensor);
  if (!has_tensors && !node.items.empty()) {
    std::vector<std::string> names;
    for (const TorchStateDict::Other& each : named.others) names.push_back(each.name);
    throw PickleError(absl::StrCat("it holds no tensors", names.empty() ? "" : ", but only ",
                                   absl::StrJoin(names, ", ")));
  }
  return named;
}

c10::IValue PickleValues::to_ivalue(PickleId id) { return convert(id, 0); }

void PickleValues::reach(int depth) {
  if (depth > kMaxDepth) throw PickleError("it is nested too deeply");
  deepest_ = std::max(deepest_, depth);
}

void PickleValues::refuse(const std::string& why) {
  std::string place;
  for (const PickleId key : keys_) {
    absl::StrAppend(
        &place, place.empty() ? "\"" : ".",
        at(key).kind == PickleKind::kString ? at(key).text : accelerate::to_string(at(key).kind));
  }
  throw PickleError(place.empty() ? why : absl::StrCat(place, "\": ", why),
                    absl::StatusCode::kUnimplemented);
}

c10::IValue PickleValues::convert(PickleId id, int depth) {
  reach(depth);
  const PickleNode& node = at(id);
  spend(sizeof(c10::IValue) + node.text.size());
  switch (node.kind) {
    case PickleKind::kNone: return {};
    case PickleKind::kBool: return node.integer != 0;
    case PickleKind::kInt: return node.integer;
    case PickleKind::kFloat: return node.number;
    case PickleKind::kComplex: return c10::complex<double>(node.number, node.imaginary);
    case PickleKind::kString: return node.text;
    case PickleKind::kBytes: {
      at::Tensor bytes = at::empty({static_cast<int64_t>(node.text.size())}, at::kByte);
      if (!node.text.empty()) {
        std::memcpy(bytes.mutable_data_ptr(), node.text.data(), node.text.size());
      }
      return bytes;
    }
    case PickleKind::kTensor: return node.tensor;
    case PickleKind::kDevice: return c10::Device(node.text);
    case PickleKind::kGlobal: {
      const std::optional<at::ScalarType> dtype = find_torch_dtype(node.text);
      if (!dtype) refuse(needs_text(node.text));
      return static_cast<int64_t>(*dtype);
    }
    case PickleKind::kStorage:
    case PickleKind::kArrayType: refuse(absl::StrCat("it is ", accelerate::to_string(node.kind)));
    case PickleKind::kEmptyArray:
      throw PickleError("it has a part of a tensor where a value should be");
    case PickleKind::kUnreadable: refuse(node.text);
    case PickleKind::kList:
    case PickleKind::kTuple:
    case PickleKind::kObject:
    case PickleKind::kDict: return convert_container(id, depth);
  }
  throw PickleError("it has a value of no kind");
}

c10::IValue PickleValues::convert_container(PickleId id, int depth) {
  if (const auto found = converted_.find(id); found != converted_.end()) {
    spend(found->second.price);
    reach(depth + found->second.height);
    return found->second.value;
  }
  if (std::exchange(converting_[id], true)) throw PickleError("it contains itself");
  const PickleNode& node = at(id);
  const size_t budget_before = budget_;
  const int deepest_before = std::exchange(deepest_, depth);
  std::vector<c10::IValue> items;
  const bool has_keys = node.kind == PickleKind::kDict || node.kind == PickleKind::kObject;
  for (size_t i = 0; i < node.items.size(); ++i) {
    const bool is_value = has_keys && i % 2 == 1;
    if (is_value) keys_.push_back(node.items[i - 1]);
    items.push_back(convert(node.items[i], depth + 1));
    if (is_value) keys_.pop_back();
  }
  c10::IValue value;
  if (node.kind == PickleKind::kTuple) {
    value = c10::ivalue::Tuple::create(std::move(items));
  } else if (node.kind == PickleKind::kList) {
    c10::impl::GenericList list(c10::AnyType::get());
    for (c10::IValue& item : items) list.push_back(std::move(item));
    value = std::move(list);
  } else {
    c10::impl::GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      dict.insert_or_assign(std::move(items[i]), std::move(items[i + 1]));
    }
    value = std::move(dict);
  }
  converted_[id] = {value, budget_before - budget_, deepest_ - depth};
  deepest_ = std::max(deepest_, deepest_before);
  return value;
}

}  // namespace accelerate::internal
