/// The index of a file of tokens, as Megatron-LM writes it: a `.idx` beside a `.bin`.
///
/// The `.bin` holds the tokens of all sequences, little endian, one after another; the index says
/// how many each sequence has, where it begins, and which sequences are a document. Two formats are
/// read, both in their version 1: the one of memory-mapped files ("MMIDIDX"), which is written as
/// well, and the one before it ("TNTIDX"). No file is trusted.
///
/// Units:   lengths are tokens, offsets are bytes of the `.bin`.
/// Errors:  absl::Status. DataLoss for a malformed index, saying at which byte, what was expected
///          there and what is there; of files also what the FileSystem answers, naming the file.
/// Threads: pure functions, and those of the FileSystem.
/// Source:  Megatron-LM, megatron/core/datasets/indexed_dataset.py, and the datasets of fairseq.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/platform/file_system.h"

namespace accelerate {

/// By their numbers in an index of memory-mapped files.
enum class TokenDtype : uint8_t {
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat64 = 6,
  kFloat32 = 7,
  kUint16 = 8,
};

/// Bytes of a token.
int64_t token_size(TokenDtype dtype);

/// The narrowest dtype in which Megatron-LM keeps tokens of a vocabulary: uint16 or int32.
TokenDtype token_dtype_for(int64_t vocabulary_size);

struct TokenIndex {
  TokenDtype dtype = TokenDtype::kInt32;
  /// Tokens of each sequence.
  std::vector<int64_t> lengths = {};
  std::vector<int64_t> offsets = {};
  /// The sequences at which documents begin, ascending, and behind them the end of the last one.
  std::vector<int64_t> documents = {};
  /// A number for each sequence, in sets of several modalities; else empty.
  std::vector<int8_t> modes = {};

  bool operator==(const TokenIndex&) const = default;
};

/// The bytes that the `.bin` has at least. \pre The index was read, or could be written.
int64_t token_bytes(const TokenIndex& index);

absl::StatusOr<TokenIndex> parse_token_index(absl::string_view bytes);

/// The bytes of an index of memory-mapped files. Errors: InvalidArgument for one that could not be
/// read again.
absl::StatusOr<std::string> token_index_bytes(const TokenIndex& index);

/// Reads `path`, the `.idx`.
absl::StatusOr<TokenIndex> read_token_index(FileSystem& files, const std::string& path);

}  // namespace accelerate
