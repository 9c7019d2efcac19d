// The scanner as a Python class: bytes in, numpy columns out, without the GIL while it scans.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>

#include "scanner.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename T>
nb::object column(std::vector<T>&& values) {
    auto owned = std::make_unique<std::vector<T>>(std::move(values));
    const std::size_t count = owned->size();
    T* data = owned->data();
    nb::capsule owner(owned.get(), [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
    owned.release();
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {count}, owner));
}

nb::dict columns_of(sp::Complete&& c) {
    nb::dict out;
    out["start_ns"] = column(std::move(c.start_ns));
    out["dur_ns"] = column(std::move(c.dur_ns));
    out["category"] = column(std::move(c.category));
    out["name"] = column(std::move(c.name));
    out["pid"] = column(std::move(c.pid));
    out["tid"] = column(std::move(c.tid));
    out["device"] = column(std::move(c.device));
    out["stream"] = column(std::move(c.stream));
    out["correlation"] = column(std::move(c.correlation));
    out["external_id"] = column(std::move(c.external_id));
    out["sequence"] = column(std::move(c.sequence));
    out["fwd_thread"] = column(std::move(c.fwd_thread));
    out["dims"] = column(std::move(c.dims));
    out["strides"] = column(std::move(c.strides));
    out["types"] = column(std::move(c.types));
    out["concrete"] = column(std::move(c.concrete));
    out["collective"] = column(std::move(c.collective));
    return out;
}

nb::dict columns_of(sp::FlowEnds&& c) {
    nb::dict out;
    out["flow_kind"] = column(std::move(c.kind));
    out["flow_is_start"] = column(std::move(c.is_start));
    out["flow_id"] = column(std::move(c.id));
    out["flow_pid"] = column(std::move(c.pid));
    out["flow_tid"] = column(std::move(c.tid));
    out["flow_ts_ns"] = column(std::move(c.ts_ns));
    return out;
}

nb::dict columns_of(sp::Memory&& c) {
    nb::dict out;
    out["memory_ts_ns"] = column(std::move(c.ts_ns));
    out["memory_address"] = column(std::move(c.address));
    out["memory_bytes"] = column(std::move(c.bytes));
    out["memory_total_allocated"] = column(std::move(c.total_allocated));
    out["memory_total_reserved"] = column(std::move(c.total_reserved));
    out["memory_device_type"] = column(std::move(c.device_type));
    out["memory_device_id"] = column(std::move(c.device_id));
    out["memory_tid"] = column(std::move(c.tid));
    out["memory_failed"] = column(std::move(c.failed));
    return out;
}

nb::list texts_from(const sp::Interner& interner, std::size_t first) {
    nb::list out;
    for (std::size_t i = first; i != interner.size(); ++i) {
        const std::string_view text = interner.text(i);
        out.append(nb::bytes(text.data(), text.size()));
    }
    return out;
}

// The rules as Python tells them: of `args` the places of integers and texts by key, in the order of the
// enums, and the keys of collectives.
sp::Rules rules_from(const std::vector<std::string>& integers, const std::vector<std::string>& texts,
                     const std::vector<std::string>& collectives, std::vector<std::string> memory_names,
                     std::vector<std::string> concrete_names, std::string ignored_phases,
                     std::int64_t most_time_ns, std::int64_t most_duration_ns) {
    if (integers.size() != sp::kIntegers || texts.size() != sp::kTexts ||
        collectives.size() > static_cast<std::size_t>(sp::kMostCollectiveKeys)) {
        throw std::invalid_argument("this scanner was built for other columns");
    }
    sp::Rules rules;
    const auto add = [&](const std::vector<std::string>& keys, sp::Use use) {
        for (std::size_t i = 0; i != keys.size(); ++i) {
            rules.args.push_back({keys[i], use, static_cast<std::uint8_t>(i)});
        }
    };
    add(integers, sp::Use::kInteger);
    add(texts, sp::Use::kText);
    add(collectives, sp::Use::kCollective);
    rules.memory_names = std::move(memory_names);
    rules.concrete_names = std::move(concrete_names);
    rules.ignored_phases = std::move(ignored_phases);
    rules.most_time_ns = most_time_ns;
    rules.most_duration_ns = most_duration_ns;
    return rules;
}

// What `scan` answers; the new texts since the scan before, so that Python interns each once.
nb::dict scan(sp::Scanner& scanner, nb::bytes data, std::size_t start, std::size_t end) {
    if (start > end || end > data.size()) throw std::out_of_range("the span is not within the text");
    const std::size_t words = scanner.words.size(), categories = scanner.categories.size();
    const std::size_t texts = scanner.texts.size();
    sp::Chunk chunk;
    {
        nb::gil_scoped_release free;
        chunk = scanner.scan({data.c_str() + start, end - start});
    }
    nb::dict out;
    out["consumed"] = chunk.consumed;
    out["kept"] = chunk.complete.start_ns.size() + chunk.flows.ts_ns.size() + chunk.memory.ts_ns.size();
    out["words"] = texts_from(scanner.words, words);
    out["categories"] = texts_from(scanner.categories, categories);
    out["texts"] = texts_from(scanner.texts, texts);
    nb::list collectives;
    for (const auto& [from, to] : chunk.new_collectives) {
        collectives.append(nb::make_tuple(start + from, start + to));
    }
    out["collectives"] = collectives;
    out["complete"] = columns_of(std::move(chunk.complete));
    out["flows"] = columns_of(std::move(chunk.flows));
    out["memory"] = columns_of(std::move(chunk.memory));
    return out;
}

}  // namespace

NB_MODULE(_scanner, module) {
    nb::set_leak_warnings(false);  // a thread may still decode when the interpreter ends
    module.doc() = "Plain Kineto events become columns; what is not plain is left to the caller.";
    nb::class_<sp::Scanner>(module, "Scanner")
        .def("__init__",
             [](sp::Scanner* self, const std::vector<std::string>& integers,
                const std::vector<std::string>& texts, const std::vector<std::string>& collectives,
                const std::vector<std::string>& memory_names, const std::vector<std::string>& concrete_names,
                const std::string& ignored_phases, std::int64_t most_time_ns, std::int64_t most_duration_ns) {
                 new (self) sp::Scanner(rules_from(integers, texts, collectives, memory_names, concrete_names,
                                                   ignored_phases, most_time_ns, most_duration_ns));
             },
             nb::kw_only(), "integers"_a, "texts"_a, "collectives"_a, "memory_names"_a, "concrete_names"_a,
             "ignored_phases"_a, "most_time_ns"_a, "most_duration_ns"_a)
        .def("scan", &scan, "data"_a, "start"_a, "end"_a,
             "Take events from data[start:end], as many as are plain. One scan at a time.");
}
