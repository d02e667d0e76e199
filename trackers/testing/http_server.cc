#include "trackers/testing/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace accelerate::trackers {
namespace {

std::string unescaped(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      result += static_cast<char>(std::strtol(text.substr(i + 1, 2).c_str(), nullptr, 16));
      i += 2;
    } else {
      result += text[i] == '+' ? ' ' : text[i];
    }
  }
  return result;
}

// Splits at the first `separator`; the second part is empty where there is none.
std::pair<std::string, std::string> split(const std::string& text, const std::string& separator) {
  const size_t at = text.find(separator);
  if (at == text.npos) return {text, ""};
  return {text.substr(0, at), text.substr(at + separator.size())};
}

void parse_target(const std::string& target, HttpServerRequest& request) {
  auto [path, rest] = split(target, "?");
  request.path = unescaped(path);
  while (!rest.empty()) {
    auto [field, others] = split(rest, "&");
    const auto [name, value] = split(field, "=");
    request.query[unescaped(name)] = unescaped(value);
    rest = others;
  }
}

// The next request of a connection, whose bytes beyond it stay in `buffer`; nothing at its end.
std::optional<HttpServerRequest> read_request(int fd, std::string& buffer) {
  const auto read_more = [&] {
    char bytes[65536];
    const ssize_t count = recv(fd, bytes, sizeof(bytes), 0);
    if (count > 0) buffer.append(bytes, static_cast<size_t>(count));
    return count > 0;
  };
  while (buffer.find("\r\n\r\n") == buffer.npos) {
    if (!read_more()) return std::nullopt;
  }
  HttpServerRequest request;
  auto [head, rest] = split(buffer, "\r\n\r\n");
  auto [line, fields] = split(head, "\r\n");
  const auto [method, target] = split(line, " ");
  request.method = method;
  parse_target(split(target, " ").first, request);
  while (!fields.empty()) {
    auto [field, others] = split(fields, "\r\n");
    const auto [name, value] = split(field, ":");
    request.headers[absl::AsciiStrToLower(name)] = std::string(absl::StripAsciiWhitespace(value));
    fields = others;
  }
  buffer = rest;
  const size_t size = std::strtoul(request.headers["content-length"].c_str(), nullptr, 10);
  while (buffer.size() < size) {
    if (!read_more()) return std::nullopt;
  }
  request.body = buffer.substr(0, size);
  buffer.erase(0, size);
  return request;
}

bool send_all(int fd, const std::string& text) {
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t count = send(fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return false;
    sent += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace

HttpServer::HttpServer(Handler handler, const HttpServerOptions& options)
    : handler_(std::move(handler)), fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = {.sin_family = AF_INET};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (fd_ < 0 || bind(fd_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error(absl::StrCat("no socket: ", std::strerror(errno)));
  }
  port_ = ntohs(address.sin_port);
  if (options.listening) listen();
}

HttpServer::~HttpServer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const int fd : open_) shutdown(fd, SHUT_RDWR);
  }
  shutdown(fd_, SHUT_RDWR);
  if (acceptor_.joinable()) acceptor_.join();
  for (std::thread& thread : threads_) thread.join();
  close(fd_);
}

void HttpServer::listen() {
  if (::listen(fd_, 64) != 0) {
    throw std::runtime_error(absl::StrCat("cannot listen: ", std::strerror(errno)));
  }
  acceptor_ = std::thread([this] { accept_all(); });
}

std::string HttpServer::url() const { return absl::StrCat("http://127.0.0.1:", port_); }

int HttpServer::connections() {
  const std::lock_guard lock(mutex_);
  return accepted_;
}

void HttpServer::accept_all() {
  while (true) {
    const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
    const std::lock_guard lock(mutex_);
    if (fd < 0 || stopping_) {
      if (fd >= 0) close(fd);
      return;
    }
    ++accepted_;
    open_.push_back(fd);
    threads_.emplace_back([this, fd] { serve(fd); });
  }
}

void HttpServer::serve(int fd) {
  std::string buffer;
  while (const auto request = read_request(fd, buffer)) {
    const HttpServerAnswer answer = handler_(*request);
    if (answer.hang_up) break;
    std::string text = absl::StrCat("HTTP/1.1 ", answer.status,
                                    " status\r\nContent-Length: ", answer.body.size(), "\r\n");
    for (const auto& [name, value] : answer.headers) {
      absl::StrAppend(&text, name, ": ", value, "\r\n");
    }
    if (!send_all(fd, absl::StrCat(text, "\r\n", answer.body))) break;
  }
  const std::lock_guard lock(mutex_);
  std::erase(open_, fd);
  close(fd);
}

}  // namespace accelerate::trackers
