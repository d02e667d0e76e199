#include "accelerate/testing/file_contract/file_system_contract.h"

#include <string_view>

#include <gmock/gmock.h>

namespace accelerate::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::Span<const std::byte> bytes_of(std::string_view text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

absl::Span<std::byte> bytes_of(std::string& text) {
  return absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size());
}

std::string text_of(absl::Span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

FileSystemContract::FileSystemContract() { std::tie(files_, folder_) = GetParam().make(); }

void FileSystemContract::put(const std::string& name, const std::string& contents) {
  auto file = files_->create(path(name));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->write_at(0, bytes_of(contents)).ok());
  ASSERT_TRUE((*file)->close().ok());
}

std::string FileSystemContract::get(const std::string& name) {
  const absl::StatusOr<std::string> contents = read_file(*files_, path(name));
  return contents.ok() ? *contents : absl::StatusCodeToString(contents.status().code());
}

TEST_P(FileSystemContract, WritesAndReadsBytes) {
  auto file = files_->create(path("file"));
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->write_at(3, bytes_of("lo wo")).ok());
  EXPECT_TRUE((*file)->write_at(0, bytes_of("hel")).ok());
  EXPECT_TRUE((*file)->write_at(10, bytes_of("!")).ok());
  EXPECT_TRUE((*file)->write_at(20, {}).ok());
  EXPECT_TRUE((*file)->sync().ok());
  EXPECT_TRUE((*file)->close().ok());
  EXPECT_EQ(get("file"), std::string("hello wo\0\0!", 11));

  auto reader = files_->open(path("file"));
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->size(), 11);
  std::string part(4, ' ');
  EXPECT_TRUE((*reader)->read_at(1, bytes_of(part)).ok());
  EXPECT_EQ(part, "ello");
  EXPECT_TRUE((*reader)->read_at(11, {}).ok());
}

TEST_P(FileSystemContract, ReadsNothingBeyondTheEnd) {
  put("file", "12345");
  auto reader = files_->open(path("file"));
  ASSERT_TRUE(reader.ok());
  std::string part(4, ' ');
  const absl::Status beyond = (*reader)->read_at(2, bytes_of(part));
  EXPECT_TRUE(absl::IsOutOfRange(beyond)) << beyond;
  EXPECT_THAT(beyond.message(), HasSubstr(path("file")));
  EXPECT_TRUE(absl::IsOutOfRange((*reader)->read_at(100, bytes_of(part))));
  EXPECT_TRUE(absl::IsInvalidArgument((*reader)->read_at(-1, bytes_of(part))));
}

TEST_P(FileSystemContract, MapsWhatOutlivesTheReaderAndTheName) {
  put("file", "mapped");
  put("empty", "");
  auto map = (*files_->open(path("file")))->map();
  ASSERT_TRUE(map.ok());
  auto nothing = (*files_->open(path("empty")))->map();
  ASSERT_TRUE(nothing.ok());
  EXPECT_THAT(**nothing, IsEmpty());
  EXPECT_TRUE(files_->remove(path("file")).ok());
  put("file", "other");
  EXPECT_EQ(text_of(**map), "mapped");
}

TEST_P(FileSystemContract, KeepsAnOpenFileWhateverBecomesOfItsName) {
  put("file", "first");
  put("new", "second");
  auto reader = files_->open(path("file"));
  ASSERT_TRUE(reader.ok());
  EXPECT_TRUE(files_->rename(path("new"), path("file")).ok());
  std::string text(5, ' ');
  EXPECT_TRUE((*reader)->read_at(0, bytes_of(text)).ok());
  EXPECT_EQ(text, "first");
  EXPECT_EQ(get("file"), "second");
}

TEST_P(FileSystemContract, EmptiesAFileThatIsCreatedAgain) {
  put("file", "long contents");
  auto file = files_->create(path("file"));
  EXPECT_EQ(files_->info(path("file"))->size, 0);
  EXPECT_TRUE((*file)->write_at(0, bytes_of("new")).ok());
  EXPECT_TRUE((*file)->close().ok());
  EXPECT_EQ(get("file"), "new");
}

TEST_P(FileSystemContract, RefusesWhatComesAfterClose) {
  auto file = files_->create(path("file"));
  EXPECT_TRUE((*file)->close().ok());
  EXPECT_FALSE((*file)->write_at(0, bytes_of("late")).ok());
  EXPECT_FALSE((*file)->sync().ok());
  EXPECT_FALSE((*file)->close().ok());
  EXPECT_EQ(get("file"), "");
}

