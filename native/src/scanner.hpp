// Plain Kineto events become columns in one pass; whatever is not plain is left to the caller.
//
// The scanner takes only what the Python decoder reads without a remark: intact JSON, times that are plain
// numbers within bounds, integers where integers belong. At the first event that is anything else it stops,
// and the Python decoder, which knows what to repair and what to say, goes on from there.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "interner.hpp"
#include "json.hpp"

namespace sp {

constexpr std::int64_t kNone = -1;

// What the scanner does with the value of a key of `args`.
enum class Use : std::uint8_t {
    kIgnored,
    kInteger,
    kText,  // JSON text that is interned: shapes, strides, types, inputs
    kCollective,
};

// The integers of `args`, by the place in which they are kept.
enum Integer : std::uint8_t {
    kExternalId,
    kOldExternalId,
    kSequence,
    kForwardThread,
    kDevice,
    kStream,
    kCorrelation,
    kBytes,
    kAddress,
    kTotalAllocated,
    kTotalReserved,
    kDeviceType,
    kDeviceId,
    kIntegers,
};
enum Text : std::uint8_t { kDims, kStrides, kTypes, kConcrete, kTexts };
constexpr int kMostCollectiveKeys = 32;

struct ArgsKey {
    std::string name;
    Use use = Use::kIgnored;
    std::uint8_t place = 0;  // an Integer, a Text, or the number of a collective's key
};

struct Rules {
    std::vector<ArgsKey> args;
    std::vector<std::string> memory_names;    // of instants that tell of memory, the failed one last
    std::vector<std::string> concrete_names;  // beginnings of names whose concrete inputs are kept
    std::string ignored_phases;               // phases that exist and are not read
    std::int64_t most_time_ns = 0;
    std::int64_t most_duration_ns = 0;
};

// A chunk's events as columns. Codes of strings number the texts of an Interner from 1; 0 is none.
struct Complete {
    std::vector<std::int64_t> start_ns, dur_ns, stream, correlation, external_id, sequence, fwd_thread;
    std::vector<std::int32_t> device;
    std::vector<std::uint32_t> category, name, pid, tid, dims, strides, types, concrete, collective;
};
struct FlowEnds {
    std::vector<std::int64_t> id, ts_ns;
    std::vector<std::uint32_t> kind, pid, tid;
    std::vector<std::uint8_t> is_start;
};
struct Memory {
    std::vector<std::int64_t> ts_ns, bytes, total_allocated, total_reserved;
    std::vector<std::uint64_t> address;
    std::vector<std::int32_t> device_type, device_id;
    std::vector<std::uint32_t> tid;
    std::vector<std::uint8_t> failed;
};
struct Chunk {
    std::size_t consumed = 0;  // bytes, up to the end of the last event that was taken
    std::size_t events = 0;
    Complete complete;
    FlowEnds flows;
    Memory memory;
    // Of each new text of `collectives` the event that first carries it, as a span of the chunk.
    std::vector<std::pair<std::size_t, std::size_t>> new_collectives;
};

class Scanner {
public:
    explicit Scanner(Rules rules) : rules_(std::move(rules)), table_(kTable) {
        for (std::size_t i = 0; i != rules_.args.size(); ++i) {
            std::size_t at = slot_of(rules_.args[i].name);
            while (table_[at] != 0) at = (at + 1) % kTable;
            table_[at] = static_cast<std::uint16_t>(i + 1);
        }
    }

    Interner words, categories, texts, collectives;

    // Take events from the beginning of the text, one after the other with a comma between, as many as are
    // plain. The text must be UTF-8 throughout or nothing is taken, and end where a comma follows an event.
    Chunk scan(std::string_view text) {
        Chunk chunk;
        if (!is_utf8(text.data(), text.size())) return chunk;
        Cursor c{text.data(), text.data() + text.size()};
        for (;;) {
            skip_space(c);
            const char* start = c.at;
            Event event;
            if (!read(c, event)) return chunk;
            const auto from = static_cast<std::size_t>(start - text.data());
            const auto to = static_cast<std::size_t>(c.at - text.data());
            skip_space(c);
            const bool is_last = c.done();
            // Before anything but a comma a raw quote may have closed the event too early: for the caller.
            if (!is_last && !take(c, ',')) return chunk;
            if (!keep(event, chunk, from, to)) return chunk;
            chunk.consumed = to;
            ++chunk.events;
            if (is_last) return chunk;
        }
    }

private:
    using View = std::string_view;
    static constexpr std::size_t kTable = 256;

