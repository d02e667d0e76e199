#include "accelerate/files/formats/token_index.h"

#include <algorithm>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace accelerate {
namespace {

constexpr absl::string_view kMapped("MMIDIDX\0\0", 9);
constexpr absl::string_view kFirst("TNTIDX\0\0", 8);
constexpr uint64_t kIndexVersion = 1;
// More than any file of tokens has.
constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 16;

absl::Status damaged(int64_t at, absl::string_view expected, absl::string_view found) {
  return absl::DataLossError(
      absl::StrCat("byte ", at, " of the index: expected ", expected, ", found ", found));
}

// Reads an index from its first byte on; after the first problem everything reads as 0.
class Reader {
 public:
  explicit Reader(absl::string_view bytes) : bytes_(bytes) {}

  int64_t position() const { return position_; }
  int64_t left() const { return static_cast<int64_t>(bytes_.size()) - position_; }
  const absl::Status& status() const { return status_; }

  void fail(int64_t at, absl::string_view expected, absl::string_view found) {
    if (status_.ok()) status_ = damaged(at, expected, found);
  }

  // `size` bytes, little endian, at most 8.
  uint64_t number(int size, const char* what) {
    if (!status_.ok()) return 0;
    if (left() < size) {
      fail(position_, absl::StrCat(what, ", ", size, " bytes"),
           absl::StrCat("the end of the file after ", left()));
      return 0;
    }
    uint64_t value = 0;
    for (int i = 0; i < size; ++i) {
      value |= uint64_t{static_cast<uint8_t>(bytes_[position_ + i])} << (8 * i);
    }
    position_ += size;
    return value;
  }

  // A number of entries of which each takes so many bytes that are still to come.
  int64_t count(int entry_size, const char* what) {
    const int64_t at = position_;
    const uint64_t value = number(8, what);
    if (value > static_cast<uint64_t>(left() / entry_size)) {
      fail(at, absl::StrCat(what, " that the file's ", left(), " bytes behind it can hold"),
           absl::StrCat(value));
      return 0;
    }
    return static_cast<int64_t>(value);
  }

  // Signed numbers of `size` bytes, each from `least` to `most`.
  std::vector<int64_t> numbers(int64_t count, int size, const char* what, int64_t least,
                               int64_t most) {
    std::vector<int64_t> values;
    if (status_.ok() && left() / size < count) {
      fail(position_, absl::StrCat(count, " times ", what, ", ", size, " bytes each"),
           absl::StrCat("the end of the file after ", left(), " bytes"));
    }
    if (!status_.ok()) return values;
    values.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count && status_.ok(); ++i) {
      const int64_t at = position_;
      const uint64_t bits = number(size, what);
      const int64_t value = size == 4 ? static_cast<int32_t>(static_cast<uint32_t>(bits))
                                      : static_cast<int64_t>(bits);
      if (value < least || value > most) {
        fail(at, absl::StrCat(what, " from ", least, " to ", most), absl::StrCat(value));
      }
      values.push_back(value);
    }
    return values;
  }

  // Each at least the one before it.
  std::vector<int64_t> ascending(int64_t count, const char* what, int64_t most) {
    const int64_t begin = position_;
    std::vector<int64_t> values = numbers(count, 8, what, 0, most);
    const auto fall = std::ranges::is_sorted_until(values);
    if (fall != values.end()) {
      const int64_t index = fall - values.begin();
      fail(begin + 8 * index, absl::StrCat(what, " of at least ", values[index - 1]),
           absl::StrCat(values[index]));
    }
    return values;
  }

  absl::string_view rest() const { return bytes_.substr(static_cast<size_t>(position_)); }
  void skip(int64_t size) { position_ += size; }

 private:
  const absl::string_view bytes_;
  int64_t position_ = 0;
  absl::Status status_;
};

void check_version(Reader& reader) {
  const int64_t at = reader.position();
  const uint64_t version = reader.number(8, "a version");
  if (version != kIndexVersion) {
    reader.fail(at, absl::StrCat("version ", kIndexVersion), absl::StrCat(version));
  }
}

