#include "common/addresses.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <algorithm>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace telar {
namespace {

bool is_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return false;
  const std::string port = text.substr(colon + 1);
  int number = 0;
  return port.size() <= 5 && port.find_first_not_of("0123456789") == std::string::npos &&
         absl::SimpleAtoi(port, &number) && number > 0 && number <= 65535;
}

// "10.0.0.1:7070" for the first IPv4 address of the host; empty: it has none.
std::string resolve(const std::string& address) {
  const size_t colon = address.rfind(':');
  addrinfo wanted{};
  wanted.ai_family = AF_INET;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.substr(0, colon).c_str(), nullptr, &wanted, &found) != 0 || found == nullptr) return "";
  char text[INET_ADDRSTRLEN] = {};
  const auto* socket_address = reinterpret_cast<const sockaddr_in*>(found->ai_addr);
  inet_ntop(AF_INET, &socket_address->sin_addr, text, sizeof(text));
  freeaddrinfo(found);
  return absl::StrCat(text, address.substr(colon));
}

}  // namespace

std::string check_addresses(const std::string& text) {
  std::set<std::string> seen;
  for (const std::string& address : split_addresses(text)) {
    if (!is_address(address)) {
      return absl::StrCat("'", address, "' is not host:port with a port from 1 to 65535",
                          seen.empty() && address == text ? "" : ", or several with commas between");
    }
    if (!seen.insert(address).second) return absl::StrCat("'", address, "' is there twice");
  }
  return "";
}

std::vector<std::string> split_addresses(const std::string& text) { return absl::StrSplit(text, ','); }

std::string join_addresses(std::vector<std::string> addresses) {
  std::sort(addresses.begin(), addresses.end());
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
  return absl::StrJoin(addresses, ",");
}

std::string grpc_target(const std::string& text) {
  const std::vector<std::string> all = split_addresses(text);
  if (all.size() == 1) return text;
  std::vector<std::string> found;
  for (const std::string& address : all) {
    std::string resolved = resolve(address);
    if (!resolved.empty()) found.push_back(std::move(resolved));
  }
  return found.empty() ? all.front() : absl::StrCat("ipv4:", absl::StrJoin(found, ","));
}

}  // namespace telar