    struct Event {
        char phase = '\0';
        bool has_args = false;
        bool name_has_escape = false;
        View cat, name, pid, tid, ts, dur, id;  // as written; empty: none
        std::uint16_t integers_seen = 0;
        std::array<std::int64_t, kIntegers> integers;
        std::array<View, kTexts> texts;
        std::uint32_t collective_seen = 0;
        std::array<View, kMostCollectiveKeys> collective;
    };

    // --- reading one event -----------------------------------------------------------------------

    static std::size_t slot_of(View key) {
        const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(key[i]); };
        if (key.empty()) return 0;
        return (key.size() * 31 + byte(0) * 7 + byte(key.size() - 1) * 13 + byte(key.size() / 2) * 3) % kTable;
    }

    const ArgsKey* find(View key) const {
        for (std::size_t at = slot_of(key); table_[at] != 0; at = (at + 1) % kTable) {
            const ArgsKey& one = rules_.args[table_[at] - 1];
            if (one.name == key) return &one;
        }
        return nullptr;
    }

    // A word: a string or an integer as written, empty for null. Anything else is not plain.
    static bool read_word(Cursor& c, View& word, bool& has_escape) {
        const char* start = c.at;
        const char first = c.peek();
        has_escape = false;
        if (first == '"') {
            View text;
            if (!take_string(c, text, has_escape)) return false;
        } else if (first == 'n') {
            word = {};
            return take_word(c, "null");
        } else {
            bool is_integer;
            if (!take_number(c, is_integer) || !is_integer) return false;
            if (c.at - start > 18 || (*start == '-' && start[1] == '0')) return false;
        }
        word = {start, static_cast<std::size_t>(c.at - start)};
        return true;
    }

    static bool read_raw(Cursor& c, View& raw) {
        const char* start = c.at;
        if (!skip_value(c)) return false;
        raw = {start, static_cast<std::size_t>(c.at - start)};
        return true;
    }

    // A key with what leads to its value. One that is spelled with escapes is not plain.
    static bool read_key(Cursor& c, View& key) {
        bool has_escape;
        if (!take_string(c, key, has_escape) || has_escape) return false;
        skip_space(c);
        if (!take(c, ':')) return false;
        skip_space(c);
        return true;
    }

    bool read(Cursor& c, Event& event) const {
        if (!take(c, '{')) return false;
        skip_space(c);
        bool seen_phase = false, seen_ts = false, seen_dur = false, seen_id = false;
        bool seen_cat = false, seen_name = false, seen_pid = false, seen_tid = false, ignored;
        for (;;) {
            View key;
            bool has_escape;
            if (!read_key(c, key)) return false;
            // A key that is there twice is for the caller.
            const auto once = [](bool& seen) { return !std::exchange(seen, true); };
            bool good = true;
            if (key == "ph") {
                View text;
                good = once(seen_phase) && take_string(c, text, has_escape) && !has_escape && text.size() == 1;
                if (good) event.phase = text[0];
            } else if (key == "name") {
                good = once(seen_name) && read_word(c, event.name, event.name_has_escape);
            } else if (key == "cat") {
                good = once(seen_cat) && read_word(c, event.cat, ignored);
            } else if (key == "pid") {
                good = once(seen_pid) && read_word(c, event.pid, ignored);
            } else if (key == "tid") {
                good = once(seen_tid) && read_word(c, event.tid, ignored);
            } else if (key == "ts") {
                good = once(seen_ts) && read_raw(c, event.ts);
            } else if (key == "dur") {
                good = once(seen_dur) && read_raw(c, event.dur);
            } else if (key == "id") {
                good = once(seen_id) && read_raw(c, event.id);
            } else if (key == "args") {
                good = once(event.has_args) && read_args(c, event);
            } else {
                good = skip_value(c);
            }
            if (!good) return false;
            skip_space(c);
            if (take(c, '}')) return seen_phase;
            if (!take(c, ',')) return false;
            skip_space(c);
        }
    }

    bool read_args(Cursor& c, Event& event) const {
        if (c.peek() == 'n') return take_word(c, "null");
        if (!take(c, '{')) return false;
        skip_space(c);
        if (take(c, '}')) return true;
        std::uint8_t texts_seen = 0;
        for (;;) {
            View key;
            if (!read_key(c, key)) return false;
            const ArgsKey* known = find(key);
            bool good = true;
            if (known == nullptr) {
                good = skip_value(c);
            } else if (known->use == Use::kInteger) {
                good = read_integer(c, event, known->place);
            } else if (known->use == Use::kText) {
                good = !(texts_seen >> known->place & 1u) && read_raw(c, event.texts[known->place]);
                texts_seen |= static_cast<std::uint8_t>(1u << known->place);
            } else if (known->use == Use::kCollective) {
                good = !(event.collective_seen >> known->place & 1u) &&
                       read_raw(c, event.collective[known->place]);
                event.collective_seen |= 1u << known->place;
            } else {
                good = skip_value(c);
            }
            if (!good) return false;
            skip_space(c);
            if (take(c, '}')) return true;
            if (!take(c, ',')) return false;
            skip_space(c);
        }
    }

