#include "client/output/data.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/output/format.h"
#include "common/utf8.h"

namespace telar::client {
namespace {

using Json = nlohmann::ordered_json;

// JSON's scalars are YAML's, and text in its quotes, too.
std::string compact(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

void write_lines(const Json& json, const std::string& indent, std::string& out) {
  for (const auto& [key, value] : json.items()) {
    const std::string head = json.is_array() ? "-" : key + ":";
    if (!value.is_structured() || value.empty()) {
      absl::StrAppend(&out, indent, head, " ", compact(value), "\n");
      continue;
    }
    std::string body;
    write_lines(value, indent + "  ", body);
    // The first member of an entry stands in the line of the "-".
    absl::StrAppend(&out, indent, head, json.is_array() ? " " : "\n",
                    json.is_array() ? body.substr(indent.size() + 2) : body);
  }
}

}  // namespace

std::string json_as_yaml(const Json& json) {
  std::string out;
  write_lines(json, "", out);
  return out;
}

std::string printable(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_character(text, at);
    const auto byte = static_cast<unsigned char>(text[at]);
    // U+0080 to U+009F are control characters, too.
    const bool control = length == 1 ? (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f
                                     : length == 2 && byte == 0xc2 && static_cast<unsigned char>(text[at + 1]) < 0xa0;
    if (length == 0 || control) {
      absl::StrAppendFormat(&out, "\\x%02x", byte);
      ++at;
      continue;
    }
    out.append(text, at, length);
    at += length;
  }
  return out;
}

std::string printable_line(const std::string& text) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else {
      out += c;
    }
  }
  return out;
}

std::string data_progress_line(const DataProgress& progress) {
  std::string line = bytes(progress.read_bytes);
  const bool known = progress.total_bytes > 0;
  if (known) {
    const double share = static_cast<double>(progress.read_bytes) / static_cast<double>(progress.total_bytes);
    line = absl::StrCat(absl::StrFormat("%.1f%%  ", 100 * share), line, " of ", bytes(progress.total_bytes));
  }
  absl::StrAppend(&line, "  ", count(static_cast<double>(progress.documents)), " documents  ",
                  count(static_cast<double>(progress.tokens)), " tokens");
  if (progress.skipped > 0) absl::StrAppend(&line, "  ", progress.skipped, " skipped");
  if (progress.bytes_per_second <= 0) return line;
  absl::StrAppend(&line, absl::StrFormat("  %.1f MB/s", progress.bytes_per_second / 1e6));
  if (known && progress.total_bytes >= progress.read_bytes) {
    const auto left = static_cast<double>(progress.total_bytes - progress.read_bytes);
    absl::StrAppend(&line, "  ETA ", duration(left / progress.bytes_per_second));
  }
  return line;
}

}  // namespace telar::client