TEST_P(FileSystemContract, ReadsBackWhatItWritesToAScratchFile) {
  auto file = files_->open_scratch(path("scratch"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(*files_->list(folder_), IsEmpty());
  EXPECT_TRUE((*file)->write_at(5, bytes_of("world")).ok());
  EXPECT_TRUE((*file)->write_at(0, bytes_of("hello")).ok());
  EXPECT_TRUE((*file)->write_at(4, bytes_of("0 ")).ok());
  EXPECT_TRUE((*file)->write_at(100, {}).ok());
  std::string text(10, ' ');
  EXPECT_TRUE((*file)->read_at(0, bytes_of(text)).ok());
  EXPECT_EQ(text, "hell0 orld");
  EXPECT_TRUE((*file)->write_at(12, bytes_of("!")).ok());
  std::string end(3, ' ');
  EXPECT_TRUE((*file)->read_at(10, bytes_of(end)).ok());
  EXPECT_EQ(end, std::string("\0\0!", 3));

  const absl::Status beyond = (*file)->read_at(11, bytes_of(end));
  EXPECT_TRUE(absl::IsOutOfRange(beyond)) << beyond;
  EXPECT_THAT(beyond.message(), HasSubstr(path("scratch")));
  EXPECT_TRUE(absl::IsInvalidArgument((*file)->read_at(-1, bytes_of(end))));
  EXPECT_TRUE(absl::IsInvalidArgument((*file)->write_at(-1, bytes_of(end))));
}

TEST_P(FileSystemContract, KeepsScratchFilesApartAndOffTheirName) {
  put("scratch", "a file");
  auto first = files_->open_scratch(path("scratch"));
  auto second = files_->open_scratch(path("scratch"));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE((*first)->write_at(0, bytes_of("first")).ok());
  EXPECT_TRUE((*second)->write_at(0, bytes_of("other")).ok());
  std::string text(5, ' ');
  EXPECT_TRUE((*first)->read_at(0, bytes_of(text)).ok());
  EXPECT_EQ(text, "first");
  EXPECT_EQ(get("scratch"), "a file");
  first->reset();
  second->reset();
  EXPECT_THAT(*files_->list(folder_), ElementsAre("scratch"));
}

TEST_P(FileSystemContract, NamesThePathThatIsMissing) {
  auto expect_missing = [&](const absl::Status& status, const std::string& name) {
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(path(name)));
  };
  expect_missing(files_->open(path("no")).status(), "no");
  expect_missing(files_->open(path("no/file")).status(), "no/file");
  expect_missing(files_->create(path("no/file")).status(), "no/file");
  expect_missing(files_->open_scratch(path("no/file")).status(), "no/file");
  expect_missing(files_->info(path("no")).status(), "no");
  expect_missing(files_->list(path("no")).status(), "no");
  expect_missing(files_->remove(path("no")), "no");
  expect_missing(files_->sync_directory(path("no")), "no");
  expect_missing(files_->rename(path("no"), path("to")), "no");
  put("file", "here");
  expect_missing(files_->rename(path("file"), path("no/file")), "no/file");
  expect_missing(files_->exchange(path("file"), path("no")), "no");
  expect_missing(files_->exchange(path("no"), path("file")), "no");
  EXPECT_EQ(get("file"), "here");
}

TEST_P(FileSystemContract, TellsFilesFromFolders) {
  put("file", "here");
  ASSERT_TRUE(files_->make_directories(path("folder")).ok());
  auto expect_refused = [&](const absl::Status& status) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  };
  expect_refused(files_->open(path("folder")).status());
  expect_refused(files_->create(path("folder")).status());
  expect_refused(files_->list(path("file")).status());
  expect_refused(files_->sync_directory(path("file")));
  expect_refused(files_->make_directories(path("file")));
  expect_refused(files_->make_directories(path("file/below")));
  expect_refused(files_->open(path("file/below")).status());
  expect_refused(files_->create(path("file/below")).status());
  expect_refused(files_->open_scratch(path("file/below")).status());
  expect_refused(files_->info(path("file/below")).status());
  expect_refused(files_->rename(path("file"), path("folder")));
  expect_refused(files_->rename(path("folder"), path("file")));
  EXPECT_FALSE(files_->info(path("file"))->is_directory);
  EXPECT_EQ(files_->info(path("file"))->size, 4);
  EXPECT_TRUE(files_->info(path("folder"))->is_directory);
  EXPECT_EQ(files_->info(path("folder"))->size, 0);
}

TEST_P(FileSystemContract, MakesFoldersWithAllAboveThem) {
  EXPECT_TRUE(files_->make_directories(path("a/b/c")).ok());
  EXPECT_TRUE(files_->make_directories(path("a/b/c")).ok());
  EXPECT_TRUE(files_->make_directories(path("a/./b/../d/")).ok());
  EXPECT_THAT(*files_->list(path("a")), ElementsAre("b", "d"));
  EXPECT_TRUE(files_->sync_directory(path("a")).ok());
}

TEST_P(FileSystemContract, ListsNamesInOrder) {
  for (const char* name : {"b", "a", "B", "a.txt", "_", "10", "9"}) put(name, "");
  ASSERT_TRUE(files_->make_directories(path("folder")).ok());
  EXPECT_THAT(*files_->list(folder_),
              ElementsAre("10", "9", "B", "_", "a", "a.txt", "b", "folder"));
  EXPECT_THAT(*files_->list(path("folder")), IsEmpty());
}

