#include "accelerate/checkpoint/tensor_files/pickle_values.h"

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

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

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
                                   {"torch.UntypedStorage", at::kByte},
                                   {"torch.storage.UntypedStorage", at::kByte}};

constexpr NamedType kDtypes[] = {{"torch.float32", at::kFloat},
                                 {"torch.float64", at::kDouble},
                                 {"torch.float16", at::kHalf},
                                 {"torch.bfloat16", at::kBFloat16},
                                 {"torch.int64", at::kLong},
                                 {"torch.int32", at::kInt},
                                 {"torch.int16", at::kShort},
                                 {"torch.int8", at::kChar},
                                 {"torch.uint8", at::kByte},
                                 {"torch.bool", at::kBool},
                                 {"torch.uint16", at::kUInt16},
                                 {"torch.uint32", at::kUInt32},
                                 {"torch.uint64", at::kUInt64},
                                 {"torch.complex64", at::kComplexFloat},
                                 {"torch.complex128", at::kComplexDouble},
                                 {"torch.float8_e4m3fn", at::kFloat8_e4m3fn},
                                 {"torch.float8_e5m2", at::kFloat8_e5m2}};

constexpr NamedType kArrayTypes[] = {
    {"f2", at::kHalf},  {"f4", at::kFloat},  {"f8", at::kDouble}, {"i1", at::kChar},
    {"i2", at::kShort}, {"i4", at::kInt},    {"i8", at::kLong},   {"u1", at::kByte},
    {"b1", at::kBool},  {"u2", at::kUInt16}, {"u4", at::kUInt32}, {"u8", at::kUInt64},
};

template <size_t N>
std::optional<at::ScalarType> find_type(const NamedType (&types)[N], const std::string& name) {
  for (const NamedType& type : types) {
    if (name == type.name) return type.dtype;
  }
  return std::nullopt;
}