    // An integer of at most 18 digits (an address: any that fits into 64 bits), or null.
    static bool read_integer(Cursor& c, Event& event, std::uint8_t place) {
        if (event.integers_seen >> place & 1u) return false;
        if (c.peek() == 'n') {
            event.integers[place] = place == kBytes || place == kAddress ? 0 : kNone;
        } else {
            const char* start = c.at;
            bool is_integer;
            if (!take_number(c, is_integer) || !is_integer) return false;
            const bool is_negative = *start == '-';
            if (is_negative) ++start;
            const auto digits = static_cast<std::size_t>(c.at - start);
            if (place == kAddress) {
                if (is_negative || digits > 20) return false;
            } else if (digits > 18) {
                return false;
            }
            std::uint64_t value = 0;
            for (; start != c.at; ++start) {
                const auto digit = static_cast<std::uint64_t>(*start - '0');
                if (value > (UINT64_MAX - digit) / 10) return false;
                value = 10 * value + digit;
            }
            event.integers[place] = static_cast<std::int64_t>(is_negative ? 0 - value : value);
            event.integers_seen |= static_cast<std::uint16_t>(1u << place);
            return true;
        }
        event.integers_seen |= static_cast<std::uint16_t>(1u << place);
        return take_word(c, "null");
    }

    static std::int64_t integer(const Event& event, Integer place, std::int64_t missing = kNone) {
        return event.integers_seen >> place & 1u ? event.integers[place] : missing;
    }

    // What does not fit counts as missing.
    static std::int32_t integer32(const Event& event, Integer place) {
        const std::int64_t value = integer(event, place);
        return value < INT32_MIN || value > INT32_MAX ? static_cast<std::int32_t>(kNone)
                                                      : static_cast<std::int32_t>(value);
    }

    // Nanoseconds of a number of µs: exact to three decimals, beyond them rounded half to even.
    static bool nanoseconds(View text, std::int64_t most, std::int64_t& ns) {
        const char* at = text.data();
        const char* end = at + text.size();
        const bool is_negative = at != end && *at == '-';
        if (is_negative) ++at;
        if (at == end || !is_digit(*at) || end - at > 36) return false;
        std::uint64_t value = 0;
        int digits = 0, decimals = 0;
        for (; at != end && is_digit(*at); ++at) {
            if (++digits > 16) return false;
            value = 10 * value + static_cast<std::uint64_t>(*at - '0');
        }
        bool rounds_up = false;
        if (at != end) {
            if (*at++ != '.') return false;
            for (; at != end && decimals != 3; ++at, ++decimals) {
                if (!is_digit(*at)) return false;
                value = 10 * value + static_cast<std::uint64_t>(*at - '0');
            }
            if (at != end) {
                const char first = *at;
                bool is_more = false;  // than what the first digit says
                for (const char* rest = at; rest != end; ++rest) {
                    if (!is_digit(*rest)) return false;
                    is_more |= rest != at && *rest != '0';
                }
                rounds_up = first > '5' || (first == '5' && (is_more || (value & 1u)));
            }
        }
        for (; decimals != 3; ++decimals) value *= 10;
        value += rounds_up ? 1 : 0;
        if (value > static_cast<std::uint64_t>(most)) return false;
        ns = is_negative ? -static_cast<std::int64_t>(value) : static_cast<std::int64_t>(value);
        return true;
    }

    // --- keeping it --------------------------------------------------------------------------------

    bool keep(const Event& event, Chunk& chunk, std::size_t from, std::size_t to) {
        switch (event.phase) {
            case 'X': return keep_complete(event, chunk, from, to);
            case 's':
            case 'f': return keep_flow(event, chunk);
            case 'i': {
                const View name = unquoted(event.name);
                for (std::size_t i = 0; i != rules_.memory_names.size(); ++i) {
                    if (name == rules_.memory_names[i] && event.name[0] == '"') {
                        return keep_memory(event, chunk, i + 1 == rules_.memory_names.size());
                    }
                }
                return !event.name_has_escape;  // escapes may spell one of the names
            }
            default: return rules_.ignored_phases.find(event.phase) != std::string::npos;
        }
    }

