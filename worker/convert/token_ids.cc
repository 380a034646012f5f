#include "worker/convert/token_ids.h"

#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include "worker/tokenizer/kind.h"
#include "worker/tokenizer/tokenizer.h"

namespace telar::convert {
namespace {

using Json = nlohmann::json;

std::optional<int64_t> id_in(const Json& json, uint64_t vocab) {
  if (!json.is_number_unsigned() || json.get<uint64_t>() >= vocab) return std::nullopt;
  return json.get<int64_t>();
}

// The text of a token that tokenizer_config.json names, as a text or an object with one.
std::string named_token(const std::string& tokenizer_path, const char* key) {
  std::ifstream file(tokenizer_path.substr(0, tokenizer_path.find_last_of('/') + 1) + "tokenizer_config.json");
  const Json json = file ? Json::parse(file, nullptr, false) : Json();
  if (!json.is_object() || !json.contains(key)) return "";
  const Json& token = json.at(key);
  if (token.is_string()) return token.get<std::string>();
  return token.is_object() && token.contains("content") && token.at("content").is_string()
             ? token.at("content").get<std::string>()
             : "";
}

std::optional<int64_t> begin_of(const tokenizer::Tokenizer& tokenizer, const v1::TokenizerSpec& spec) {
  if (const std::string name = named_token(spec.path(), "bos_token"); !name.empty()) {
    if (const auto found = tokenizer.find(name)) return *found;
  }
  const std::vector<int32_t> around = tokenizer.encode("", {.template_tokens = true});
  if (!around.empty() && around.front() != tokenizer.end_of_document()) return around.front();
  const auto kind = spec.kind() == v1::TokenizerSpec::KIND_UNSPECIFIED ? tokenizer::kind_of(spec.path()) : spec.kind();
  if (kind != v1::TokenizerSpec::SENTENCEPIECE) return std::nullopt;
  return tokenizer.find("<s>");
}

}  // namespace

std::optional<TokenIds> token_ids_in_config(std::string_view text, uint64_t vocab) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !(json.contains("bos_token_id") || json.contains("eos_token_id"))) return std::nullopt;
  TokenIds ids;
  ids.begin = id_in(json.value("bos_token_id", Json()), vocab);
  const Json end = json.value("eos_token_id", Json());
  for (const Json& one : end.is_array() ? end : Json::array({end})) {
    if (const auto id = id_in(one, vocab)) ids.end.push_back(*id);
  }
  return ids;
}

absl::StatusOr<TokenIds> token_ids_of(const v1::TokenizerSpec& spec) {
  const auto tokenizer = tokenizer::open(spec);
  if (!tokenizer.ok()) return tokenizer.status();
  TokenIds ids{.begin = begin_of(**tokenizer, spec)};
  if ((*tokenizer)->end_of_document() >= 0) ids.end.push_back((*tokenizer)->end_of_document());
  return ids;
}

}  // namespace telar::convert
