#include "launch/rank_output.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/string_view.h"

namespace accelerate::launch {
namespace {

constexpr size_t kReadBytes = 64 * 1024;

// A pipe holds 64 KiB unless someone enlarged it, at most to 1 MiB without privileges. The bound
// only matters if a writer could not be killed and never stops.
constexpr int kFinalReads = 16;

}  // namespace

RankOutput::RankOutput(UniqueFd pipe, std::string prefix, OutputQueue& sink)
    : pipe_(std::move(pipe)), prefixer_(std::move(prefix)), sink_(&sink) {}

void RankOutput::read_some() {
  char buffer[kReadBytes];
  const ssize_t size = read(pipe_.get(), buffer, sizeof(buffer));
  if (size > 0) {
    prefixer_.append(absl::string_view(buffer, static_cast<size_t>(size)), sink_->pending());
  } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
    pipe_.reset();
    prefixer_.finish(sink_->pending());
  }
}

void RankOutput::finish() {
  for (int i = 0; i < kFinalReads && is_open(); ++i) read_some();
  if (!is_open()) return;
  pipe_.reset();
  prefixer_.finish(sink_->pending());
}

}  // namespace accelerate::launch
