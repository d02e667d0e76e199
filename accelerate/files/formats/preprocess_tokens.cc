#include "accelerate/files/formats/preprocess_tokens.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/status.h"

namespace accelerate {
namespace {

constexpr int64_t kPiece = int64_t{1} << 20;
constexpr int64_t kLongestLine = int64_t{1} << 30;

using Tokens = std::vector<int64_t>;

// ---- Tokens of a text.

class Tokenizer {
 public:
  static absl::StatusOr<Tokenizer> make(FileSystem& files, const TokenOptions& options) {
    Tokenizer tokenizer;
    tokenizer.kind_ = options.tokenizer;
    if (options.tokenizer == TokenizerKind::kVocabulary) {
      ACCELERATE_ASSIGN_OR_RETURN(const std::string text,
                                  read_file(files, options.vocabulary_file));
      ACCELERATE_RETURN_IF_ERROR(in_file(options.vocabulary_file, tokenizer.read_vocabulary(text)));
    }
    return tokenizer;
  }

  // Nothing where the tokens come from elsewhere.
  std::optional<int64_t> size() const {
    if (kind_ == TokenizerKind::kBytes) return 256;
    if (kind_ == TokenizerKind::kVocabulary) return static_cast<int64_t>(entries_.size());
    return std::nullopt;
  }

  absl::Status tokens_of(const nlohmann::json& value, Tokens& tokens) const {
    if (kind_ == TokenizerKind::kNumbers) return numbers_of(value, tokens);
    if (!value.is_string()) return absl::InvalidArgumentError("expected a text");
    const auto& text = value.get_ref<const std::string&>();
    if (kind_ == TokenizerKind::kVocabulary) return entries_of(text, tokens);
    for (const char byte : text) tokens.push_back(static_cast<uint8_t>(byte));
    return absl::OkStatus();
  }

 private:
  absl::Status read_vocabulary(absl::string_view text) {
    int64_t number = 0;
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      // What stands behind the last line's end is none.
      if (line.empty() && line.data() == text.data() + text.size()) break;
      ++number;
      std::string entry;
      std::string problem;
      if (!absl::CUnescape(line, &entry, &problem)) {
        return invalid("line ", number, ": ", problem);
      }
      if (entry.empty()) {
        return invalid("line ", number, ": an empty entry");
      }
      longest_ = std::max(longest_, entry.size());
      if (!entries_.emplace(std::move(entry), number - 1).second) {
        return invalid("line ", number, ": this entry stands in the vocabulary before");
      }
    }
    return absl::OkStatus();
  }

  static absl::Status numbers_of(const nlohmann::json& value, Tokens& tokens) {
    if (!value.is_array()) return absl::InvalidArgumentError("expected a list of numbers");
    for (const nlohmann::json& each : value) {
      const bool is_too_large =
          each.is_number_unsigned() &&
          each.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
      if (!each.is_number_integer() || is_too_large) {
        return invalid("expected a whole number, found ", json_text(each));
      }
      tokens.push_back(each.get<int64_t>());
    }
    return absl::OkStatus();
  }

  absl::Status entries_of(absl::string_view text, Tokens& tokens) const {
    size_t at = 0;
    while (at < text.size()) {
      size_t length = std::min(longest_, text.size() - at);
      auto entry = entries_.end();
      for (; length > 0; --length) {
        entry = entries_.find(std::string(text.substr(at, length)));
        if (entry != entries_.end()) break;
      }
      if (length == 0) {
        return invalid("the vocabulary has no entry for what begins at byte ", at, ": \"",
                       absl::CHexEscape(text.substr(at, 16)), "\"");
      }
      tokens.push_back(entry->second);
      at += length;
    }
    return absl::OkStatus();
  }

  TokenizerKind kind_ = TokenizerKind::kBytes;
  std::unordered_map<std::string, int64_t> entries_;
  size_t longest_ = 0;
};

// ---- Lines of a file.

using OnLine = std::function<absl::Status(absl::string_view line)>;

absl::Status for_each_line(FileSystem& files, const std::string& path, const OnLine& on_line) {
  const auto file = files.open(path);
  if (!file.ok()) return file.status();
  const int64_t size = (*file)->size();
  std::string begun;
  std::string piece;
  int64_t number = 0;
  const auto finish = [&](absl::string_view line) {
    ++number;
    const absl::Status status = on_line(line);
    return status.ok() ? status : in_file(absl::StrCat(path, ":", number), status);
  };
  for (int64_t at = 0; at < size; at += static_cast<int64_t>(piece.size())) {
    piece.resize(static_cast<size_t>(std::min(kPiece, size - at)));
    auto bytes = absl::MakeSpan(reinterpret_cast<std::byte*>(piece.data()), piece.size());
    ACCELERATE_RETURN_IF_ERROR((*file)->read_at(at, bytes));
    absl::string_view rest = piece;
    for (size_t end = rest.find('\n'); end != rest.npos; end = rest.find('\n')) {
      absl::StrAppend(&begun, rest.substr(0, end));
      rest.remove_prefix(end + 1);
      ACCELERATE_RETURN_IF_ERROR(finish(begun));
      begun.clear();
    }
    absl::StrAppend(&begun, rest);
    if (static_cast<int64_t>(begun.size()) > kLongestLine) {
      return invalid(path, ":", number + 1, ": a line of more than ", kLongestLine, " bytes");
    }
  }
  return begun.empty() ? absl::OkStatus() : finish(begun);
}

// ---- The files that are written.

// The values that tokens of a dtype may have.
std::pair<int64_t, int64_t> range_of(TokenDtype dtype) {
  switch (dtype) {
    case TokenDtype::kUint8: return {0, 0xFF};
    case TokenDtype::kInt8: return {-128, 127};
    case TokenDtype::kInt16: return {-32768, 32767};
    case TokenDtype::kUint16: return {0, 0xFFFF};
    case TokenDtype::kInt32:
      return {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
    default: return {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
  }
}

class TokenWriter {
 public:
  TokenWriter(std::unique_ptr<WritableFile> file, TokenDtype dtype) : file_(std::move(file)) {
    index_.dtype = dtype;
    index_.documents = {0};
  }

  // A document of one sequence.
  absl::Status add(const Tokens& tokens) {
    const auto [least, most] = range_of(index_.dtype);
    const int64_t size = token_size(index_.dtype);
    if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
      return absl::InvalidArgumentError("more tokens than an index can count in a document");
    }
    index_.offsets.push_back(position_ + static_cast<int64_t>(bytes_.size()));
    index_.lengths.push_back(static_cast<int64_t>(tokens.size()));
    index_.documents.push_back(static_cast<int64_t>(index_.lengths.size()));
    for (const int64_t token : tokens) {
      if (token < least || token > most) {
        return invalid("token ", token, " is not from ", least, " to ", most);
      }
      for (int64_t i = 0; i < size; ++i) {
        bytes_.push_back(static_cast<char>(static_cast<uint64_t>(token) >> (8 * i) & 0xFF));
      }
    }
    return static_cast<int64_t>(bytes_.size()) < kPiece ? absl::OkStatus() : flush();
  }

  absl::Status finish() {
    ACCELERATE_RETURN_IF_ERROR(flush());
    ACCELERATE_RETURN_IF_ERROR(file_->sync());
    return file_->close();
  }

  const TokenIndex& index() const { return index_; }

 private:
  absl::Status flush() {
    const auto bytes =
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes_.data()), bytes_.size());
    absl::Status status = file_->write_at(position_, bytes);
    position_ += static_cast<int64_t>(bytes_.size());
    bytes_.clear();
    return status;
  }

