#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/tokenizer/pattern.h"
#include "worker/tokenizer/unicode.h"

namespace telar::tokenizer {
namespace {

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* what) const {
    kFree(what);
  }
};
using Code = std::unique_ptr<pcre2_code, Freed<pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Freed<pcre2_match_data_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Freed<pcre2_match_context_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Freed<pcre2_compile_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Freed<pcre2_jit_stack_free>>;

constexpr size_t kJitStackBytes = 8u << 20;  // Grown to as needed; a search that needs more is done without JIT.
constexpr uint32_t kHeapLimitKib = 1u << 20;
// Stands for a byte that is no character: assigned to nothing and never to be.
constexpr std::string_view kStandIn = "\xEF\xBF\xBE";

class PcreState : public Pattern::State {
 public:
  explicit PcreState(const pcre2_code* code)
      : data(pcre2_match_data_create_from_pattern(code, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr)) {
    if (context == nullptr) return;
    if (stack != nullptr) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    pcre2_set_match_limit(context.get(), UINT32_MAX);
    pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  }

  // What is searched: the text, or a copy of it with kStandIn for what is not UTF-8.
  void set_text(std::string_view text) {
    replaced.clear();
    searched = text;
    if (is_utf8(text)) return;
    copy.clear();
    for (size_t at = 0; at < text.size();) {
      const Character character = character_at(text, at);
      if (character.code == kNoCodePoint) {
        replaced.push_back(copy.size());
        copy.append(kStandIn);
      } else {
        copy.append(text.substr(at, character.length));
      }
      at += character.length;
    }
    searched = copy;
  }
  MatchData data;
  MatchContext context;
  JitStack stack;
  std::string copy;
  std::string_view searched;
  std::vector<size_t> replaced;  // Where in `copy` stand-ins begin.

  // Positions in the text and in the copy: a stand-in is two bytes longer than what it stands for.
  size_t in_copy(size_t at) const {
    size_t before = 0;  // Stand-ins for bytes before `at`; they begin at replaced[i] - 2 * i in the text.
    for (size_t step = std::bit_floor(replaced.size()); step > 0; step /= 2) {
      const size_t next = before + step;
      if (next <= replaced.size() && replaced[next - 1] - 2 * (next - 1) < at) before = next;
    }
    return at + 2 * before;
  }
  size_t in_text(size_t at) const {
    return at - 2 * static_cast<size_t>(std::lower_bound(replaced.begin(), replaced.end(), at) - replaced.begin());
  }
};

class PcrePattern : public Pattern {
 public:
  explicit PcrePattern(Code code) : code_(std::move(code)) {}

  std::unique_ptr<State> make_state() const override { return std::make_unique<PcreState>(code_.get()); }
  void begin(State* state, std::string_view text) const override { static_cast<PcreState*>(state)->set_text(text); }

  bool find(State* base, std::string_view, size_t from, Match& match) const override {
    PcreState& state = *static_cast<PcreState*>(base);
    const std::string_view text = state.searched;
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    for (size_t at = state.in_copy(from); at < text.size();) {
      const uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
      int found = pcre2_match(code_.get(), subject, text.size(), at, options, state.data.get(), state.context.get());
      if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
        found = pcre2_match(code_.get(), subject, text.size(), at, options | PCRE2_NO_JIT, state.data.get(),
                            state.context.get());
      }
      if (found == PCRE2_ERROR_NOMATCH) return false;
      size_t end = at + character_at(text, at).length;
      if (found >= 0) {
        const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(state.data.get());
        at = bounds[0];
        end = bounds[1];
      }  // Else PCRE2 has given up: a character is a word of its own there.
      if (end > at) {
        match = {state.in_text(at), state.in_text(end)};
        return true;
      }
      at = at + character_at(text, at).length;  // \K can end a match before it begins.
    }
    return false;
  }

 private:
  const Code code_;
};

// `text` with \s and \S in the meaning of the real libraries, or why it cannot be had.
absl::StatusOr<std::string> translated(std::string_view text, Dollar dollar) {
  std::string out;
  bool in_class = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '\\' && at + 1 < text.size()) {
      const char escaped = text[++at];
      if (escaped == 's' || escaped == 'S') {
        absl::StrAppend(&out, escaped == 's' ? "\\p" : "\\P", "{White_Space}");
        continue;
      }
      if (std::string_view("wWbBAzZGKQEXRhHvVN0123456789kg").find(escaped) != std::string_view::npos) {
        return absl::InvalidArgumentError(absl::StrCat("\\", std::string(1, escaped), " is not supported"));
      }
      out.append({c, escaped});
      continue;
    }
    if (in_class) {
      if (c == '[') return absl::InvalidArgumentError("'[' inside a class is not supported; write \\[");
      if (c == '&' && text.substr(at).starts_with("&&")) {
        return absl::InvalidArgumentError("&& inside a class is not supported");
      }
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
      if (at + 1 < text.size() && text[at + 1] == '^') out.push_back(text[at++]);
      if (at + 1 < text.size() && text[at + 1] == ']') {
        return absl::InvalidArgumentError("']' first in a class is not supported; write \\]");
      }
    } else if (c == '^' || (c == '$' && dollar == Dollar::kRefused)) {
      return absl::InvalidArgumentError(absl::StrCat(std::string(1, c), " is not supported"));
    }
    out.push_back(text[at]);
  }
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Pattern>> make_pcre_pattern(std::string_view text, Dollar dollar) {
  const auto pattern = translated(text, dollar);
  if (!pattern.ok()) return pattern.status();
  const CompileContext context(pcre2_compile_context_create(nullptr));
  if (context == nullptr) return absl::ResourceExhaustedError("no memory for PCRE2");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern->data()), pattern->size(),
                          PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                          context.get()));
  if (code == nullptr) {
    unsigned char message[256] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    return absl::InvalidArgumentError(
        absl::StrCat(reinterpret_cast<const char*>(message), " at byte ", offset, " of ", *pattern));
  }
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // Where there is no JIT, pcre2_match() does without.
  return std::make_unique<PcrePattern>(std::move(code));
}

absl::StatusOr<std::unique_ptr<Pattern>> make_pattern(std::string_view text, Dollar dollar) {
  if (auto known = make_known_pattern(text)) return known;
  return make_pcre_pattern(text, dollar);
}

}  // namespace telar::tokenizer
