#include "trackers/testing/wandb_log_reader.h"

#include <algorithm>
#include <stdexcept>

#include "absl/strings/str_cat.h"

namespace accelerate::trackers {
namespace {

constexpr size_t kBlock = 32768;

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    value |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  }
  return value;
}

// Bit by bit, with the reversed polynomial of IEEE 802.3.
uint32_t checksum(std::string_view bytes) {
  uint32_t rest = 0xffffffff;
  for (const char c : bytes) {
    rest ^= static_cast<uint8_t>(c);
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? 0xedb88320 : 0);
  }
  return ~rest;
}

uint64_t varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (bytes.empty()) break;
    const auto byte = static_cast<uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    value |= uint64_t{byte & 0x7fu} << shift;
    if ((byte & 0x80) == 0) return value;
  }
  throw std::runtime_error("a number of a message is cut short");
}

std::string path_of(const WireMessage& item) {
  if (item.contains(1)) return only(item, 1).bytes;
  std::string path;
  const auto [first, last] = item.equal_range(2);
  for (auto name = first; name != last; ++name) {
    absl::StrAppend(&path, path.empty() ? "" : ".", name->second.bytes);
  }
  return path;
}

void read_items(const WireMessage& message, WireItems& items) {
  const auto [first, last] = message.equal_range(1);
  for (auto field = first; field != last; ++field) {
    const WireMessage item = parse_message(field->second.bytes);
    items[path_of(item)] = only(item, 16).bytes;
  }
}

}  // namespace

std::vector<std::string> read_log(std::string_view bytes) {
  // 0xbee1, and version 0.
  if (bytes.substr(0, 7) != std::string_view(":W&B\xe1\xbe\0", 7)) {
    throw std::runtime_error("this is not a transaction log of W&B");
  }
  std::vector<std::string> records;
  std::string record;
  bool is_inside = false;
  size_t at = 7;
  while (true) {
    if (kBlock - at % kBlock < 7) {
      const size_t padding = kBlock - at % kBlock;
      if (bytes.size() < at + padding) return records;
      const std::string_view zeros = bytes.substr(at, padding);
      if (zeros.find_first_not_of('\0') != zeros.npos) return records;
      at += padding;
    }
    if (bytes.size() < at + 7) return records;
    const uint64_t length = little_endian(bytes.substr(at + 4, 2));
    const int type = bytes[at + 6];
    if (bytes.size() < at + 7 + length || length > kBlock - at % kBlock - 7) return records;
    // The type and the bytes after it lie side by side.
    if (little_endian(bytes.substr(at, 4)) != checksum(bytes.substr(at + 6, 1 + length))) {
      return records;
    }
    const bool begins = type == 1 || type == 2;
    if (begins == is_inside || type < 1 || type > 4) return records;
    if (begins) record.clear();
    record.append(bytes.substr(at + 7, length));
    is_inside = type == 2 || type == 3;
    if (!is_inside) records.push_back(record);
    at += 7 + length;
  }
}

WireMessage parse_message(std::string_view bytes) {
  WireMessage message;
  while (!bytes.empty()) {
    const uint64_t key = varint(bytes);
    WireField field;
    size_t length = 0;
    switch (key & 7) {
      case 0: field.number = varint(bytes); break;
      case 1: length = 8; break;
      case 2: length = varint(bytes); break;
      case 5: length = 4; break;
      default: throw std::runtime_error("a field of a message is of no known kind");
    }
    if (bytes.size() < length) throw std::runtime_error("a field of a message is cut short");
    field.bytes = std::string(bytes.substr(0, length));
    bytes.remove_prefix(length);
    message.emplace(static_cast<int>(key >> 3), std::move(field));
  }
  return message;
}

const WireField& only(const WireMessage& message, int field) {
  if (message.count(field) != 1) {
    throw std::runtime_error(absl::StrCat(message.count(field), " fields are numbered ", field));
  }
  return message.find(field)->second;
}

WireRun read_run(std::string_view bytes) {
  WireRun run;
  for (const std::string& record : read_log(bytes)) {
    const WireMessage message = parse_message(record);
    if (only(message, 1).number != run.kinds.size() + 1) {
      throw std::runtime_error("the records are not numbered one after the other");
    }
    for (const auto& [kind, field] : message) {
      if (kind == 1 || kind == 19) continue;
      run.kinds.push_back(kind);
      const WireMessage body = parse_message(field.bytes);
      if (kind == 2) {
        const WireMessage step = parse_message(only(body, 2).bytes);
        WireHistory& history = run.history.emplace_back();
        if (step.contains(1)) history.step = static_cast<int64_t>(only(step, 1).number);
        read_items(body, history.items);
      } else if (kind == 3) {
        read_items(body, run.summary);
      } else if (kind == 5) {
        read_items(body, run.config);
      } else if (kind == 6) {
        run.files.push_back(only(parse_message(only(body, 1).bytes), 1).bytes);
      } else if (kind == 17) {
        run.run = body;
      } else if (kind == 18) {
        run.has_exit = true;
      }
    }
  }
  return run;
}

}  // namespace accelerate::trackers
