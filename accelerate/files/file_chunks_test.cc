#include "accelerate/files/file_chunks.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "accelerate/base/checksum.h"

namespace accelerate::internal {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// The pieces' bytes once each, in their order, in chunks that fit into a buffer.
void expect_complete(const std::vector<FilePiece>& pieces, const std::vector<FileChunk>& chunks) {
  std::vector<int64_t> reached;
  for (const FilePiece& piece : pieces) reached.push_back(piece.begin);
  for (const FileChunk& chunk : chunks) {
    ASSERT_FALSE(chunk.parts.empty());
    int64_t position = chunk.begin();
    for (const FileChunk::Part& part : chunk.parts) {
      const FilePiece& piece = pieces[part.piece];
      EXPECT_EQ(part.begin, position);
      EXPECT_EQ(part.begin, reached[part.piece]);
      EXPECT_LT(part.begin, part.end);
      EXPECT_LE(part.end, piece.end);
      EXPECT_EQ((part.begin - piece.begin) % piece.element_size, 0);
      EXPECT_EQ((part.begin - chunk.begin()) % piece.element_size, 0);
      reached[part.piece] = position = part.end;
    }
    ChunkBuffer buffer;
    EXPECT_EQ(buffer.of_size(position - chunk.begin()).size(), position - chunk.begin());
    EXPECT_LE(position - chunk.begin(), kMiB + 8);
  }
  for (size_t i = 0; i < pieces.size(); ++i) EXPECT_EQ(reached[i], pieces[i].end);
}

TEST(CutIntoChunks, PutsSmallPiecesTogetherAndDividesLargeOnes) {
  const std::vector<FilePiece> pieces = {{.begin = 0, .end = 100},
                                         {.begin = 100, .end = 104, .element_size = 4},
                                         {.begin = 104, .end = 104, .element_size = 8},
                                         {.begin = 104, .end = 104 + 5 * kMiB, .element_size = 8},
                                         {.begin = 104 + 5 * kMiB, .end = 105 + 5 * kMiB}};
  const std::vector<FileChunk> chunks = cut_into_chunks(pieces);
  expect_complete(pieces, chunks);
  ASSERT_EQ(chunks.size(), 6);
  EXPECT_EQ(chunks[0].parts.size(), 3);
  EXPECT_EQ(chunks[1].begin(), kMiB);
  EXPECT_EQ(chunks[5].parts.size(), 2);
}

TEST(CutIntoChunks, KeepsElementsWhole) {
  for (const int64_t element_size : {1, 2, 4, 8}) {
    for (int64_t begin = 0; begin < 20; ++begin) {
      const std::vector<FilePiece> pieces = {
          {.begin = 0, .end = begin},
          {.begin = begin, .end = begin + 3 * kMiB, .element_size = element_size},
          {.begin = begin + 3 * kMiB, .end = begin + 3 * kMiB + 5}};
      expect_complete(pieces, cut_into_chunks(pieces));
    }
    // Where a chunk would end within a piece's first element.
    const std::vector<FilePiece> pieces = {
        {.begin = 0, .end = kMiB - 1},
        {.begin = kMiB - 1, .end = kMiB - 1 + 64, .element_size = element_size}};
    expect_complete(pieces, cut_into_chunks(pieces));
  }
}

TEST(CutIntoChunks, LeavesGapsAlone) {
  const std::vector<FilePiece> pieces = {{.begin = 0, .end = 10}, {.begin = 20, .end = 30}};
  const std::vector<FileChunk> chunks = cut_into_chunks(pieces);
  expect_complete(pieces, chunks);
  EXPECT_EQ(chunks.size(), 2);
  EXPECT_TRUE(cut_into_chunks({}).empty());
}

TEST(RunChunks, GivesThePiecesChecksums) {
  std::vector<std::byte> bytes(3 * kMiB + 17);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i >> 3);
  const int64_t end = static_cast<int64_t>(bytes.size());
  const std::vector<FilePiece> pieces = {{.begin = 0, .end = 5},
                                         {.begin = 5, .end = 5},
                                         {.begin = 5, .end = 2 * kMiB},
                                         {.begin = 2 * kMiB, .end = end}};
  for (const int threads : {1, 2, 5}) {
    std::vector<FileChunk> chunks = cut_into_chunks(pieces);
    std::atomic<int> runs = 0;
    const absl::Status status = run_chunks(chunks, threads, [&](FileChunk& chunk, ChunkBuffer&) {
      ++runs;
      for (FileChunk::Part& part : chunk.parts) {
        part.crc32c = crc32c(absl::MakeConstSpan(bytes).subspan(part.begin, part.end - part.begin));
      }
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok());
    EXPECT_EQ(runs, static_cast<int>(chunks.size()));
    const std::vector<uint32_t> checksums = piece_checksums(chunks, pieces.size());
    for (size_t i = 0; i < pieces.size(); ++i) {
      EXPECT_EQ(checksums[i], crc32c(absl::MakeConstSpan(bytes).subspan(
                                  pieces[i].begin, pieces[i].end - pieces[i].begin)));
    }
  }
}

TEST(RunChunks, StopsAtAnErrorAndPassesItOn) {
  std::vector<FileChunk> chunks = cut_into_chunks({{.begin = 0, .end = 100 * kMiB}});
  for (const int threads : {1, 3}) {
    std::atomic<int> runs = 0;
    const absl::Status status = run_chunks(chunks, threads, [&](FileChunk&, ChunkBuffer&) {
      return ++runs == 5 ? absl::ResourceExhaustedError("full") : absl::OkStatus();
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_LT(runs, 100);
    EXPECT_GE(runs, 5);
    const auto throws = [](FileChunk&, ChunkBuffer&) -> absl::Status {
      throw std::runtime_error("what was thrown");
    };
    EXPECT_THROW(run_chunks(chunks, threads, throws).IgnoreError(), std::runtime_error);
  }
}

}  // namespace
}  // namespace accelerate::internal
