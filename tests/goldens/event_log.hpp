// SPDX-License-Identifier: Apache-2.0
// The events of the library's ring as the lines of a golden's log. The counts of collectives are PyTorch's padded ones,
// printed from the shapes; our own bytes are checked elsewhere.
#pragma once

#include "goldens/model.hpp"

namespace goldens {

class EventLog {
 public:
  EventLog(const Golden &golden, const Model &model, tpfsdp_context *context)
      : golden_(golden), model_(model), context_(context) {}

  // Ends the phase before, if there is one, and begins another.
  void begin(const std::string &phase);
  // The lines since the last take.
  json take();

 private:
  void end_phase();
  void append(const tpfsdp_trace_event &event);
  void append_collective(const tpfsdp_trace_event &event);
  int64_t padded_elements(const json &param) const;
  int64_t gathered_elements(const std::string &unit, bool as_bytes) const;
  int64_t reduced_elements() const;

  const Golden &golden_;
  const Model &model_;
  tpfsdp_context *context_;
  json lines_ = json::array();
  std::string reducing_;  // names of parameters, as the last RED line has them
};

}  // namespace goldens
