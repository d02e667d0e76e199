/// Python packages that a test writes, in a folder that goes with the object.
///
///   FakePackages fake;
///   fake.add_recorder("comet_ml");
///   const auto tracker = make_comet_ml_tracker(fake.setup());
///   ...
///   EXPECT_THAT(fake.calls(), ElementsAre("comet_ml.start(project_name='run')", ...));
///
/// There is neither NumPy nor Pillow for them.
/// Threads: one.
#pragma once

#include <string>
#include <vector>

#include "accelerate/platform/host_files.h"
#include "accelerate/tracking/tracker.h"

namespace accelerate::trackers {

class FakePackages {
 public:
  FakePackages();
  FakePackages(const FakePackages&) = delete;
  FakePackages& operator=(const FakePackages&) = delete;

  /// A module of that text. `import recorder` gives it `recorder.note(text)` for `calls`.
  void add(const std::string& module, const std::string& text);
  /// A module whose calls, assignments of attributes and of items are all noted, and which has any
  /// name.
  void add_recorder(const std::string& module);

  std::string path(const std::string& name) const { return folder_.path(name); }
  Environment& environment() { return environment_; }
  const TrackerServices& services() const { return services_; }
  /// Project "run", logging_dir "logs".
  TrackerSetup setup(TrackerDict init_kwargs = {}) const;

  /// In the words of Python.
  std::vector<std::string> calls() const;
  /// The messages of the tracker: as "warning: ..." and "info: ...".
  const std::vector<std::string>& said() const { return said_; }

 private:
  const TemporaryFolder folder_{"fake_packages_"};
  HostFiles files_;
  Environment environment_;
  std::vector<std::string> said_;
  TrackerServices services_;
};

}  // namespace accelerate::trackers
