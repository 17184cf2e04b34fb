// SPDX-License-Identifier: Apache-2.0
// The plan as JSON, for a terminal, and as one HTML page that stands by itself.
#include "fsdp/plan_report.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace tpfsdp {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const PlanReport::Parameter &param) {
  Json rows = Json::array();
  for (const RowRange &range : param.owned) rows.push_back({range.begin, range.end});
  return {{"name", param.name},
          {"dtype", param.dtype},
          {"compute_dtype", param.full_dtype},
          {"reduce_dtype", param.reduce_dtype},
          {"shape", param.shape},
          {"trainable", param.trainable},
          {param.in_elements ? "elements_of_ranks" : "rows_of_ranks", rows}};
}

Json json_of(const PlanReport::Unit &unit) {
  Json params = Json::array();
  for (const PlanReport::Parameter &param : unit.parameters) params.push_back(json_of(param));
  return {{"name", unit.name},
          {"group", unit.group},
          {"ranks", unit.ranks},
          {"reshard_after_forward", unit.reshard},
          {"unshard_mode", unit.unshard_mode},
          {"unshard_reason", unit.unshard_reason},
          {"slot", unit.slot},
          {"grad_slot", unit.grad_slot},
          {"storage", unit.is_host_memory ? "host" : "library"},
          {"shard_bytes", unit.shard_bytes},
          {"full_bytes", unit.full_bytes},
          {"padding_bytes", unit.padding_bytes},
          {"grad_bytes", unit.grad_bytes},
          {"gathers_per_step", unit.gathers},
          {"gathered_bytes_per_step", unit.gathered_bytes},
          {"reductions_per_step", unit.reductions},
          {"reduced_bytes_per_step", unit.reduced_bytes},
          {"parameters", params}};
}

using Rows = std::vector<std::vector<std::string>>;

std::string number(int64_t value) {
  std::string digits = std::to_string(value);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

std::string slot_text(const PlanReport::Unit &unit) {
  return unit.is_host_memory ? "host" : unit.slot < 0 ? "-" : std::to_string(unit.slot);
}

Rows unit_rows(const PlanReport &report) {
  Rows rows{{"unit", "ranks", "reshard", "mode", "slot", "gradient slot", "shard", "full", "padding", "gathers",
             "reductions", "received"}};
  for (const PlanReport::Unit &unit : report.units)
    rows.push_back({unit.name, std::to_string(unit.ranks), unit.reshard, unit.unshard_mode, slot_text(unit),
                    unit.grad_slot < 0 ? "-" : std::to_string(unit.grad_slot), number(unit.shard_bytes),
                    number(unit.full_bytes), number(unit.padding_bytes), std::to_string(unit.gathers),
                    std::to_string(unit.reductions), number(unit.gathered_bytes + unit.reduced_bytes)});
  rows.push_back({"all", "", "", "", "", "", number(report.shard_bytes), "", "", std::to_string(report.gathers()),
                  std::to_string(report.reductions()), number(report.received_bytes())});
  return rows;
}

std::string owned_text(const PlanReport::Parameter &param, const RowRange &range) {
  return range.count() == 0 ? "none" : cat(param.in_elements ? "elements " : "", range.begin, "-", range.end - 1);
}

std::string dtype_text(const PlanReport::Parameter &param) {
  return param.full_dtype == param.dtype ? param.dtype : cat(param.dtype, " as ", param.full_dtype);
}

Rows owner_rows(const PlanReport &report) {
  int32_t most = 1;
  for (const PlanReport::Unit &unit : report.units) most = std::max(most, unit.ranks);
  Rows rows{{"parameter", "unit", "dtype", "shape"}};
  for (int32_t rank = 0; rank < most; ++rank) rows[0].push_back(cat("rank ", rank));
  for (const PlanReport::Unit &unit : report.units) {
    for (const PlanReport::Parameter &param : unit.parameters) {
      rows.push_back(
          {cat(param.name, param.trainable ? "" : " (frozen)"), unit.name, dtype_text(param), shape_text(param.shape)});
      for (const RowRange &range : param.owned) rows.back().push_back(owned_text(param, range));
      rows.back().resize(rows[0].size());
    }
  }
  return rows;
}

Rows memory_rows(const PlanReport &report) {
  Rows rows{{"memory of this rank", "bytes"}};
  rows.push_back({"shards of parameters", number(report.shard_bytes)});
  if (report.cast_bytes > 0) rows.push_back({"shards as they are gathered", number(report.cast_bytes)});
  rows.push_back({"shards of gradients", number(report.grad_shard_bytes)});
  for (size_t i = 0; i < report.slot_bytes.size(); ++i)
    rows.push_back({cat("slot ", i, " for full parameters"), number(report.slot_bytes[i])});
  for (size_t i = 0; i < report.grad_slot_bytes.size(); ++i)
    rows.push_back({cat("slot ", i, " for full gradients"), number(report.grad_slot_bytes[i])});
  if (report.part_bytes > 0) rows.push_back({"parts between forward and backward", number(report.part_bytes)});
  rows.push_back({"planned peak", number(report.peak_bytes)});
  return rows;
}

void append_table(std::string &out, const Rows &rows) {
  std::vector<size_t> widths(rows[0].size());
  for (const auto &row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto &row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      line += (i == 0 ? row[i] + space : "  " + space + row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
}

std::string escaped(const std::string &text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      default: out += c;
    }
  }
  return out;
}

void append_html_table(std::string &out, const Rows &rows) {
  out += "<table>\n";
  for (size_t i = 0; i < rows.size(); ++i) {
    out += "<tr>";
    for (const std::string &cell : rows[i]) {
      const char *const tag = i == 0 ? "th" : "td";
      out += cat("<", tag, ">", escaped(cell), "</", tag, ">");
    }
    out += "</tr>\n";
  }
  out += "</table>\n";
}

// Who shares memory: a row for each slot, its units as boxes as wide as they are.
void append_html_slots(std::string &out, const PlanReport &report) {
  for (size_t slot = 0; slot < report.slot_bytes.size(); ++slot) {
    const int64_t whole = std::max<int64_t>(1, *std::max_element(report.slot_bytes.begin(), report.slot_bytes.end()));
    out += cat("<h3>Slot ", slot, ", ", number(report.slot_bytes[slot]), " bytes</h3>\n");
    for (const PlanReport::Unit &unit : report.units) {
      if (unit.slot != static_cast<int32_t>(slot)) continue;
      out += cat("<div class=bar style='width:", 100 * unit.full_bytes / whole, "%'>", escaped(unit.name), "</div>\n");
    }
  }
}

}  // namespace