TEST_P(FileSystemContract, RenamesOntoWhatMayBeReplaced) {
  put("from", "new");
  put("to", "old");
  EXPECT_TRUE(files_->rename(path("from"), path("to")).ok());
  EXPECT_EQ(get("to"), "new");
  EXPECT_EQ(get("from"), "NOT_FOUND");
  EXPECT_TRUE(files_->rename(path("to"), path("to")).ok());
  EXPECT_EQ(get("to"), "new");

  ASSERT_TRUE(files_->make_directories(path("full")).ok());
  ASSERT_TRUE(files_->make_directories(path("empty")).ok());
  put("full/file", "inside");
  EXPECT_TRUE(absl::IsFailedPrecondition(files_->rename(path("empty"), path("full"))));
  EXPECT_TRUE(absl::IsInvalidArgument(files_->rename(path("full"), path("full/below"))));
  EXPECT_TRUE(files_->rename(path("full"), path("empty")).ok());
  EXPECT_EQ(get("empty/file"), "inside");
  EXPECT_THAT(*files_->list(folder_), ElementsAre("empty", "to"));
}

TEST_P(FileSystemContract, RenamesAcrossFolders) {
  ASSERT_TRUE(files_->make_directories(path("a")).ok());
  ASSERT_TRUE(files_->make_directories(path("b")).ok());
  put("a/file", "moves");
  EXPECT_TRUE(files_->rename(path("a/file"), path("b/file")).ok());
  EXPECT_EQ(get("b/file"), "moves");
  EXPECT_THAT(*files_->list(path("a")), IsEmpty());
}

TEST_P(FileSystemContract, ExchangesFilesAndFolders) {
  put("file", "bytes");
  ASSERT_TRUE(files_->make_directories(path("folder")).ok());
  put("folder/inside", "kept");
  const absl::Status exchanged = files_->exchange(path("file"), path("folder"));
  if (absl::IsUnimplemented(exchanged)) return;  // a disk that cannot must only say so
  EXPECT_TRUE(exchanged.ok()) << exchanged;
  EXPECT_EQ(get("folder"), "bytes");
  EXPECT_EQ(get("file/inside"), "kept");
}

TEST_P(FileSystemContract, RemovesFilesAndEmptyFolders) {
  put("file", "");
  ASSERT_TRUE(files_->make_directories(path("folder/below")).ok());
  const absl::Status full = files_->remove(path("folder"));
  EXPECT_TRUE(absl::IsFailedPrecondition(full)) << full;
  EXPECT_THAT(full.message(), HasSubstr(path("folder")));
  EXPECT_TRUE(files_->remove(path("folder/below")).ok());
  EXPECT_TRUE(files_->remove(path("folder")).ok());
  EXPECT_TRUE(files_->remove(path("file")).ok());
  EXPECT_THAT(*files_->list(folder_), IsEmpty());
}

TEST_P(FileSystemContract, WritesWholeFilesOnly) {
  EXPECT_TRUE(write_file(*files_, path("a/b/file"), "first").ok());
  EXPECT_TRUE(write_file(*files_, path("a/b/file"), "second").ok());
  EXPECT_TRUE(write_file(*files_, path("a/empty"), "").ok());
  EXPECT_EQ(get("a/b/file"), "second");
  EXPECT_EQ(get("a/empty"), "");
  EXPECT_THAT(*files_->list(path("a/b")), ElementsAre("file"));  // nothing partial is left

  // A file that cannot be replaced stays, and nothing partial with it.
  EXPECT_TRUE(absl::IsFailedPrecondition(write_file(*files_, path("a/b"), "file")));
  EXPECT_TRUE(absl::IsFailedPrecondition(write_file(*files_, path("a/empty/file"), "text")));
  EXPECT_THAT(*files_->list(path("a")), ElementsAre("b", "empty"));
}

TEST_P(FileSystemContract, TellsWhatExists) {
  put("file", "");
  EXPECT_TRUE(*exists(*files_, path("file")));
  EXPECT_TRUE(*exists(*files_, folder_));
  EXPECT_FALSE(*exists(*files_, path("no")));
  EXPECT_FALSE(*exists(*files_, path("no/file")));
  EXPECT_TRUE(absl::IsFailedPrecondition(exists(*files_, path("file/below")).status()));
}

TEST_P(FileSystemContract, RemovesAllThatIsInAFolder) {
  ASSERT_TRUE(files_->make_directories(path("folder/a/b")).ok());
  put("folder/a/b/file", "1");
  put("folder/file", "2");
  put("beside", "3");
  EXPECT_TRUE(remove_all(*files_, path("folder")).ok());
  EXPECT_TRUE(remove_all(*files_, path("folder")).ok());
  EXPECT_THAT(*files_->list(folder_), ElementsAre("beside"));
  EXPECT_TRUE(remove_all(*files_, path("beside")).ok());
  EXPECT_THAT(*files_->list(folder_), IsEmpty());
}

TEST_P(FileSystemContract, NamesTemporaryFilesBesideTheirOwn) {
  const std::string name = files_->temporary_name(path("file"));
  EXPECT_EQ(parent_path(name), folder_);
  EXPECT_NE(name, path("file"));
}

}  // namespace accelerate::testing
