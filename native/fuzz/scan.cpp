// The scanner under any bytes. With clang it is a libFuzzer target; -DALONE makes a program of it that mutates
// seed files for a number of rounds:  scan ROUNDS SEED FILE...
//
// Every text lies in a block of exactly its size, so that AddressSanitizer sees a read beside it. What is checked:
// columns are whole; a text cut anywhere gives the columns of the whole; columns written as events read as they
// are; and numbers are what plain arithmetic of 128 bits makes of them.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "../src/scanner.hpp"

namespace {

using View = std::string_view;

const sp::Rules& rules() {
    static const sp::Rules told = [] {
        sp::Rules made;
#include "rules.inc"  // of material.py
        return made;
    }();
    return told;
}

void expect(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "broken: %s\n", what);
    std::abort();
}

sp::Chunk scan(sp::Scanner& scanner, View text) {
    auto block = std::make_unique<char[]>(text.size());
    if (!text.empty()) std::memcpy(block.get(), text.data(), text.size());
    return scanner.scan({block.get(), text.size()});
}

auto columns(sp::Complete& c) {
    return std::tie(c.start_ns, c.dur_ns, c.stream, c.correlation, c.external_id, c.sequence, c.fwd_thread, c.device,
                    c.category, c.name, c.pid, c.tid, c.dims, c.strides, c.types, c.concrete, c.collective);
}
auto columns(sp::FlowEnds& c) { return std::tie(c.id, c.ts_ns, c.kind, c.pid, c.tid, c.is_start); }
auto columns(sp::Memory& c) {
    return std::tie(c.ts_ns, c.bytes, c.total_allocated, c.total_reserved, c.address, c.device_type, c.device_id, c.tid,
                    c.failed);
}

// --- whole columns -----------------------------------------------------------------------------------------------

template <typename Table>
std::size_t rows(Table& table) {
    const std::size_t count = std::get<0>(columns(table)).size();
    std::apply([&](auto&... one) { expect(((one.size() == count) && ...), "columns are of one length"); },
               columns(table));
    return count;
}

template <typename Codes>
void expect_codes(const Codes& codes, const sp::Interner& texts) {
    for (std::uint32_t code : codes) expect(code <= texts.size(), "codes are of texts");
}

void expect_whole(View text, sp::Chunk& chunk, const sp::Scanner& scanner) {
    expect(chunk.consumed <= text.size(), "no more is consumed than there is");
    expect(chunk.consumed == 0 || text[chunk.consumed - 1] == '}', "what is consumed ends with an event");
    expect((chunk.consumed == 0) == (chunk.events == 0), "what is consumed is events");
    const std::size_t next = text.find_first_not_of(" \n\t\r", chunk.consumed);
    expect(chunk.events == 0 || next == View::npos || text[next] == ',', "what was taken ends before a comma");
    expect(rows(chunk.complete) + rows(chunk.flows) + rows(chunk.memory) <= chunk.events,
           "no more is kept than was read");
    for (std::int64_t duration : chunk.complete.dur_ns) expect(duration >= 0, "no duration is negative");
    const sp::Complete& c = chunk.complete;
    const sp::FlowEnds& f = chunk.flows;
    for (auto* codes : {&c.name, &c.pid, &c.tid, &f.kind, &f.pid, &f.tid}) expect_codes(*codes, scanner.words);
    expect_codes(chunk.memory.tid, scanner.words);
    expect_codes(c.category, scanner.categories);
    for (auto* codes : {&c.dims, &c.strides, &c.types, &c.concrete}) expect_codes(*codes, scanner.texts);
    expect_codes(c.collective, scanner.collectives);
    for (const auto& [from, to] : chunk.new_collectives) {
        expect(from < to && to <= chunk.consumed && text[from] == '{' && text[to - 1] == '}', "a span is an event's");
    }
}

// --- cut anywhere ------------------------------------------------------------------------------------------------

template <typename Table>
void append(Table& table, Table& more) {
    auto to = columns(table);
    auto from = columns(more);
    std::apply(
        [&](auto&... end) {
            std::apply([&](auto&... one) { (end.insert(end.end(), one.begin(), one.end()), ...); }, from);
        },
        to);
}

void expect_same(const sp::Interner& one, const sp::Interner& two) {
    expect(one.size() == two.size(), "cut: as many texts");
    for (std::size_t i = 0; i != one.size(); ++i) expect(one.text(i) == two.text(i), "cut: the same texts");
}

