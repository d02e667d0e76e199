#include "accelerate/comm/watch/call_table.h"

#include <string_view>
#include <type_traits>
#include <utility>

namespace accelerate {
namespace {

// Seven bits to a byte, the lowest first.
void put_word(std::string& bytes, uint64_t word) {
  for (; word >= 0x80; word >>= 7) bytes.push_back(static_cast<char>((word & 0x7f) | 0x80));
  bytes.push_back(static_cast<char>(word));
}

uint64_t take_word(std::string_view& bytes) {
  uint64_t word = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    word |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return word;
  }
}

template <typename T>
constexpr bool kIsNumber = std::is_integral_v<T> || std::is_enum_v<T>;

// A number has its sign in the lowest bit, so that -1 is short as well; a list, and a text, has its
// length first.
template <typename T>
void put_field(std::string& bytes, const T& field) {
  if constexpr (kIsNumber<T>) {
    const auto number = static_cast<int64_t>(field);
    put_word(bytes, (static_cast<uint64_t>(number) << 1) ^ static_cast<uint64_t>(number >> 63));
  } else if constexpr (std::is_same_v<T, std::string>) {
    put_word(bytes, field.size());
    bytes.append(field);
  } else {
    put_word(bytes, field.size());
    for (const auto& each : field) put_field(bytes, each);
  }
}

template <typename T>
void take_field(std::string_view& bytes, T& field) {
  const uint64_t word = take_word(bytes);
  if constexpr (kIsNumber<T>) {
    field = static_cast<T>(static_cast<int64_t>((word >> 1) ^ (uint64_t{0} - (word & 1))));
  } else if constexpr (std::is_same_v<T, std::string>) {
    field.assign(bytes.data(), word);
    bytes.remove_prefix(word);
  } else {
    for (uint64_t i = 0; i < word; ++i) {
      typename T::value_type each{};
      take_field(bytes, each);
      field.push_back(each);
    }
  }
}

}  // namespace

CallTable::Index CallTable::add(CollectiveFingerprint& call) {
  const uint64_t sequence = std::exchange(call.sequence, 0);
  added_.clear();
  visit_fields(call, [this](const char*, const auto& field) { put_field(added_, field); });
  call.sequence = sequence;
  if (const auto found = by_bytes_.find(added_); found != by_bytes_.end()) {
    ++rows_[found->second].uses;
    return found->second;
  }
  if (unused_.empty()) {
    unused_.push_back(static_cast<Index>(rows_.size()));
    rows_.emplace_back();
  }
  const Index index = unused_.back();
  unused_.pop_back();
  rows_[index] = {.bytes = added_, .uses = 1};
  by_bytes_.emplace(absl::string_view(rows_[index].bytes), index);
  return index;
}

void CallTable::release(Index index) {
  Row& row = rows_[index];
  if (--row.uses > 0) return;
  by_bytes_.erase(row.bytes);
  unused_.push_back(index);
}

CollectiveFingerprint CallTable::operator[](Index index) const {
  CollectiveFingerprint call;
  std::string_view bytes = rows_[index].bytes;
  visit_fields(call, [&bytes](const char*, auto& field) { take_field(bytes, field); });
  return call;
}

}  // namespace accelerate
