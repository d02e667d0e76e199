#include "launch/supervise/line_prefixer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace accelerate::launch::supervise {

void LinePrefixer::append(absl::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    if (after_cr_) {
      after_cr_ = false;
      if (bytes[0] == '\n') {
        emit("\r\n", out);
        bytes.remove_prefix(1);
        continue;
      }
      emit("\r", out);
    }
    const size_t end = bytes.find_first_of("\r\n");
    grow(bytes.substr(0, end), out);
    if (end == absl::string_view::npos) return;
    if (bytes[end] == '\n') {
      emit("\n", out);
    } else {
      after_cr_ = true;
    }
    bytes.remove_prefix(end + 1);
  }
}

void LinePrefixer::finish(std::string& out) {
  if (after_cr_ || !line_.empty()) emit(after_cr_ ? "\r\n" : "\n", out);
  after_cr_ = false;
}

void LinePrefixer::emit(absl::string_view ending, std::string& out) {
  // A redraw often starts with its "\r"; a prefix for the nothing before it would only flicker.
  if (line_.empty() && ending == "\r") {
    out += '\r';
    return;
  }
  absl::StrAppend(&out, prefix_, line_, ending);
  if (!line_.empty()) {
    if (tail_.size() == kTailLines) tail_.pop_front();
    tail_.push_back(line_.substr(0, kTailLineBytes));
  }
  line_.clear();
}

void LinePrefixer::grow(absl::string_view bytes, std::string& out) {
  while (line_.size() + bytes.size() > kMaxLineBytes) {
    const size_t room = kMaxLineBytes - line_.size();
    absl::StrAppend(&line_, bytes.substr(0, room));
    bytes.remove_prefix(room);
    emit("\n", out);
  }
  absl::StrAppend(&line_, bytes);
}

}  // namespace accelerate::launch::supervise
