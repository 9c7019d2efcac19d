// Distinct byte strings, numbered from 1 as they are met; 0 stands for "none".
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace sp {

class Interner {
public:
    Interner() : slots_(kFirstSlots) {}
    Interner(const Interner&) = delete;
    Interner& operator=(const Interner&) = delete;

    // The number of a text. `texts` are copied: what is passed in may be freed.
    std::uint32_t number(std::string_view text) {
        if (last_ != 0 && texts_[last_ - 1] == text) return last_;
        const std::uint64_t hash = hash_of(text);
        std::size_t at = hash & (slots_.size() - 1);
        while (slots_[at].number != 0) {
            if (slots_[at].hash == hash && texts_[slots_[at].number - 1] == text) {
                return last_ = slots_[at].number;
            }
            at = (at + 1) & (slots_.size() - 1);
        }
        texts_.push_back(kept(text));
        slots_[at] = {hash, static_cast<std::uint32_t>(texts_.size())};
        last_ = slots_[at].number;
        if (2 * texts_.size() > slots_.size()) grow();
        return last_;
    }

    std::size_t size() const { return texts_.size(); }
    std::string_view text(std::size_t index) const { return texts_[index]; }

private:
    struct Slot {
        std::uint64_t hash = 0;
        std::uint32_t number = 0;
    };

    static constexpr std::size_t kFirstSlots = 1 << 10;
    static constexpr std::size_t kBlock = 1 << 16;

    static std::uint64_t mixed(std::uint64_t value) {
        value ^= value >> 32;
        value *= 0x9E3779B97F4A7C15ULL;
        value ^= value >> 29;
        return value;
    }

    static std::uint64_t hash_of(std::string_view text) {
        std::uint64_t hash = text.size() * 0xD6E8FEB86659FD93ULL;
        const char* at = text.data();
        std::size_t left = text.size();
        while (left >= 8) {
            std::uint64_t word;
            std::memcpy(&word, at, 8);
            hash = mixed(hash ^ word);
            at += 8;
            left -= 8;
        }
        std::uint64_t word = 0;
        if (left != 0) std::memcpy(&word, at, left);
        return mixed(mixed(hash ^ word) + left);
    }

    std::string_view kept(std::string_view text) {
        if (text.empty()) return {};
        if (text.size() > kBlock / 4) {  // a block of its own
            large_.push_back(std::make_unique<char[]>(text.size()));
            std::memcpy(large_.back().get(), text.data(), text.size());
            return {large_.back().get(), text.size()};
        }
        if (blocks_.empty() || kBlock - used_ < text.size()) {
            blocks_.push_back(std::make_unique<char[]>(kBlock));
            used_ = 0;
        }
        char* here = blocks_.back().get() + used_;
        std::memcpy(here, text.data(), text.size());
        used_ += text.size();
        return {here, text.size()};
    }

    void grow() {
        std::vector<Slot> larger(2 * slots_.size());
        for (const Slot& slot : slots_) {
            if (slot.number == 0) continue;
            std::size_t at = slot.hash & (larger.size() - 1);
            while (larger[at].number != 0) at = (at + 1) & (larger.size() - 1);
            larger[at] = slot;
        }
        slots_.swap(larger);
    }

    std::vector<Slot> slots_;
    std::vector<std::string_view> texts_;
    std::vector<std::unique_ptr<char[]>> blocks_;
    std::vector<std::unique_ptr<char[]>> large_;
    std::size_t used_ = 0;
    std::uint32_t last_ = 0;
};

}  // namespace sp
