#include "accelerate/files/torch_file.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/core/Storage.h>
#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>
#include <caffe2/serialize/read_adapter_interface.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/status.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/files/pickle_values.h"

namespace accelerate {
namespace internal {
namespace {

// The machine that pickles are programs of: a stack, marks in it, and a memo.
class Machine {
 public:
  Machine(absl::string_view program, const StorageOf& storage)
      : program_(program), values_(storage, program.size()) {}

  c10::IValue run() { return values_.to_ivalue(value()); }
  TorchStateDict run_named() { return values_.named(value()); }

 private:
  PickleId value() {
    while (step(take_byte())) {
    }
    return pop();
  }

  // ---- The program.

  uint8_t take_byte() { return static_cast<uint8_t>(take(1)[0]); }

  absl::string_view take(uint64_t count) {
    if (count > program_.size()) throw PickleError("it ends too early");
    const absl::string_view taken = program_.substr(0, count);
    program_.remove_prefix(count);
    return taken;
  }

  // Little endian.
  uint64_t take_number(size_t bytes) {
    uint64_t number = 0;
    const absl::string_view text = take(bytes);
    for (size_t i = bytes; i-- > 0;) number = number << 8 | static_cast<uint8_t>(text[i]);
    return number;
  }

  int64_t take_signed(uint64_t bytes) {
    if (bytes == 0) return 0;
    const uint64_t unused = 64 - 8 * bytes;
    return static_cast<int64_t>(take_number(bytes) << unused) >> unused;
  }

  double take_double() {
    uint64_t bits = 0;
    for (char byte : take(8)) bits = bits << 8 | static_cast<uint8_t>(byte);
    double number = 0;
    std::memcpy(&number, &bits, sizeof(number));
    return number;
  }

  std::string take_line() {
    const size_t end = program_.find('\n');
    if (end == absl::string_view::npos) throw PickleError("it ends too early");
    std::string line(take(end));
    take(1);
    return line;
  }

  uint64_t take_decimal() {
    uint64_t number = 0;
    if (!absl::SimpleAtoi(take_line(), &number)) throw PickleError("a number is not one");
    return number;
  }

  // ---- The stack.

  void push(PickleNode node) { stack_.push_back(values_.add(std::move(node))); }
  void push_id(PickleId id) { stack_.push_back(id); }
  void push_integer(int64_t value) { push({.kind = PickleKind::kInt, .integer = value}); }
  void push_too_long() { push_id(values_.unreadable("it is an integer of more than 64 bits")); }
  void push_long(uint64_t bytes) {
    if (bytes <= 8) return push_integer(take_signed(bytes));
    take(bytes);
    push_too_long();
  }
  // As protocol 1 writes integers and truth values.
  void push_decimal(std::string line) {
    if (line == "00" || line == "01") {
      return push({.kind = PickleKind::kBool, .integer = line == "01"});
    }
    if (!line.empty() && line.back() == 'L') line.pop_back();
    int64_t number = 0;
    if (absl::SimpleAtoi(line, &number)) return push_integer(number);
    if (line.find_first_not_of("-0123456789") != std::string::npos) {
      throw PickleError("a number is not one");
    }
    push_too_long();
  }
  void push_text(PickleKind kind, size_t length_bytes) {
    push({.kind = kind, .text = std::string(take(take_number(length_bytes)))});
  }

  size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }
  PickleId top() const {
    if (stack_.size() <= bottom()) throw PickleError("stack underflow");
    return stack_.back();
  }
  PickleId pop() {
    const PickleId id = top();
    stack_.pop_back();
    return id;
  }
  std::vector<PickleId> pop_to_mark() {
    if (marks_.empty()) throw PickleError("it goes back to a mark that it has not set");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<PickleId> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }
  void push_items(PickleKind kind, std::vector<PickleId> items) {
    if (kind == PickleKind::kDict && items.size() % 2 != 0) {
      throw PickleError("a key has no value");
    }
    push({.kind = kind, .items = std::move(items)});
  }
  void push_tuple(size_t count) {
    std::vector<PickleId> items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    push_items(PickleKind::kTuple, std::move(items));
  }
  void append(PickleKind kind, const std::vector<PickleId>& items) {
    PickleNode& container = values_.at(top());
    if (container.kind == PickleKind::kUnreadable) return;
    if (container.kind != kind || (kind == PickleKind::kDict && items.size() % 2 != 0)) {
      throw PickleError("it appends to a value that is not a container");
    }
    container.items.insert(container.items.end(), items.begin(), items.end());
  }

