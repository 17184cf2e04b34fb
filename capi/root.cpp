// SPDX-License-Identifier: Apache-2.0
#include "fsdp/root.hpp"

#include "fsdp/plan_report.hpp"
#include "fsdp/write_window.hpp"
#include "guard.hpp"
#include "handle.hpp"
#include "list.hpp"
#include "options.hpp"

#include <tpfsdp/root.h>

using namespace tpfsdp;
using namespace tpfsdp::capi;

extern "C" {

tpfsdp_status tpfsdp_root_prepare(tpfsdp_module *root, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    root_of(entry.get<Module>(root, "root"), "tpfsdp_root_prepare").prepare(true);
  });
}

tpfsdp_status tpfsdp_root_fail(tpfsdp_module *module, const char *why, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    report_failure(entry.get<Module>(module, "module"), &required(why, "why"));
  });
}

tpfsdp_status tpfsdp_root_get_memory_info(tpfsdp_module *root, tpfsdp_memory_info *out_info,
                                          tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry(Entry::Mode::kAsk);
    const Root &tree = settled_root(entry.get<Module>(root, "root"), "tpfsdp_root_get_memory_info");
    const MemoryReport report = tree.memory_report();
    tpfsdp_memory_info info{};
    info.slot_count = tree.planned_slots;
    info.grad_slot_count = tree.planned_grad_slots;
    info.spare_slot_count = report.spare_slots;
    info.shard_bytes = report.shard_bytes;
    info.cast_bytes = report.cast_bytes;
    info.grad_shard_bytes = report.grad_shard_bytes;
    info.slot_bytes = report.slot_bytes;
    info.grad_slot_bytes = report.grad_slot_bytes;
    info.part_bytes = report.part_bytes;
    info.accumulator_bytes = report.accumulator_bytes;
    info.host_bytes = tree.host_bytes;
    info.total_bytes = tree.account.held();
    info.planned_peak_bytes = tree.planned_bytes;
    info.peak_bytes = tree.account.peak();
    write_info(out_info, info, "out_info");
  });
}

tpfsdp_status tpfsdp_root_export_plan(tpfsdp_module *root, tpfsdp_plan_format format, tpfsdp_blob **out_text,
                                      tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry(Entry::Mode::kAsk);
    required(out_text, "out_text");
    const PlanReport report = report_plan(settled_root(entry.get<Module>(root, "root"), "tpfsdp_root_export_plan"));
    std::string text;
    switch (format) {
      case TPFSDP_PLAN_DEFAULT:
      case TPFSDP_PLAN_JSON: text = plan_as_json(report); break;
      case TPFSDP_PLAN_HTML: text = plan_as_html(report); break;
      case TPFSDP_PLAN_TEXT: text = plan_as_text(report); break;
      default: fail(TPFSDP_ERR_INVALID_ARGUMENT, "format is ", format, "; JSON (1), HTML (2) or TEXT (3) is needed");
    }
    *out_text = owned<tpfsdp_blob>(make<Blob>(std::move(text)).get());
  });
}

tpfsdp_status tpfsdp_shards_begin_write(tpfsdp_module *root, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    begin_write(root_of(entry.get<Module>(root, "root"), "tpfsdp_shards_begin_write"));
  });
}

tpfsdp_status tpfsdp_shards_end_write(tpfsdp_module *root, tpfsdp_error **error) TPFSDP_NOEXCEPT {
  return guard(error, [&] {
    Entry entry;
    end_write(root_of(entry.get<Module>(root, "root"), "tpfsdp_shards_end_write"));
  });
}

}  // extern "C"
