/// The launcher's own standard output and error, and its messages there.
/// Threads: the main thread.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "launch/process/event_source.h"
#include "launch/supervise/output_queue.h"

namespace accelerate::launch::supervise {

class Console final : public process::EventSource {
 public:
  Console();

  OutputQueue& out() { return out_; }
  OutputQueue& err() { return err_; }

  /// `accelerate launch: TEXT` as a line on standard error.
  void say(absl::string_view text);

  /// The same, but only the first time for each `matter`.
  void say_once(absl::string_view matter, absl::string_view text);

  bool empty() const { return out_.empty() && err_.empty(); }

  /// The name of the stream whose reader is gone, if one is.
  const std::optional<std::string>& closed() const { return closed_; }

  void add_entries(std::vector<pollfd>& entries) override;
  void react(absl::Span<const pollfd> entries) override;

 private:
  void write(OutputQueue& queue, absl::string_view name, OutputQueue& other);

  OutputQueue out_;
  OutputQueue err_;
  std::optional<std::string> closed_;
  std::set<std::string, std::less<>> said_;
};

}  // namespace accelerate::launch::supervise