  void remember(uint64_t key) { memo_[key] = top(); }
  void recall(uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) throw PickleError("unknown memo key");
    push_id(found->second);
  }

  void push_global(absl::string_view module, absl::string_view name) {
    // Python 2 calls otherwise what Python 3 calls so.
    if (module == "__builtin__") module = "builtins";
    if (module == "copy_reg") module = "copyreg";
    push({.kind = PickleKind::kGlobal, .text = absl::StrCat(module, ".", name)});
  }
  void call() {
    const PickleId arguments = pop();
    const PickleId function = pop();
    push_id(values_.call(function, arguments));
  }

  // ---- The instructions, by their byte. False: that was the last one.

  // Values that later protocols have in binary alone, and torch.load does not read either.
  static bool is_of_protocol_0(uint8_t code) {
    return absl::StrContains("FPSVi", static_cast<char>(code));
  }

  bool step(uint8_t code) {
    switch (code) {
      case 0x80: take(1); return true;  // PROTO
      case 0x95: take(8); return true;  // FRAME
      case '.': return false;
      case '(': marks_.push_back(stack_.size()); return true;
      case '0': pop(); return true;
      case '1': pop_to_mark(); return true;
      case '2': push_id(top()); return true;
      default:
        if (step_scalar(code) || step_container(code) || step_object(code)) return true;
        throw PickleError(absl::StrFormat("it has the unknown instruction 0x%02x%s", code,
                                          is_of_protocol_0(code)
                                              ? ", one of protocol 0, which is text: save it with "
                                                "pickle_protocol=2 or above"
                                              : ""),
                          absl::StatusCode::kUnimplemented);
    }
  }

  // The functions below return false for an instruction of another kind.
  bool step_scalar(uint8_t code) {
    switch (code) {
      case 'N': push({}); return true;
      case 0x88:  // NEWTRUE
      case 0x89:  // NEWFALSE
        push({.kind = PickleKind::kBool, .integer = code == 0x88});
        return true;
      case 'J': push_integer(take_signed(4)); return true;
      case 'K': push_integer(static_cast<int64_t>(take_number(1))); return true;
      case 'M': push_integer(static_cast<int64_t>(take_number(2))); return true;
      case 0x8a: push_long(take_number(1)); return true;  // LONG1
      case 0x8b: push_long(take_number(4)); return true;  // LONG4
      case 'I':
      case 'L': push_decimal(take_line()); return true;
      case 'G': push({.kind = PickleKind::kFloat, .number = take_double()}); return true;
      case 0x8c:  // SHORT_BINUNICODE
      case 'U': push_text(PickleKind::kString, 1); return true;
      case 'X':
      case 'T': push_text(PickleKind::kString, 4); return true;
      case 0x8d: push_text(PickleKind::kString, 8); return true;  // BINUNICODE8
      case 'C': push_text(PickleKind::kBytes, 1); return true;
      case 'B': push_text(PickleKind::kBytes, 4); return true;
      case 0x8e:                                                 // BINBYTES8
      case 0x96: push_text(PickleKind::kBytes, 8); return true;  // BYTEARRAY8
      default: return false;
    }
  }

  bool step_container(uint8_t code) {
    switch (code) {
      case ']':
      case 0x8f: push_items(PickleKind::kList, {}); return true;  // EMPTY_SET
      case ')': push_items(PickleKind::kTuple, {}); return true;
      case '}': push_items(PickleKind::kDict, {}); return true;
      case 'l':
      case 0x91: push_items(PickleKind::kList, pop_to_mark()); return true;  // FROZENSET
      case 't': push_items(PickleKind::kTuple, pop_to_mark()); return true;
      case 'd': push_items(PickleKind::kDict, pop_to_mark()); return true;
      case 0x85:  // TUPLE1
      case 0x86:
      case 0x87: push_tuple(code - 0x84); return true;
      case 'a': append(PickleKind::kList, {pop()}); return true;
      case 'e':
      case 0x90: append(PickleKind::kList, pop_to_mark()); return true;  // ADDITEMS
      case 's': {
        const PickleId value = pop();
        const PickleId key = pop();
        append(PickleKind::kDict, {key, value});
        return true;
      }
      case 'u': append(PickleKind::kDict, pop_to_mark()); return true;
      default: return false;
    }
  }