TokenDtype dtype_of(Reader& reader, int64_t at, uint64_t code) {
  if (code >= 1 && code <= 8) return static_cast<TokenDtype>(code);
  reader.fail(at, "the code of a dtype, from 1 to 8", absl::StrCat(code));
  return TokenDtype::kUint8;
}

// The largest offset of a sequence whose end is a position of a file.
void check_ends(Reader& reader, int64_t at, int64_t stride, const TokenIndex& index) {
  const int64_t size = token_size(index.dtype);
  for (size_t i = 0; i < index.lengths.size(); ++i) {
    if (index.lengths[i] <= (kMost - index.offsets[i]) / size) continue;
    reader.fail(at + stride * static_cast<int64_t>(i),
                absl::StrCat("the offset of ", index.lengths[i], " tokens of a file"),
                absl::StrCat(index.offsets[i]));
  }
}

absl::StatusOr<TokenIndex> parse_mapped(Reader& reader) {
  reader.skip(static_cast<int64_t>(kMapped.size()));
  check_version(reader);
  TokenIndex index;
  const int64_t at = reader.position();
  index.dtype = dtype_of(reader, at, reader.number(1, "the code of a dtype"));
  const int64_t sequences = reader.count(12, "a number of sequences");
  const int64_t documents = reader.count(8, "a number of documents");
  index.lengths = reader.numbers(sequences, 4, "the length of a sequence", 0,
                                 std::numeric_limits<int32_t>::max());
  const int64_t offsets_at = reader.position();
  index.offsets = reader.numbers(sequences, 8, "the offset of a sequence", 0, kMost);
  if (reader.status().ok()) check_ends(reader, offsets_at, 8, index);
  index.documents = reader.ascending(documents, "the first sequence of a document", sequences);
  if (!reader.status().ok()) return reader.status();
  const absl::string_view modes = reader.rest();
  if (!modes.empty() && static_cast<int64_t>(modes.size()) != sequences) {
    return damaged(reader.position(),
                   absl::StrCat("the end of the file, or ", sequences, " modes of sequences"),
                   absl::StrCat(modes.size(), " bytes"));
  }
  index.modes.assign(modes.begin(), modes.end());
  return index;
}

// Sequences have several dims there; those of tokens have one.
absl::StatusOr<TokenIndex> parse_first(Reader& reader) {
  reader.skip(static_cast<int64_t>(kFirst.size()));
  check_version(reader);
  TokenIndex index;
  const int64_t at = reader.position();
  const uint64_t code = reader.number(8, "the code of a dtype");
  index.dtype = dtype_of(reader, at, code);
  const uint64_t size = reader.number(8, "the size of a token");
  // The code of float64 stands for either width in files of that time.
  if (index.dtype == TokenDtype::kFloat64 && size == 4) index.dtype = TokenDtype::kFloat32;
  if (index.dtype == TokenDtype::kFloat32 && size == 8) index.dtype = TokenDtype::kFloat64;
  if (size != static_cast<uint64_t>(token_size(index.dtype))) {
    reader.fail(at + 8, absl::StrCat("a token's ", token_size(index.dtype), " bytes"),
                absl::StrCat(size));
  }
  const int64_t sequences = reader.count(16, "a number of sequences");
  const int64_t sizes_at = reader.position();
  const int64_t sizes = reader.count(8, "a number of sizes");
  if (sizes != sequences) {
    reader.fail(sizes_at, absl::StrCat("one size for each of ", sequences, " sequences"),
                absl::StrCat(sizes));
  }
  const int64_t documents = reader.count(8, "a number of documents");
  const int64_t dims_at = reader.position();
  const std::vector<int64_t> dims =
      reader.ascending(sequences + 1, "the first size of a sequence", sizes);
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == static_cast<int64_t>(i)) continue;
    reader.fail(dims_at + 8 * static_cast<int64_t>(i), absl::StrCat(i), absl::StrCat(dims[i]));
  }
  const int64_t offsets_at = reader.position();
  index.offsets = reader.ascending(sequences + 1, "the first token of a sequence",
                                   kMost / token_size(index.dtype));
  const int64_t lengths_at = reader.position();
  index.lengths = reader.numbers(sizes, 8, "the length of a sequence", 0, kMost);
  if (!reader.status().ok()) return reader.status();
  for (size_t i = 0; i < index.lengths.size(); ++i) {
    const int64_t length = index.offsets[i + 1] - index.offsets[i];
    if (index.lengths[i] == length) continue;
    return damaged(lengths_at + 8 * static_cast<int64_t>(i), absl::StrCat(length, " tokens"),
                   absl::StrCat(index.lengths[i]));
  }
  index.offsets.pop_back();
  for (int64_t& offset : index.offsets) offset *= token_size(index.dtype);
  check_ends(reader, offsets_at, 8, index);
  index.documents = reader.ascending(documents, "the first sequence of a document", sequences);
  if (reader.left() > 0) {
    reader.fail(reader.position(), "the end of the file", absl::StrCat(reader.left(), " bytes"));
  }
  if (!reader.status().ok()) return reader.status();
  return index;
}

