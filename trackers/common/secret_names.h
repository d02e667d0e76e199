/// What is not to be shown, by its name or by its form.
///
///   is_secret_name("COMET_API_KEY")                      // also "apiKey", "net/db_password"
///   without_url_secrets("http://me:pw@host/x")           // "http://***@host/x"
///
/// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace accelerate::trackers {

/// Whether the last word of a part of the name between slashes is "key", "pat", or ends in
/// apikey, accesskey, secretkey, privatekey, token, password, passwd, passphrase, secret or
/// credential, or the plural of one but token. "max_tokens", "key_size" and "monkey" are none.
bool is_secret_name(std::string_view name);

/// The text with "***" in place of what URLs in it have before the "@" of their host.
std::string without_url_secrets(std::string_view text);

}  // namespace accelerate::trackers
