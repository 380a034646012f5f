#include "tests/house/layers.h"

#include <algorithm>
#include <functional>
#include <regex>
#include <sstream>

#include "tests/house/sources.h"

namespace telar::house {
namespace {

bool starts_with_folder(const std::string& path, const std::string& folder) {
  return path == folder || path.rfind(folder + "/", 0) == 0;
}

// Headers of a vendor, and the only layer that may know of it.
struct Vendor {
  std::regex header;
  std::string layer;
};

const std::vector<Vendor>& vendors() {
  static const std::vector<Vendor> list = {
      {std::regex("^(oneapi/|dnnl|gloo/).*"), "worker/backend/cpu"},
      {std::regex("^(cuda|cublas|cudnn|nccl|cub/|cooperative_groups|device_launch|nv).*"), "worker/backend/cuda"},
  };
  return list;
}

const std::set<std::string>& rpc_layers() {
  static const std::set<std::string> layers = {"server/rpc", "server/store", "worker/agent", "worker/train",
                                               "client/commands"};
  return layers;
}

// The layer that an included header belongs to; empty for headers from outside the project.
std::string target_layer(const Layers& layers, const std::string& header) {
  if (header.rfind("telar/v1/", 0) == 0) {
    const std::string message = header.substr(9, header.find('.') - 9);
    return message == "rank" || message == "spec" || message == "forecast" ? "proto/rank" : "proto/service";
  }
  if (header.rfind("google/rpc/", 0) == 0) return "proto/google";
  if (header.rfind("etcd/", 0) == 0) return "proto/etcd";
  const std::vector<std::string> ours = product_folders();
  const std::string top = header.substr(0, header.find('/'));
  if (std::find(ours.begin(), ours.end(), top) == ours.end()) return "";
  const std::string folder = header.substr(0, header.rfind('/'));
  const std::string layer = layers.layer_of(folder);
  return layer.empty() ? folder : layer;  // A folder of ours without a layer: nobody's arrow leads there.
}

std::string check_include(const Layers& layers, const std::string& from, const std::string& header, bool quoted) {
  if (quoted && header.find('/') == std::string::npos) return "\"" + header + "\" is not written from the root";
  if (starts_with_folder(header, "tests")) return "product code includes \"" + header + "\"";
  if (header.ends_with(".grpc.pb.h") && rpc_layers().count(from) == 0) {
    return from + " may not use the gRPC stubs of " + header;
  }
  for (const Vendor& vendor : vendors()) {
    if (std::regex_match(header, vendor.header) && from != vendor.layer) {
      return from + " includes " + header + ", which belongs into " + vendor.layer + " only";
    }
  }
  const std::string to = target_layer(layers, header);
  if (!to.empty() && !layers.allows(from, to)) {
    return from + " may not include " + to + " (" + header + "): no such arrow in cmake/layers.txt";
  }
  return "";
}

}  // namespace

Layers::Layers(std::string_view text) {
  int number = 0;
  for (std::string line : lines_of(text)) {
    ++number;
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) {
      problems_.push_back("layers.txt:" + std::to_string(number) + ": no ':' in \"" + line + "\"");
      continue;
    }
    const auto [place, fresh] = arrows_.try_emplace(line.substr(0, colon));
    if (!fresh) problems_.push_back("layers.txt:" + std::to_string(number) + ": second line for " + place->first);
    std::istringstream targets(line.substr(colon + 1));
    for (std::string target; targets >> target;) place->second.insert(target);
  }
  find_cycles();
}

void Layers::find_cycles() {
  std::map<std::string, int> state;  // 1: on the path, 2: done.
  const std::function<void(const std::string&)> visit = [&](const std::string& layer) {
    state[layer] = 1;
    const auto found = arrows_.find(layer);
    if (found != arrows_.end()) {
      for (const std::string& target : found->second) {
        if (state[target] == 1) problems_.push_back("layers.txt: " + layer + " -> " + target + " closes a circle");
        if (state[target] == 0) visit(target);
      }
    }
    state[layer] = 2;
  };
  for (const auto& [layer, targets] : arrows_) {
    if (state[layer] == 0) visit(layer);
  }
}

std::string Layers::layer_of(const std::string& folder) const {
  std::string best;
  for (const auto& [layer, targets] : arrows_) {
    if (starts_with_folder(folder, layer) && layer.size() > best.size()) best = layer;
  }
  if (best.empty() || best == folder) return best;
  const bool is_split = std::any_of(arrows_.begin(), arrows_.end(), [&](const auto& entry) {
    return entry.first != best && starts_with_folder(entry.first, best);
  });
  return is_split ? "" : best;
}

bool Layers::allows(const std::string& from, const std::string& to) const {
  if (from == to) return true;
  const auto found = arrows_.find(from);
  return found != arrows_.end() && found->second.count(to) > 0;
}

std::vector<std::string> check_includes(const Layers& layers, const std::string& path, std::string_view text) {
  static const std::regex include(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"].*)");
  const std::string folder = path.substr(0, path.rfind('/'));
  const std::string from = layers.layer_of(folder);
  if (from.empty()) return {path + ": folder " + folder + " has no line in cmake/layers.txt"};
  std::vector<std::string> violations;
  int number = 0;
  for (const std::string& line : lines_of(text)) {
    ++number;
    std::smatch match;
    if (!std::regex_match(line, match, include)) continue;
    const std::string violation = check_include(layers, from, match[2], match[1] == "\"");
    if (!violation.empty()) violations.push_back(path + ":" + std::to_string(number) + ": " + violation);
  }
  return violations;
}

}  // namespace telar::house