void append(std::string& bytes, uint64_t value, int size) {
  for (int i = 0; i < size; ++i) bytes.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

}  // namespace

int64_t token_size(TokenDtype dtype) {
  constexpr int64_t kByNumber[] = {0, 1, 1, 2, 4, 8, 8, 4, 2};
  const auto number = static_cast<size_t>(dtype);
  return number < std::size(kByNumber) ? kByNumber[number] : 0;
}

TokenDtype token_dtype_for(int64_t vocabulary_size) {
  constexpr int64_t kSmall = 65500;
  return vocabulary_size < kSmall ? TokenDtype::kUint16 : TokenDtype::kInt32;
}

int64_t token_bytes(const TokenIndex& index) {
  int64_t end = 0;
  for (size_t i = 0; i < index.lengths.size(); ++i) {
    end = std::max(end, index.offsets[i] + index.lengths[i] * token_size(index.dtype));
  }
  return end;
}

absl::StatusOr<TokenIndex> parse_token_index(absl::string_view bytes) {
  Reader reader(bytes);
  if (absl::StartsWith(bytes, kMapped)) return parse_mapped(reader);
  if (absl::StartsWith(bytes, kFirst)) return parse_first(reader);
  return damaged(0, "\"MMIDIDX\" or \"TNTIDX\", with zeros behind it",
                 absl::StrCat("\"", absl::CHexEscape(bytes.substr(0, kMapped.size())), "\""));
}

absl::StatusOr<std::string> token_index_bytes(const TokenIndex& index) {
  std::string bytes(kMapped);
  append(bytes, kIndexVersion, 8);
  append(bytes, static_cast<uint64_t>(index.dtype), 1);
  append(bytes, index.lengths.size(), 8);
  append(bytes, index.documents.size(), 8);
  for (const int64_t length : index.lengths) append(bytes, static_cast<uint64_t>(length), 4);
  for (const int64_t offset : index.offsets) append(bytes, static_cast<uint64_t>(offset), 8);
  for (const int64_t first : index.documents) append(bytes, static_cast<uint64_t>(first), 8);
  for (const int8_t mode : index.modes) bytes.push_back(static_cast<char>(mode));
  const absl::StatusOr<TokenIndex> again = parse_token_index(bytes);
  if (!again.ok() || *again != index) {
    return absl::InvalidArgumentError(
        absl::StrCat("this index of tokens cannot be written: ",
                     again.ok() ? "a number does not fit its field" : again.status().message()));
  }
  return bytes;
}

absl::StatusOr<TokenIndex> read_token_index(FileSystem& files, const std::string& path) {
  return read_file_as(files, path, parse_token_index);
}

}  // namespace accelerate
