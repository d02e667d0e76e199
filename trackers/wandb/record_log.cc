#include "trackers/wandb/record_log.h"

#include <stdexcept>
#include <utility>

#include <zlib.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "trackers/common/file_options.h"
#include "trackers/common/numbers.h"

namespace accelerate::trackers {
namespace {

constexpr size_t kHeaderBytes = 7;
constexpr size_t kMaxUnwritten = size_t{64} << 20;
constexpr uint16_t kMagic = 0xbee1;
constexpr char kVersion = 0;

enum Piece : int { kFull = 1, kFirst = 2, kMiddle = 3, kLast = 4 };

}  // namespace

RecordLog::RecordLog(std::unique_ptr<WritableFile> file, std::string path)
    : file_(std::move(file)), path_(std::move(path)), unwritten_(":W&B") {
  append_little_endian(&unwritten_, kMagic, 2);
  unwritten_.push_back(kVersion);
}

size_t RecordLog::room() const {
  return kBlockBytes - (static_cast<size_t>(written_) + unwritten_.size()) % kBlockBytes;
}

void RecordLog::append(std::string_view record) {
  if (unwritten_.size() + record.size() > kMaxUnwritten) {
    throw std::runtime_error(absl::StrCat("a record is lost: ", unwritten_.size(),
                                          " bytes wait already to be written to ", path_));
  }
  last_ = written_ + static_cast<int64_t>(unwritten_.size());
  frame(record);
}

void RecordLog::replace_last(std::string_view record) {
  if (last_ >= written_) {
    unwritten_.resize(static_cast<size_t>(last_ - written_));
  } else {
    unwritten_.clear();
    written_ = last_;
  }
  frame(record);
}

void RecordLog::frame(std::string_view record) {
  last_size_ = record.size();
  if (room() < kHeaderBytes) unwritten_.append(room(), '\0');
  bool is_first = true;
  do {
    const std::string_view piece = record.substr(0, room() - kHeaderBytes);
    record.remove_prefix(piece.size());
    const bool is_last = record.empty();
    add_piece(is_first ? (is_last ? kFull : kFirst) : (is_last ? kLast : kMiddle), piece);
    is_first = false;
  } while (!record.empty());
}

void RecordLog::add_piece(int type, std::string_view bytes) {
  const auto type_byte = static_cast<Bytef>(type);
  uLong checksum = crc32(0, &type_byte, 1);
  checksum = crc32(checksum, reinterpret_cast<const Bytef*>(bytes.data()),
                   static_cast<uInt>(bytes.size()));
  append_little_endian(&unwritten_, static_cast<uint32_t>(checksum), 4);
  append_little_endian(&unwritten_, static_cast<uint32_t>(bytes.size()), 2);
  unwritten_.push_back(static_cast<char>(type));
  unwritten_.append(bytes);
}

void RecordLog::flush() {
  if (unwritten_.empty()) return;
  throw_if_error(file_->write_at(written_, as_bytes(unwritten_)));
  written_ += static_cast<int64_t>(unwritten_.size());
  unwritten_.clear();
}

void RecordLog::close() {
  flush();
  absl::Status status = file_->sync();
  status.Update(file_->close());
  throw_if_error(status);
}

}  // namespace accelerate::trackers
