// tokenizer.json as the `tokenizers` library writes it, of models that are byte-level BPE.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "worker/tokenizer/bpe_tokenizer.h"
#include "worker/tokenizer/pattern.h"
#include "worker/tokenizer/readers.h"
#include "worker/tokenizer/unicode.h"

namespace telar::tokenizer {
namespace {

using Json = nlohmann::json;

// What is wrong with a file, and where; stays in this file.
struct Broken {
  std::string what;
};

template <typename... Args>
[[noreturn]] void broken(const std::string& place, fmt::format_string<Args...> text, Args&&... args) {
  throw Broken{place + ": " + fmt::format(text, std::forward<Args>(args)...)};
}

std::string shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

// Members of one object, whose place in the file is known.
class Part {
 public:
  Part(const Json& json, std::string place) : json_(json), place_(std::move(place)) {
    if (!json.is_object()) broken(place_, "{} is no object", shown(json));
  }
  const std::string& place() const { return place_; }
  std::string place_of(const std::string& key) const { return place_ + "." + key; }

  // Null where there is no such member.
  const Json* find(const std::string& key) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  const Json& get(const std::string& key) const {
    const Json* found = find(key);
    if (found == nullptr) broken(place_of(key), "missing");
    return *found;
  }
  std::string text(const std::string& key) const {
    const Json& found = get(key);
    if (!found.is_string()) broken(place_of(key), "{} is no string", shown(found));
    return found.get<std::string>();
  }
  bool flag(const std::string& key, bool absent) const {
    const Json* found = find(key);
    if (found == nullptr) return absent;
    if (!found->is_boolean()) broken(place_of(key), "{} is neither true nor false", shown(*found));
    return found->get<bool>();
  }
  const Json& list(const std::string& key) const {
    const Json& found = get(key);
    if (!found.is_array()) broken(place_of(key), "{} is no list", shown(found));
    return found;
  }
  // An option that we do not know might change every id.
  void only(const std::set<std::string>& known) const {
    for (const auto& [key, value] : json_.items()) {
      if (!known.contains(key) && !value.is_null())
        broken(place_of(key), "unknown option, with value {}", shown(value));
    }
  }

 private:
  const Json& json_;
  const std::string place_;
};

std::string at(const std::string& place, size_t index) { return fmt::format("{}[{}]", place, index); }

int32_t id_of(const Json& value, const std::string& place) {
  if (!value.is_number_integer() || value < 0 || value >= kMostIds) {
    broken(place, "{} is no id in [0, {})", shown(value), kMostIds);
  }
  return value.get<int32_t>();
}

// GPT-2's way to write bytes as printable characters: those that are printable stand for themselves, the others in
// order for U+0100 and on.
class Alphabet {
 public:
  Alphabet() {
    std::fill(std::begin(bytes_), std::end(bytes_), int16_t{-1});
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      bytes_[printable ? byte : next++] = static_cast<int16_t>(byte);
    }
  }
  // Nothing if `key` has a character beyond the alphabet.
  std::optional<std::string> bytes(std::string_view key) const {
    std::string found;
    for (size_t position = 0; position < key.size();) {
      const Character character = character_at(key, position);
      if (character.code >= std::size(bytes_) || bytes_[character.code] < 0) return std::nullopt;
      found.push_back(static_cast<char>(bytes_[character.code]));
      position += character.length;
    }
    return found;
  }

 private:
  int16_t bytes_[0x100 + 68];  // By code point; -1 for those beyond the alphabet.
};

class TokenizerReader {
 public:
  TokenizerReader(const Json& json, const v1::TokenizerSpec& spec) : file_(json, "tokenizer"), spec_(spec) {}

  BpeParts read() {
    model(Part(file_.get("model"), "model"));
    parts_.nfc = file_.find("normalizer") != nullptr && normalizer(Part(*file_.find("normalizer"), "normalizer"));
    if (const Json* added = file_.find("added_tokens")) added_tokens(*added);
    pre_tokenizer(Part(file_.get("pre_tokenizer"), "pre_tokenizer"));
    if (steps_.empty() || !byte_level_) broken("pre_tokenizer", "no ByteLevel in it; only byte-level BPE is supported");
    parts_.cutter = std::make_unique<Cutter>(std::move(steps_));
    if (const Json* processor = file_.find("post_processor")) post_processor(Part(*processor, "post_processor"));
    decoder(Part(file_.get("decoder"), "decoder"));
    const std::optional<int32_t> end = end_of_document();
    if (end) {
      parts_.end_of_document = *end;
      parts_.vocabulary.make_special(*end);
    }
    return std::move(parts_);
  }

