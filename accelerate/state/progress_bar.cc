#include "accelerate/state/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace accelerate {
namespace {

constexpr absl::Duration kRedrawInterval = absl::Milliseconds(100);
constexpr int kBarCells = 10;
constexpr int kDefaultColumns = 80;

int terminal_columns(const Environment& environment) {
  int columns = 0;
  if (absl::SimpleAtoi(environment.get_or("COLUMNS", ""), &columns) && columns > 0) return columns;
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kDefaultColumns;
}

// The UTF-8 character at the front of `text`: its bytes, and the terminal columns it takes.
struct Glyph {
  size_t bytes;
  int columns;
};

Glyph front_glyph(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  size_t bytes = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  bytes = std::min(bytes, text.size());
  uint32_t code = bytes == 1 ? lead : lead & (0x7F >> bytes);
  for (size_t i = 1; i < bytes; ++i) code = code << 6 | (text[i] & 0x3F);
  // The usual ranges of wide (East Asian) and pictorial characters.
  constexpr std::pair<uint32_t, uint32_t> kWide[] = {
      {0x1100, 0x115F}, {0x2E80, 0xA4CF}, {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},  {0xFE30, 0xFE6F},
      {0xFF00, 0xFF60}, {0xFFE0, 0xFFE6}, {0x1F300, 0x1FAFF}, {0x20000, 0x3FFFD}};
  for (auto [first, last] : kWide) {
    if (first <= code && code <= last) return {bytes, 2};
  }
  return {bytes, 1};
}

// The longest beginning of `text` that fits into `columns`, and how many it takes.
std::pair<std::string_view, int> fit(std::string_view text, int columns) {
  size_t bytes = 0;
  int used = 0;
  while (bytes < text.size()) {
    const Glyph glyph = front_glyph(text.substr(bytes));
    if (used + glyph.columns > columns) break;
    bytes += glyph.bytes;
    used += glyph.columns;
  }
  return {text.substr(0, bytes), used};
}

int columns_of(std::string_view text) {
  return fit(text, static_cast<int>(2 * text.size())).second;
}

// A line break or an escape sequence inside the line would tear it apart.
std::string on_one_line(std::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(),
      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }, ' ');
  return line;
}

std::string clock_text(absl::Duration duration) {
  const int64_t seconds = absl::ToInt64Seconds(std::max(duration, absl::ZeroDuration()));
  const int64_t minutes = seconds / 60;
  if (minutes < 60) return absl::StrFormat("%02d:%02d", minutes, seconds % 60);
  return absl::StrFormat("%d:%02d:%02d", minutes / 60, minutes % 60, seconds % 60);
}

// "512 B", "1.20 GB".
std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  // What rounds to 1000 of a unit is one of the next.
  for (; bytes >= 999.995 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1000;
  return unit == 0 ? absl::StrFormat("%.0f B", bytes)
                   : absl::StrFormat("%.2f %s", bytes, kUnits[unit]);
}

std::string byte_rate_text(int64_t count, double seconds) {
  return count > 0 && seconds > 0 ? absl::StrCat(bytes_text(count / seconds), "/s") : "? B/s";
}

std::string rate_text(int64_t count, double seconds) {
  if (count <= 0 || seconds <= 0) return "? it/s";
  const double rate = count / seconds;
  return rate >= 1 ? absl::StrFormat("%.1f it/s", rate) : absl::StrFormat("%.1f s/it", 1 / rate);
}

std::string bar_text(double fraction, int cells) {
  const int full = static_cast<int>(std::lround(fraction * cells));
  std::string bar;
  for (int i = 0; i < cells; ++i) bar += i < full ? "█" : " ";
  return bar;
}

}  // namespace

ProgressBar::ProgressBar(Runtime& runtime, ProgressBarOptions options)
    : runtime_(runtime),
      options_(std::move(options)),
      is_terminal_(runtime.is_terminal(ConsoleStream::kErr)),
      open_(!options_.main_process_only || runtime.topology().local_rank == 0) {
  if (!open_) return;
  options_.description = on_one_line(options_.description);
  started_ = runtime_.now();
  last_drawn_ = started_;
  if (is_terminal_) draw(started_);
}

