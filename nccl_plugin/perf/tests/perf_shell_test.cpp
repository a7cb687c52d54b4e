// Options, rows and rail counters.
#include <doctest/doctest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "pages/stats_page.h"
#include "perf/options.h"
#include "perf/rows.h"
#include "perf/statsreader.h"

using namespace fabric::perf;  // NOLINT(google-build-using-namespace)

TEST_CASE("options: what is asked, and what is refused with status 2") {
  const auto parse = [](const std::vector<const char*>& given) {
    std::vector<const char*> arguments{"fabric-perf"};
    arguments.insert(arguments.end(), given.begin(), given.end());
    return parse_options(static_cast<int>(arguments.size()), arguments.data());
  };
  const std::vector<const char*> base{"ring",    "--plugin", "x.so",         "--rank",     "1",
                                      "--world", "4",        "--rendezvous", "file:/tmp/r"};
  const auto with = [&](std::initializer_list<const char*> more) {
    std::vector<const char*> all = base;
    all.insert(all.end(), more);
    return parse(all);
  };
  const ParseResult plain = parse(base);
  REQUIRE(plain.options);
  CHECK(plain.options->mode == Mode::ring);
  CHECK(plain.options->size == std::size_t{64} << 20U);
  CHECK(plain.options->wait == Wait::block);
  CHECK(plain.options->verify);
  CHECK_FALSE(plain.options->abi);
  const ParseResult full =
      with({"--size", "16M", "--iters", "7", "--channels", "3", "--wait", "spin", "--abi", "v9",
            "--verify", "none", "--device", "2", "--interval-ms", "50", "--type", "int32"});
  REQUIRE(full.options);
  CHECK(full.options->size == std::size_t{16} << 20U);
  CHECK(full.options->iterations == 7);
  CHECK(full.options->abi == 9);
  CHECK(full.options->device == 2);
  CHECK(full.options->element == Element::int32);
  CHECK_FALSE(full.options->verify);
  CHECK(with({"--batch", "100", "--verify", "none"}).options->batch == 100);
  CHECK(with({"--batch", "2", "--size", "16M"}).options);  // fits
  CHECK(with({"--batch", "3", "--size", "16M", "--memory", "48M"}).options->memory == 48U << 20U);
  CHECK(parse({"--help"}).status == 0);
  CHECK(parse({"ring"}).status == 2);
  CHECK(parse({}).status == 2);
  for (const auto& bad : std::vector<std::vector<const char*>>{{"--rank", "4"},
                                                               {"--world", "1"},
                                                               {"--abi", "v7"},
                                                               {"--abi", "12"},
                                                               {"--size", "-5"},
                                                               {"--size", "lots"},
                                                               {"--wait", "doze"},
                                                               {"--iters", "0"},
                                                               {"--channels", "0"},
                                                               {"--interval-ms", "0"},
                                                               {"--rendezvous", "nowhere"},
                                                               {"--in-flight", "33"},
                                                               {"--batch", "3", "--size", "16M"},
                                                               {"--slice", "1"},
                                                               {"--bogus"}}) {
    CAPTURE(bad.front());
    std::vector<const char*> all = base;
    for (std::size_t i = 1; i < all.size(); i += 2) {
      if (std::strcmp(all[i], bad.front()) == 0) {
        all.erase(all.begin() + static_cast<std::ptrdiff_t>(i),
                  all.begin() + static_cast<std::ptrdiff_t>(i) + 2);
        break;
      }
    }
    all.insert(all.end(), bad.begin(), bad.end());
    const ParseResult result = parse(all);
    CHECK_FALSE(result.options);
    CHECK(result.status == 2);
  }
  std::vector<const char*> odd{"p2p", "--plugin",     "x",      "--rank", "0", "--world",
                               "3",   "--rendezvous", "file:/r"};
  CHECK(parse(odd).status == 2);
}