void expect_same_cut(View text, std::size_t cut) {
    if (!sp::is_utf8(text.data(), text.size())) return;  // then nothing of the whole is taken
    sp::Scanner whole(rules()), cut_up(rules());
    sp::Chunk all = scan(whole, text);
    sp::Chunk parts = scan(cut_up, text.substr(0, cut));
    sp::Cursor next{text.data() + parts.consumed, text.data() + text.size()};
    sp::skip_space(next);
    const bool is_at_cut = next.at >= text.data() + cut;
    if (parts.events != 0 && is_at_cut && !next.done() && *next.at != ',') return;  // none cuts there
    if (parts.events == 0 || sp::take(next, ',')) {
        const auto at = static_cast<std::size_t>(next.at - text.data());
        sp::Chunk rest = scan(cut_up, text.substr(at));
        if (rest.events != 0) parts.consumed = at + rest.consumed;
        parts.events += rest.events;
        append(parts.complete, rest.complete);
        append(parts.flows, rest.flows);
        append(parts.memory, rest.memory);
        for (const auto& [from, to] : rest.new_collectives) parts.new_collectives.emplace_back(at + from, at + to);
    }
    expect(parts.consumed == all.consumed && parts.events == all.events, "cut: as much is consumed");
    expect(columns(parts.complete) == columns(all.complete), "cut: the same columns");
    expect(columns(parts.flows) == columns(all.flows), "cut: the same flows");
    expect(columns(parts.memory) == columns(all.memory), "cut: the same memory");
    expect(parts.new_collectives == all.new_collectives, "cut: the same collectives");
    expect_same(cut_up.words, whole.words);
    expect_same(cut_up.categories, whole.categories);
    expect_same(cut_up.texts, whole.texts);
    expect_same(cut_up.collectives, whole.collectives);
}

// --- written and read again --------------------------------------------------------------------------------------

class Writer {
public:
    Writer(const sp::Scanner& scanner, const sp::Rules& rules) : scanner_(scanner), rules_(rules) {}

    std::string text;

    void write(const sp::Complete& c) {
        for (std::size_t i = 0; i != c.start_ns.size(); ++i) {
            begin('X', c.start_ns[i]);
            member("dur", micros(c.dur_ns[i]));
            coded("cat", scanner_.categories, c.category[i]);
            coded("name", scanner_.words, c.name[i]);
            coded("pid", scanner_.words, c.pid[i]);
            coded("tid", scanner_.words, c.tid[i]);
            begin_args();
            number(sp::kExternalId, c.external_id[i]);
            number(sp::kSequence, c.sequence[i]);
            number(sp::kForwardThread, c.fwd_thread[i]);
            number(sp::kDevice, c.device[i]);
            number(sp::kStream, c.stream[i]);
            number(sp::kCorrelation, c.correlation[i]);
            coded(key(sp::Use::kText, sp::kDims), scanner_.texts, c.dims[i]);
            coded(key(sp::Use::kText, sp::kStrides), scanner_.texts, c.strides[i]);
            coded(key(sp::Use::kText, sp::kTypes), scanner_.texts, c.types[i]);
            coded(key(sp::Use::kText, sp::kConcrete), scanner_.texts, c.concrete[i]);
            if (c.collective[i] != 0) collective(scanner_.collectives.text(c.collective[i] - 1));
            text += "}}";
        }
    }

    void write(const sp::FlowEnds& c) {
        for (std::size_t i = 0; i != c.ts_ns.size(); ++i) {
            begin(c.is_start[i] ? 's' : 'f', c.ts_ns[i]);
            member("id", std::to_string(c.id[i]));
            coded("cat", scanner_.words, c.kind[i]);
            coded("pid", scanner_.words, c.pid[i]);
            coded("tid", scanner_.words, c.tid[i]);
            text += '}';
        }
    }

    void write(const sp::Memory& c) {
        for (std::size_t i = 0; i != c.ts_ns.size(); ++i) {
            begin('i', c.ts_ns[i]);
            member("name", '"' + (c.failed[i] ? rules_.memory_names.back() : rules_.memory_names.front()) + '"');
            coded("tid", scanner_.words, c.tid[i]);
            begin_args();
            number(sp::kBytes, c.bytes[i]);
            member(key(sp::Use::kInteger, sp::kAddress), std::to_string(c.address[i]));
            number(sp::kTotalAllocated, c.total_allocated[i]);
            number(sp::kTotalReserved, c.total_reserved[i]);
            number(sp::kDeviceType, c.device_type[i]);
            number(sp::kDeviceId, c.device_id[i]);
            text += "}}";
        }
    }

private:
    static std::string micros(std::int64_t ns) {
        const auto size = static_cast<unsigned long long>(ns < 0 ? -ns : ns);
        char out[32];
        std::snprintf(out, sizeof out, "%s%llu.%03llu", ns < 0 ? "-" : "", size / 1000, size % 1000);
        return out;
    }

