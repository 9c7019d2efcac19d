// The scanner under any bytes. With clang it is a libFuzzer target; -DALONE makes a program of it that mutates
// seed files for a number of rounds:  scan ROUNDS SEED FILE...
//
// Every input lies in a block of exactly its size, so that AddressSanitizer sees a read beside it.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "../src/scanner.hpp"

namespace {

sp::Rules rules() {
    sp::Rules made;
    const char* integers[] = {"External id", "external id", "Sequence number", "Fwd thread id", "device",
                              "stream", "correlation", "Bytes", "Addr", "Total Allocated", "Total Reserved",
                              "Device Type", "Device Id"};
    const char* texts[] = {"Input Dims", "Input Strides", "Input type", "Concrete Inputs"};
    const char* collectives[] = {"Collective name", "In msg nelems", "dtype", "Process Group Ranks", "Seq"};
    std::uint8_t place = 0;
    for (const char* key : integers) made.args.push_back({key, sp::Use::kInteger, place++});
    place = 0;
    for (const char* key : texts) made.args.push_back({key, sp::Use::kText, place++});
    place = 0;
    for (const char* key : collectives) made.args.push_back({key, sp::Use::kCollective, place++});
    made.memory_names = {"[memory]", "[OutOfMemory]"};
    made.concrete_names = {"c10d::", "_c10d_functional"};
    made.ignored_phases = "ICbneSTpFPtNODMVvRc()";
    made.most_time_ns = (std::int64_t{1} << 62) - (std::int64_t{1} << 53);
    made.most_duration_ns = std::int64_t{30} * 24 * 3600 * 1000000000;
    return made;
}

void expect(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "broken: %s\n", what);
    std::abort();
}

// Scan as the decoder does: on from where it stopped, over an event that was not taken.
void scan_all(const std::uint8_t* data, std::size_t size) {
    auto text = std::make_unique<char[]>(size);
    if (size != 0) std::memcpy(text.get(), data, size);
    sp::Scanner scanner(rules());
    std::size_t at = 0;
    for (int again = 0; at < size && again != 64; ++again) {
        const std::size_t left = size - at;
        auto part = std::make_unique<char[]>(left);
        std::memcpy(part.get(), text.get() + at, left);
        const sp::Chunk chunk = scanner.scan({part.get(), left});
        const sp::Complete& c = chunk.complete;
        expect(chunk.consumed <= left, "no more is consumed than there is");
        expect(chunk.consumed == 0 || part[chunk.consumed - 1] == '}', "what is consumed ends with an event");
        expect(c.dur_ns.size() == c.start_ns.size() && c.collective.size() == c.start_ns.size(),
               "columns are of one length");
        expect(c.start_ns.size() + chunk.flows.id.size() + chunk.memory.tid.size() <= chunk.events,
               "no more is kept than was read");
        for (std::int64_t duration : c.dur_ns) expect(duration >= 0, "no duration is negative");
        for (std::uint32_t number : c.name) expect(number <= scanner.words.size(), "codes are of texts");
        at += chunk.consumed;
        const void* next = at < size ? std::memchr(text.get() + at + 1, '{', size - at - 1) : nullptr;
        if (next == nullptr) break;
        at = static_cast<std::size_t>(static_cast<const char*>(next) - text.get());
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    scan_all(data, size);
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
                               "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x00", " ", "\n", "[[[[[[[[[[[[[[[[", "NaN"};

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
        scan_all(reinterpret_cast<const std::uint8_t*>(seeds.back().data()), seeds.back().size());
    }
    const long long rounds = std::atoll(words[1]);
    Random random{static_cast<std::uint64_t>(std::atoll(words[2])) * 2 + 1};
    for (long long round = 0; round != rounds; ++round) {
        const std::string text = mutated(seeds[random(seeds.size())], seeds[random(seeds.size())], random);
        scan_all(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
    }
    std::printf("%lld mutated texts\n", rounds);
    return 0;
}
#endif