  bool step_object(uint8_t code) {
    switch (code) {
      case 'q': remember(take_number(1)); return true;
      case 'r': remember(take_number(4)); return true;
      case 0x94: remember(memo_.size()); return true;  // MEMOIZE
      case 'p': remember(take_decimal()); return true;
      case 'g': recall(take_decimal()); return true;
      case 'h': recall(take_number(1)); return true;
      case 'j': recall(take_number(4)); return true;
      case 'c': {
        const std::string module = take_line();
        push_global(module, take_line());
        return true;
      }
      case 0x93: {  // STACK_GLOBAL
        const PickleNode& name = values_.at(pop());
        const PickleNode& module = values_.at(pop());
        if (name.kind != PickleKind::kString || module.kind != PickleKind::kString) {
          throw PickleError("a global has no name");
        }
        push_global(module.text, name.text);
        return true;
      }
      case 'R':
      case 0x81: call(); return true;  // NEWOBJ
      case 0x92:                       // NEWOBJ_EX, with arguments by name
        pop();
        call();
        return true;
      case 'b': {
        const PickleId state = pop();
        values_.build(top(), state);
        return true;
      }
      case 'Q': push_id(values_.persistent(pop())); return true;
      default: return false;
    }
  }

  absl::string_view program_;
  PickleValues values_;
  std::vector<PickleId> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, PickleId> memo_;
};

template <typename Result>
absl::StatusOr<Result> run_pickle(absl::string_view pickle, const StorageOf& storage,
                                  Result (Machine::*run)()) {
  try {
    Machine machine(pickle, storage);
    return (machine.*run)();
  } catch (const PickleError& error) {
    return absl::Status(error.code, error.what());
  } catch (const c10::Error& error) {
    return absl::DataLossError(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return absl::DataLossError(error.what());
  }
}

}  // namespace

absl::StatusOr<c10::IValue> read_pickle(absl::string_view pickle, const StorageOf& storage) {
  return run_pickle(pickle, storage, &Machine::run);
}

absl::StatusOr<TorchStateDict> read_named_pickle(absl::string_view pickle,
                                                 const StorageOf& storage) {
  return run_pickle(pickle, storage, &Machine::run_named);
}

}  // namespace internal

namespace {

// Enough to know a format by.
constexpr int64_t kStartBytes = 32;

// Our files for LibTorch's reader of zips. An error passes through C code, so it is kept here.
class FileAdapter final : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit FileAdapter(std::unique_ptr<ReadableFile> file) : file_(std::move(file)) {}

  size_t size() const override { return static_cast<size_t>(file_->size()); }
  size_t read(uint64_t offset, void* buffer, size_t count, const char* /*what*/) const override {
    if (offset > size() || count > size() - offset) return 0;
    const absl::Status read = file_->read_at(
        static_cast<int64_t>(offset), absl::MakeSpan(static_cast<std::byte*>(buffer), count));
    if (read.ok()) return count;
    status_.Update(read);
    return 0;
  }
  const absl::Status& status() const { return status_; }

 private:
  const std::unique_ptr<ReadableFile> file_;
  mutable absl::Status status_;
};

class TorchZip {
 public:
  explicit TorchZip(std::shared_ptr<FileAdapter> bytes)
      : bytes_(std::move(bytes)), unread_(bytes_->size()), zip_(bytes_) {}

  absl::StatusOr<c10::Storage> read(const std::string& record) {
    if (!zip_.hasRecord(record)) return absl::DataLossError(absl::StrCat("it has no ", record));
    // Nothing is compressed in these files, no two records have bytes in common, and none is read
    // twice.
    const size_t size_in_file = zip_.getRecordSize(record);
    if (size_in_file > unread_) {
      return absl::DataLossError(absl::StrCat(
          record, size_in_file > bytes_->size() ? " is" : " and the records before it are",
          " larger than the file"));
    }
    unread_ -= size_in_file;
    auto [data, size] = zip_.getRecord(record);
    return c10::Storage(c10::Storage::use_byte_size_t(), size, std::move(data),
                        /*allocator=*/nullptr, /*resizable=*/false);
  }

