#include "launch/module_loader/exported_symbols.h"

#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string_view>

namespace accelerate::launch::module_loader {
namespace {

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

}  // namespace

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
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::string readable_name(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 && name ? std::string(name.get()) : symbol;
}

}  // namespace accelerate::launch::module_loader
