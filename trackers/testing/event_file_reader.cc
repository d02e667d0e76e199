#include "trackers/testing/event_file_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <stdexcept>

#include "accelerate/base/status.h"

namespace accelerate::trackers {
namespace {

// CRC-32C, a bit at a time for each byte's part.
uint32_t crc32c(std::string_view bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> parts{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t part = i;
      for (int bit = 0; bit < 8; ++bit) part = (part >> 1) ^ ((part & 1) != 0 ? 0x82F63B78U : 0U);
      parts[i] = part;
    }
    return parts;
  }();
  uint32_t crc = ~0U;
  for (const char c : bytes) crc = (crc >> 8) ^ table[(crc ^ static_cast<uint8_t>(c)) & 0xFF];
  return ~crc;
}

uint64_t little_endian(std::string_view bytes) {
  uint64_t number = 0;
  for (size_t i = bytes.size(); i > 0; --i) {
    number = (number << 8) | static_cast<uint8_t>(bytes[i - 1]);
  }
  return number;
}

bool checks(std::string_view bytes, std::string_view checksum) {
  const auto turned = static_cast<uint32_t>(little_endian(checksum)) - 0xA282EAD8U;
  return ((turned >> 17) | (turned << 15)) == crc32c(bytes);
}

// Takes what is in front of `bytes`.
uint64_t take_varint(std::string_view* bytes) {
  uint64_t number = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (bytes->empty()) throw std::runtime_error("a number of a protocol buffer is cut off");
    const auto byte = static_cast<uint8_t>(bytes->front());
    bytes->remove_prefix(1);
    number |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if ((byte & 0x80) == 0) return number;
  }
  throw std::runtime_error("a number of a protocol buffer has no end");
}

std::string_view take(std::string_view* bytes, uint64_t count) {
  if (count > bytes->size()) throw std::runtime_error("a protocol buffer is cut off");
  const std::string_view taken = bytes->substr(0, count);
  bytes->remove_prefix(count);
  return taken;
}

double as_double(uint64_t bits) { return std::bit_cast<double>(bits); }
double as_float(uint64_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits)); }

// A repeated field of doubles is one run of bytes, or comes once for each.
void append_doubles(const ProtoField& field, std::vector<double>* out) {
  if (field.bytes.empty()) {
    out->push_back(as_double(field.bits));
    return;
  }
  for (size_t i = 0; i + 8 <= field.bytes.size(); i += 8) {
    out->push_back(as_double(little_endian(field.bytes.substr(i, 8))));
  }
}

void parse_tensor(std::string_view bytes, EventValue* value) {
  for (const ProtoField& field : parse_proto(bytes)) {
    if (field.number == 5) {
      value->scalar = as_float(field.bytes.empty() ? field.bits : little_endian(field.bytes));
    } else if (field.number == 6) {
      value->scalar = as_double(field.bytes.empty() ? field.bits : little_endian(field.bytes));
    } else if (field.number == 8) {
      value->text = field.bytes;
    }
  }
}

EventValue::Image parse_image(std::string_view bytes) {
  EventValue::Image image;
  for (const ProtoField& field : parse_proto(bytes)) {
    switch (field.number) {
      case 1: image.height = static_cast<int64_t>(field.bits); break;
      case 2: image.width = static_cast<int64_t>(field.bits); break;
      case 3: image.colorspace = static_cast<int64_t>(field.bits); break;
      case 4: image.png = field.bytes; break;
      default: break;
    }
  }
  return image;
}

EventValue::Histogram parse_histogram(std::string_view bytes) {
  EventValue::Histogram histogram;
  for (const ProtoField& field : parse_proto(bytes)) {
    switch (field.number) {
      case 1: histogram.min = as_double(field.bits); break;
      case 2: histogram.max = as_double(field.bits); break;
      case 3: histogram.num = as_double(field.bits); break;
      case 4: histogram.sum = as_double(field.bits); break;
      case 5: histogram.sum_squares = as_double(field.bits); break;
      case 6: append_doubles(field, &histogram.limits); break;
      case 7: append_doubles(field, &histogram.counts); break;
      default: break;
    }
  }
  return histogram;
}

void parse_metadata(std::string_view bytes, EventValue* value) {
  for (const ProtoField& field : parse_proto(bytes)) {
    if (field.number != 1) continue;
    for (const ProtoField& plugin : parse_proto(field.bytes)) {
      if (plugin.number == 1) value->plugin = plugin.bytes;
      if (plugin.number == 2) value->plugin_content = plugin.bytes;
    }
  }
}

EventValue parse_value(std::string_view bytes) {
  EventValue value;
  for (const ProtoField& field : parse_proto(bytes)) {
    switch (field.number) {
      case 1: value.tag = field.bytes; break;
      case 2: value.scalar = as_float(field.bits); break;
      case 4: value.image = parse_image(field.bytes); break;
      case 5: value.histogram = parse_histogram(field.bytes); break;
      case 8: parse_tensor(field.bytes, &value); break;
      case 9: parse_metadata(field.bytes, &value); break;
      default: break;
    }
  }
  return value;
}

