/// The functions that a shared object exports, read from the file.
///
/// For messages only: whatever the file is, what can be read of it is returned.
/// Threads: any.
#pragma once

#include <string>
#include <vector>

namespace accelerate::launch::module_loader {

/// Names as the file has them (C++ ones mangled), sorted; of the machine's own ELF class. Empty for
/// a file that cannot be read or is something else.
std::vector<std::string> exported_functions(const std::string& path);

/// A mangled C++ name as it was written, "train(int, char**)"; other names as they are.
std::string readable_name(const std::string& symbol);

}  // namespace accelerate::launch::module_loader
