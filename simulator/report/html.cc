#include "simulator/report/html.h"

#include "absl/log/absl_check.h"
#include "absl/strings/string_view.h"
#include "simulator/report/output_file.h"
#include "simulator/report/page_data.h"
#include "simulator/report/template.h"

namespace accelerate::simulator {
namespace {

// Takes the text up to a mark off the front, and the mark with it.
absl::string_view take_until(absl::string_view mark, absl::string_view& text) {
  const size_t at = text.find(mark);
  ABSL_CHECK(at != text.npos) << "report.html has no " << mark;
  const absl::string_view before = text.substr(0, at);
  text.remove_prefix(at + mark.size());
  return before;
}

}  // namespace

absl::Status write_html(const Trace& trace, const std::string& path) {
  absl::StatusOr<OutputFile> file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  absl::string_view page = kPageHtml;
  file->append(take_until("{{style}}", page));
  file->append(kPageStyle);
  file->append(take_until("{{data}}", page));
  append_page_data(trace, PageBudget(), *file);
  file->append(take_until("{{script}}", page));
  file->append(kPageScript);
  file->append(page);
  return file->commit();
}

}  // namespace accelerate::simulator