    static View unquoted(View word) {
        return word.size() >= 2 && word[0] == '"' ? word.substr(1, word.size() - 2) : View{};
    }

    static std::uint32_t code(Interner& interner, View text) {
        return text.empty() ? 0 : interner.number(text);
    }

    bool keeps_concrete(View name) const {
        for (const std::string& beginning : rules_.concrete_names) {
            if (unquoted(name).substr(0, beginning.size()) == beginning) return true;
        }
        return false;
    }

    bool keep_complete(const Event& event, Chunk& chunk, std::size_t from, std::size_t to) {
        std::int64_t start, duration;
        if (!nanoseconds(event.ts, rules_.most_time_ns, start)) return false;
        if (!nanoseconds(event.dur, rules_.most_duration_ns, duration) || duration < 0) return false;
        const View concrete = event.texts[kConcrete];
        if (!concrete.empty() && event.name_has_escape) return false;
        Complete& to_columns = chunk.complete;
        to_columns.start_ns.push_back(start);
        to_columns.dur_ns.push_back(duration);
        std::int64_t external = integer(event, kExternalId);
        if (external == kNone) external = integer(event, kOldExternalId);
        to_columns.external_id.push_back(external);
        to_columns.stream.push_back(integer(event, kStream));
        to_columns.correlation.push_back(integer(event, kCorrelation));
        to_columns.sequence.push_back(integer(event, kSequence));
        to_columns.fwd_thread.push_back(integer(event, kForwardThread));
        to_columns.device.push_back(integer32(event, kDevice));
        to_columns.category.push_back(code(categories, event.cat));
        to_columns.name.push_back(code(words, event.name));
        to_columns.pid.push_back(code(words, event.pid));
        to_columns.tid.push_back(code(words, event.tid));
        to_columns.dims.push_back(code(texts, event.texts[kDims]));
        to_columns.strides.push_back(code(texts, event.texts[kStrides]));
        to_columns.types.push_back(code(texts, event.texts[kTypes]));
        to_columns.concrete.push_back(keeps_concrete(event.name) ? code(texts, concrete) : 0);
        to_columns.collective.push_back(collective(event, chunk, from, to));
        return true;
    }

    std::uint32_t collective(const Event& event, Chunk& chunk, std::size_t from, std::size_t to) {
        if (event.collective_seen == 0) return 0;
        key_.clear();
        for (int place = 0; place != kMostCollectiveKeys; ++place) {
            key_ += '\x01';  // in no JSON text
            if (event.collective_seen >> place & 1u) key_.append(event.collective[place]);
        }
        const std::size_t known = collectives.size();
        const std::uint32_t number = collectives.number(key_);
        if (collectives.size() != known) chunk.new_collectives.emplace_back(from, to);
        return number;
    }

    bool keep_flow(const Event& event, Chunk& chunk) {
        std::int64_t time, id = kNone;
        if (!nanoseconds(event.ts, rules_.most_time_ns, time)) return false;
        if (!event.id.empty() && event.id != "null") {
            Cursor c{event.id.data(), event.id.data() + event.id.size()};
            Event number;
            if (!read_integer(c, number, kExternalId)) return false;
            id = number.integers[kExternalId];
        }
        FlowEnds& to_columns = chunk.flows;
        to_columns.ts_ns.push_back(time);
        to_columns.id.push_back(id);
        to_columns.kind.push_back(code(words, event.cat.empty() ? event.name : event.cat));
        to_columns.pid.push_back(code(words, event.pid));
        to_columns.tid.push_back(code(words, event.tid));
        to_columns.is_start.push_back(event.phase == 's');
        return true;
    }

    bool keep_memory(const Event& event, Chunk& chunk, bool failed) {
        std::int64_t time;
        if (!nanoseconds(event.ts, rules_.most_time_ns, time)) return false;
        Memory& to_columns = chunk.memory;
        to_columns.ts_ns.push_back(time);
        to_columns.address.push_back(static_cast<std::uint64_t>(integer(event, kAddress, 0)));
        to_columns.bytes.push_back(integer(event, kBytes, 0));
        to_columns.total_allocated.push_back(integer(event, kTotalAllocated));
        to_columns.total_reserved.push_back(integer(event, kTotalReserved));
        to_columns.device_type.push_back(integer32(event, kDeviceType));
        to_columns.device_id.push_back(integer32(event, kDeviceId));
        to_columns.tid.push_back(code(words, event.tid));
        to_columns.failed.push_back(failed);
        return true;
    }

    Rules rules_;
    std::vector<std::uint16_t> table_;  // 0, or one more than the place in rules_.args
    std::string key_;
};

}  // namespace sp
