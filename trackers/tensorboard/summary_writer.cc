#include "trackers/tensorboard/summary_writer.h"

#include "trackers/common/init_kwargs.h"

namespace accelerate::trackers {

SummaryWriterOptions summary_writer_options(const TrackerDict& kwargs) {
  constexpr double kYear = 365 * 24 * 3600;
  SummaryWriterOptions options;
  InitKwargs init("tensorboard", kwargs);
  options.comment = init.text("comment").value_or("");
  options.purge_step = init.integer("purge_step");
  options.max_queue = init.integer("max_queue").value_or(options.max_queue);
  const double flush_secs = init.number("flush_secs").value_or(120);
  options.filename_suffix = init.text("filename_suffix").value_or("");
  options.max_file_bytes = init.integer("max_file_bytes");
  if (options.max_queue < 0) init.refuse("max_queue", "at least 0");
  if (!(flush_secs >= 0 && flush_secs < kYear)) init.refuse("flush_secs", "seconds, 0 or more");
  if (options.filename_suffix.find('/') != std::string::npos) {
    init.refuse("filename_suffix", "the end of a name, without a slash");
  }
  if (options.max_file_bytes && *options.max_file_bytes <= 0) {
    init.refuse("max_file_bytes", "more than 0");
  }
  init.finish();
  options.flush_secs = absl::Seconds(flush_secs);
  return options;
}

}  // namespace accelerate::trackers