    View key(sp::Use use, int place) const {
        for (const sp::ArgsKey& one : rules_.args) {
            if (one.use == use && one.place == place) return one.name;
        }
        expect(false, "every place has a key");
        return {};
    }

    void begin(char phase, std::int64_t ns) {
        if (!text.empty()) text += ",\n";
        text += std::string("{\"ph\":\"") + phase + "\",\"ts\":" + micros(ns);
    }

    void begin_args() {
        text += ",\"args\":{";
        is_first_ = true;
    }

    void member(View name, View value) {
        if (!is_first_) text += ',';
        is_first_ = false;
        text.append("\"").append(name).append("\":").append(value);
    }

    void number(sp::Integer place, std::int64_t value) {
        member(key(sp::Use::kInteger, place), std::to_string(value));
    }

    void coded(View name, const sp::Interner& texts, std::uint32_t code) {
        if (code != 0) member(name, texts.text(code - 1));
    }

    void collective(View values) {
        for (int place = -1; !values.empty(); ++place) {
            const std::size_t end = values.find('\x01');
            const View value = values.substr(0, end);
            if (!value.empty()) member(key(sp::Use::kCollective, place), value);
            values.remove_prefix(end == View::npos ? values.size() : end + 1);
        }
    }

    const sp::Scanner& scanner_;
    const sp::Rules& rules_;
    bool is_first_ = false;
};

// Its lines, each an event, sorted: the writer puts tables one after the other.
std::vector<View> in_order(View text) {
    std::vector<View> lines;
    while (!text.empty()) {
        const std::size_t end = text.find(",\n{\"ph\":");
        lines.push_back(text.substr(0, end));
        text.remove_prefix(end == View::npos ? text.size() : end + 2);
    }
    std::sort(lines.begin(), lines.end());
    return lines;
}

void write(Writer& writer, const sp::Chunk& chunk) {
    writer.write(chunk.complete);
    writer.write(chunk.flows);
    writer.write(chunk.memory);
}

void expect_reads(const std::string& text) {
    sp::Scanner scanner(rules());
    const sp::Chunk read = scan(scanner, text);
    expect(read.consumed == text.size(), "written: all is read");
    Writer writer(scanner, rules());
    write(writer, read);
    expect(in_order(writer.text) == in_order(text), "written: it reads as it was");
}

// --- numbers -----------------------------------------------------------------------------------------------------

struct Number {
    bool is_negative = false;
    __int128 digits = 0;  // without the point
    int before = 0, after = 0;  // digits before and after the point
};

// None: no number of JSON without an exponent, or a longer one than is looked at.
std::optional<Number> number_of(View text) {
    Number n;
    std::size_t at = 0;
    if (text.size() > 36) return {};
    if (at != text.size() && text[at] == '-') n.is_negative = true, ++at;
    const std::size_t first = at;
    for (; at != text.size() && sp::is_digit(text[at]); ++at, ++n.before) n.digits = 10 * n.digits + (text[at] - '0');
    if (n.before == 0 || (n.before > 1 && text[first] == '0')) return {};
    if (at == text.size()) return n;
    if (text[at++] != '.') return {};
    for (; at != text.size() && sp::is_digit(text[at]); ++at, ++n.after) n.digits = 10 * n.digits + (text[at] - '0');
    if (n.after == 0 || at != text.size()) return {};
    return n;
}

__int128 nanoseconds_of(const Number& n) {
    __int128 unit = 1;
    for (int i = 3; i < n.after; ++i) unit *= 10;
    __int128 ns = n.digits / unit;
    const __int128 twice = 2 * (n.digits % unit);
    if (twice > unit || (twice == unit && ns % 2 == 1)) ++ns;
    for (int i = n.after; i < 3; ++i) ns *= 10;
    return n.is_negative ? -ns : ns;
}

bool all_taken(const std::string& event, sp::Chunk& chunk) {
    sp::Scanner scanner(rules());
    chunk = scan(scanner, event);
    return chunk.consumed == event.size();
}

// `which` is "ts" or "dur": the other is 0.
void expect_time(const std::string& which, const std::string& text, const std::optional<Number>& number,
                 std::int64_t least, std::int64_t most) {
    const std::string other = which == "ts" ? "dur" : "ts";
    const bool is_plain = number && number->before <= 16;
    const __int128 ns = is_plain ? nanoseconds_of(*number) : 0;
    sp::Chunk chunk;
    if (all_taken("{\"ph\":\"X\",\"" + other + "\":0,\"" + which + "\":" + text + "}", chunk)) {
        const std::int64_t read = which == "ts" ? chunk.complete.start_ns.at(0) : chunk.complete.dur_ns.at(0);
        expect(is_plain && read == ns, "a time is exact, halves even");
        expect(least <= ns && ns <= most, "a time is within bounds");
    } else {
        expect(!is_plain || number->after > 3 || ns < least || ns > most, "a plain time is taken");
    }
}

