/// Files of tokens from JSON lines: each line's text becomes a document of a `.bin`, and `.idx`
/// says where it is (token_index.h).
///
///     TokenOptions options = {.output_prefix = "corpus", .append_end = true};
///     preprocess_tokens(files, "corpus.jsonl", options);  // corpus_text_document.bin and .idx
///
/// There are three ways to make tokens, none of which needs a library of tokenizers: bytes, as
/// their values; a vocabulary, of which the longest entry that the text goes on with is the next
/// token; and numbers, where the lines have what another tokenizer made.
///
/// Errors:  absl::Status naming the file: InvalidArgument, with the line, for lines that cannot be
///          read and texts that the vocabulary does not cover; and what the FileSystem answers. No
///          index is written then.
/// Threads: any.
/// Source:  Megatron-LM, tools/preprocess_data.py, whose names of files it has.
/// Differs: a document is one sequence always.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/files/formats/token_index.h"
#include "accelerate/platform/file_system.h"

namespace accelerate {

enum class TokenizerKind { kBytes, kVocabulary, kNumbers };

ACCELERATE_ENUM_TEXTS(TokenizerKind, "tokenizer", "bytes", "vocabulary", "numbers")

struct TokenOptions {
  /// The files are this, "_", the key, "_document" and .bin or .idx.
  std::string output_prefix;
  TokenizerKind tokenizer = TokenizerKind::kBytes;
  /// For kVocabulary: a file with an entry a line, whose number from 0 is its token; "\n", "\t" and
  /// "\\" stand for what they do in C.
  std::string vocabulary_file = {};
  /// The member of each line's object that is read: a text, or for kNumbers a list.
  std::string json_key = "text";
  /// Whether each document ends with `end_token`.
  bool append_end = false;
  /// Absent: the first number behind those of bytes or of the vocabulary; kNumbers has none.
  std::optional<int64_t> end_token = std::nullopt;
  /// Absent: token_dtype_for the vocabulary, or kInt32 for kNumbers.
  std::optional<TokenDtype> dtype = std::nullopt;
};

struct PreprocessedTokens {
  int64_t documents = 0;
  int64_t tokens = 0;
  /// Lines without tokens.
  int64_t empty_lines = 0;
  /// The one that documents end with, if they do.
  std::optional<int64_t> end_token = std::nullopt;
  std::string bin_path = {};
  std::string idx_path = {};
};

/// Local. Reads `input` in pieces; a line may have 1 GiB at most.
absl::StatusOr<PreprocessedTokens> preprocess_tokens(FileSystem& files, const std::string& input,
                                                     const TokenOptions& options);

}  // namespace accelerate
