/// The values that a pickle's instructions work on (see read_pickle), and the meaning of the
/// globals that may be called.
///
/// Values live in one arena and refer to each other by position: nothing is recursive until the
/// whole is turned into a c10::IValue, with a limit.
///
/// Errors:  PickleError; read_pickle makes a status of it.
/// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "absl/status/status.h"
#include "accelerate/files/torch_state_dict.h"

namespace accelerate::internal {

struct PickleError : std::runtime_error {
  explicit PickleError(const std::string& text, absl::StatusCode what = absl::StatusCode::kDataLoss)
      : std::runtime_error(text), code(what) {}
  absl::StatusCode code;
};

enum class PickleKind {
  kNone,
  kBool,
  kInt,
  kFloat,
  kComplex,
  kString,
  kBytes,
  kList,
  kTuple,
  kDict,
  kTensor,
  kDevice,
  kGlobal,      ///< by name, as "module.name"
  kStorage,     ///< by key
  kArrayType,   ///< a NumPy dtype, as "f4"
  kEmptyArray,  ///< a NumPy array before its contents
  kObject,      ///< a module of torch::save or TorchScript: its class, and attributes as of a dict
  kUnreadable,  ///< anything else: why it is not read
};

using PickleId = size_t;

struct PickleNode {
  PickleKind kind = PickleKind::kNone;
  /// Truth values too; of a storage, its dtype; of what is unreadable, whether it is a tensor.
  int64_t integer = 0;
  double number = 0;
  double imaginary = 0;
  /// Strings, bytes, devices, names, keys, reasons.
  std::string text;
  /// Entries; of dicts keys and values in turn.
  std::vector<PickleId> items;
  at::Tensor tensor;
};

class PickleValues {
 public:
  /// `pickle_bytes`: its length, which limits what may be made of it.
  PickleValues(const StorageOf& storage, size_t pickle_bytes)
      : storage_(storage), budget_(64 * pickle_bytes + (size_t{1} << 20)) {}

  PickleId add(PickleNode node);
  /// A value that is not read, for this reason.
  PickleId unreadable(std::string why, bool is_tensor = false);
  PickleNode& at(PickleId id) { return nodes_[id]; }

  /// Calls a global with a tuple.
  PickleId call(PickleId function, PickleId arguments);
  /// Gives an object its state; attributes of dicts, tensors and the like are left out.
  void build(PickleId object, PickleId state);
  /// The value that a persistent id stands for.
  PickleId persistent(PickleId id);

  c10::IValue to_ivalue(PickleId id);
  /// As read_named_pickle.
  TorchStateDict named(PickleId id);

 private:
  // Charges for a value that is made of one stored earlier. A few bytes recall anything, so each
  // use has its price: copies could otherwise be copied again and again.
  void spend(size_t bytes);
  PickleId expect(PickleId id, PickleKind kind, const char* what);
  const std::vector<PickleId>& arguments_of(PickleId tuple, size_t at_least, const char* what);
  std::vector<int64_t> integers(PickleId id, const char* what);
  c10::Storage storage(const std::string& key);

  PickleId unreadable_global(const std::string& name);
  PickleId call_known(const std::string& name, const std::vector<PickleId>& arguments);
  PickleId call_container(const std::string& name, const std::vector<PickleId>& arguments);
  PickleId call_numpy(const std::string& name, const std::vector<PickleId>& arguments);
  PickleId rebuild_tensor(const std::vector<PickleId>& arguments, bool has_dtype);
  PickleId call_codecs(const std::vector<PickleId>& arguments);
  // Sets the flags of conjugate and negative views.
  void set_flags(const at::Tensor& tensor, PickleId metadata);
  // A NumPy array, of memory in this order.
  PickleNode array_of(PickleId type, PickleId shape, bool in_columns, PickleId bytes);
  // The entries of a dict or an object, each key once.
  std::vector<std::pair<PickleId, PickleId>> entries_of(PickleId id);
  void name_entries(PickleId id, const std::string& prefix, int depth, TorchStateDict& named);
  void reach(int depth);
  [[noreturn]] void refuse(const std::string& why);
  c10::IValue convert(PickleId id, int depth);
  c10::IValue convert_container(PickleId id, int depth);

  const StorageOf& storage_;
  size_t budget_;
  std::deque<PickleNode> nodes_;
  std::map<std::string, c10::Storage> storages_;
  // Containers. Walking through the result visits a shared container, with all that is in it, once
  // for each place where it is.
  struct Converted {
    c10::IValue value;
    size_t price = 0;
    int height = 0;
  };
  std::map<PickleId, Converted> converted_;
  std::map<PickleId, bool> converting_;
  int deepest_ = 0;             // of what has been converted of a container
  std::vector<PickleId> keys_;  // of the dicts around what is converted
};

}  // namespace accelerate::internal