 private:
  void model(const Part& model) {
    if (model.text("type") != "BPE") broken("model.type", "'{}' is not supported; only BPE is", model.text("type"));
    model.only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                "byte_fallback", "ignore_merges", "vocab", "merges"});
    for (const char* option : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (model.find(option) != nullptr && *model.find(option) != "") {
        broken(model.place_of(option), "{} is not supported", shown(*model.find(option)));
      }
    }
    if (model.find("dropout") != nullptr && *model.find("dropout") != 0.0) {
      broken("model.dropout", "{} is not supported", shown(*model.find("dropout")));
    }
    // unk_token, fuse_unk and byte_fallback are for characters without a token: bytes_have_tokens() leaves none.
    parts_.whole_words = model.flag("ignore_merges", false);
    vocabulary(model.get("vocab"));
    bytes_have_tokens();
    merges(model.list("merges"));
  }

  void vocabulary(const Json& vocab) {
    if (!vocab.is_object() || vocab.empty()) broken("model.vocab", "{} is no vocabulary", shown(vocab));
    for (const auto& [key, value] : vocab.items()) {
      const std::string place = "model.vocab[" + shown(key) + "]";
      const int32_t id = id_of(value, place);
      if (parts_.vocabulary.has(id)) {
        broken(place, "id {} is that of '{}' already", id, parts_.vocabulary.bytes(id));
      }
      const auto bytes = alphabet_.bytes(key);
      parts_.vocabulary.add(id, bytes ? *bytes : key, false);
      if (bytes && parts_.whole_words) parts_.words.emplace(*bytes, id);
      parts_.texts.emplace(key, id);
    }
  }

  void bytes_have_tokens() {
    std::fill(std::begin(parts_.byte_ids), std::end(parts_.byte_ids), -1);
    for (const auto& [key, id] : parts_.texts) {
      if (key.size() > 2) continue;
      const auto bytes = alphabet_.bytes(key);
      if (bytes && bytes->size() == 1) parts_.byte_ids[static_cast<unsigned char>(bytes->front())] = id;
    }
    for (int byte = 0; byte < 256; ++byte) {
      if (parts_.byte_ids[byte] < 0) broken("model.vocab", "no token for byte 0x{:02X}", byte);
    }
  }

  int32_t token_of(std::string_view text, const std::string& place) const {
    const auto found = parts_.texts.find(text);
    if (found == parts_.texts.end()) broken(place, "'{}' is not in model.vocab", text);
    return found->second;
  }

  void merges(const Json& list) {
    parts_.merges = Merges(list.size());
    uint32_t rank = 0;
    for (const Json& entry : list) {
      const std::string place = at("model.merges", rank);
      std::string left, right;
      if (entry.is_string()) {
        const auto& text = entry.get_ref<const std::string&>();
        const size_t space = text.find(' ');
        if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
          broken(place, "{} is not two tokens with a space between", shown(entry));
        }
        left = text.substr(0, space);
        right = text.substr(space + 1);
      } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
        left = entry[0].get<std::string>();
        right = entry[1].get<std::string>();
      } else {
        broken(place, "{} is no pair of tokens", shown(entry));
      }
      const int32_t left_id = token_of(left, place);
      const int32_t right_id = token_of(right, place);
      parts_.merges.add(left_id, right_id, {rank, token_of(left + right, place)});
      ++rank;
    }
  }

  // Whether it is NFC; null and an empty sequence do nothing.
  bool normalizer(const Part& part) {
    const std::string type = part.text("type");
    if (type == "NFC") {
      part.only({"type"});
      return true;
    }
    if (type != "Sequence") broken(part.place_of("type"), "'{}' is not supported; NFC and Sequence are", type);
    part.only({"type", "normalizers"});
    bool nfc = false;
    size_t index = 0;
    for (const Json& inner : part.list("normalizers")) {
      nfc = normalizer(Part(inner, at(part.place_of("normalizers"), index++))) || nfc;
    }
    return nfc;
  }

  void added_tokens(const Json& list) {
    if (!list.is_array()) broken("added_tokens", "{} is no list", shown(list));
    std::set<std::string> seen;
    for (size_t index = 0; index < list.size(); ++index) {
      const Part part(list[index], at("added_tokens", index));
      part.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      AddedToken token{id_of(part.get("id"), part.place_of("id")),
                       part.text("content"),
                       part.flag("special", false),
                       part.flag("single_word", false),
                       part.flag("lstrip", false),
                       part.flag("rstrip", false)};
      if (token.text.empty()) broken(part.place_of("content"), "empty");
      if (!seen.insert(token.text).second) broken(part.place_of("content"), "'{}' is there twice", token.text);
      const auto known = parts_.texts.find(token.text);
      if (known != parts_.texts.end() && known->second != token.id) {
        broken(part.place(), "'{}' has id {} here and {} in model.vocab", token.text, token.id, known->second);
      }
      if (known == parts_.texts.end() && parts_.vocabulary.has(token.id)) {
        broken(part.place(), "id {} of '{}' is that of '{}' already", token.id, token.text,
               parts_.vocabulary.bytes(token.id));
      }
      parts_.texts.emplace(token.text, token.id);
      added_.insert(token.text);
      const bool normalized = part.flag("normalized", !token.special);
      if (normalized && parts_.nfc) {
        std::string buffer;
        token.text = std::string(to_nfc(token.text, buffer));
      }
      parts_.vocabulary.add(token.id, token.text, token.special);
      (normalized ? parts_.added_normalized : parts_.added_as_written).push_back(std::move(token));
    }
  }

  void pre_tokenizer(const Part& part) {
    const std::string type = part.text("type");
    if (type == "Sequence") {
      part.only({"type", "pretokenizers"});
      size_t index = 0;
      for (const Json& inner : part.list("pretokenizers")) {
        pre_tokenizer(Part(inner, at(part.place_of("pretokenizers"), index++)));
      }
      return;
    }
    if (byte_level_) broken(part.place_of("type"), "'{}' behind ByteLevel is not supported", type);
    if (type == "ByteLevel") {
      part.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      byte_level_ = true;
      Cutter::Step step;
      step.prefix_space = part.flag("add_prefix_space", true);
      if (part.flag("use_regex", true)) step.pattern = make_known_pattern(kGpt2Pattern);
      steps_.push_back(std::move(step));
    } else if (type == "Split") {
      split(part);
    } else if (type == "Digits") {
      part.only({"type", "individual_digits"});
      Cutter::Step step;
      step.pattern = make_digit_pattern();
      step.behaviour = part.flag("individual_digits", false) ? Behaviour::kIsolated : Behaviour::kContiguous;
      steps_.push_back(std::move(step));
    } else {
      broken(part.place_of("type"), "'{}' is not supported; ByteLevel, Split, Digits and Sequence are", type);
    }
  }

  void split(const Part& part) {
    part.only({"type", "pattern", "behavior", "invert"});
    Cutter::Step step;
    step.invert = part.flag("invert", false);
    static const std::pair<const char*, Behaviour> kBehaviours[] = {
        {"Isolated", Behaviour::kIsolated},
        {"Removed", Behaviour::kRemoved},
        {"MergedWithPrevious", Behaviour::kMergedWithPrevious},
        {"MergedWithNext", Behaviour::kMergedWithNext},
        {"Contiguous", Behaviour::kContiguous},
    };
    const std::string behaviour = part.text("behavior");
    const auto* found = std::find_if(std::begin(kBehaviours), std::end(kBehaviours),
                                     [&](const auto& named) { return named.first == behaviour; });
    if (found == std::end(kBehaviours)) broken(part.place_of("behavior"), "'{}' is not known", behaviour);
    step.behaviour = found->second;
    const Part pattern(part.get("pattern"), part.place_of("pattern"));
    pattern.only({"Regex", "String"});
    if (pattern.find("String") != nullptr) {
      if (pattern.text("String").empty()) broken(pattern.place_of("String"), "empty");
      step.pattern = make_literal_pattern(pattern.text("String"));
    } else {
      auto made = make_pattern(pattern.text("Regex"), Dollar::kRefused);
      if (!made.ok()) broken(pattern.place_of("Regex"), "{}", std::string(made.status().message()));
      step.pattern = *std::move(made);
    }
    steps_.push_back(std::move(step));
  }

  void post_processor(const Part& part) {
    const std::string type = part.text("type");
    if (type == "ByteLevel") {  // Only touches offsets.
      part.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    } else if (type == "Sequence") {
      part.only({"type", "processors"});
      size_t index = 0;
      for (const Json& inner : part.list("processors")) {
        post_processor(Part(inner, at(part.place_of("processors"), index++)));
      }
    } else if (type == "TemplateProcessing") {
      template_processing(part);
    } else {
      broken(part.place_of("type"), "'{}' is not supported; ByteLevel, TemplateProcessing and Sequence are", type);
    }
  }

  void template_processing(const Part& part) {
    part.only({"type", "single", "pair", "special_tokens"});
    if (std::exchange(has_template_, true)) broken(part.place(), "a second template is not supported");
    std::vector<int32_t> around[2];
    bool behind = false;
    size_t index = 0;
    for (const Json& entry : part.list("single")) {
      const Part piece(entry, at(part.place_of("single"), index++));
      piece.only({"SpecialToken", "Sequence"});
      if (piece.find("Sequence") != nullptr) {
        if (behind) broken(piece.place(), "the text is there twice");
        behind = true;
        continue;
      }
      const std::string name = Part(piece.get("SpecialToken"), piece.place_of("SpecialToken")).text("id");
      const Part known(part.get("special_tokens"), part.place_of("special_tokens"));
      const Part token(known.get(name), known.place_of(name));
      for (const Json& id : token.list("ids")) {
        around[behind].push_back(id_of(id, token.place_of("ids")));
        if (!parts_.vocabulary.has(around[behind].back())) {
          broken(token.place_of("ids"), "{} is no token's id", around[behind].back());
        }
      }
    }
    if (!behind) broken(part.place_of("single"), "no place for the text");
    parts_.template_before = std::move(around[0]);
    parts_.template_after = std::move(around[1]);
  }

  static void decoder(const Part& part) {
    const std::string type = part.text("type");
    if (type == "Sequence") {
      part.only({"type", "decoders"});
      size_t index = 0;
      for (const Json& inner : part.list("decoders")) decoder(Part(inner, at(part.place_of("decoders"), index++)));
    } else if (type != "ByteLevel") {
      broken(part.place_of("type"), "'{}' is not supported; ByteLevel and a Sequence of it are", type);
    }
  }

  std::optional<int32_t> end_of_document() const {
    const auto& texts = parts_.texts;
    if (!spec_.end_of_document().empty()) {
      const auto found = texts.find(spec_.end_of_document());
      if (found == texts.end()) throw unknown_end_of_document(spec_);
      return found->second;
    }
    const std::string beside = std::filesystem::path(spec_.path()).replace_filename("tokenizer_config.json").string();
    if (const auto text = read_tokenizer_file(beside); text.ok()) {
      const std::string place = "tokenizer_config.json";
      const Json json = Json::parse(*text, nullptr, false);
      const Part config(json, place);
      const Json* token = config.find("eos_token");
      if (token != nullptr && token->is_object()) token = &Part(*token, place + ".eos_token").get("content");
      if (token != nullptr) {
        const auto found = token->is_string() ? texts.find(token->get<std::string>()) : texts.end();
        if (found == texts.end()) broken(place + ".eos_token", "{} is no token of tokenizer.json", shown(*token));
        return found->second;
      }
    }
    for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>",
                             "<\uFF5Cend\u2581of\u2581sentence\uFF5C>"}) {
      if (added_.contains(name)) return texts.find(std::string_view(name))->second;
    }
    return std::nullopt;
  }

  const Part file_;
  const v1::TokenizerSpec& spec_;
  const Alphabet alphabet_;
  BpeParts parts_;
  std::vector<Cutter::Step> steps_;
  std::set<std::string> added_;
  bool byte_level_ = false;
  bool has_template_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> open_hugging_face(const v1::TokenizerSpec& spec) {
  const auto text = read_tokenizer_file(spec.path());
  if (!text.ok()) return text.status();
  try {
    const Json json = Json::parse(*text);
    return make_bpe_tokenizer(TokenizerReader(json, spec).read());
  } catch (const Broken& fault) {
    return refused_file(spec, fault.what);
  } catch (const absl::Status& status) {
    return status;
  } catch (const Json::parse_error& error) {
    return refused_file(spec, fmt::format("no JSON from byte {} on", error.byte));
  } catch (const Json::exception& error) {
    return refused_file(spec, error.what());
  }
}

}  // namespace telar::tokenizer
