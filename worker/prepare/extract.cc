#include "worker/prepare/extract.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"

namespace telar::prepare {
namespace {

using AnyJson = nlohmann::json;

// Listens to a JSON text and keeps the value of one member of the outermost object.
class FieldReader : public nlohmann::json_sax<AnyJson> {
 public:
  FieldReader(const std::string& field, std::string& text) : field_(field), text_(text) {}

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a boolean"); }
  bool number_integer(number_integer_t) override { return value("a number"); }
  bool number_unsigned(number_unsigned_t) override { return value("a number"); }
  bool number_float(number_float_t, const string_t&) override { return value("a number"); }
  bool binary(binary_t&) override { return value("binary data"); }
  bool string(string_t& text) override {
    if (wanted_) text_ = std::move(text);
    return value("");
  }
  bool start_object(size_t) override {
    if (depth_ == 0) object_ = true;
    value("an object");
    ++depth_;
    return true;
  }
  bool start_array(size_t) override {
    value("an array");
    ++depth_;
    return true;
  }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(string_t& name) override {
    wanted_ = depth_ == 1 && object_ && name == field_;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    fault_ = {.column = std::max<size_t>(position, 1), .what = error.what()};
    // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ...": the place is told apart.
    const size_t place = fault_->what.find("column ");
    const size_t colon = place == std::string::npos ? place : fault_->what.find(": ", place);
    if (colon != std::string::npos) fault_->what = fault_->what.substr(colon + 2);
    fault_->what = "invalid JSON: " + fault_->what;
    return false;
  }

  // After the parsing.
  std::optional<Fault> fault() const {
    if (fault_) return fault_;
    if (!object_) return Fault{.what = "no JSON object"};
    if (!found_) return Fault{.what = absl::StrCat("no field '", field_, "'")};
    if (!kind_.empty()) return Fault{.what = absl::StrCat("field '", field_, "' is ", kind_, ", not a string")};
    return std::nullopt;
  }

 private:
  bool value(const char* kind) {
    if (wanted_) {
      found_ = true;
      kind_ = kind;
    }
    wanted_ = false;
    return true;
  }
  bool end() {
    --depth_;
    return true;
  }

  const std::string& field_;
  std::string& text_;
  size_t depth_ = 0;
  bool object_ = false;  // The whole is one.
  bool wanted_ = false;  // The next value is the member's.
  bool found_ = false;
  std::string kind_;  // Of what was found; empty: a string.
  std::optional<Fault> fault_;
};

}  // namespace

size_t find_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight;
    if (text.size() - at >= sizeof(eight)) {
      std::memcpy(&eight, text.data() + at, sizeof(eight));
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof(eight);
        continue;
      }
    }
    const size_t length = utf8_character(text, at);
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

std::optional<Fault> check_text(std::string_view text, uint64_t line) {
  const size_t bad = find_invalid_utf8(text);
  if (bad == std::string_view::npos) return std::nullopt;
  const std::string_view before = text.substr(0, bad);
  const size_t start = before.rfind('\n') + 1;  // npos + 1 is 0.
  const std::string hex = absl::StrCat(absl::Hex(static_cast<unsigned char>(text[bad]), absl::kZeroPad2));
  return Fault{line + static_cast<uint64_t>(std::count(before.begin(), before.end(), '\n')), bad - start + 1,
               absl::StrCat("byte 0x", hex, " is not UTF-8")};
}

std::optional<Fault> json_text(std::string_view json, const std::string& field, uint64_t line, std::string& text) {
  if (auto fault = check_text(json, line)) return fault;
  FieldReader reader(field, text);
  AnyJson::sax_parse(json.begin(), json.end(), &reader);
  auto fault = reader.fault();
  if (fault) fault->line = line;
  return fault;
}

}  // namespace telar::prepare