  absl::StatusOr<std::string> read_text(const std::string& record) {
    ACCELERATE_ASSIGN_OR_RETURN(const c10::Storage storage, read(record));
    return std::string(static_cast<const char*>(storage.data()), storage.nbytes());
  }

  // What a zip without a pickle is said to be, of torch.export for instance; "" with one.
  std::string contents_without_pickle() {
    constexpr size_t kShown = 5;
    if (zip_.hasRecord("data.pkl")) return "";
    std::vector<std::string> records = zip_.getAllRecords();
    const bool has_more = records.size() > kShown;
    if (has_more) records.resize(kShown);
    return absl::StrCat("it has no data.pkl, so that torch.save has not written it; it holds ",
                        absl::StrJoin(records, ", "), has_more ? ", ..." : "");
  }

  bool is_big_endian() {
    if (!zip_.hasRecord("byteorder")) return false;
    const absl::StatusOr<std::string> order = read_text("byteorder");
    return order.ok() && *order == "big";
  }

 private:
  const std::shared_ptr<FileAdapter> bytes_;
  size_t unread_;
  caffe2::serialize::PyTorchStreamReader zip_;
};

// A pickle of the number 0x1950a86a20f9469cfc6c; protocol 1 writes the number as text.
bool is_old_format(absl::string_view start) {
  if (absl::StartsWith(start, "L119547037146038801333356L\n")) return true;
  return absl::StartsWith(start, "\x80") &&
         absl::StrContains(start, "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19");
}

// read_pickle or read_named_pickle.
template <typename Result>
using ReadPickle = absl::StatusOr<Result> (*)(absl::string_view, const internal::StorageOf&);

template <typename Result>
absl::StatusOr<Result> read_value(const std::shared_ptr<FileAdapter>& bytes,
                                  ReadPickle<Result> read) {
  TorchZip zip(bytes);
  if (const std::string other = zip.contents_without_pickle(); !other.empty()) {
    return absl::DataLossError(other);
  }
  if (zip.is_big_endian()) return absl::UnimplementedError("it was written in big endian");
  ACCELERATE_ASSIGN_OR_RETURN(const std::string pickle, zip.read_text("data.pkl"));
  return read(pickle,
              [&zip](const std::string& key) { return zip.read(absl::StrCat("data/", key)); });
}

template <typename Result>
absl::StatusOr<Result> read_file_value(FileSystem& files, const std::string& path,
                                       ReadPickle<Result> read) {
  ACCELERATE_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, files.open(path));
  const std::string start = read_start(*file, kStartBytes).value_or("");
  const auto bytes = std::make_shared<FileAdapter>(std::move(file));
  if (is_old_format(start)) {
    return absl::UnimplementedError(absl::StrCat(
        path,
        ": it is in the old format of torch.save, that of versions before 1.6 or of "
        "_use_new_zipfile_serialization=False, which cannot be read: load it with a newer torch, "
        "and save it again, or save it as safetensors"));
  }
  absl::StatusOr<Result> value = absl::UnknownError("");
  try {
    value = read_value(bytes, read);
  } catch (const c10::Error& error) {
    value = absl::DataLossError(absl::StrCat("it is not a zip file that torch.save wrote: ",
                                             error.what_without_backtrace()));
  } catch (const std::exception& error) {
    value = absl::DataLossError(error.what());
  }
  // The cause before its effects.
  if (!bytes->status().ok()) return bytes->status();
  return in_file(path, std::move(value));
}

}  // namespace

c10::IValue read_torch_file(FileSystem& files, const std::string& path) {
  return internal::value_or_throw(read_file_value(files, path, &internal::read_pickle));
}

TorchStateDict read_torch_state_dict(FileSystem& files, const std::string& path) {
  return internal::value_or_throw(read_file_value(files, path, &internal::read_named_pickle));
}

bool is_torch_file(FileSystem& files, const std::string& path) {
  const absl::StatusOr<std::unique_ptr<ReadableFile>> file = files.open(path);
  if (!file.ok()) return false;
  const std::string start = read_start(**file, kStartBytes).value_or("");
  return absl::StartsWith(start, "PK\x03\x04") || is_old_format(start);
}

}  // namespace accelerate