[[noreturn]] void refuse_global(const std::string& name) {
  throw PickleError(absl::StrCat("it needs \"", name, "\", which is not among what may be loaded"),
                    absl::StatusCode::kUnimplemented);
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

PickleId PickleValues::persistent(PickleId id) {
  // ('storage', type, key, device, number of elements)
  const std::vector<PickleId>& parts = arguments_of(id, 5, "a storage");
  if (at(expect(parts[0], PickleKind::kString, "a storage's tag")).text != "storage") {
    throw PickleError("it refers to a value that is not a storage");
  }
  const std::string& type = at(expect(parts[1], PickleKind::kGlobal, "a storage's type")).text;
  const std::optional<at::ScalarType> dtype = find_type(kStorages, type);
  if (!dtype) refuse_global(type);
  return add({.kind = PickleKind::kStorage,
              .integer = static_cast<int64_t>(*dtype),
              .text = at(expect(parts[2], PickleKind::kString, "a storage's key")).text});
}

PickleId PickleValues::rebuild_tensor(const std::vector<PickleId>& arguments, bool has_dtype) {
  if (arguments.size() < (has_dtype ? 7 : 4)) throw PickleError("a tensor is too short");
  const PickleNode& stored = at(expect(arguments[0], PickleKind::kStorage, "a tensor's storage"));
  auto dtype = static_cast<at::ScalarType>(stored.integer);
  if (has_dtype) {
    const std::string& name = at(expect(arguments[6], PickleKind::kGlobal, "a dtype")).text;
    const std::optional<at::ScalarType> named = find_type(kDtypes, name);
    if (!named) refuse_global(name);
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
  if (name == "numpy.dtype" && !arguments.empty()) {
    return add({.kind = PickleKind::kArrayType,
                .text = at(expect(arguments[0], PickleKind::kString, "a dtype")).text});
  }
  const std::string module = name.substr(0, last_dot);
  if (module == "numpy.core.multiarray" || module == "numpy._core.multiarray") {
    if (function == "_reconstruct") return add({.kind = PickleKind::kEmptyArray});
    if (function == "scalar" && arguments.size() == 2) {
      // As an array without dims.
      const PickleId shape = add({.kind = PickleKind::kTuple});
      const PickleId version = add({.kind = PickleKind::kInt, .integer = 1});
      const PickleId in_columns = add({.kind = PickleKind::kBool});
      const PickleId state =
          add({.kind = PickleKind::kTuple,
               .items = {version, shape, arguments[0], in_columns, arguments[1]}});
      const PickleId array = add({.kind = PickleKind::kEmptyArray});
      build(array, state);
      return array;
    }
  }
  refuse_global(name);
}

PickleId PickleValues::call(PickleId function, PickleId tuple) {
  const std::string name = at(expect(function, PickleKind::kGlobal, "what is called")).text;
  const std::vector<PickleId> arguments = arguments_of(tuple, 0, "a call's arguments");
  spend(name.size() + arguments.size() * sizeof(PickleId));
  if (name == "torch._utils._rebuild_tensor_v2") return rebuild_tensor(arguments, false);
  if (name == "torch._utils._rebuild_tensor_v3") return rebuild_tensor(arguments, true);
  if (absl::StartsWith(name, "torch.jit._pickle.")) {
    // LibTorch's own files: a value and its type, or a list and what is in it.
    const std::string function_name = name.substr(sizeof("torch.jit._pickle.") - 1);
    static const std::set<std::string> kKept = {"restore_type_tag", "build_intlist",
                                                "build_doublelist", "build_boollist",
                                                "build_tensorlist"};
    if (!kKept.contains(function_name) || arguments.empty()) refuse_global(name);
    return arguments[0];
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
    if (inner == name) refuse_global(name);
    return call(arguments[0], arguments[2]);
  }
  static const std::set<std::string> kContainers = {"collections.OrderedDict",
                                                    "collections.defaultdict",
                                                    "collections.Counter",
                                                    "builtins.dict",
                                                    "builtins.set",
                                                    "builtins.frozenset",
                                                    "torch.Size"};
  if (kContainers.contains(name)) return call_container(name, arguments);
  if (name == "_codecs.encode" && !arguments.empty()) {
    // How Python writes bytes where a protocol has none: each as the letter of its number.
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
  if ((name == "builtins.bytes" || name == "builtins.bytearray") && arguments.empty()) {
    return add({.kind = PickleKind::kBytes});
  }
  if (name == "builtins.bytearray" && at(arguments[0]).kind == PickleKind::kBytes) {
    return arguments[0];
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
  refuse_global(name);
}

void PickleValues::fill_array(PickleNode& array, PickleId state) {
  // (version, shape, dtype, whether by columns, bytes)
  const std::vector<PickleId>& parts = arguments_of(state, 5, "an array");
  const std::vector<int64_t> shape = integers(parts[1], "an array's shape");
  const PickleNode& type = at(expect(parts[2], PickleKind::kArrayType, "an array's dtype"));
  const std::optional<at::ScalarType> dtype = find_type(kArrayTypes, type.text);
  if (!dtype) refuse_global(absl::StrCat("numpy.dtype ", type.text));
  if (at(parts[3]).integer != 0) {
    throw PickleError("an array lies by columns", absl::StatusCode::kUnimplemented);
  }
  const std::string& bytes = at(expect(parts[4], PickleKind::kBytes, "an array's bytes")).text;
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
  array.kind = PickleKind::kTensor;
  array.tensor = at::empty(shape, *dtype);
  if (!bytes.empty()) std::memcpy(array.tensor.mutable_data_ptr(), bytes.data(), bytes.size());
}

void PickleValues::build(PickleId object, PickleId state) {
  PickleNode& node = at(object);
  switch (node.kind) {
    case PickleKind::kEmptyArray: fill_array(node, state); return;
    case PickleKind::kArrayType: {
      // (version, byte order, ...)
      const std::vector<PickleId>& parts = arguments_of(state, 2, "a dtype's state");
      if (at(expect(parts[1], PickleKind::kString, "a byte order")).text == ">") {
        throw PickleError("an array is big endian", absl::StatusCode::kUnimplemented);
      }
      return;
    }
    case PickleKind::kDict:
    case PickleKind::kTensor: return;
    default: throw PickleError("a state is given to what has none");
  }
}

c10::IValue PickleValues::to_ivalue(PickleId id) { return convert(id, 0); }

void PickleValues::reach(int depth) {
  if (depth > kMaxDepth) throw PickleError("it is nested too deeply");
  deepest_ = std::max(deepest_, depth);
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
      const std::optional<at::ScalarType> dtype = find_type(kDtypes, node.text);
      if (!dtype) refuse_global(node.text);
      return static_cast<int64_t>(*dtype);
    }
    case PickleKind::kStorage:
    case PickleKind::kArrayType:
    case PickleKind::kEmptyArray:
      throw PickleError("it has a part of a tensor where a value should be");
    case PickleKind::kList:
    case PickleKind::kTuple:
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
  for (PickleId item : node.items) items.push_back(convert(item, depth + 1));
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