std::string plan_as_json(const PlanReport &report) {
  Json units = Json::array();
  for (const PlanReport::Unit &unit : report.units) units.push_back(json_of(unit));
  const Json json = {{"rank", report.rank},
                     {"units", units},
                     {"slot_bytes", report.slot_bytes},
                     {"grad_slot_bytes", report.grad_slot_bytes},
                     {"shard_bytes", report.shard_bytes},
                     {"cast_bytes", report.cast_bytes},
                     {"grad_shard_bytes", report.grad_shard_bytes},
                     {"part_bytes", report.part_bytes},
                     {"planned_peak_bytes", report.peak_bytes},
                     {"gathers_per_step", report.gathers()},
                     {"reductions_per_step", report.reductions()},
                     {"received_bytes_per_step", report.received_bytes()}};
  // Names are the host's: what is not UTF-8 is replaced, not refused.
  return json.dump(1, ' ', false, Json::error_handler_t::replace);
}

std::string plan_as_text(const PlanReport &report) {
  std::string out =
      cat("Plan of rank ", report.rank, ": bytes, and counts of a step of one forward and one backward\n\n");
  append_table(out, unit_rows(report));
  out += "\nRows of dimension 0 that each rank owns\n\n";
  append_table(out, owner_rows(report));
  out += "\n";
  append_table(out, memory_rows(report));
  return out;
}

std::string plan_as_html(const PlanReport &report) {
  std::string out =
      "<!doctype html>\n<meta charset=utf-8>\n<title>Sharding plan</title>\n<style>body{font:15px sans-serif;max-width:"
      "75em;margin:2em auto}table{border-collapse:collapse}td,th{border:1px solid #bbb;padding:.2em .6em;text-align:"
      "right}td:first-child,th:first-child{text-align:left}.bar{background:#cfe3f7;border:1px solid #7aa7d3;margin:2px "
      "0;padding:.1em .4em;white-space:nowrap}</style>\n";
  out += cat("<h1>Sharding plan of rank ", report.rank, "</h1>\n");
  out += "<p>Bytes, and counts of a step of one forward and one backward with sync.</p>\n<h2>Units</h2>\n";
  append_html_table(out, unit_rows(report));
  out += "<h2>Who owns what</h2>\n<p>Rows of dimension 0.</p>\n";
  append_html_table(out, owner_rows(report));
  out += "<h2>Memory</h2>\n";
  append_html_table(out, memory_rows(report));
  out += "<h2>Which units share memory</h2>\n";
  append_html_slots(out, report);
  return out;
}

}  // namespace tpfsdp