TEST_CASE("rows have the documented shape") {
  const Rails delta{{"rail0", {10, 20}}, {"rail1", {0, 0}}};
  const nlohmann::json sample = sample_row(5, 100, 2, delta, "stats_page");
  CHECK(sample["type"] == "sample");
  CHECK(sample["t_ns"] == 5);
  CHECK(sample["bytes"] == 100);
  CHECK(sample["rails"]["rail0"]["tx"] == 10);
  CHECK(sample["rails"]["rail1"]["rx"] == 0);
  EndFigures figures;
  figures.iterations = 4;
  figures.bytes = 1'000'000'000;
  figures.seconds = 8;
  figures.bus_factor = 1.5;
  const nlohmann::json end = end_row(9, figures);
  CHECK(end["algbw_gbps"].get<double>() == doctest::Approx(1.0));
  CHECK(end["busbw_gbps"].get<double>() == doctest::Approx(1.5));
  CHECK(end["errors"] == 0);
  CHECK(end["corrupt_bytes"] == 0);
  const nlohmann::json error = error_row(7, TransportError("isend (x)", 6, "gone"));
  CHECK(error["where"] == "isend (x)");
  CHECK(error["code"] == 6);
  CHECK(error["text"] == "gone");
  figures.seconds = 0;
  CHECK(end_row(9, figures)["algbw_gbps"] == 0.0);
}

TEST_CASE("rail counters: differences, stats page, /proc/net/dev") {
  const Rails delta = difference({{"a", {10, 5}}, {"b", {3, 3}}}, {{"a", {4, 9}}});
  CHECK(delta.at("a").tx == 6);
  CHECK(delta.at("a").rx == 0);  // went back: a new device of the same name
  CHECK(delta.at("b").tx == 3);

  namespace pages = fabric::pages;
  std::vector<std::byte> page(pages::kStatsPageSize);
  pages::StatsHeader header{};
  header.magic = pages::kStatsMagic;
  header.version = pages::kStatsVersion;
  header.header_size = sizeof header;
  header.seq = 2;
  header.rail_count = 1;
  pages::StatsRail rail{};
  std::memcpy(rail.netdev, "rail0", 6);
  rail.tx_bytes = 11;
  rail.rx_bytes = 12;
  const auto put = [&] {
    std::memcpy(page.data(), &header, sizeof header);
    std::memcpy(page.data() + pages::kStatsRailsAt, &rail, sizeof rail);
  };
  put();
  Rails rails;
  REQUIRE(parse_stats_page(page, &rails));
  CHECK(rails.at("rail0").tx == 11);
  CHECK(rails.at("rail0").rx == 12);
  header.seq = 3;  // being written
  put();
  CHECK_FALSE(parse_stats_page(page, &rails));
  header.seq = 4;
  header.rail_count = 33;
  put();
  CHECK_FALSE(parse_stats_page(page, &rails));
  header.rail_count = 1;
  header.magic = 1;
  put();
  CHECK_FALSE(parse_stats_page(page, &rails));
  CHECK_FALSE(parse_stats_page(std::vector<std::byte>(100), &rails));

  const std::string text =
      "Inter-|   Receive                                                |  Transmit\n"
      " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs\n"
      "    lo:     100       2    0    0    0     0          0         0      100       2    0    "
      "0 "
      "   0     0       0          0\n"
      " rail0: 5 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n";
  const Rails read = parse_net_dev(text, {"rail0", "rail1"});
  REQUIRE(read.size() == 1);
  CHECK(read.at("rail0").rx == 5);
  CHECK(read.at("rail0").tx == 7);
}

TEST_CASE("sockets: what of ours is not acknowledged yet") {
  const std::string text =
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
      "inode\n"
      "   0: 0100007F:07E8 00000000:0000 0A 00000005:00000000 00:00000000 00000000     0        0 "
      "11 1 0 100 0 0 10 0\n"
      "   1: 0100000A:A1B2 0200000A:07E8 01 0001A000:00000010 01:00000014 00000000     0        0 "
      "12 2 0 20 4 30 10 -1\n"
      "   2: 0100000A:A1B3 0200000A:07E8 01 00000001:00000000 01:00000014 00000000     0        0 "
      "13 2 0 20 4 30 10 -1\n"
      "   3: torn\n";
  CHECK(unacknowledged(text, {11, 12}) == 0x1a000);
  CHECK(unacknowledged(text, {12, 13}) == 0x1a001);
  CHECK(unacknowledged(text, {14}) == 0);
  CHECK(unacknowledged("", {0}) == 0);
}
