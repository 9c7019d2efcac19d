// One pass over JSON text, as strict as RFC 8259, without recursion and without a read past the end.
//
// UTF-8 is not checked here: the caller has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace sp {

// A place in the text. All functions that answer false leave `at` anywhere in [at, end].
struct Cursor {
    const char* at;
    const char* end;

    bool done() const { return at == end; }
    char peek() const { return at == end ? '\0' : *at; }
};

inline bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
inline bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }

inline void skip_space(Cursor& c) {
    while (c.at != c.end && is_space(*c.at)) ++c.at;
}

inline bool take(Cursor& c, char wanted) {
    if (c.at == c.end || *c.at != wanted) return false;
    ++c.at;
    return true;
}

// The first byte that ends or escapes a string, or may not be in one.
inline const char* plain_end(const char* at, const char* end) {
#if defined(__SSE2__)
    const __m128i quote = _mm_set1_epi8('"');
    const __m128i slash = _mm_set1_epi8('\\');
    const __m128i last_control = _mm_set1_epi8(0x1f);
    while (end - at >= 16) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
        const __m128i is_control = _mm_cmpeq_epi8(_mm_min_epu8(bytes, last_control), bytes);
        const __m128i found =
            _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, slash)), is_control);
        const int mask = _mm_movemask_epi8(found);
        if (mask != 0) return at + __builtin_ctz(static_cast<unsigned>(mask));
        at += 16;
    }
#endif
    while (at != end && *at != '"' && *at != '\\' && static_cast<unsigned char>(*at) >= 0x20) ++at;
    return at;
}

inline bool is_hex(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// A string that is this may be the key of another document's events: which, is not for here.
constexpr std::string_view kAnotherDocument = "traceEvents";

// A string from its opening quote on. `text` is what stands between the quotes, as written. Escapes of
// surrogates (\uD800 to \uDFFF) are refused: whether they pair is not for here.
inline bool take_string(Cursor& c, std::string_view& text, bool& has_escape) {
    if (!take(c, '"')) return false;
    const char* start = c.at;
    has_escape = false;
    for (;;) {
        c.at = plain_end(c.at, c.end);
        if (c.done() || static_cast<unsigned char>(*c.at) < 0x20) return false;
        if (*c.at == '"') {
            text = {start, static_cast<std::size_t>(c.at - start)};
            ++c.at;
            return text != kAnotherDocument;
        }
        has_escape = true;
        ++c.at;
        if (c.done()) return false;
        const char kind = *c.at++;
        switch (kind) {
            case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't':
                break;
            case 'u':
                if (c.end - c.at < 4) return false;
                for (int i = 0; i < 4; ++i) {
                    if (!is_hex(c.at[i])) return false;
                }
                if ((c.at[0] == 'd' || c.at[0] == 'D') && !(c.at[1] >= '0' && c.at[1] <= '7')) return false;
                c.at += 4;
                break;
            default:
                return false;
        }
    }
}

// A number by the grammar of JSON. `is_integer`: without fraction and exponent.
inline bool take_number(Cursor& c, bool& is_integer) {
    is_integer = true;
    take(c, '-');
    if (c.done() || !is_digit(*c.at)) return false;
    if (*c.at++ == '0') {
        if (!c.done() && is_digit(*c.at)) return false;
    } else {
        while (!c.done() && is_digit(*c.at)) ++c.at;
    }
    if (!c.done() && *c.at == '.') {
        is_integer = false;
        ++c.at;
        if (c.done() || !is_digit(*c.at)) return false;
        while (!c.done() && is_digit(*c.at)) ++c.at;
    }
    if (!c.done() && (*c.at == 'e' || *c.at == 'E')) {
        is_integer = false;
        ++c.at;
        if (!c.done() && (*c.at == '+' || *c.at == '-')) ++c.at;
        if (c.done() || !is_digit(*c.at)) return false;
        while (!c.done() && is_digit(*c.at)) ++c.at;
    }
    return true;
}

inline bool take_word(Cursor& c, std::string_view word) {
    if (static_cast<std::size_t>(c.end - c.at) < word.size()) return false;
    if (std::string_view(c.at, word.size()) != word) return false;
    c.at += word.size();
    return true;
}

constexpr int kMostNesting = 64;  // deeper values are left to the caller

// Pass over any value. False where it is no JSON, nests too deep, or holds an exponent (whose size a
// decoder may refuse).
inline bool skip_value(Cursor& c) {
    std::uint64_t is_object = 0;  // a bit for each open bracket, the innermost lowest
    int depth = 0;
    for (;;) {
        // A value begins here.
        const char first = c.peek();
        bool opened = false;
        if (first == '"') {
            std::string_view text;
            bool has_escape;
            if (!take_string(c, text, has_escape)) return false;
        } else if (first == '{' || first == '[') {
            if (depth == kMostNesting) return false;
            ++c.at;
            ++depth;
            is_object = (is_object << 1) | (first == '{' ? 1u : 0u);
            skip_space(c);
            opened = c.peek() != (first == '{' ? '}' : ']') || c.done();
        } else if (first == '-' || is_digit(first)) {
            const char* start = c.at;
            bool is_integer;
            if (!take_number(c, is_integer)) return false;
            if (!is_integer) {
                for (const char* p = start; p != c.at; ++p) {
                    if (*p == 'e' || *p == 'E') return false;
                }
            }
        } else if (!take_word(c, "true") && !take_word(c, "false") && !take_word(c, "null")) {
            return false;
        }
        // After it: close brackets, or go on to the next value.
        while (!opened) {
            if (depth == 0) return true;
            skip_space(c);
            if (take(c, ',')) {
                skip_space(c);
                opened = true;
            } else if (take(c, (is_object & 1u) ? '}' : ']')) {
                is_object >>= 1;
                --depth;
            } else {
                return false;
            }
        }
        if (is_object & 1u) {
            std::string_view key;
            bool has_escape;
            if (!take_string(c, key, has_escape)) return false;
            skip_space(c);
            if (!take(c, ':')) return false;
            skip_space(c);
        }
    }
}

// Whether the text is UTF-8 as Python's strict decoder has it: shortest forms, no surrogates.
inline bool is_utf8(const char* text, std::size_t size) {
    const auto* at = reinterpret_cast<const unsigned char*>(text);
    const auto* end = at + size;
    while (at != end) {
#if defined(__SSE2__)
        while (end - at >= 16 &&
               _mm_movemask_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))) == 0) {
            at += 16;
        }
        if (at == end) break;
#endif
        const unsigned char lead = *at++;
        if (lead < 0x80) continue;
        int more;
        unsigned char low = 0x80, high = 0xbf;  // of the first byte that follows
        if (lead >= 0xc2 && lead <= 0xdf) {
            more = 1;
        } else if (lead >= 0xe0 && lead <= 0xef) {
            more = 2;
            if (lead == 0xe0) low = 0xa0;
            if (lead == 0xed) high = 0x9f;
        } else if (lead >= 0xf0 && lead <= 0xf4) {
            more = 3;
            if (lead == 0xf0) low = 0x90;
            if (lead == 0xf4) high = 0x8f;
        } else {
            return false;
        }
        if (end - at < more || *at < low || *at > high) return false;
        ++at;
        while (--more != 0) {
            if (*at < 0x80 || *at > 0xbf) return false;
            ++at;
        }
    }
    return true;
}

}  // namespace sp