EventRecord parse_event(std::string_view bytes) {
  EventRecord event;
  for (const ProtoField& field : parse_proto(bytes)) {
    switch (field.number) {
      case 1: event.wall_time = as_double(field.bits); break;
      case 2: event.step = static_cast<int64_t>(field.bits); break;
      case 3: event.file_version = field.bytes; break;
      case 5:
        for (const ProtoField& value : parse_proto(field.bytes)) {
          if (value.number == 1) event.values.push_back(parse_value(value.bytes));
        }
        break;
      case 7:
        for (const ProtoField& status : parse_proto(field.bytes)) {
          if (status.number == 1) event.session_status = static_cast<int64_t>(status.bits);
        }
        break;
      default: break;
    }
  }
  return event;
}

}  // namespace

std::vector<ProtoField> parse_proto(std::string_view bytes) {
  std::vector<ProtoField> fields;
  while (!bytes.empty()) {
    const uint64_t key = take_varint(&bytes);
    ProtoField field{.number = static_cast<int>(key >> 3)};
    switch (key & 7) {
      case 0: field.bits = take_varint(&bytes); break;
      case 1: field.bits = little_endian(take(&bytes, 8)); break;
      case 2: field.bytes = take(&bytes, take_varint(&bytes)); break;
      case 5: field.bits = little_endian(take(&bytes, 4)); break;
      default: throw std::runtime_error("a protocol buffer has a field of an unknown kind");
    }
    fields.push_back(field);
  }
  return fields;
}

EventFileContents parse_event_file(std::string_view bytes) {
  EventFileContents contents;
  std::string_view rest = bytes;
  while (!rest.empty()) {
    if (rest.size() < 12) {
      contents.damage = "a record's head is cut off";
    } else if (!checks(rest.substr(0, 8), rest.substr(8, 4))) {
      contents.damage = "the checksum of a length is wrong";
    } else if (const uint64_t length = little_endian(rest.substr(0, 8));
               rest.size() < 16 || rest.size() - 16 < length) {
      contents.damage = "a record is cut off";
    } else if (!checks(rest.substr(12, length), rest.substr(12 + length, 4))) {
      contents.damage = "the checksum of an event is wrong";
    } else {
      contents.events.push_back(parse_event(rest.substr(12, length)));
      rest.remove_prefix(length + 16);
      contents.whole_bytes = bytes.size() - rest.size();
      continue;
    }
    break;
  }
  return contents;
}

std::vector<std::string> event_file_names(FileSystem& files, const std::string& folder) {
  std::vector<std::string> names;
  for (const std::string& name : value_or_throw(files.list(folder))) {
    if (name.find("tfevents") != name.npos) names.push_back(name);
  }
  return names;
}

std::vector<EventRecord> read_events(FileSystem& files, const std::string& folder) {
  std::vector<EventRecord> events;
  for (const std::string& name : event_file_names(files, folder)) {
    const std::string bytes = value_or_throw(read_file(files, join_path(folder, name)));
    for (EventRecord& event : parse_event_file(bytes).events) {
      if (event.session_status == 1) {
        std::erase_if(events, [&](const EventRecord& earlier) {
          return !earlier.values.empty() && earlier.step >= event.step;
        });
      }
      events.push_back(std::move(event));
    }
  }
  return events;
}

std::map<std::string, std::vector<std::pair<int64_t, double>>> read_scalars(
    FileSystem& files, const std::string& folder) {
  std::map<std::string, std::vector<std::pair<int64_t, double>>> curves;
  for (const EventRecord& event : read_events(files, folder)) {
    for (const EventValue& value : event.values) {
      if (value.scalar) curves[value.tag].emplace_back(event.step, *value.scalar);
    }
  }
  return curves;
}

std::map<std::string, TrackerValue> parse_hparams(std::string_view plugin_content) {
  std::map<std::string, TrackerValue> hparams;
  for (const ProtoField& data : parse_proto(plugin_content)) {
    if (data.number != 3) continue;
    for (const ProtoField& entry : parse_proto(data.bytes)) {
      if (entry.number != 1) continue;
      std::string name;
      TrackerValue value;
      for (const ProtoField& part : parse_proto(entry.bytes)) {
        if (part.number == 1) name = part.bytes;
        if (part.number != 2) continue;
        for (const ProtoField& kind : parse_proto(part.bytes)) {
          if (kind.number == 2) value = as_double(kind.bits);
          if (kind.number == 3) value = std::string(kind.bytes);
          if (kind.number == 4) value = kind.bits != 0;
        }
      }
      hparams[name] = value;
    }
  }
  return hparams;
}

}  // namespace accelerate::trackers
