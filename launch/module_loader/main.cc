/// `accelerate-module SYMBOL LIBRARY [ARGS...]`: calls a function of a shared object as if it were
/// a program's main.
///
/// `accelerate launch --module` starts this program. The function is
///     extern "C" int SYMBOL(int argc, char** argv);
/// its argv[0] is LIBRARY, and what it returns is the exit code. A name without '/' is a file in
/// the working directory, else one that the dynamic linker finds. All symbols of the library are
/// there for what it loads itself, as they are for a program's. Exit code of its own: 127 for a
/// library that is not there, 126 for one that cannot be loaded or has no such function, 2 for a
/// bad command line.

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/message_text.h"
#include "launch/commands/commands.h"

namespace accelerate::launcher::module_loader {

using commands::kExitNotExecutable;
namespace {

constexpr char kProgram[] = "accelerate-module";

int fail(int exit_code, const std::string& message) {
  std::cerr << kProgram << ": " << message << std::endl;
  return exit_code;
}

std::string path_of(void* handle, const std::string& otherwise) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map->l_name[0] == '\0') return otherwise;
  return map->l_name;
}

// The bytes of a file, of which nothing beyond the end is ever read.
class Bytes {
 public:
  explicit Bytes(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
  }

  template <typename T>
  bool read(uint64_t offset, T& value) const {
    if (offset > bytes_.size() || bytes_.size() - offset < sizeof(T)) return false;
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return true;
  }

  std::string text_at(uint64_t offset) const {
    if (offset >= bytes_.size()) return "";
    return bytes_.substr(offset, bytes_.find('\0', offset) - offset);
  }

 private:
  std::string bytes_;
};

// The functions that a shared object exports, sorted: names as the file has them (C++ ones
// mangled), of the machine's own ELF class. For messages only: whatever the file is, what can be
// read of it is returned.
std::vector<std::string> exported_functions(const std::string& path) {
  const Bytes file(path);
  ElfW(Ehdr) header;
  if (!file.read(0, header) || std::string_view(reinterpret_cast<char*>(header.e_ident), SELFMAG) !=
                                   std::string_view(ELFMAG, SELFMAG)) {
    return {};
  }
  std::vector<std::string> names;
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    ElfW(Shdr) symbols;
    ElfW(Shdr) texts;
    if (!file.read(header.e_shoff + i * sizeof(symbols), symbols)) break;
    if (symbols.sh_type != SHT_DYNSYM) continue;
    if (!file.read(header.e_shoff + symbols.sh_link * sizeof(texts), texts)) continue;
    ElfW(Sym) symbol;
    for (uint64_t at = 0; at + sizeof(symbol) <= symbols.sh_size; at += sizeof(symbol)) {
      if (!file.read(symbols.sh_offset + at, symbol)) break;
      const unsigned char kind = ELF64_ST_TYPE(symbol.st_info);
      if (kind != STT_FUNC || symbol.st_shndx == SHN_UNDEF) continue;
      names.push_back(file.text_at(texts.sh_offset + symbol.st_name));
    }
  }
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

// A mangled C++ name as it was written, "train(int, char**)"; other names as they are.
std::string readable_name(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 && name ? std::string(name.get()) : symbol;
}

// Why `symbol` was not found, behind "; ": it is there under its C++ name, or there is one like it.
std::string missing_symbol(const std::string& path, const std::string& symbol) {
  std::vector<std::string> plain;
  for (const std::string& name : exported_functions(path)) {
    const std::string readable = readable_name(name);
    if (absl::StartsWith(readable, absl::StrCat(symbol, "("))) {
      return absl::StrCat("; it has ", readable, ", a C++ function: declare it extern \"C\"");
    }
    if (readable == name && !absl::StartsWith(name, "_")) plain.push_back(name);
  }
  if (plain.empty()) {
    return absl::StrCat("; it exports no function with a plain name; declare int ", symbol,
                        "(int argc, char** argv) extern \"C\", and visible");
  }
  if (std::string hint = did_you_mean(symbol, plain); !hint.empty()) return hint;
  constexpr size_t kShown = 8;
  const size_t shown = std::min(plain.size(), kShown);
  return absl::StrCat("; it exports ", absl::StrJoin(plain.begin(), plain.begin() + shown, ", "),
                      plain.size() > shown ? ", ..." : "");
}

int run_module(int argc, char** argv) {
  if (argc < 3 || argv[1][0] == '\0' || argv[2][0] == '\0') {
    return fail(commands::kExitBadCommandLine,
                "a function and a library are needed: accelerate-module SYMBOL LIBRARY [ARGS...]");
  }
  const std::string symbol = argv[1];
  const std::string library = argv[2];
  // The linker looks into the working directory only if there is a '/'.
  const bool is_here = !absl::StrContains(library, '/') && access(library.c_str(), F_OK) == 0;
  const std::string name = absl::StrCat(is_here ? "./" : "", library);
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    const std::string reason = dlerror();
    const bool is_missing = absl::StrContains(reason, name) && absl::StartsWith(reason, name) &&
                            access(name.c_str(), F_OK) != 0;
    std::string message = absl::StrCat("cannot load ", library, ": ", reason);
    if (absl::StrContains(reason, "position-independent executable")) {
      absl::StrAppend(&message, "; it is a program: launch it without --module");
    }
    return fail(is_missing ? commands::kExitNotFound : kExitNotExecutable, message);
  }
  dlerror();
  void* address = dlsym(handle, symbol.c_str());
  if (address == nullptr) {
    // The text is gone at the next call of its kind.
    const char* said = dlerror();
    const std::string reason = said != nullptr ? said : "it is at address 0";
    const std::string path = path_of(handle, name);
    return fail(kExitNotExecutable, absl::StrCat("no function ", symbol, " in ", path, ": ", reason,
                                                 missing_symbol(path, symbol)));
  }
  // The function's command line is what follows the symbol, as main would get it.
  const auto function = reinterpret_cast<int (*)(int, char**)>(address);
  return function(argc - 2, argv + 2);
}

}  // namespace
}  // namespace accelerate::launcher::module_loader

int main(int argc, char** argv) {
  return accelerate::launcher::module_loader::run_module(argc, argv);
}