  std::unique_ptr<WritableFile> file_;
  TokenIndex index_;
  std::string bytes_;
  int64_t position_ = 0;
};

absl::StatusOr<std::optional<int64_t>> end_of(const TokenOptions& options,
                                              const Tokenizer& tokenizer) {
  if (!options.append_end) return std::optional<int64_t>();
  const std::optional<int64_t> end = options.end_token ? options.end_token : tokenizer.size();
  if (end) return end;
  return absl::InvalidArgumentError(
      "documents are to end with a token, but the one of numbers is not known; give end_token");
}

TokenDtype dtype_of(const TokenOptions& options, const Tokenizer& tokenizer,
                    const std::optional<int64_t>& end) {
  if (options.dtype) return *options.dtype;
  if (!tokenizer.size()) return TokenDtype::kInt32;
  return token_dtype_for(std::max(*tokenizer.size(), end ? *end + 1 : 0));
}

absl::Status add_line(absl::string_view line, const TokenOptions& options,
                      const Tokenizer& tokenizer, const std::optional<int64_t>& end,
                      TokenWriter& writer, PreprocessedTokens& result) {
  Tokens tokens;
  if (line.find_first_not_of(" \t\r") != line.npos) {
    const nlohmann::json value = internal::parse_json(line, /*allow_exceptions=*/false);
    if (value.is_discarded() || !value.is_object()) {
      return absl::InvalidArgumentError("expected an object in JSON");
    }
    const auto member = value.find(options.json_key);
    if (member == value.end()) {
      return invalid("the object has no \"", options.json_key, "\"");
    }
    if (absl::Status status = tokenizer.tokens_of(*member, tokens); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("\"", options.json_key, "\": ", status.message()));
    }
  }
  if (tokens.empty()) {
    ++result.empty_lines;
    return absl::OkStatus();
  }
  if (end) tokens.push_back(*end);
  ++result.documents;
  result.tokens += static_cast<int64_t>(tokens.size());
  return writer.add(tokens);
}

absl::Status preprocess(FileSystem& files, const std::string& input, const TokenOptions& options,
                        const std::string& unfinished, PreprocessedTokens& result) {
  ACCELERATE_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::make(files, options));
  ACCELERATE_ASSIGN_OR_RETURN(result.end_token, end_of(options, tokenizer));
  const std::optional<int64_t> end = result.end_token;
  ACCELERATE_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files.create(unfinished));
  TokenWriter writer(std::move(file), dtype_of(options, tokenizer, end));
  ACCELERATE_RETURN_IF_ERROR(for_each_line(files, input, [&](absl::string_view line) {
    return add_line(line, options, tokenizer, end, writer, result);
  }));
  ACCELERATE_RETURN_IF_ERROR(writer.finish());
  ACCELERATE_ASSIGN_OR_RETURN(const std::string index, token_index_bytes(writer.index()));
  // The index last: without one, a `.bin` is not read.
  ACCELERATE_RETURN_IF_ERROR(files.rename(unfinished, result.bin_path));
  return write_file(files, result.idx_path, index);
}

}  // namespace

absl::StatusOr<PreprocessedTokens> preprocess_tokens(FileSystem& files, const std::string& input,
                                                     const TokenOptions& options) {
  PreprocessedTokens result;
  const std::string prefix =
      absl::StrCat(options.output_prefix, "_", options.json_key, "_document");
  result.bin_path = absl::StrCat(prefix, ".bin");
  result.idx_path = absl::StrCat(prefix, ".idx");
  const std::string unfinished = files.temporary_name(result.bin_path);
  const absl::Status status = preprocess(files, input, options, unfinished, result);
  if (status.ok()) return result;
  remove_all(files, unfinished).IgnoreError();
  return status;
}

}  // namespace accelerate
