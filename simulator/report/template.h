/// The parts of the HTML page that do not depend on a trace, as embed.bzl puts them into the
/// program: report.html, report.css, and the scripts in the order in which they stand in the page.
#pragma once

namespace accelerate::simulator {

/// With the lines `{{style}}`, `{{data}}` and `{{script}}` where the other parts belong.
extern const char kPageHtml[];
extern const char kPageStyle[];
extern const char kPageScript[];

}  // namespace accelerate::simulator