ProgressBar::~ProgressBar() {
  try {
    close();
  } catch (...) {
    // A line that cannot be drawn must not end the program.
  }
}

void ProgressBar::advance(int64_t steps, std::string_view postfix) {
  count_ += steps;
  if (!open_) return;
  if (!postfix.empty()) postfix_ = on_one_line(postfix);
  const absl::Time now = runtime_.now();
  if (is_due(now)) draw(now);
}

// A clock that was set back must not stop the drawing, nor one that stands still on a terminal.
bool ProgressBar::is_due(absl::Time now) {
  if (is_terminal_) {
    return now < last_drawn_ || now - last_drawn_ >= kRedrawInterval ||
           twentieths(count_) > twentieths(drawn_count_);
  }
  last_drawn_ = std::min(last_drawn_, now);
  return now - last_drawn_ >= kPlainInterval;
}

int64_t ProgressBar::twentieths(int64_t count) const {
  return options_.total.value_or(0) > 0 ? 20 * count / *options_.total : 0;
}

void ProgressBar::print(std::string_view line) {
  if (runtime_.topology().rank != 0) return;
  const bool is_above_bar = open_ && is_terminal_;
  if (is_above_bar) runtime_.write_console(ConsoleStream::kErr, "\r\x1b[K");
  runtime_.write_console(ConsoleStream::kOut, absl::StrCat(std::string(line), "\n"));
  if (is_above_bar) draw(runtime_.now());
}

void ProgressBar::close() {
  if (!std::exchange(open_, false)) return;
  const absl::Time now = runtime_.now();
  if (!is_terminal_) {
    if (drawn_count_ != 0 && count_ != drawn_count_) draw(now);
    return;
  }
  if (now != last_drawn_ || count_ != drawn_count_) draw(now);
  runtime_.write_console(ConsoleStream::kErr, "\n");
}

void ProgressBar::draw(absl::Time now) {
  last_drawn_ = now;
  drawn_count_ = count_;
  const absl::Duration elapsed = now - started_;
  const double seconds = absl::ToDoubleSeconds(elapsed);
  // More steps than announced: the announcement was wrong, so there is nothing to measure against.
  const bool bounded = options_.total && count_ <= *options_.total;

  std::string left = options_.description;
  if (!left.empty()) left += ": ";
  const bool bytes = options_.counts_bytes;
  const auto amount = [bytes](int64_t count) {
    return bytes ? bytes_text(static_cast<double>(count)) : absl::StrCat(count);
  };
  const std::string total = bounded ? absl::StrCat("/", amount(*options_.total))
                            : bytes ? ""
                                    : " it";
  std::string right = absl::StrCat(amount(count_), total, " [", clock_text(elapsed));
  double fraction = 0;
  if (bounded) {
    fraction = *options_.total == 0 ? 1 : static_cast<double>(count_) / *options_.total;
    absl::StrAppendFormat(&left, "%3d%%", static_cast<int>(fraction * 100));
    const std::string rest =
        fraction > 0 ? clock_text(elapsed * ((1 - fraction) / fraction)) : std::string("?");
    absl::StrAppend(&right, "<", rest);
  }
  absl::StrAppend(&right, ", ",
                  bytes ? byte_rate_text(count_, seconds) : rate_text(count_, seconds));
  if (!postfix_.empty()) absl::StrAppend(&right, ", ", postfix_);
  right += "]";

  if (!is_terminal_) {
    runtime_.write_console(ConsoleStream::kErr,
                           absl::StrCat(left, bounded ? " " : "", right, "\n"));
    return;
  }
  if (bounded) {
    left += "|";
    right.insert(0, "| ");
  }
  // The last column stays free: terminals wrap as soon as it is written.
  const int columns = terminal_columns(runtime_.environment()) - 1;
  const int cells =
      bounded ? std::clamp(columns - columns_of(left) - columns_of(right), 0, kBarCells) : 0;
  const std::string line = absl::StrCat(left, bar_text(fraction, cells), right);
  // Back to the line's begin, the text, and erase what a longer text left behind.
  runtime_.write_console(ConsoleStream::kErr,
                         absl::StrCat("\r", std::string(fit(line, columns).first), "\x1b[K"));
}

}  // namespace accelerate
