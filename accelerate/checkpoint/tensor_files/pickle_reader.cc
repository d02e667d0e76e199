#include "accelerate/checkpoint/tensor_files/pickle_reader.h"

#include <cstdint>
#include <cstring>
#include <exception>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "accelerate/checkpoint/tensor_files/pickle_values.h"

namespace accelerate::internal {
namespace {

// Python 2's names of what Python 3 calls otherwise.
std::string present_name(const std::string& module, const std::string& name) {
  return absl::StrCat(module == "__builtin__" ? "builtins" : module, ".", name);
}

// The machine that pickles are programs of: a stack, marks in it, and a memo.
class Machine {
 public:
  Machine(absl::string_view program, const StorageOf& storage)
      : program_(program), values_(storage, program.size()) {}

  c10::IValue run() {
    while (step(take_byte())) {
    }
    return values_.to_ivalue(pop());
  }

 private:
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
    if (bytes > 8) {
      throw PickleError("it has an integer of more than 64 bits", absl::StatusCode::kUnimplemented);
    }
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

  // ---- The stack.

  void push(PickleNode node) { stack_.push_back(values_.add(std::move(node))); }
  void push_id(PickleId id) { stack_.push_back(id); }
  void push_text(PickleKind kind, size_t length_bytes) {
    push({.kind = kind, .text = std::string(take(take_number(length_bytes)))});
  }

  size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }
  PickleId top() const {
    if (stack_.size() <= bottom()) throw PickleError("it takes what it has not put");
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
    if (container.kind != kind || (kind == PickleKind::kDict && items.size() % 2 != 0)) {
      throw PickleError("it appends to a value that is not a container");
    }
    container.items.insert(container.items.end(), items.begin(), items.end());
  }

  void remember(uint64_t key) { memo_[key] = top(); }
  void recall(uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) throw PickleError("it recalls what it did not remember");
    push_id(found->second);
  }

  void push_global(const std::string& module, const std::string& name) {
    push({.kind = PickleKind::kGlobal, .text = present_name(module, name)});
  }
  void call() {
    const PickleId arguments = pop();
    const PickleId function = pop();
    push_id(values_.call(function, arguments));
  }

  // ---- The instructions, by their byte. False: that was the last one.

  bool step(uint8_t code) {
    switch (code) {
      case 0x80:  // PROTO
        take(1);
        return true;
      case 0x95:  // FRAME
        take(8);
        return true;
      case '.': return false;
      case '(': marks_.push_back(stack_.size()); return true;
      case '0': pop(); return true;
      case '1': pop_to_mark(); return true;
      case '2': push_id(top()); return true;
      default:
        if (!step_scalar(code) && !step_container(code) && !step_object(code)) {
          throw PickleError(absl::StrFormat("it has the unknown instruction 0x%02x", code),
                            absl::StatusCode::kUnimplemented);
        }
        return true;
    }
  }

  bool step_scalar(uint8_t code) {
    switch (code) {
      case 'N': push({}); return true;
      case 0x88:  // NEWTRUE
      case 0x89:  // NEWFALSE
        push({.kind = PickleKind::kBool, .integer = code == 0x88});
        return true;
      case 'J': push({.kind = PickleKind::kInt, .integer = take_signed(4)}); return true;
      case 'K':
      case 'M':
        push({.kind = PickleKind::kInt,
              .integer = static_cast<int64_t>(take_number(code == 'K' ? 1 : 2))});
        return true;
      case 0x8a:  // LONG1
      case 0x8b:  // LONG4
        push({.kind = PickleKind::kInt, .integer = take_signed(take_number(code == 0x8a ? 1 : 4))});
        return true;
      case 'G': push({.kind = PickleKind::kFloat, .number = take_double()}); return true;
      case 0x8c:  // SHORT_BINUNICODE
      case 'U': push_text(PickleKind::kString, 1); return true;
      case 'X':
      case 'T': push_text(PickleKind::kString, 4); return true;
      case 0x8d:  // BINUNICODE8
        push_text(PickleKind::kString, 8);
        return true;
      case 'C': push_text(PickleKind::kBytes, 1); return true;
      case 'B': push_text(PickleKind::kBytes, 4); return true;
      case 0x8e:  // BINBYTES8
      case 0x96:  // BYTEARRAY8
        push_text(PickleKind::kBytes, 8);
        return true;
      default: return false;
    }
  }

  bool step_container(uint8_t code) {
    switch (code) {
      case ']':
      case 0x8f:  // EMPTY_SET
        push_items(PickleKind::kList, {});
        return true;
      case ')': push_items(PickleKind::kTuple, {}); return true;
      case '}': push_items(PickleKind::kDict, {}); return true;
      case 'l':
      case 0x91:  // FROZENSET
        push_items(PickleKind::kList, pop_to_mark());
        return true;
      case 't': push_items(PickleKind::kTuple, pop_to_mark()); return true;
      case 'd': push_items(PickleKind::kDict, pop_to_mark()); return true;
      case 0x85:  // TUPLE1
      case 0x86:
      case 0x87: push_tuple(code - 0x84); return true;
      case 'a': append(PickleKind::kList, {pop()}); return true;
      case 'e':
      case 0x90:  // ADDITEMS
        append(PickleKind::kList, pop_to_mark());
        return true;
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
      case 0x94:  // MEMOIZE
        remember(memo_.size());
        return true;
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
      case 0x81:  // NEWOBJ
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

}  // namespace

absl::StatusOr<c10::IValue> read_pickle(absl::string_view pickle, const StorageOf& storage) {
  try {
    return Machine(pickle, storage).run();
  } catch (const PickleError& error) {
    return absl::Status(error.code, error.what());
  } catch (const c10::Error& error) {
    return absl::DataLossError(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return absl::DataLossError(error.what());
  }
}

}  // namespace accelerate::internal
