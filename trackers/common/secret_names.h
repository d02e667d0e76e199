/// What is not to be shown, by its name or by its form.
///
///   is_secret_name("COMET_API_KEY")                      // also "apiKey", "net/db_password"
///   without_url_secrets("http://me:pw@host/x")           // "http://***@host/x"
///   shown_value("net", {{"lr", 0.1}, {"key", "k"}})      // "{'lr': 0.1, 'key': '***'}"
///
/// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "accelerate/tracking/value.h"

namespace accelerate::trackers {

/// Whether the last word of a part of the name between slashes is "key", "pat", or ends in
/// apikey, accesskey, secretkey, privatekey, token, password, passwd, passphrase, secret or
/// credential, or the plural of one but token. "max_tokens", "key_size" and "monkey" are none.
bool is_secret_name(std::string_view name);

/// The text with "***" in place of what URLs in it have before the "@" of their host.
std::string without_url_secrets(std::string_view text);

/// The value of that name as text, with "***" in place of secrets, also of those in dictionaries
/// and lists.
std::string shown_value(std::string_view name, const TrackerValue& value);

}  // namespace accelerate::trackers
