// "host:port", or several of them with commas between: the coordinators that stand in for each other.
#pragma once

#include <string>
#include <vector>

namespace telar {

// What is wrong with it, with its rule; empty: nothing. Ports are 1 to 65535, and nothing may be there twice.
std::string check_addresses(const std::string& text);
std::vector<std::string> split_addresses(const std::string& text);
// All of them once, in order of text: the same for whoever names them, in whatever order.
std::string join_addresses(std::vector<std::string> addresses);

// What gRPC takes for it. Names of several are looked up now; one that has no IPv4 address is left out, so a name whose
// address changes should stand alone.
std::string grpc_target(const std::string& text);

}  // namespace telar