void expect_integer(const std::string& text, const std::optional<Number>& number) {
    const bool is_integer = number && number->after == 0;
    const __int128 value = is_integer ? (number->is_negative ? -number->digits : number->digits) : 0;
    sp::Chunk chunk;
    if (all_taken("{\"ph\":\"X\",\"ts\":1,\"dur\":0,\"args\":{\"stream\":" + text + "}}", chunk)) {
        expect(is_integer && chunk.complete.stream.at(0) == value, "an integer is what is written");
    } else {
        expect(!is_integer || number->before > 18, "an integer is taken");
    }
    if (all_taken("{\"ph\":\"i\",\"name\":\"[memory]\",\"ts\":1,\"args\":{\"Addr\":" + text + "}}", chunk)) {
        expect(is_integer && chunk.memory.address.at(0) == value, "an address is what is written");
    } else {
        expect(!is_integer || number->is_negative || value > UINT64_MAX, "an address is taken");
    }
}

void check_number(View text) {
    if (text.size() > 48 || text.find_first_not_of("+-.0123456789eE") != View::npos) return;
    const std::optional<Number> number = number_of(text);
    const std::int64_t latest = rules().most_time_ns;
    expect_time("ts", std::string(text), number, -latest, latest);
    expect_time("dur", std::string(text), number, 0, rules().most_duration_ns);
    expect_integer(std::string(text), number);
}

// --- all of it ---------------------------------------------------------------------------------------------------

// Scan as the decoder does: on from where it stopped, over an event that was not taken.
void check(View text) {
    check_number(text);
    std::uint64_t mixed = 1469598103934665603ULL;  // FNV-1a: where to cut
    for (char c : text) mixed = (mixed ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
    expect_same_cut(text, mixed % (text.size() + 1));
    const std::size_t end = text.find('}', (mixed >> 32) % (text.size() + 1));
    if (end != View::npos) expect_same_cut(text, end + 1);

    sp::Scanner scanner(rules());
    Writer writer(scanner, rules());
    for (int again = 0; !text.empty() && again != 64; ++again) {
        sp::Chunk chunk = scan(scanner, text);
        expect_whole(text, chunk, scanner);
        write(writer, chunk);
        text.remove_prefix(chunk.consumed);
        const std::size_t next = text.find('{', 1);
        if (next == View::npos) break;
        text.remove_prefix(next);
    }
    expect_reads(writer.text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    check({reinterpret_cast<const char*>(data), size});
    return 0;
}

#ifdef ALONE
namespace {

struct Random {
    std::uint64_t state;
    std::uint64_t operator()(std::uint64_t below) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return below == 0 ? 0 : state % below;
    }
};

const char* const kPieces[] = {"\"", "\\", "{", "}", "[", "]", ",", ":", "\\u", "\\ud800", "null", "true", "1e999",
                               "-", "-0", "00", "18446744073709551616", "9223372036854775808", "0.0005", "1.5e3",
                               "\"ph\":\"X\",", "\"ts\":", "\"args\":{", "\"traceEvents\"", "\xff", "\xc0\x80",
                               "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x01", " ", "\n", "[[[[[[[[[[[[[[[[", "NaN"};

std::string mutated(const std::string& seed, const std::string& other, Random& random) {
    std::string text = seed.substr(random(seed.size()), 1 + random(4096));
    for (std::uint64_t left = 1 + random(6); left != 0 && !text.empty(); --left) {
        const std::size_t at = random(text.size());
        switch (random(6)) {
            case 0: text[at] = static_cast<char>(random(256)); break;
            case 1: text[at] ^= static_cast<char>(1 << random(8)); break;
            case 2: text.erase(at, 1 + random(32)); break;
            case 3: text.insert(at, kPieces[random(std::size(kPieces))]); break;
            case 4: text.insert(at, other.substr(random(other.size()), random(256))); break;
            default: text.resize(at); break;
        }
    }
    return text;
}

}  // namespace

int main(int count, char** words) {
    if (count < 4) {
        std::fprintf(stderr, "scan ROUNDS SEED FILE...\n");
        return 2;
    }
    std::vector<std::string> seeds;
    for (int i = 3; i != count; ++i) {
        std::ifstream file(words[i], std::ios::binary);
        seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
        check(seeds.back());
    }
    const long long rounds = std::atoll(words[1]);
    Random random{static_cast<std::uint64_t>(std::atoll(words[2])) * 2 + 1};
    for (long long round = 0; round != rounds; ++round) {
        check(mutated(seeds[random(seeds.size())], seeds[random(seeds.size())], random));
    }
    std::printf("%lld mutated texts\n", rounds);
    return 0;
}
#endif
