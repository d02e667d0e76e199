#include "launch/supervise/rank_output.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace accelerate::launch::supervise {
namespace {

constexpr size_t kReadBytes = 64 * 1024;

// A pipe holds 64 KiB unless someone enlarged it, at most to 1 MiB without privileges. The bound
// only matters if a writer could not be killed and never stops.
constexpr int kFinalReads = 16;

}  // namespace

RankOutput::RankOutput(UniqueFd pipe, std::string prefix, OutputQueue* sink, RankLog log,
                       Console& console)
    : pipe_(std::move(pipe)),
      prefixer_(std::move(prefix)),
      sink_(sink),
      log_(std::move(log)),
      console_(&console) {}

void RankOutput::read_some() {
  char buffer[kReadBytes];
  const ssize_t size = read(pipe_.get(), buffer, sizeof(buffer));
  if (size > 0) {
    take(absl::string_view(buffer, static_cast<size_t>(size)));
  } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
    close();
  }
}

void RankOutput::finish() {
  for (int i = 0; i < kFinalReads && is_open(); ++i) read_some();
  if (is_open()) close();
}

void RankOutput::take(absl::string_view bytes) {
  if (absl::Status kept = log_.append(bytes); !kept.ok()) {
    console_->say_once("logs", absl::StrCat(kept.message(), "; the run goes on without"));
  }
  prefixer_.append(bytes, lines());
}

void RankOutput::close() {
  pipe_.reset();
  prefixer_.finish(lines());
}

std::string& RankOutput::lines() {
  if (sink_ != nullptr) return sink_->pending();
  dropped_.clear();
  return dropped_;
}

}  // namespace accelerate::launch::supervise
