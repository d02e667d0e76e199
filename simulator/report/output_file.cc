#include "simulator/report/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "accelerate/base/json_text.h"

namespace accelerate::simulator {
namespace {

absl::Status error(int number, const std::string& path) {
  return absl::ErrnoToStatus(number, absl::StrCat("cannot write ", path));
}

}  // namespace

OutputFile::OutputFile(std::string path, std::string partial, std::FILE* file)
    : path_(std::move(path)), partial_(std::move(partial)), file_(file, &std::fclose) {}

OutputFile::~OutputFile() {
  if (file_ != nullptr) ::unlink(partial_.c_str());
}

absl::StatusOr<OutputFile> OutputFile::create(const std::string& path) {
  // The process id keeps two processes that write the same report from sharing a temporary file.
  std::string partial = absl::StrCat(path, ".partial-", ::getpid());
  std::FILE* file = std::fopen(partial.c_str(), "wb");
  if (file == nullptr) return error(errno, path);
  return OutputFile(path, std::move(partial), file);
}

void OutputFile::append(absl::string_view text) {
  if (error_ != 0) return;
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size()) error_ = errno;
}

absl::Status OutputFile::commit() {
  // fclose() writes the buffered data, so a full disk may be reported only here.
  if (std::fclose(file_.release()) != 0 && error_ == 0) error_ = errno;
  if (error_ == 0 && std::rename(partial_.c_str(), path_.c_str()) != 0) error_ = errno;
  if (error_ == 0) return absl::OkStatus();
  ::unlink(partial_.c_str());
  return error(error_, path_);
}

std::string html_json_text(const Json& value) {
  return absl::StrReplaceAll(json_text(value), {{"<", "\\u003c"}});
}

std::string microseconds(int64_t ns) { return absl::StrFormat("%d.%03d", ns / 1000, ns % 1000); }

}  // namespace accelerate::simulator
