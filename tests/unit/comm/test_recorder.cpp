// SPDX-License-Identifier: Apache-2.0
#include "comm/recorder.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <set>
#include <string>
#include <vector>

namespace tpfsdp {
namespace {

Event mark(const char *name, int64_t start_ns = 1000) {
  Event event;
  event.kind = EventKind::kMark;
  event.operation = name;
  event.start_ns = start_ns;
  return event;
}

TEST(Recorder, WithoutARingOnlyTheIndexMoves) {
  Recorder recorder(0);
  EXPECT_FALSE(recorder.is_on());
  EXPECT_EQ(recorder.record(mark("a")), 0);
  EXPECT_EQ(recorder.record(mark("b")), 1);
  EXPECT_EQ(recorder.kept(), 0);
  EXPECT_FALSE(recorder.events_lost());
  recorder.end(1, 5000);  // nothing there
  EXPECT_THROW(recorder.event_at(0), Failure);
}

TEST(Recorder, KeepsTheLastAndTellsOfTheLost) {
  Recorder recorder(3);
  for (const char *name : {"a", "b", "c"}) recorder.record(mark(name));
  EXPECT_EQ(recorder.kept(), 3);
  EXPECT_FALSE(recorder.events_lost());
  recorder.record(mark("d"));
  EXPECT_TRUE(recorder.events_lost());
  ASSERT_EQ(recorder.kept(), 3);
  EXPECT_STREQ(recorder.event_at(0).operation, "b");
  EXPECT_STREQ(recorder.event_at(2).operation, "d");
  EXPECT_EQ(recorder.event_at(2).index, 3);
  recorder.clear();
  EXPECT_EQ(recorder.kept(), 0);
  EXPECT_FALSE(recorder.events_lost());
  recorder.record(mark("e"));
  EXPECT_EQ(recorder.event_at(0).index, 4);
  try {
    recorder.event_at(1);
    FAIL();
  } catch (const Failure &failure) {
    EXPECT_EQ(failure.status(), TPFSDP_ERR_NOT_FOUND);
  }
}

TEST(Recorder, FillsTheTimeAndTheDuration) {
  Recorder recorder(2);
  const int64_t before = monotonic_ns();
  const int64_t index = recorder.record(mark("now", 0));
  EXPECT_GE(recorder.event_at(0).start_ns, before);
  recorder.end(index, recorder.event_at(0).start_ns + 77);
  EXPECT_EQ(recorder.event_at(0).duration_ns, 77);
  recorder.record(mark("x"));
  recorder.record(mark("y"));
  recorder.end(index, INT64_MAX);  // forgotten: no other event may change
  EXPECT_EQ(recorder.event_at(0).duration_ns, 0);
  EXPECT_EQ(recorder.event_at(1).duration_ns, 0);
}

TEST(Recorder, InternGivesOneCopy) {
  Recorder recorder(0);
  std::string text = "layers.3";
  const char *first = recorder.intern(text);
  for (int i = 0; i < 1000; ++i) recorder.intern("unit " + std::to_string(i));
  text = "changed";
  EXPECT_STREQ(first, "layers.3");
  EXPECT_EQ(recorder.intern("layers.3"), first);
}

TEST(Recorder, RefusesANegativeCapacity) { EXPECT_THROW(Recorder(-1), Failure); }

TEST(Recorder, ChromeTraceIsWhatTheViewerReads) {
  Recorder recorder(4);
  Event gather = mark("all_gather", 2000);
  gather.kind = EventKind::kCollective;
  gather.unit = "layers.0";
  gather.group = "dp";
  gather.dtype = TPFSDP_DTYPE_BF16;
  gather.world_size = 4;
  gather.count = 10;
  gather.output_count = 40;
  gather.sequence = 7;
  recorder.end(recorder.record(gather), 5500);
  recorder.record(mark("step \xff 1", 6000));  // not UTF-8: replaced, not refused
  Event reshard = mark("", 7000);
  reshard.kind = EventKind::kReshard;
  recorder.record(reshard);

  const auto trace = nlohmann::json::parse(recorder.chrome_trace(2));
  EXPECT_EQ(trace["otherData"]["events_lost"], false);
  std::vector<nlohmann::json> events;
  std::string process;
  std::set<std::string> threads;
  for (const auto &event : trace["traceEvents"]) {
    EXPECT_EQ(event["pid"], 2);
    if (event["ph"] != "M") {
      events.push_back(event);
    } else if (event["name"] == "process_name") {
      process = event["args"]["name"];
    } else {
      threads.insert(event["args"]["name"]);
    }
  }
  EXPECT_EQ(process, "rank 2");
  EXPECT_EQ(threads, (std::set<std::string>{"collectives", "hooks and units"}));
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0]["name"], "all_gather layers.0");
  EXPECT_EQ(events[0]["ph"], "X");
  EXPECT_EQ(events[0]["ts"], 2.0);  // microseconds
  EXPECT_EQ(events[0]["dur"], 3.5);
  EXPECT_EQ(events[0]["args"]["dtype"], "bf16");
  EXPECT_EQ(events[0]["args"]["sequence"], 7);
  EXPECT_EQ(events[0]["args"]["group"], "dp");
  EXPECT_EQ(events[1]["ph"], "i");
  EXPECT_EQ(events[1]["s"], "t");
  EXPECT_EQ(events[2]["name"], "reshard");
}

}  // namespace
}  // namespace tpfsdp
