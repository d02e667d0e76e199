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
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
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

// The functions that a loaded shared object exports, sorted: names as the file has them (C++ ones
// mangled). For messages only: they come from the table by which the dynamic linker finds them, and
// are none if that is not GNU's.
std::vector<std::string> exported_functions(void* handle) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) return {};
  const ElfW(Sym)* symbols = nullptr;
  const char* texts = nullptr;
  const uint32_t* table = nullptr;
  for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
    const ElfW(Addr) address = entry->d_un.d_ptr;
    if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(address);
    if (entry->d_tag == DT_STRTAB) texts = reinterpret_cast<const char*>(address);
    if (entry->d_tag == DT_GNU_HASH) table = reinterpret_cast<const uint32_t*>(address);
  }
  if (symbols == nullptr || texts == nullptr || table == nullptr) return {};
  // It begins with the numbers of its buckets, of its first symbol and of words before the buckets.
  const uint32_t* const buckets = table + 4 + table[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
  const uint32_t* const chains = buckets + table[0];
  std::vector<std::string> names;
  for (const uint32_t* bucket = buckets; bucket != chains; ++bucket) {
    if (*bucket == 0) continue;
    uint32_t i = *bucket;
    do {
      const unsigned char kind = ELF64_ST_TYPE(symbols[i].st_info);
      if (kind == STT_FUNC && symbols[i].st_shndx != SHN_UNDEF) {
        names.emplace_back(texts + symbols[i].st_name);
      }
    } while ((chains[i++ - table[1]] & 1) == 0);  // the last of a bucket is odd
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
std::string missing_symbol(void* handle, const std::string& symbol) {
  std::vector<std::string> plain;
  for (const std::string& name : exported_functions(handle)) {
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
                                                 missing_symbol(handle, symbol)));
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
