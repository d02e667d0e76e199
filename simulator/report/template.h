/// The parts of the HTML page that do not depend on a trace: report.html, report.css, and the
/// scripts in their order in the page. //tools/build_defs:embed.bzl makes these constants.
#pragma once

namespace accelerate::simulator {

/// The page, with the lines `{{style}}`, `{{data}}` and `{{script}}` in place of the other parts.
extern const char kPageHtml[];
extern const char kPageStyle[];
extern const char kPageScript[];

}  // namespace accelerate::simulator
